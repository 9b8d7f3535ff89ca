# SPDX-License-Identifier: Apache-2.0
"""A bound symbol -> the proxies it reads, makes and writes in place, and those that share memory.

    t3 = cat([t1, t2], 0)  ->  reads: t1, t2; makes: t3
    t3 = copy_(t1, t2)     ->  reads: t1, t2; makes: t3; writes t2, whose new name is t3

Thunder's own `flat_proxy_args` and `flat_proxy_outs` return the same, but cache it: each keeps four
objects as long as the bound symbol lives, and a compiled function keeps its bound symbols. So this
package never asks these properties (docs/caches.md, "What a compiled function keeps alive").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.devices import Device
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_flatten_with_dataclass
from thunder.core.symbol import BoundSymbol, has_tags
from thunder.distributed.prims import PrimIDs as DistPrims
from thunder.extend import OperatorExecutor

PLAIN = frozenset({int, float, bool, complex, str, type(None), Device, torch.device, torch.dtype,
                   dtypes.floating, dtypes.signedinteger, dtypes.bool_, type})  # fmt: skip
VIEWS = frozenset({
    PrimIDs.RESHAPE, PrimIDs.TRANSPOSE, PrimIDs.SQUEEZE, PrimIDs.SHALLOW_COPY,
    PrimIDs.BROADCAST_IN_DIM, PrimIDs.SLICE, PrimIDs.REAL, PrimIDs.IMAG,
})  # fmt: skip
MOVES = VIEWS | {PrimIDs.STRIDE_ORDER}
# Torch's executor gives collectives, in-place copies and fences its own symbols, whose ids are
# strings. It has claimed the collectives of a trace with gradients already.
COLLECTIVES = frozenset({*DistPrims, *(f"torch_{id.name.lower()}_prim_impl" for id in DistPrims)})
COPIES = frozenset({PrimIDs.COPY_, "copy_"})
FENCES = frozenset({PrimIDs.UPDATE_ALIASES, "update_aliases"})
RENAMES = COPIES | FENCES  # what they make is an operand, or has the value of one
_SHARING = VIEWS | {
    PrimIDs.STRIDE_ORDER, PrimIDs.UNFOLD, PrimIDs.VIEW, PrimIDs.BITCAST, PrimIDs.DEVICE_PUT,
} | {prim for prim in PrimIDs if prim.name.startswith(("CONSTRUCT_", "PACK_", "UNPACK_"))}
# The executor of torch's functions that have torch's own gradients; none draws random numbers.
TORCH_KERNELS = OperatorExecutor("thunder_fuser_kernels")
TORCH_VIEWS = frozenset(
    sym.name for sym in (*ltorch._syms_returning_views, *ltorch._syms_that_may_return_views)
)
SIXTEEN_BITS = frozenset({dtypes.bfloat16, dtypes.float16})
NEW_MEMORY = "new memory"  # a tag of primitives here: what they make shares no memory
_OWN_MEMORY = {OpTags.RANDOM_OP, OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD, NEW_MEMORY}

NameTuple = tuple[str, ...]


def reads(bsym: BoundSymbol) -> list[Proxy]:
    """The proxies among its arguments. An input read twice appears twice."""
    named = [bsym.kwargs[name] for name in sorted(bsym.kwargs)] if bsym.kwargs else []
    return _proxies([*bsym.args, *named])


def makes(bsym: BoundSymbol) -> list[Proxy]:
    """The proxies among its results."""
    output = bsym.output
    return [output] if isinstance(output, Proxy) else _proxies((output,))


def parts(bsym: BoundSymbol) -> Iterator[BoundSymbol]:
    """The bound symbols it consists of, down to those without parts; itself if it has none."""
    if not bsym.subsymbols:
        yield bsym
    for part in bsym.subsymbols:
        yield from parts(part)


def overwritten(bsym: BoundSymbol) -> Iterator[Proxy]:
    """The tensors it writes in place, itself or, as torch's silu(x, inplace=True), in a part."""
    return (reads(part)[1] for part in parts(bsym) if part.sym.id in COPIES)


def renamed_by(bsym: BoundSymbol) -> Iterator[tuple[Proxy, Proxy]]:
    """Each result of an in-place copy or a fence, behind the operand whose value it has.

    t3 = copy_(t1, t2), also in torch's copy_(t2, t1)  ->  (t1, t3)
    (t4, t5) = update_aliases((t1, t2))                ->  (t1, t4), (t2, t5)
    """
    return (pair for part in parts(bsym) for pair in zip(reads(part), makes(part), strict=False))


def written_by(bsym: BoundSymbol) -> Iterator[NameTuple]:
    """Each tensor it writes, by old and new name; a fence counts as a write of all its operands."""
    for part in parts(bsym):
        if part.sym.id in COPIES:
            yield (reads(part)[1].name, *(out.name for out in makes(part)))
        elif part.sym.id in FENCES:
            yield _names(part)


def shared_by(bsym: BoundSymbol, *, in_torch: bool = False) -> Iterator[NameTuple]:
    """The operands and results of each part that may give back the memory of an operand.

    Thunder's primitives allocate their results, except those in _SHARING. So do ops with a tag of
    _OWN_MEMORY. Nothing is known of the others: torch functions that Thunder passes on
    (x.detach()), users' operators, collectives. An in-place copy returns what it writes: see
    `written_by`. in_torch: torch runs the symbol as a whole, so it may be a view though none of its
    parts is: `x.diagonal()`.
    """
    if in_torch and bsym.sym.name in TORCH_VIEWS:
        yield _names(bsym)
    for part in parts(bsym):
        if part.sym.id in COPIES:
            continue
        is_known = isinstance(part.sym.id, PrimIDs) or has_tags(part, _OWN_MEMORY)
        if part.sym.id in _SHARING or not is_known:
            yield _names(part)


def replaces(source: Proxy, target: Proxy) -> bool:
    """True if a copy of one into the other replaces all of it and changes no element."""
    both = isinstance(source, TensorProxy) and isinstance(target, TensorProxy)
    return both and (source._shape, source.dtype, source.device) == (
        target._shape, target.dtype, target.device
    )  # fmt: skip


def is_product(bsym: BoundSymbol) -> bool:
    """True for one matrix product and nothing else: its result is row-major, in new memory."""
    part, *more = parts(bsym)
    return not more and has_tags(part, {OpTags.MATMUL_OP})


def elements_of(proxy: Proxy) -> int:
    """The number of elements of a tensor; 0 for any other value."""
    return prod(int(size) for size in proxy._shape) if isinstance(proxy, TensorProxy) else 0


def bytes_of(proxy: Proxy) -> int:
    """The bytes of a tensor; 0 for any other value, which is passed along."""
    return elements_of(proxy) * proxy.dtype.bytes if isinstance(proxy, TensorProxy) else 0


def _names(bsym: BoundSymbol) -> NameTuple:
    return tuple(proxy.name for proxy in (*reads(bsym), *makes(bsym)))


def _proxies(values: Iterable[Any]) -> list[Proxy]:
    """The proxies in the values, in the order of Thunder's pytrees."""
    return [
        proxy for value in values if type(value) not in PLAIN
        for proxy in ((value,) if isinstance(value, Proxy) else _proxies(value)
                      if type(value) in (tuple, list, torch.Size) else _inside(value))
    ]  # fmt: skip


def _inside(value: Any) -> list[Proxy]:
    return [x for x in tree_flatten_with_dataclass((value,))[0] if isinstance(x, Proxy)]
