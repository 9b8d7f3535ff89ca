# SPDX-License-Identifier: Apache-2.0
"""Random primitives of a trace -> stateless ones, which the backward may repeat.

    t1 = prims.uniform((8, 8), 0.0, 1.0)    ->  s, o = draw_random(cpu, 1)
                                                t1 = random_uniform((8, 8), 0.0, 1.0, (s, o, 0))

With the option cuda_graphs, s and o are tensors on the device, which a replayed graph reads:

    s, o = draw_random_state(cuda, 1)

The backward can then recompute a mask from two integers, if rematerialization/ decides so. Note
[Random numbers] in ir/op_table.py says why a repeated value has the bits of the first.

Under torch.utils.checkpoint Thunder itself repeats the random primitive, as bw_t1. That one reads
the stream of t1, so that the recomputed forward has the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from thunder.core.devices import Device, to_device, to_torch_device
from thunder.core.dtypes import to_dtype, to_torch_dtype
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import TensorProxy, numberproxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.extend import OperatorExecutor

from thunder_fuser.runtime import random
from thunder_fuser.trace.op import Op, Rules
from thunder_fuser.trace.prepared import Prepared

STATELESS = OperatorExecutor("thunder_fuser_random")


# ---------------------------------------------------------------------- the stateless primitives


def _type_of(
    shape: Sequence[int], *rest: Any, device: torch.device, dtype: torch.dtype
) -> TensorProxy:
    return TensorProxy(shape=shape, device=to_device(device), dtype=to_dtype(dtype))


def _stateless(name: str, values: Callable[..., torch.Tensor]) -> Symbol:
    """The primitive. If no region takes it, torch makes the same numbers, op by op.

    stream: (a seed, an offset, a number to add to the offset).
    """

    def call(
        shape: Sequence[int], first: float, second: float, stream: tuple[int, int, int],
        *, device: torch.device, dtype: torch.dtype,
    ) -> torch.Tensor:  # fmt: skip
        seed, offset, number = stream
        integers = [torch.as_tensor(x, device=device) for x in (seed, offset + number)]
        reals = [torch.tensor(x, device=device, dtype=torch.float64) for x in (first, second)]
        return values(*reals, integers, shape, dtype).to(dtype)

    return STATELESS.register_operator(name, meta=_type_of, fn=call, tags=[OpTags.RANDOM_OP])


draw_random = STATELESS.register_operator(
    "draw_random",
    fn=random.draw,
    tags=[OpTags.RANDOM_OP],
    meta=lambda device, count: (numberproxy(int, None), numberproxy(int, None)),
)
draw_random_state = STATELESS.register_operator(
    "draw_random_state",
    fn=random.draw_state,
    tags=[OpTags.RANDOM_OP],
    meta=lambda device, count: tuple(
        _type_of((), device=device, dtype=torch.int64) for _ in range(2)
    ),
)
_STATELESS = {
    PrimIDs.UNIFORM: _stateless("random_uniform", random.uniform),
    PrimIDs.RANDN: _stateless("random_normal", random.normal),
}
RANDOM = frozenset(_STATELESS)


# -------------------------------------------------------------------------------------- the pass


def without_state(prepared: Prepared) -> Prepared:
    """Makes random primitives stateless: they take torch's seed as an operand."""
    if not any(map(_is_random, prepared.ops)):
        return prepared
    ops = [part for op in prepared.ops for part in _expanded(op, prepared.rules)]
    draw = draw_random_state if prepared.options.cuda_graphs else draw_random
    return prepared.with_ops(_with_streams(prepared.trace, ops, prepared.rules, draw))


def _is_random(op: Op) -> bool:
    return op.is_fusible and not _STATELESS.keys().isdisjoint(op.kinds)


def _expanded(op: Op, rules: Rules) -> Iterator[Op]:
    """The op, or its primitives if one of them is random."""
    if not _is_random(op):
        yield op
        return
    for leaf in op.leaves:
        yield op if leaf is op.bsym else rules.known(leaf.from_bsym(tags=leaf.tags | op.bsym.tags))


def _with_streams(trace: TraceCtx, ops: Sequence[Op], rules: Rules, draw: Symbol) -> list[Op]:
    """The ops with their random primitives reading streams, numbered in order. The state is drawn
    once for each device, at the start of the trace."""
    numbers: dict[Device, dict[str, int]] = {}
    for op in filter(_is_random, ops):
        streams = numbers.setdefault(op.bsym.output.device, {})
        streams.setdefault(_stream(op.bsym), len(streams))
    draws: list[Op] = []
    with tracectx(trace):
        for device, streams in numbers.items():
            args = to_torch_device(device), len(streams)
            draws.append(rules.op(draw.bind(*args, output=draw.meta(*args))))
    states = {device: op.bsym.output for device, op in zip(numbers, draws, strict=True)}

    def read(bsym: BoundSymbol) -> BoundSymbol:
        device = bsym.output.device
        return _read(bsym, (*states[device], numbers[device][_stream(bsym)]))

    ops = [rules.op(read(op.bsym)) if _is_random(op) else op for op in ops]
    start = next(at for at, op in enumerate(ops) if op.bsym.sym.id is not PrimIDs.UNPACK_TRIVIAL)
    return [*ops[:start], *draws, *ops[start:]]


def _stream(bsym: BoundSymbol) -> str:
    """One name for a random value and for its copies that a checkpoint recomputes.

    Thunder puts bw_ before the names of these copies.
    """
    return re.sub("^(bw_)*", "", bsym.output.name)


def _read(bsym: BoundSymbol, stream: tuple[Any, Any, int]) -> BoundSymbol:
    """The stateless primitive in place of a random one."""
    shape, *bounds = bsym.args
    first, second = bounds or (0.0, 1.0)
    stateless = _STATELESS[bsym.sym.id].bind(
        shape, first, second, stream,
        device=to_torch_device(bsym.output.device), dtype=to_torch_dtype(bsym.output.dtype),
        output=bsym.output,
    )  # fmt: skip
    stateless.tags |= bsym.tags
    stateless.header = bsym.header
    return stateless
