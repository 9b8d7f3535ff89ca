# SPDX-License-Identifier: Apache-2.0
"""The scheduler of several small kernels in one launch: each has blocks of its own.

    T8[m, n] = sum(T0[m, k] * T1[n, k]), 128 blocks; T9[m, j] = sum(T0[m, k] * T2[j, k]), 32 blocks
->  160 blocks: the first 128 compute T8, the others T9

Queries, keys and values of a token have different sizes, so no loop nest has all three, and each
alone takes little longer than its launch. The pieces share only what they read, and the shape of a
block. They are products of the same few rows, or short pointwise work. The segmenter asks for this
scheduler when all else is decided (segment/join.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from thunder_fuser.analysis.part import Part
from thunder_fuser.base.union_find import UnionFind
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.schedule.axes import MAX_BYTES
from thunder_fuser.schedule.pointwise import Pointwise
from thunder_fuser.schedule.products import Products
from thunder_fuser.schedule.reduction import Reduction, rows_of_product
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.schedule.scheduler import KernelMatch, NoMatch
from thunder_fuser.target import Target

MOST_PIECES = 8  # more would be a long text


@dataclass(frozen=True, kw_only=True)
class JoinedKernels(KernelMatch):
    """Kernels that do not read each other. pieces: the match of each."""

    name = "joined"
    takes_no = (OpKind.EXTERNAL, OpKind.SCAN)
    takes_schedules = False

    pieces: tuple[KernelMatch, ...]

    @classmethod
    def find(cls, part: Part, target: Target, options: CompileOptions) -> JoinedKernels | NoMatch:
        parts = pieces_of(part)
        if target.is_cpu or not 1 < len(parts) <= MOST_PIECES:
            return NoMatch(cls.name, f"{len(parts)} pieces that do not need each other")
        pieces = tuple(filter(None, (_match(piece, target, options) for piece in parts)))
        if len(pieces) < len(parts):
            return NoMatch(cls.name, "not only products of few rows, or short pointwise work")
        if len({_shape(piece) for piece in pieces}) > 1:
            return NoMatch(cls.name, "their blocks have different shapes")
        products = [rows_of_product(piece)[1] for piece in pieces if isinstance(piece, Reduction)]
        if products and not frozenset.intersection(*products):
            return NoMatch(cls.name, "products of different rows")
        return cls(part, target, options, pieces=pieces)

    def schedule(self, alignment: dict[str, int]) -> ScheduledFusion:
        """The schedule of each piece: plain sums, if one is not aligned for tensor cores."""
        total = sum(piece.kept_size for piece in self.pieces)
        pieces = [replace(piece, beside=total - piece.kept_size) for piece in self.pieces]
        schedules = [piece.schedule(alignment) for piece in pieces]
        if len({each.params.scheduler for each in schedules}) > 1:
            sums = [piece.as_sum for piece in pieces if isinstance(piece, Products)]
            schedules = [piece.schedule(alignment) for piece in sums]
        params = replace(schedules[0].params, scheduler=self.name)
        return replace(self.scheduled((params, ()), alignment), pieces=tuple(schedules))


def _match(part: Part, target: Target, options: CompileOptions) -> KernelMatch | None:
    """The match of a part that may be a piece: a product along the fastest axis in memory, or
    pointwise work of one wave of blocks at most, where each thread writes a vector."""
    for scheduler in (Products, Reduction, Pointwise):
        match = scheduler.match(part, target, options)
        if isinstance(match, Reduction):
            return match if match.inner and rows_of_product(match)[0] else None
        if isinstance(match, Pointwise):
            written = [part.tensors[name] for name in part.outputs]
            bytes = sum(prod(each.sizes) * each.dtype.bytes for each in written)
            most = MAX_BYTES * target.sm_count * target.max_threads_per_sm
            return match if bytes <= most else None
    return None


def _shape(match: KernelMatch) -> tuple[object, ...]:
    """What the threads of a block depend on, besides the number of results."""
    if not isinstance(match, Reduction):
        return (type(match),)
    return type(match), rows_of_product(match)[0], match.reduced_size, match.plane


def pieces_of(part: Part) -> list[Part]:
    """The parts that compute the results of a part. Results over the same axes are of one piece,
    and so are those that need the same reduction.

    T8[i0] = sum(T6); T9[i0] = relu(T8); T10[i1] = sum(T7)   ->   {T8, T9}, {T10}
    """
    classes, first = UnionFind[str](), dict[object, str]()
    for name, axes in part.stored_axes.items():
        for key in (axes, *_alone(part, [name]).reductions):
            classes.join(first.setdefault(key, name), name)
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
