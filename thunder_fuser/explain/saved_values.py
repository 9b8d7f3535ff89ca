# SPDX-License-Identifier: Apache-2.0
"""A jitted function -> the values that its backward keeps of the forward, and those it recomputes.

    print(saved(jitted))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thunder_fuser.errors import InputError
from thunder_fuser.executors.regions.comments import Comments, counted, named
from thunder_fuser.explain.jitted import (
    Jitted,
    fusions_of,
    graphs_of,
    name_of,
    prefixed,
    recomputation_of,
)
from thunder_fuser.explain.shown import Shown, kib, plain, table
from thunder_fuser.rematerialization.apply import Recomputation
from thunder_fuser.rematerialization.forward import Forward
from thunder_fuser.rematerialization.plan import CutPlan, tags_of
from thunder_fuser.rematerialization.policy import CHECKPOINT, VIEW, WIDER, WRITTEN

_WHY = {
    CHECKPOINT: "a checkpoint of a residual stream",
    WRITTEN: "torch reads it in the backward",
    WIDER: "smaller than the values that it is computed from",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """A value of the forward that is kept. bytes: of its memory; of several values in one memory
    (a tensor and its views), the first counts it."""

    name: str
    kind: str
    bytes: int
    op: str
    why: str


@dataclass(frozen=True, slots=True)
class Again:
    """A fusion of the backward, or a matrix product that torch runs again: the values of the
    forward that it recomputes, and their ops.

    bytes: of those values that would have been kept otherwise.
    """

    fusion: str
    values: tuple[str, ...]
    ops: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Saved(Shown):
    """The values that the backward reads, kept or recomputed. It prints as tables of joined rows.

    bytes: the memory kept with the policy; before: the memory of all values that Thunder's gradient
    rules read. A tensor that is there anyway (an argument, a parameter) does not count.
    """

    plan: CutPlan
    bytes: int
    before: int
    kept: tuple[Kept, ...]
    again: tuple[Again, ...]
    name: str = ""

    def __repr__(self) -> str:
        return f"<saved by {self.name}: {kib(self.bytes)} KiB of {kib(self.before)} KiB>"

    def to_dict(self) -> dict[str, Any]:
        """Its entries as plain JSON types; times are estimated microseconds."""
        return {
            "name": self.name, "policy": self.plan.policy, "bytes": self.bytes,
            "before": self.before, "estimated_us": self.plan.time / 1e3,
            "estimated_us_before": self.plan.time_before / 1e3,
            "kept": plain(self.kept), "recomputed": plain(self.again),
        }  # fmt: skip

    def __str__(self) -> str:
        plan = self.plan
        head = (
            f"With the policy {plan.policy}, {self.name} keeps {kib(self.bytes)} KiB for its"
            f" backward; with Thunder's rules it would keep {kib(self.before)} KiB.\n"
            f"Estimated time to write, read and recompute: {plan.time / 1e3:.1f} us; with Thunder's"
            f" rules {plan.time_before / 1e3:.1f} us."
        )
        parts = [head, table(("kept", "made by", "why", "values", "KiB"), self._kept_rows())]
        if self.again:
            heads = ("recomputes", "values", "by", "KiB not kept, each")
            parts.append(table(heads, self._again_rows()))
        return "\n\n".join(parts) + "\n"

    def _kept_rows(self) -> list[Sequence[str]]:
        """(f32[2], exp, why, t1), (f32[2], exp, why, t4)  ->  (f32[2], exp, why, "t1, t4")"""
        groups: dict[tuple[str, str, str], list[Kept]] = {}
        for value in self.kept:
            groups.setdefault((value.kind, value.op, value.why), []).append(value)
        ordered = sorted(groups.items(), key=lambda row: -sum(value.bytes for value in row[1]))
        return [
            (*key, named([value.name for value in row]), kib(sum(value.bytes for value in row)))
            for key, row in ordered
        ]

    def _again_rows(self) -> list[Sequence[str]]:
        """One row for all fusions that recompute by the same ops."""
        groups: dict[tuple[tuple[str, ...], int], list[Again]] = {}
        for fusion in self.again:
            groups.setdefault((fusion.ops, fusion.bytes), []).append(fusion)
        return [
            (named([again.fusion for again in row]), named(row[0].values), counted(ops), kib(bytes))
            for (ops, bytes), row in groups.items()
        ]


def saved(jitted: Any) -> Saved:
    """The values that a function with gradients keeps, as it was compiled for its last call.

    Raises InputError for a function that was not called, or has no backward.
    """
    values = saved_in(jitted)
    if values is None:
        raise InputError(
            "explain", expected="a function jitted with this fuser, with gradients",
            got="one whose last compilation had no backward",
            do="call it with tensors that require gradients",
        )  # fmt: skip
    return values


def saved_in(jitted: Any) -> Saved | None:
    """As `saved`, or None if there is no backward. Graphs of torch.compile are added up."""
    parts = [
        _of_graph(prefix, graph, cut) for prefix, graph in prefixed(graphs_of(jitted))
        if (cut := recomputation_of(graph)) is not None
    ]  # fmt: skip
    return _joined(parts, name_of(jitted)) if parts else None


def _joined(parts: Sequence[Saved], name: str) -> Saved:
    plan = replace(
        parts[0].plan,
        time=sum(part.plan.time for part in parts),
        time_before=sum(part.plan.time_before for part in parts),
    )
    return Saved(
        plan, sum(part.bytes for part in parts), sum(part.before for part in parts),
        tuple(value for part in parts for value in part.kept),
        tuple(again for part in parts for again in part.again), name,
    )  # fmt: skip


def _of_graph(prefix: str, jitted: Jitted, cut: Recomputation) -> Saved:
    needed = [name for name, value in cut.forward.values.items() if value.needed]
    memory = _KeptMemory(cut.forward)
    return Saved(
        cut.plan, memory.bytes(cut.plan.kept), memory.bytes(needed),
        tuple(replace(kept, name=prefix + kept.name) for kept in _kept(cut, memory)),
        tuple(replace(again, fusion=prefix + again.fusion) for again in _again(cut, jitted)),
    )  # fmt: skip


class _KeptMemory:
    """The memory of the values of a forward. owner: {value: itself, or what it is a view of}."""

    def __init__(self, forward: Forward) -> None:
        self._sizes = {name: value.bytes for name, value in forward.values.items()}
        self.owner: dict[str, str] = {}
        for op in forward.operations:
            for value in op.outputs:
                source = op.inputs[0] if VIEW in value.tags and op.inputs else value.name
                self.owner[value.name] = self.owner.get(source, source)

    def bytes(self, names: Iterable[str]) -> int:
        """The bytes of all memory that the values lie in, each memory once."""
        return sum(self._sizes.get(name, 0) for name in {self.owner[name] for name in names})


def _kept(cut: Recomputation, memory: _KeptMemory) -> Iterator[Kept]:
    forward, tags = cut.forward, tags_of(cut.forward, cut.stages)
    counted: set[str] = set()
    for name in cut.plan.kept:
        op, owner = forward.operations[forward.maker[name]], memory.owner[name]
        size = 0 if owner in counted else memory.bytes([name])
        counted.add(owner)
        if owner != name:
            at = forward.maker.get(owner)
            why = "a view of " + ("an argument" if at is None else forward.operations[at].name)
        else:
            tagged = (why for tag, why in _WHY.items() if tag in tags[name])
            why = op.refusal or next(tagged, "the cheapest cut")
        yield Kept(name, cut.kinds.get(name, "a number"), size, op.name, why)


def _again(cut: Recomputation, jitted: Jitted) -> Iterator[Again]:
    comments, forward = Comments(cut), cut.forward
    for fusion in fusions_of(jitted):
        values = comments.recomputed(fusion.region)
        if values and not fusion.region.makes_views:
            ops = (forward.operations[forward.maker[name]].name for name in values)
            yield Again(fusion.name, tuple(values), tuple(ops), comments.bytes(values))
    for at in sorted(cut.plan.again):
        op = forward.operations[at]
        if op.product:
            (value,) = op.outputs
            copies = ", ".join(cut.copies[value.name])
            yield Again(f"{op.name} as {copies}", (value.name,), (op.name,), value.bytes)
