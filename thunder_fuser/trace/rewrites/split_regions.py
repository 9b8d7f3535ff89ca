# SPDX-License-Identifier: Apache-2.0
"""Ops -> the same with numbers of regions; a long run is split where few bytes cross.

    a run of 400 primitives, 16 a layer, x handed from layer to layer
->  [0, 256), [256, 400): each cut writes and reads x alone, and falls between two layers

Regions are decided here, once. Every later pass reads `Op.region`, so the backward's cut prices the
regions that run.

Note [Bound of a region]: a region has at most 2 * MIN_OPS primitives; a backward's region then gets
the recomputed ones too. A longer run is split into parts of at least MIN_OPS and a rest. A kernel
as deep as the model would be compiled for that depth alone, in a time that grows faster than the
depth. Equal layers instead give equal parts, which the cache finds: a cut depends only on the
2 * MIN_OPS primitives after the cut before it. So where the trace repeats, the cuts repeat, at the
latest after as many parts as a layer has primitives.

Note [Mirrored cuts]: the run of a backward is first split where it reaches values of an earlier
region of the forward. So a region of the backward recomputes the values of one region of the
forward, and equal layers give equal regions again. A backward has two or three times the primitives
of its forward, so a forward with a backward is split into parts of half the size.

A cut costs a write and a read of the values that cross it. An H200 does 14 float operations in the
time of one byte, so 112 while it writes and reads a float of 4 bytes. MIN_OPS primitives compute
for longer than that, so longer regions would gain nothing.

A bound symbol is never divided: one that is longer than the bound is a part by itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, count

from thunder.core.prims import PrimIDs

from thunder_fuser.trace.dataflow import runs
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import bytes_of, makes, reads

MIN_OPS = 128

# Views that the other side of a cut recomputes from their operand.
REPEATED = frozenset(
    {
        PrimIDs.RESHAPE, PrimIDs.TRANSPOSE, PrimIDs.SQUEEZE, PrimIDs.SHALLOW_COPY,
        PrimIDs.BROADCAST_IN_DIM,
    }
)  # fmt: skip

Users = Mapping[str, Sequence[int]]


def partition(prepared: Prepared) -> Prepared:
    """Gives each fusible op the number of its region; ops that torch runs have none.

    a = exp(x); b = linear(a, w); c = neg(b); d = exp(c)  ->  regions 0, None, 1, 1
    """
    ops, users, numbers = prepared.ops, prepared.flow.readers, count()
    least = MIN_OPS // 2 if prepared.has_backward else MIN_OPS
    numbered: list[Op] = []
    regions: dict[str, int] = {}  # of each value of the forward
    for run in runs(ops):
        if not ops[run.start].is_fusible:
            numbered.append(ops[run.start])
            continue
        for part in _parts(ops, run, users, regions, least):
            number = next(numbers)
            numbered += [ops[at].in_region(number) for at in part]
            if not ops[run.start].is_backward:
                regions.update((name, number) for at in part for name in ops[at].made_names)
    return prepared.with_ops(numbered)


def _parts(
    ops: Sequence[Op], run: range, users: Users, regions: Mapping[str, int], least: int
) -> Iterator[range]:
    """The parts that the run is split into. users: the places in the trace that read a name."""
    if sum(len(ops[at].leaves) for at in run) <= 2 * MIN_OPS:
        yield run
    elif ops[run.start].is_backward:
        for mirrored in _mirrored(ops, run, regions):
            yield from split(ops, mirrored, users, MIN_OPS)
    else:
        yield from split(ops, run, users, least)


def _mirrored(ops: Sequence[Op], run: range, regions: Mapping[str, int]) -> Iterator[range]:
    """A run of the backward, split where it reaches an earlier region of the forward."""
    start, region = run.start, max(regions.values(), default=0)
    for at in run:
        read = (regions[name] for name in ops[at].read_names if name in regions)
        latest = max(read, default=region)
        if latest < region:
            region = latest
            if at > start:
                yield range(start, at)
                start = at
    yield range(start, run.stop)


def split(ops: Sequence[Op], run: range, users: Users, least: int) -> Iterator[range]:
    """Parts of `least` to 2 * `least` primitives, and a rest."""
    inside = [ops[at] for at in run]
    done = list(accumulate((len(op.leaves) for op in inside), initial=0))  # primitives before each
    crossing, start, end = _crossing(inside, run, users), 0, len(inside)
    while done[end] - done[start] > 2 * least:
        # The cheapest cut of each window, the last of equals.
        first = bisect_left(done, done[start] + least)
        last = max(first, bisect_right(done, done[start] + 2 * least) - 1)
        cut = min(range(first, last + 1), key=lambda at: (crossing[at], -at))
        if cut == end:
            break
        yield run[start:cut]
        start = cut
    yield run[start:]


def _crossing(ops: Sequence[Op], run: range, users: Users) -> list[int]:
    """For a cut before each bound symbol, the bytes written and read because of it.

    A value made in the run is read again, and it is written unless something outside the run needs
    it anyway. A value from outside is only read again.
    """
    first: dict[str, int] = {}  # the bound symbol that makes or first reads a tensor
    last: dict[str, int] = {}
    handed: dict[str, int] = {}  # the bytes that a cut between first and last moves
    viewed: dict[str, str] = {}  # what a repeated view is a view of
    for at, op in enumerate(ops):
        for leaf in op.leaves:
            for proxy in reads(leaf):
                name = viewed.get(proxy.name, proxy.name)
                if name not in first:
                    first[name], handed[name] = at, bytes_of(proxy)
                last[name] = at
            for out in makes(leaf):
                if leaf.sym.id in REPEATED:
                    source = reads(leaf)[0].name
                    viewed[out.name] = viewed.get(source, source)
                else:
                    written = all(use in run for use in users.get(out.name, ()))
                    first[out.name] = last[out.name] = at
                    handed[out.name] = bytes_of(out) * (1 + written)
    steps = [0] * (len(ops) + 1)
    for name, size in handed.items():
        steps[first[name] + 1] += size  # the cut before `first` + 1 is the first one it crosses
        steps[last[name] + 1] -= size
    return list(accumulate(steps))
