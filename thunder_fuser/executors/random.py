# SPDX-License-Identifier: Apache-2.0
"""Random primitives of a trace -> stateless ones, which the backward may repeat.

    t1 = prims.uniform((8, 8), 0.0, 1.0)    ->  s, o = draw_random(cpu, 1)
                                                t1 = random_uniform((8, 8), 0.0, 1.0, (s, o, 0))

What the backward needs of a mask is then two integers; rematerialization/ decides. See Note [Random
numbers] in ir/op_table.py for why a repeated value has the bits of the first.

Under torch.utils.checkpoint Thunder repeats the random primitive itself, as bw_t1: it gets the
stream of t1, without which the recomputed forward would be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from thunder.core.devices import Device, to_device, to_torch_device
from thunder.core.dtypes import to_dtype, to_torch_dtype
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, numberproxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace, tracectx
from thunder.extend import OperatorExecutor

from thunder_fuser.ir.language import Recorder
from thunder_fuser.runtime import random
from thunder_fuser.runtime.torch_types import from_torch_dtype

STATELESS = OperatorExecutor("thunder_fuser_random")

Leaves = Callable[[BoundSymbol], Iterator[BoundSymbol]]
Supported = Callable[[BoundSymbol], bool]

_RANDOM = frozenset({PrimIDs.UNIFORM, PrimIDs.RANDN})
_RECOMPUTED = "bw_"  # what Thunder puts before the names of a checkpoint's recomputed values


# ---------------------------------------------------------------------- the stateless primitives


def _drawn(device: torch.device, count: int) -> tuple[Any, Any]:
    return numberproxy(int, None), numberproxy(int, None)


def _element_type(
    shape: Sequence[int],
    first: Any,
    second: Any,
    stream: tuple[Any, Any, int],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> TensorProxy:
    """stream: a seed, an offset and what to add to it."""
    return TensorProxy(shape=shape, device=to_device(device), dtype=to_dtype(dtype))


def _in_torch(values: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The function of a primitive that no region has taken: the same numbers, op by op."""

    def call(
        shape: Sequence[int],
        first: float,
        second: float,
        stream: tuple[int, int, int],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        seed, offset, number = stream
        integers = [torch.tensor(x, device=device) for x in (seed, offset + number)]
        reals = [torch.tensor(x, device=device, dtype=torch.float64) for x in (first, second)]
        return values(*reals, integers, shape, dtype).to(dtype)

    return call


draw_random = STATELESS.register_operator(
    "draw_random", meta=_drawn, fn=random.draw, tags=[OpTags.RANDOM_OP]
)
random_uniform = STATELESS.register_operator(
    "random_uniform", meta=_element_type, fn=_in_torch(random.uniform), tags=[OpTags.RANDOM_OP],
)
random_normal = STATELESS.register_operator(
    "random_normal", meta=_element_type, fn=_in_torch(random.normal), tags=[OpTags.RANDOM_OP],
)


def recorded(name: str) -> Callable[..., Any]:
    """How a random primitive, with or without a stream, is written in the fuser's own language."""

    def record(
        fd: Recorder, shape: Any, first: Any = 0.0, second: Any = 1.0, stream: Any = None,
        *, device: Any, dtype: Any, seed: Any = None, offset: Any = None,
    ) -> Any:  # fmt: skip
        if stream is not None:
            seed, start, number = stream
            offset = fd.ops.add(start, number) if number else start
        given = () if seed is None else (seed, offset)
        wanted = from_torch_dtype(to_torch_dtype(to_dtype(dtype)))
        return getattr(fd.ops, name)(first, second, list(shape), wanted, *given)

    return record


# ------------------------------------------------------------------------------------ the passes


def without_state(trace: TraceCtx, supported: Supported, leaves_of: Leaves) -> TraceCtx:
    """The trace with random primitives made stateless.

    supported: whether a bound symbol can be fused; leaves_of: the primitives of one that can.
    """
    if not any(map(_has_random, trace.bound_symbols)):
        return trace
    bsyms = [part for bsym in trace.bound_symbols for part in _apart(bsym, supported, leaves_of)]
    new = from_trace(trace)
    new.bound_symbols = _stateless(new, bsyms, supported)
    new.set_provenance(TraceProvenance("Random numbers without state"))
    return new


def _has_random(bsym: BoundSymbol) -> bool:
    return bsym.sym.id in _RANDOM or any(map(_has_random, bsym.subsymbols))


def _apart(bsym: BoundSymbol, supported: Supported, leaves_of: Leaves) -> Iterator[BoundSymbol]:
    """The bound symbol, or its primitives if one of them is random."""
    if not (bsym.subsymbols and _has_random(bsym) and supported(bsym)):
        yield bsym
        return
    for leaf in leaves_of(bsym):
        yield leaf.from_bsym(tags=leaf.tags | bsym.tags)


def _stateless(
    trace: TraceCtx, bsyms: Sequence[BoundSymbol], supported: Supported
) -> list[BoundSymbol]:
    """Random primitives read streams numbered in order, of a state drawn once a device."""
    numbers: dict[Device, dict[str, int]] = {}
    taken = [bsym.sym.id in _RANDOM and supported(bsym) for bsym in bsyms]
    for bsym, is_taken in zip(bsyms, taken, strict=True):
        if is_taken:
            streams = numbers.setdefault(bsym.output.device, {})
            streams.setdefault(_stream(bsym), len(streams))
    draws: list[BoundSymbol] = []
    states: dict[Device, tuple[Proxy, Proxy]] = {}
    with tracectx(trace):
        for device, streams in numbers.items():
            states[device] = _drawn(to_torch_device(device), len(streams))
            draws.append(
                draw_random.bind(to_torch_device(device), len(streams), output=states[device])
            )
    made = [
        _read(bsym, states[bsym.output.device], numbers[bsym.output.device][_stream(bsym)])
        if is_taken
        else bsym
        for bsym, is_taken in zip(bsyms, taken, strict=True)
    ]
    start = next(at for at, b in enumerate(made) if b.sym.id is not PrimIDs.UNPACK_TRIVIAL)
    return [*made[:start], *draws, *made[start:]]


def _stream(bsym: BoundSymbol) -> str:
    """One name for a random value and what a checkpoint recomputes of it."""
    name = str(bsym.output.name)
    while name.startswith(_RECOMPUTED):
        name = name.removeprefix(_RECOMPUTED)
    return name


def _read(bsym: BoundSymbol, state: tuple[Proxy, Proxy], number: int) -> BoundSymbol:
    """A random primitive as element by element of a stream."""
    shape, *given = bsym.args
    first, second = given or (0.0, 1.0)
    symbol = random_uniform if bsym.sym.id is PrimIDs.UNIFORM else random_normal
    made = symbol.bind(
        shape, first, second, (*state, number),
        device=to_torch_device(bsym.output.device), dtype=to_torch_dtype(bsym.output.dtype),
        output=bsym.output,
    )  # fmt: skip
    made.tags |= bsym.tags
    made.header = bsym.header
    return made
