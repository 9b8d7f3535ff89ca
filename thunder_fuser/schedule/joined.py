# SPDX-License-Identifier: Apache-2.0
"""The scheduler of several products of the same few rows: each has blocks of its own in one launch.

    T8[m, n] = sum(T0[m, k] * T1[n, k]), 128 blocks; T9[m, j] = sum(T0[m, k] * T2[j, k]), 32 blocks
->  160 blocks: the first 128 compute T8, the others T9

Queries, keys and values of a token have different sizes, so no loop nest has all three. Such a
kernel takes little longer than a launch. The parts share only what they read, and the shape of a
block. The segmenter asks for this scheduler when all else is decided (segment/join.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from thunder_fuser.analysis.part import Part
from thunder_fuser.base.union_find import UnionFind
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.schedule.products import Products
from thunder_fuser.schedule.reduction import Reduction, rows_of_product
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.schedule.scheduler import KernelMatch, NoMatch
from thunder_fuser.target import Target

MOST_PIECES = 8  # more would be a long text


@dataclass(frozen=True, kw_only=True)
class Joined(KernelMatch):
    """Products of the same rows, which do not read each other. pieces: the match of each."""

    name = "joined"
    takes_no = (OpKind.EXTERNAL, OpKind.SCAN)

    pieces: tuple[Reduction, ...]

    @classmethod
    def find(cls, part: Part, target: Target, options: CompileOptions) -> Joined | NoMatch:
        parts = pieces_of(part)
        if target.is_cpu or not 1 < len(parts) <= MOST_PIECES:
            return NoMatch(cls.name, f"{len(parts)} pieces that do not need each other")
        pieces = tuple(filter(None, (_product(piece, target, options) for piece in parts)))
        if len(pieces) < len(parts):
            return NoMatch(cls.name, "not only products of few rows")
        if not frozenset.intersection(*(rows_of_product(piece)[1] for piece in pieces)):
            return NoMatch(cls.name, "products of different rows")
        if len({_shape(piece) for piece in pieces}) > 1:
            return NoMatch(cls.name, "their blocks have different shapes")
        return cls(part, target, options, pieces=pieces)

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        """The schedule of each piece. Where memory is not aligned for tensor cores, all are sums."""
        total = sum(piece.kept_size for piece in self.pieces)
        pieces = [replace(piece, beside=total - piece.kept_size) for piece in self.pieces]
        made = [piece.schedule(alignment) for piece in pieces]
        if len({one.params.scheduler for one in made}) > 1:
            made = [(p.as_sum if isinstance(p, Products) else p).schedule(alignment) for p in pieces]
        params = replace(made[0].params, scheduler=self.name)
        return replace(self.scheduled((params, ()), alignment), pieces=tuple(made))


def _product(part: Part, target: Target, options: CompileOptions) -> Reduction | None:
    """The match of a part that is a product of few rows, along the fastest axis in memory."""
    for scheduler in (Products, Reduction):
        match = scheduler.match(part, target, options)
        if isinstance(match, Reduction):
            return match if match.inner and rows_of_product(match)[0] else None
    return None


def _shape(match: Reduction) -> tuple[object, ...]:
    """What the threads of a block depend on, for all pieces together."""
    return type(match), rows_of_product(match)[0], match.reduced_size, match.plane


def pieces_of(part: Part) -> list[Part]:
    """The parts that compute the results of a part. Results that need one reduction are one part's.

    T8 = sum(T6); T9 = relu(T8); T10 = sum(T7)  with results T8, T9, T10   ->   {T8, T9}, {T10}
    """
    classes, first = UnionFind[str](), dict[str, str]()
    for name in part.outputs:
        for total in _alone(part, [name]).reductions:
            classes.join(first.setdefault(total.outputs[0], name), name)
    groups: dict[str, list[str]] = {}
    for name in part.outputs:
        groups.setdefault(classes.find(name), []).append(name)
    return [_alone(part, names) for names in groups.values()]


def _alone(part: Part, outputs: Sequence[str]) -> Part:
    """The part that computes some results of a part."""
    wanted, exprs = set(outputs), list[OpRecord]()
    for expr in reversed(part.exprs):
        if not wanted.isdisjoint(expr.outputs):
            exprs.append(expr)
            wanted.update(names_of(expr))
    inputs = tuple(name for name in part.inputs if name in wanted)
    return replace(
        part, exprs=tuple(reversed(exprs)), inputs=inputs, outputs=tuple(outputs), overwrites=()
    )
