# SPDX-License-Identifier: Apache-2.0
"""How a pass makes two reductions of one.

    T1 = sum(T0: f32[8, 4, 16], dims=[0, 2], keepdim=True)
->  T2 = sum(T0, dims=[2]); T3 = sum(T2, dims=[0])          the two steps
    T1 = broadcast(T3, is_broadcast_dim=[True, False, True])    the axes that keepdim asks for
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from thunder_fuser.ir.build import define
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import OpRecord, names_of


@dataclass(frozen=True, slots=True)
class TwoSteps:
    """first: the dims that the first reduction reduces, in runs of `chunk` elements if that is not
    0; second: the dims of its result that the second one reduces."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    chunk: int = 0


def dims_of(record: OpRecord) -> tuple[int, ...]:
    """The dims that a reduction reduces."""
    return record.attr("dims")  # type: ignore[return-value]


def in_two_steps(fusion: Fusion, steps: Mapping[OpRecord, TwoSteps]) -> Fusion:
    """The fusion with each of these reductions in two steps."""
    if not steps:
        return fusion
    names = _FreshNames(fusion)
    records: list[OpRecord] = []
    for record in fusion.definition:
        own = steps.get(record)
        records += [record] if own is None else _written(fusion, record, own, names)
    return define(tuple(records))


def _written(
    fusion: Fusion, record: OpRecord, steps: TwoSteps, names: _FreshNames
) -> Iterator[OpRecord]:
    between, keepdim = names(), bool(record.attr("keepdim"))
    made = (names(),) if keepdim else record.outputs
    chunk = (("chunk", steps.chunk),) if steps.chunk else ()
    yield replace(record, outputs=(between,), attrs=(("dims", steps.first), *chunk))
    yield replace(record, inputs=(between,), outputs=made, attrs=(("dims", steps.second),))
    if keepdim:
        rank = len(fusion.tensors[names_of(record)[0]].shape)
        flags = tuple(at in dims_of(record) for at in range(rank))
        yield OpRecord("broadcast", made, record.outputs, (("is_broadcast_dim", flags),))


class _FreshNames:
    """Names that no value of a fusion has."""

    def __init__(self, fusion: Fusion) -> None:
        self._last = max(int(name[1:]) for name in fusion.tensors if name[1:].isdigit())

    def __call__(self) -> str:
        self._last += 1
        return f"T{self._last}"
