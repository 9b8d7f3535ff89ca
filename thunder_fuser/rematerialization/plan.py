# SPDX-License-Identifier: Apache-2.0
"""Facts of a forward, a policy, a machine -> a Plan: what is kept and what is recomputed.

Note [Bounded chains]: x1 = x0 + a1, x2 = x1 + a2, ... is a stream: each value is made of the one
before, in another region. Recomputed from x0 it would take all of a1 ... ak, and the region that
does so would grow with the depth of the model. So a value with `stages` values of streams between
it and the last checkpoint is a checkpoint itself. A chain then crosses at most `stages` + 1 regions
of the forward, whatever the depth; and as the checkpoints lie at equal distances, layers that are
alike give at most `stages` + 1 kinds of regions, whose kernels they share. A value that is made of
little more bytes than its own (a norm's result: its input, and statistics) counts as no stage of a
stream; but no chain reads more than _Sources._MOST values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from thunder_fuser.rematerialization.cost import Cost, Machine
from thunder_fuser.rematerialization.cut import Cut, Graph, Node, minimum_cut
from thunder_fuser.rematerialization.policy import (
    CHECKPOINT,
    FREE,
    KEEP,
    RECOMPUTE,
    STORED,
    STREAM,
    WIDER,
    WRITTEN,
    Choice,
    Policy,
    Tags,
    time,
)

_FIRST = 1 << 80  # what is minimised first; what comes second never adds up to this
_WIDE = 1.25  # a norm's statistics beside its input are not worth keeping its result
_STEPS = 24  # of the search for a budget


@dataclass(frozen=True, slots=True)
class Value:
    """A result of the forward; needed: the backward reads it."""

    name: str
    bytes: int
    needed: bool = False
    tags: Tags = frozenset()


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the forward. refusal: why it is never recomputed, or nothing; region: the
    number of the region it is part of, None if torch runs it."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]
    operations: int = 0
    refusal: str = ""
    region: int | None = None


@dataclass(frozen=True)
class Facts:
    """A forward, in an order in which it can run; `given` are bytes of what exists without it."""

    operations: tuple[Operation, ...]
    given: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def values(self) -> dict[str, Value]:
        return {value.name: value for op in self.operations for value in op.outputs}

    @cached_property
    def maker(self) -> dict[str, int]:
        found = enumerate(self.operations)
        return {value.name: at for at, op in found for value in op.outputs}


@dataclass(frozen=True, slots=True)
class Plan:
    """Names of values kept, places of operations recomputed, and what that means.

    bytes, before: kept for the backward, with the policy and without; time, time_before: estimated
    nanoseconds of writing, reading and recomputing what the backward reads.
    """

    policy: str
    kept: tuple[str, ...]
    again: frozenset[int]
    bytes: int
    before: int
    time: float
    time_before: float


def plan(facts: Facts, policy: Policy, machine: Machine) -> Plan:
    """The cut that the policy asks for."""
    best = _Problem(facts, policy, machine, policy.stages).cut(policy.share)
    kept = tuple(name for name in facts.values if name in best.names)
    before = [value for value in facts.values.values() if value.needed]
    prices = _Prices(facts, machine)
    return Plan(
        repr(policy), kept, best.again,
        sum(facts.values[name].bytes for name in kept),
        sum(value.bytes for value in before),
        best.time / 1e6,
        sum(prices.keeping(value) for value in before) / 1e6,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    names: frozenset[str]
    again: frozenset[int]
    bytes: int
    time: int


class _Prices:
    """Times of keeping a value, and of making an operation's results again."""

    def __init__(self, facts: Facts, machine: Machine) -> None:
        self.facts, self.machine = facts, machine

    def keeping(self, value: Value) -> int:
        """The backward reads it; the forward writes it, if nothing else wants it written."""
        times = 1 if STORED in value.tags else 2
        return self.machine.time(Cost(times * value.bytes))

    def again(self, op: Operation) -> Cost:
        """Its arithmetic; and what torch is to read is written."""
        written = sum(value.bytes for value in op.outputs if WRITTEN in value.tags)
        return Cost(written, op.operations)


