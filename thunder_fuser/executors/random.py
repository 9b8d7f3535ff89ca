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

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from thunder.core.devices import Device, to_device, to_torch_device
from thunder.core.dtypes import to_dtype, to_torch_dtype
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, numberproxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.extend import OperatorExecutor

from thunder_fuser.ir.language import Recorder
from thunder_fuser.runtime import random
from thunder_fuser.runtime.torch_types import from_torch_dtype
from thunder_fuser.trace.op import Op, Rules
from thunder_fuser.trace.prepared import Prepared

STATELESS = OperatorExecutor("thunder_fuser_random")

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


# -------------------------------------------------------------------------------------- the pass


def without_state(prepared: Prepared) -> Prepared:
    """The trace with random primitives made stateless."""
    if all(_RANDOM.isdisjoint(op.kinds) for op in prepared.ops):
        return prepared
    ops = [part for op in prepared.ops for part in _expanded(op, prepared.rules)]
    return prepared.with_ops(_stateless(prepared.trace, ops, prepared.rules))


def _expanded(op: Op, rules: Rules) -> Iterator[Op]:
    """The op, or its primitives if one of them is random."""
    if _RANDOM.isdisjoint(op.kinds) or not op.is_fusible:
        yield op
        return
    for leaf in op.leaves:
        yield op if leaf is op.bsym else rules.known(leaf.from_bsym(tags=leaf.tags | op.bsym.tags))


def _stateless(trace: TraceCtx, ops: Sequence[Op], rules: Rules) -> list[Op]:
    """Random primitives read streams numbered in order, of a state drawn once a device."""
    numbers: dict[Device, dict[str, int]] = {}
    for op in ops:
        if _is_taken(op):
            streams = numbers.setdefault(op.bsym.output.device, {})
            streams.setdefault(_stream(op.bsym), len(streams))
    draws: list[Op] = []
    states: dict[Device, tuple[Proxy, Proxy]] = {}
    with tracectx(trace):
        for device, streams in numbers.items():
            states[device] = _drawn(to_torch_device(device), len(streams))
            draws.append(rules.op(
                draw_random.bind(to_torch_device(device), len(streams), output=states[device])
            ))  # fmt: skip
    made = [rules.op(_read(op.bsym, states, numbers)) if _is_taken(op) else op for op in ops]
    start = next(at for at, op in enumerate(made) if op.bsym.sym.id is not PrimIDs.UNPACK_TRIVIAL)
    return [*made[:start], *draws, *made[start:]]


def _is_taken(op: Op) -> bool:
    return op.bsym.sym.id in _RANDOM and op.is_fusible


def _stream(bsym: BoundSymbol) -> str:
    """One name for a random value and what a checkpoint recomputes of it."""
    name = str(bsym.output.name)
    while name.startswith(_RECOMPUTED):
        name = name.removeprefix(_RECOMPUTED)
    return name


def _read(
    bsym: BoundSymbol,
    states: Mapping[Device, tuple[Proxy, Proxy]],
    numbers: Mapping[Device, Mapping[str, int]],
) -> BoundSymbol:
    """A random primitive as element by element of a stream."""
    device = bsym.output.device
    state, number = states[device], numbers[device][_stream(bsym)]
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
