# SPDX-License-Identifier: Apache-2.0
"""A run of fusible bound symbols -> pieces of bounded length, cut where the fewest bytes cross.

    a run of 400 primitives, 16 a layer, x handed from layer to layer
->  [0, 256), [256, 400): each cut writes and reads x alone, and falls between two layers

Note [Bound of a region]: a region has at most 2 * ENOUGH primitives, and what is longer is cut
into pieces of at least ENOUGH and a rest. A kernel of a model's whole depth would be compiled for
that depth alone, in a time that grows faster than it. The pieces of equal layers are equal instead,
and found in the cache: a cut depends on the 2 * ENOUGH primitives ahead and on nothing else, so
where the trace repeats the cuts do, after as many pieces at most as a layer has primitives.

A cut costs a write and a read of what crosses it. An H200 does 14 float operations in the time of
one byte, so 112 while it writes and reads a float of 4 bytes: ENOUGH primitives compute for longer
than that, and longer regions would have nothing left to gain.

A bound symbol is never divided, so one that is longer by itself is a piece of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.support import leaves_of
from thunder_fuser.rematerialization.proxies import makes, reads

ENOUGH = 128

# Views that are made again on the other side of a cut, from what they show.
_MADE_AGAIN = frozenset(
    {
        PrimIDs.RESHAPE, PrimIDs.TRANSPOSE, PrimIDs.SQUEEZE, PrimIDs.SHALLOW_COPY,
        PrimIDs.BROADCAST_IN_DIM,
    }
)  # fmt: skip

Users = Mapping[str, Sequence[int]]


def pieces(bsyms: Sequence[BoundSymbol], run: range, users: Users) -> Iterator[range]:
    """The run, or the pieces it is cut into. `users`: where in the whole trace a name is read."""
    leaves = [list(leaves_of(bsyms[at])) for at in run]
    done = list(accumulate(map(len, leaves), initial=0))  # primitives before each place
    start = 0
    if done[-1] > 2 * ENOUGH:
        crossing = _crossing(leaves, run, users)
        for cut in _cuts(done, crossing):
            yield run[start:cut]
            start = cut
    yield run[start:]


def _cuts(done: Sequence[int], crossing: Sequence[int]) -> Iterator[int]:
    """The cheapest place of each window, the latest of several."""
    start, end = 0, len(done) - 1
    while done[end] - done[start] > 2 * ENOUGH:
        first = bisect_left(done, done[start] + ENOUGH)
        last = max(first, bisect_right(done, done[start] + 2 * ENOUGH) - 1)
        start = min(range(first, last + 1), key=lambda at: (crossing[at], -at))
        if start < end:
            yield start


@dataclass
class _Life:
    """From where to where a run needs a tensor, and what it costs to hand it over."""

    first: int
    last: int
    bytes: int


def _crossing(leaves: Sequence[Sequence[BoundSymbol]], run: range, users: Users) -> list[int]:
    """For a cut before each bound symbol, the bytes written and read for its sake.

    What is made in the run is written, unless something outside needs it anyway, and read again;
    what comes from outside is read again.
    """
    lives: dict[str, _Life] = {}
    shown: dict[str, str] = {}
    for at, parts in enumerate(leaves):
        for leaf in parts:
            for proxy in reads(leaf):
                name = shown.get(proxy.name, proxy.name)
                lives.setdefault(name, _Life(at, at, _bytes(proxy))).last = at
            for out in makes(leaf):
                if leaf.sym.id in _MADE_AGAIN:
                    source = reads(leaf)[0].name
                    shown[out.name] = shown.get(source, source)
                else:
                    written = all(use in run for use in users.get(out.name, ()))
                    lives[out.name] = _Life(at, at, _bytes(out) * (1 + written))
    steps = [0] * (len(leaves) + 1)
    for life in lives.values():
        if life.first < life.last:  # a cut before `first` + 1 is the first that it crosses
            steps[life.first + 1] += life.bytes
            steps[life.last + 1] -= life.bytes
    return list(accumulate(steps))


def _bytes(proxy: Proxy) -> int:
    """Of a tensor; numbers are passed along."""
    if not isinstance(proxy, TensorProxy):
        return 0
    return prod(proxy._shape) * int(proxy.dtype.bytes)
