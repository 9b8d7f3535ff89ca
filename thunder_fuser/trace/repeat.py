# SPDX-License-Identifier: Apache-2.0
"""Ops in regions -> the same, with copies of some ops in front of their readers in other regions.

    t2 = tanh(t1)      region 0         t2 = tanh(t1)       region 0
    y = matmul(t2, w)              ->   y = matmul(t2, w)
    z = mul(y, t2)     region 1         t2r = tanh(t1)      region 1
                                        z = mul(y, t2r)

Each region has copies of its own, so that no copy lives from one region to the next. What torch
runs is repeated once, and stored: in front of the region that reads it first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice, takewhile

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy, Variable, variableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag

from thunder_fuser.analysis.cost import outer_repeats
from thunder_fuser.trace.op import Op, alike
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import makes, reads


class Repeater:
    """Writes the trace with copies; after that, `copies` holds the names of each value's copies.

    repeated: the values that may be repeated; is_for(maker, reader): whether the maker is repeated
    for this reader.
    """

    def __init__(
        self, prepared: Prepared, repeated: Iterable[str], is_for: Callable[[Op, Op], bool]
    ) -> None:
        self.copies: dict[str, list[str]] = {}
        self._prepared, self._ops, self._is_for = prepared, prepared.ops, is_for
        makers = {name: at for at, op in enumerate(self._ops) for name in op.made_names}
        self._makers: Mapping[str, int] = {name: makers[name] for name in repeated}
        self._has_torch = any(not self._ops[at].is_fusible for at in self._makers.values())
        self._swaps: dict[Variable, Proxy] = {}  # in the region at hand
        self._stored: dict[Variable, Proxy] = {}  # from here on
        self._last: Op | None = None
        self._numbers = count(1 + max((op.region or 0 for op in self._ops), default=0))

    def ops(self) -> Iterator[Op]:
        """The ops of the new trace."""
        region: int | None = None
        for at, op in enumerate(self._ops):
            readers = [op] if op.region is None else []
            if op.region is not None and op.region != region:
                # A region's copies also serve the torch ops behind it: these read what is stored.
                region, self._swaps = op.region, {**self._stored}
                readers = self._of_region(at)
            yield from self._by_torch(readers, op)
            if any(self._maker(name, op) is not None for name in op.read_names):
                for place in self._missing(op.read_names, op):
                    yield self._copy(self._ops[place], op, op.region)
                op = self._prepared.rules.reading(op, self._swaps)
            self._last = op
            yield op

    def _of_region(self, at: int) -> list[Op]:
        """The ops of a region that begins at a place."""
        number = self._ops[at].region
        return [*takewhile(lambda op: op.region == number, islice(self._ops, at, None))]

    def _by_torch(self, readers: Iterable[Op], reader: Op) -> Iterator[Op]:
        """Copies of what torch runs, and of its operands, for these ops: they serve all later ops,
        and stand in front of the region that reads them."""
        if not self._has_torch:
            return
        missing = {at for each in readers for at in self._missing(each.read_names, each)}
        before = {**self._swaps}
        for at in sorted(at for at in missing if not self._ops[at].is_fusible):
            op = self._ops[at]
            for place in (*self._missing(op.read_names, reader), at):
                yield self._copy(self._ops[place], reader, None)
            names = map(variableify, (*op.reads, *op.makes))
            self._stored |= {name: self._swaps[name] for name in names if name in self._swaps}
        self._swaps = {**before, **self._stored}

    def _maker(self, name: str, reader: Op) -> int | None:
        """The place of the op that is repeated to give the reader this value; None if none is."""
        at = self._makers.get(name)
        return at if at is not None and self._is_for(self._ops[at], reader) else None

    def _missing(self, names: Iterable[str], reader: Op) -> list[int]:
        """The places of the ops still to be repeated for values that a reader needs, in order."""
        missing: set[int] = set()
        stack = [*names]
        while stack:
            at = self._maker(stack.pop(), reader)
            if at is None or at in missing or variableify(self._ops[at].makes[0]) in self._swaps:
                continue
            missing.add(at)
            stack += self._ops[at].read_names
        return sorted(missing)

    def _copy(self, op: Op, reader: Op, region: int | None) -> Op:
        """A copy in a region of its reader; if torch reads it, in the last region or a new one."""
        for out in op.makes:
            new = self._prepared.renamed(out, "r")
            self._swaps[variableify(out)] = new
            self.copies.setdefault(out.name, []).append(new.name)
        bsym = op.bsym.from_bsym_swap_proxies(self._swaps)
        direction = {BoundSymbolTag.BACKWARD} if reader.is_backward else set()
        bsym = bsym.from_bsym(tags=bsym.tags | direction)
        copy, last = self._prepared.rules.known(bsym, op.refusal, region), self._last
        if region is None and op.is_fusible:
            joins = last is not None and last.region is not None and alike(last, copy)
            copy = copy.in_region(last.region if joins and last else next(self._numbers))
        self._last = copy
        return copy


def repeats_of(ops: Sequence[Op]) -> dict[str, int]:
    """How often each element of a value is computed in the largest loop that reads it, for what
    the backward reads, and what that is computed from.

        forward     cos = cos(freqs); c = broadcast(cos: [1, t, d], (h, t, d)); y = mul(q, c)
        backward    dq = mul(g, c)      a kernel over [h, t, d], so cos is computed h times

    A value that one region stores for another is read there, so its own region alone counts.
    """
    region = {name: op.region for op in ops if op.in_backward for name in op.made_names}
    repeats: dict[str, int] = {}
    for op in reversed(ops):
        if not (op.is_fusible and (op.in_backward or op.makes_any(repeats.keys()))):
            continue
        for leaf in reversed(op.leaves):
            times = max((repeats.get(out.name, 1) for out in makes(leaf)), default=1)
            times = _of_operands(leaf, times)
            for proxy in reads(leaf):
                if region.get(proxy.name, op.region) == op.region:
                    repeats[proxy.name] = max(repeats.get(proxy.name, 1), times)
    return repeats


def _of_operands(leaf: BoundSymbol, times: int) -> int:
    """How often an operand is computed for a result that is computed so many times."""
    if OpTags.REDUCTION_OP in (leaf.sym.tags or ()):
        return 1
    if leaf.sym.id is not PrimIDs.BROADCAST_IN_DIM:
        return times
    source, shape, dims = leaf.args
    sizes = [1] * len(shape)
    for dim, size in zip(dims, source.shape, strict=True):
        sizes[dim] = int(size)
    return times * outer_repeats(sizes, [int(size) for size in shape])
