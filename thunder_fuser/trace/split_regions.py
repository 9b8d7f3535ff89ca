# SPDX-License-Identifier: Apache-2.0
"""Ops -> the same with the numbers of their regions; a long run is split where few bytes cross.

    a run of 400 primitives, 16 a layer, x handed from layer to layer
->  [0, 256), [256, 400): each cut writes and reads x alone, and falls between two layers

Regions are decided here, once. Every later pass reads `Op.region`, so what the cut of the backward
prices is what runs.

Note [Bound of a region]: a region has at most 2 * MIN_OPS primitives, before the backward's get
those that it recomputes. A longer run is split into parts of at least MIN_OPS and a rest. A kernel
of a model's whole depth would be compiled for that depth alone, in a time that grows faster than
the depth. The parts of equal layers are equal instead, and found in the cache: a cut depends on the
2 * MIN_OPS primitives after the last one and on nothing else, so where the trace repeats, the cuts
do, after as many parts at most as a layer has primitives.

Note [Mirrored cuts]: the run of a backward is first split where it comes to values of an earlier
region of the forward. So a region of the backward belongs to one of the forward, whose values it
recomputes, and those of equal layers are equal again. As it has two or three times the primitives,
long runs of a forward with a backward are split into parts of half the size.

A cut costs a write and a read of what crosses it. An H200 does 14 float operations in the time of
one byte, so 112 while it writes and reads a float of 4 bytes. MIN_OPS primitives compute for longer
than that, so longer regions would gain nothing.

A bound symbol is never divided: one that is longer by itself is a part of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, count

from thunder.core.prims import PrimIDs

from thunder_fuser.trace.op import Op, runs, users_of
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import bytes_of, makes, reads

MIN_OPS = 128

# Views that are repeated on the other side of a cut, from their operand.
REPEATED = frozenset(
    {
        PrimIDs.RESHAPE, PrimIDs.TRANSPOSE, PrimIDs.SQUEEZE, PrimIDs.SHALLOW_COPY,
        PrimIDs.BROADCAST_IN_DIM,
    }
)  # fmt: skip

Users = Mapping[str, Sequence[int]]


def partition(prepared: Prepared) -> Prepared:
    """Numbers the region of each fusible op; what torch runs has none.

    a = exp(x); b = linear(a, w); c = neg(b); d = exp(c)  ->  regions 0, None, 1, 1
    """
    ops, users, numbers = prepared.ops, users_of(prepared.ops), count()
    least = MIN_OPS // 2 if prepared.has_backward else MIN_OPS
    numbered: list[Op] = []
    made: dict[str, int] = {}  # by the forward: the region of each value
    for run in runs(ops):
        if not ops[run.start].is_fusible:
            numbered.append(ops[run.start])
            continue
        for part in _parts(ops, run, users, made, least):
            number = next(numbers)
            numbered += [ops[at].in_region(number) for at in part]
            if not ops[run.start].is_backward:
                made.update((out.name, number) for at in part for out in ops[at].makes)
    return prepared.with_ops(numbered)


def _parts(
    ops: Sequence[Op], run: range, users: Users, made: Mapping[str, int], least: int
) -> Iterator[range]:
    """The run, or what it is split into. users: where in the whole trace a name is read."""
    if sum(len(ops[at].leaves) for at in run) <= 2 * MIN_OPS:
        yield run
    elif ops[run.start].is_backward:
        for mirrored in _mirrored(ops, run, made):
            yield from split(ops, mirrored, users, MIN_OPS)
    else:
        yield from split(ops, run, users, least)


def _mirrored(ops: Sequence[Op], run: range, made: Mapping[str, int]) -> Iterator[range]:
    """A run of the backward, split where it comes to an earlier region of the forward."""
    start, region = run.start, max(made.values(), default=0)
    for at in run:
        latest = max((made[p.name] for p in ops[at].reads if p.name in made), default=region)
        if latest < region:
            region = latest
            if at > start:
                yield range(start, at)
                start = at
    yield range(start, run.stop)


def split(ops: Sequence[Op], run: range, users: Users, least: int) -> Iterator[range]:
    """Parts of at least so many primitives, at most twice as many, and a rest."""
    inside = [ops[at] for at in run]
    done = list(accumulate((len(op.leaves) for op in inside), initial=0))  # primitives before each
    start = 0
    for cut in _cuts(done, _crossing(inside, run, users), least):
        yield run[start:cut]
        start = cut
    yield run[start:]


def _cuts(done: Sequence[int], crossing: Sequence[int], least: int) -> Iterator[int]:
    """The cheapest place of each window, the latest of several."""
    start, end = 0, len(done) - 1
    while done[end] - done[start] > 2 * least:
        first = bisect_left(done, done[start] + least)
        last = max(first, bisect_right(done, done[start] + 2 * least) - 1)
        start = min(range(first, last + 1), key=lambda at: (crossing[at], -at))
        if start < end:
            yield start


def _crossing(ops: Sequence[Op], run: range, users: Users) -> list[int]:
    """For a cut before each bound symbol, the bytes written and read for its sake.

    What is made in the run is written, unless something outside needs it anyway, and read again;
    what comes from outside is read again.
    """
    first: dict[str, int] = {}  # the bound symbol that makes or first reads a tensor
    last: dict[str, int] = {}
    handed: dict[str, int] = {}  # the bytes that a cut between the two moves
    shown: dict[str, str] = {}
    for at, op in enumerate(ops):
        for leaf in op.leaves:
            for proxy in reads(leaf):
                name = shown.get(proxy.name, proxy.name)
                if name not in first:
                    first[name], handed[name] = at, bytes_of(proxy)
                last[name] = at
            for out in makes(leaf):
                if leaf.sym.id in REPEATED:
                    source = reads(leaf)[0].name
                    shown[out.name] = shown.get(source, source)
                else:
                    written = all(use in run for use in users.get(out.name, ()))
                    first[out.name] = last[out.name] = at
                    handed[out.name] = bytes_of(out) * (1 + written)
    steps = [0] * (len(ops) + 1)
    for name, size in handed.items():
        steps[first[name] + 1] += size  # a cut before `first` + 1 is the first that it crosses
        steps[last[name] + 1] -= size
    return list(accumulate(steps))
