# SPDX-License-Identifier: Apache-2.0
"""A Forward, a policy, a machine -> a CutPlan: what is kept and what is recomputed.

Note [Bounded chains]: x1 = x0 + a1, x2 = x1 + a2, ... is a stream: each value is computed from the
one before, in another region. To recompute xk from x0, a region would read all of a1 ... ak: it
would grow with the depth of the model. So a value is made a checkpoint if `stages` values of
streams lie between it and the last checkpoint. A chain then crosses at most `stages` + 1 regions
of the forward, whatever the depth. Checkpoints lie at equal distances, so equal layers give at most
`stages` + 1 kinds of regions, and share their kernels. A value computed from little more bytes than
its own (a norm's result, from its input and statistics) counts as no stage; but no chain reads more
than _MOST_SOURCES values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from thunder_fuser.rematerialization.cut import CutGraph, Node, minimum_cut
from thunder_fuser.rematerialization.forward import Forward, ForwardValue, Operation
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
    Cost,
    Policy,
    Tags,
    time,
)
from thunder_fuser.rematerialization.products import groups_of, taken_of
from thunder_fuser.target import Target

_FIRST = 1 << 80  # the weight of what is minimised first: the second never adds up to it
_WIDE = 1.25  # above this, a value is kept; a norm's input and statistics stay below it
_MOST_SOURCES = 8  # of a value; more are replaced by _MANY, which is larger than any value
_MANY = ""
_STEPS = 24  # of the search for a budget


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes and operations (in the units of Cost) a second; launch: the seconds of a launch;
    products: the operations a second of a matrix product of 16-bit floats.

    A kernel that waits for memory computes meanwhile. Half of what the arithmetic units could do in
    that time is assumed to be free for recomputing; the kernel's own work takes the other half.
    """

    bytes: float
    operations: float
    launch: float
    products: float

    @staticmethod
    def of(target: Target) -> Machine:
        """The rates of a device. A CPU counts as two cores, which saturate its memory: a policy
        must not depend on the number of cores. Units for products do 4 operations a lane and clock
        there; the tensor cores of a GPU, 4096 a clock for 128 lanes."""
        on_cpu, on_gpu = 2 * 3e9 * (target.simd_bytes // 4), 1.7e9 * 128 * target.sm_count
        operations, wider = (on_cpu, 4) if target.is_cpu else (on_gpu, 32)
        seconds = target.launch_seconds
        return Machine(target.bandwidth_bytes_per_s, operations, seconds, wider * operations)

    def time(self, cost: Cost) -> int:
        """Femtoseconds in kernels that wait for memory."""
        computing = cost.operations / (2 * self.operations)
        return round(1e15 * (cost.moved / self.bytes + computing))


@dataclass(frozen=True, slots=True)
class CutPlan:
    """The names of kept values, the places of recomputed operations, and what both cost.

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


def plan(forward: Forward, policy: Policy, machine: Machine) -> CutPlan:
    """The cut that the policy asks for."""
    problem = _Problem(forward, policy, machine, policy.stages)
    best = problem.cut(policy.share)
    before = [value for value in forward.values.values() if value.needed]
    return CutPlan(
        repr(policy),
        tuple(name for name in forward.values if name in best.names),
        best.again,
        best.bytes,
        sum(value.bytes for value in before),
        best.time / 1e6,
        sum(map(problem.time_to_keep, before)) / 1e6,
    )


@dataclass(frozen=True, slots=True)
class _Solution:
    names: frozenset[str]
    again: frozenset[int]
    bytes: int
    time: int


class _Problem:
    """The choices of one policy; each cut weighs bytes against time in its own way."""

    def __init__(self, forward: Forward, policy: Policy, machine: Machine, stages: int) -> None:
        self.forward, self.policy, self.machine = forward, policy, machine
        tags = tags_of(forward, stages)
        self.choices = [self._choice(op, tags) for op in forward.operations]

    def cut(self, share: float) -> _Solution:
        """share 1: time and bytes count alike; 0: bytes first; else the fastest in the budget."""
        if share == 1:  # a byte kept counts as much as a byte moved, so arithmetic may cost that
            return self._solve(self.machine.time(Cost(1)), 1)
        by_kernels = self._solve(_FIRST, 1)
        least = self._with_products(by_kernels, 0)
        if share == 0:
            return least
        most = _Problem(self.forward, time(), self.machine, 0).cut(1)
        limit = least.bytes + share * max(0, most.bytes - least.bytes)
        return self._with_products(self._within(by_kernels, limit), limit)

    def _with_products(self, cut: _Solution, limit: float) -> _Solution:
        """The cut with as many products recomputed as it takes to keep so many bytes."""
        if cut.bytes <= limit:
            return cut
        is_free = [choice is FREE for choice in self.choices]
        groups = groups_of(self.forward, cut.names, cut.again, is_free)
        taken = taken_of(groups, cut.bytes - limit)
        gone = {name for group in taken for name in group.values}
        again = {at for group in taken for at in group.again}
        spent = sum(round(1e15 * group.product / self.machine.products) for group in taken)
        spent += sum(self._time_again(at) for at in again - cut.again)
        spent -= sum(self.time_to_keep(self.forward.values[name]) for name in gone)
        left = cut.bytes - sum(group.bytes for group in taken)
        return _Solution(cut.names - gone, cut.again | again, left, cut.time + spent)

    def _within(self, best: _Solution, bytes: float) -> _Solution:
        """The fastest cut with at most so many bytes, by bisection over the weight of a byte.

        `best` is the cut with the fewest bytes. A smaller weight gives more bytes and less time.
        """
        low, high = 0, 2 * _STEPS  # 2**high femtoseconds a byte: only bytes count
        while low < high:
            weight = (low + high) // 2
            solution = self._solve(1 << weight, 1 << _STEPS)
            if solution.bytes <= bytes:
                high = weight
                best = solution if solution.time <= best.time else best
            else:
                low = weight + 1
        return best

    def time_to_keep(self, value: ForwardValue) -> int:
        """A read by the backward, and a write by the forward unless it is stored in any case."""
        times = 1 if STORED in value.tags else 2
        return self.machine.time(Cost(times * value.bytes))

    def _time_again(self, at: int) -> int:
        return self.machine.time(self._cost(self.forward.operations[at]))

    def _cost(self, op: Operation) -> Cost:
        """The cost of recomputing it: its arithmetic, and the write of results that torch reads."""
        written = sum(value.bytes for value in op.outputs if WRITTEN in value.tags)
        # To keep a value may take the forward one more kernel.
        is_often = op.repeated > self.machine.launch * self.machine.operations
        return Cost(written, op.operations + is_often * op.repeated)

    def _choice(self, op: Operation, tags: Mapping[str, Tags]) -> Choice:
        """The choice for all results of an operation at once: one to be kept keeps all."""
        if op.refusal:
            return KEEP
        cost = self._cost(op)
        choices = {self.policy(v.name, v.bytes, cost, tags[v.name]) for v in op.outputs}
        return KEEP if KEEP in choices else RECOMPUTE if RECOMPUTE in choices else FREE

    def _solve(self, byte: int, femtosecond: int) -> _Solution:
        cut = minimum_cut(self._graph(byte, femtosecond))
        kept = [self.forward.values[name] for name in cut.kept]
        spent = sum(map(self._time_again, cut.again))
        spent += sum(map(self.time_to_keep, kept))
        return _Solution(cut.kept, cut.again, sum(value.bytes for value in kept), spent)

    def _graph(self, byte: int, femtosecond: int) -> CutGraph[str]:
        """The graph with these prices of a kept byte and of a femtosecond."""
        keeping = {
            name: byte * value.bytes + femtosecond * self.time_to_keep(value)
            for name, value in self.forward.values.items()
        }
        forced = 1 + sum(keeping.values())
        nodes = []
        for op, choice in zip(self.forward.operations, self.choices, strict=True):
            price = femtosecond * self.machine.time(self._cost(op)) if choice is FREE else 0
            outputs = tuple(value.name for value in op.outputs)
            nodes.append(Node(op.inputs, outputs, None if choice is KEEP else price))
            if choice is RECOMPUTE:
                keeping |= dict.fromkeys(outputs, forced)
        needed = frozenset(name for name, value in self.forward.values.items() if value.needed)
        return CutGraph(tuple(nodes), keeping, needed)


# ------------------------------------------------------------------------------------------- tags


def tags_of(forward: Forward, stages: int) -> dict[str, Tags]:
    """The tags of each value; checkpoints lie `stages` values of a stream apart."""
    region = {value.name: op.region for op in forward.operations for value in op.outputs}
    streams = {  # results of a region that another region of the forward reads
        name
        for op in forward.operations if not op.refusal
        for name in op.inputs if region.get(name, op.region) != op.region
    }  # fmt: skip
    sizes = {_MANY: _FIRST, **forward.arguments}  # of kept values, which are read themselves
    sources: dict[str, frozenset[str]] = {}  # of the others: the values read to recompute them
    stage: dict[str, int] = {}
    tags_by_name: dict[str, Tags] = {}
    for op in forward.operations:
        before = max((stage.get(name, 0) for name in op.inputs), default=0)
        needed = (sources.get(name, sizes.keys() & {name}) for name in op.inputs)
        read = frozenset[str]().union(*needed)
        read = read if len(read) <= _MOST_SOURCES else frozenset({_MANY})
        for value in op.outputs:
            tags = set(value.tags)
            if not op.refusal and value.name in streams:
                tags.add(STREAM)
                if sum(sizes[name] for name in read) > _WIDE * value.bytes:
                    tags |= {WIDER, CHECKPOINT} if before >= stages else {WIDER}
            if op.refusal or CHECKPOINT in tags:
                sizes[value.name], stage[value.name] = value.bytes, 0
            else:
                sources[value.name], stage[value.name] = read, before + (WIDER in tags)
            tags_by_name[value.name] = frozenset(tags)
    return tags_by_name
