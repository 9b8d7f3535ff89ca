# SPDX-License-Identifier: Apache-2.0
"""The ops of a trace -> who reads a value, which memory it has, and what is written.

    v = reshape(x); t = copy_(a, v)  ->  memory: x, v and t share one; written: x, v, t

Each answer is computed when it is first asked for, and once. It is the only place that does so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from thunder.core.prims import PrimIDs

from thunder_fuser.base.threads import cached_property
from thunder_fuser.base.union_find import UnionFind
from thunder_fuser.trace.op import Op, alike
from thunder_fuser.trace.proxies import FENCES, NameTuple


class Memory:
    """Which values may share memory."""

    def __init__(self, groups: Iterable[NameTuple] = ()) -> None:
        self._classes: UnionFind[str] = UnionFind()
        self._members: dict[str, set[str]] = {}  # by the name of their class
        self.join(groups)

    def join(self, groups: Iterable[NameTuple]) -> None:
        """Adds groups of names of which all may share one memory."""
        for first, *others in filter(None, groups):
            members = self._members.setdefault(self.of(first), {first})
            for name in others:
                if name not in members:
                    members |= self._members.pop(self.of(name), {name})
                    self._classes.join(first, name)

    def of(self, name: str) -> str:
        """One name for all values that may share memory with this one."""
        return self._classes.find(name)

    def sharing(self, names: Iterable[str]) -> set[str]:
        """The names, of those in any group, that may share memory with one of these."""
        return set().union(*(self._members.get(self.of(name), ()) for name in names))


class DataFlow:
    """Answers about the values of a list of ops."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """{value: the places of the ops that read it, in order}"""
        readers: dict[str, list[int]] = {}
        for at, op in enumerate(self.ops):
            for name in op.read_names:
                readers.setdefault(name, []).append(at)
        return readers

    @cached_property
    def memory(self) -> Memory:
        """Of all values. The tensors of one fence count as one memory."""
        return Memory(group for op in self.ops for group in (*op.writes, *op.shares))

    @cached_property
    def memory_behind_fences(self) -> Memory:
        """As `memory`, but a fence joins each tensor only to its own new name."""
        return Memory(
            group for op in self.ops
            for group in (
                zip(op.read_names, op.made_names, strict=True) if op.only(FENCES)
                else (*op.writes, *op.shares)
            )
        )  # fmt: skip

    @cached_property
    def written(self) -> set[str]:
        """The tensors that are written in place, and those that may share their memory.

        t2 = copy_(t1, x)  ->  x and t2, and the views of both; not t1, which is only read
        """
        names = {name for op in self.ops for group in op.writes for name in group}
        return self.memory.sharing(names) if names else set()

    @cached_property
    def crossing(self) -> set[str]:
        """Results of regions that torch, the caller or another region reads."""
        region = {n: op.region for op in self.ops if op.is_fusible for n in op.made_names}
        return {
            name for op in self.ops for name in op.read_names
            if region.get(name, op.region) != op.region
        }  # fmt: skip

    @cached_property
    def of_forward(self) -> DataFlow:
        """The answers about the forward alone."""
        return DataFlow([op for op in self.ops if not op.is_backward])

    def without(self, symbols: Collection[PrimIDs | str]) -> DataFlow:
        """The answers about the ops with other symbols than these."""
        return DataFlow([op for op in self.ops if op.bsym.sym.id not in symbols])


def runs(ops: Sequence[Op]) -> list[range]:
    """The longest runs of fusible neighbours that are alike; each op that torch runs is its own."""
    runs: list[range] = []
    start = 0
    for at in range(1, len(ops) + 1):
        ends = at == len(ops) or not (ops[at - 1].is_fusible and ops[at].is_fusible)
        if ends or not alike(ops[at - 1], ops[at]):
            runs.append(range(start, at))
            start = at
    return runs


def made_at(ops: Sequence[Op], places: Iterable[int]) -> set[str]:
    """The names that the ops at these places make."""
    return {name for at in places for name in ops[at].made_names}


def with_what_they_read(ops: Sequence[Op], free: Sequence[int], places: Iterable[int]) -> set[int]:
    """The places, and those of the free ops whose results they read, directly or through others."""
    closed = set(places)
    read = {name for at in closed for name in ops[at].read_names}
    for at in reversed(free):
        if at not in closed and ops[at].makes_any(read):
            closed.add(at)
            read.update(ops[at].read_names)
    return closed


def with_what_they_view(ops: Sequence[Op], names: set[str]) -> set[str]:
    """The names, and the names of the tensors that they are views of."""
    viewed = {*names}
    for op in reversed(ops):
        if op.is_view and op.makes_any(viewed):
            viewed.update(op.read_names)
    return viewed