class _Problem:
    """The graph of one policy, whose prices are weighed anew for each question."""

    def __init__(self, facts: Facts, policy: Policy, machine: Machine, stages: int) -> None:
        self.facts, self.policy, self.machine = facts, policy, machine
        self.prices = _Prices(facts, machine)
        self.names = list(facts.values)
        self.number = {name: at for at, name in enumerate(self.names)}
        tags = tags_of(facts, stages)
        self.choices = [self._choice(op, tags) for op in facts.operations]

    def cut(self, share: float) -> _Found:
        """share 1: time and bytes alike; 0: bytes first; else the fastest within the budget."""
        if share == 1:  # a byte kept counts as much as one moved: arithmetic may cost that
            return self._solve(self.machine.time(Cost(1)), 1)
        least = self._solve(_FIRST, 1)
        if share == 0:
            return least
        most = _Problem(self.facts, time(), self.machine, 0).cut(1)
        return self._within(least, least.bytes + share * max(0, most.bytes - least.bytes))

    def _within(self, best: _Found, bytes: float) -> _Found:
        """The fastest found with at most so many bytes, by halving the weight of a byte.

        `best` is the cut with the fewest. Less weight gives more bytes and less time.
        """
        low, high = 0, 2 * _STEPS  # 2**high femtoseconds a byte: only bytes count
        while low < high:
            weight = (low + high) // 2
            found = self._solve(1 << weight, 1 << _STEPS)
            if found.bytes <= bytes:
                high = weight
                best = found if found.time <= best.time else best
            else:
                low = weight + 1
        return best

    def _choice(self, op: Operation, tags: Mapping[str, Tags]) -> Choice:
        """Of all results at once: one that is to be kept keeps all."""
        if op.refusal:
            return KEEP
        cost = self.prices.again(op)
        said = {self.policy(v.name, v.bytes, cost, tags[v.name]) for v in op.outputs}
        return KEEP if KEEP in said else RECOMPUTE if RECOMPUTE in said else FREE

    def _solve(self, byte: int, femtosecond: int) -> _Found:
        graph = self._graph(byte, femtosecond)
        cut: Cut = minimum_cut(graph)
        kept = [self.facts.values[self.names[at]] for at in cut.kept]
        ops = [self.facts.operations[at] for at in cut.again]
        spent = sum(self.machine.time(self.prices.again(op)) for op in ops)
        return _Found(
            frozenset(value.name for value in kept), cut.again,
            sum(value.bytes for value in kept),
            spent + sum(self.prices.keeping(value) for value in kept),
        )

    def _graph(self, byte: int, femtosecond: int) -> Graph:
        values = self.facts.values
        keeping = [
            byte * value.bytes + femtosecond * self.prices.keeping(value)
            for value in values.values()
        ]
        forced = 1 + sum(keeping)
        nodes = []
        for op, choice in zip(self.facts.operations, self.choices, strict=True):
            price = femtosecond * self.machine.time(self.prices.again(op))
            if choice is RECOMPUTE:
                price = 0
                for value in op.outputs:
                    keeping[self.number[value.name]] = forced
            nodes.append(
                Node(
                    tuple(self.number[name] for name in op.inputs if name in self.number),
                    tuple(self.number[value.name] for value in op.outputs),
                    None if choice is KEEP else price,
                )
            )
        needed = frozenset(at for at, name in enumerate(self.names) if values[name].needed)
        return Graph(tuple(nodes), tuple(keeping), needed)


# ------------------------------------------------------------------------------------------- tags


def tags_of(facts: Facts, stages: int) -> dict[str, Tags]:
    """The tags of each value; checkpoints lie `stages` values of a stream apart."""
    stage: dict[str, int] = {}
    sources = _Sources(facts)
    streams = set(_read_by_later_regions(facts))
    found: dict[str, Tags] = {}
    for op in facts.operations:
        before = max((stage.get(name, 0) for name in op.inputs), default=0)
        made_of = sources.of(op)
        for value in op.outputs:
            own = set(value.tags)
            if not op.refusal and value.name in streams:
                own |= {STREAM}
                if sources.bytes(made_of) > _WIDE * value.bytes:
                    own |= {WIDER}
                    own |= {CHECKPOINT} if before >= stages else set()
            starts = bool(op.refusal) or CHECKPOINT in own
            stage[value.name] = 0 if starts else before + (WIDER in own)
            sources.note(value, None if starts else made_of)
            found[value.name] = frozenset(own)
    return found


class _Sources:
    """For each value, what would be read to make it again: at most so many names, else all."""

    _MOST = 8
    _ALL = frozenset({""})

    def __init__(self, facts: Facts) -> None:
        self._bytes = {"": _FIRST, **facts.given}
        self._names: dict[str, frozenset[str]] = {}

    def of(self, op: Operation) -> frozenset[str]:
        known = self._bytes
        found = (
            self._names.get(name) or frozenset({name} if name in known else ())
            for name in op.inputs
        )
        names = frozenset().union(*found)
        return names if len(names) <= self._MOST else self._ALL

    def bytes(self, names: frozenset[str]) -> int:
        return sum(self._bytes[name] for name in names)

    def note(self, value: Value, made_of: frozenset[str] | None) -> None:
        """made_of: None for a value that is kept, and so read itself."""
        if made_of is None:
            self._bytes[value.name] = value.bytes
        else:
            self._names[value.name] = made_of


def _read_by_later_regions(facts: Facts) -> Iterator[str]:
    """Results of a region that another region of the forward reads."""
    region = {value.name: op.region for op in facts.operations for value in op.outputs}
    for op in facts.operations:
        if not op.refusal:
            yield from (
                name for name in op.inputs if region.get(name, op.region) != op.region
            )
