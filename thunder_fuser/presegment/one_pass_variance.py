# SPDX-License-Identifier: Apache-2.0
"""A mean and a variance over rows read their input once, not twice.

    T1 = sum(T0: f32[n, c], dims=[0], chunk=k);  T2 = sum(T1, dims=[0])         rfactor made runs
    m = T2 / n: f32[1, c];  T3 = sub(T0, m);  T4 = mul(T3, T3)
    T5 = sum(T4, dims=[0], chunk=k)                  waits for the mean, so it reads T0 once more
->  f = T0[::k]                  the first row of each run
    T6 = sub(T0, f of the run);  T7 = sum(T6, dims=[0], chunk=k)
    T8 = mul(T6, T6);            T9 = sum(T8, dims=[0], chunk=k)      in one kernel with T1
    u = f - m;  T5 = max(T9 + u * (2 * T7 + u * k), 0)                    in one kernel with T2

The mean may be over more axes, which it then has with size 1: of a group norm, m is f32[n, 1, g, 1]
and f f32[runs, n, g, c], whose rows are the elements of one column (n, g, c). All that is said here
holds for each column, for any m.

For every row x of a run, (x - m)**2 = ((x - f) + u)**2. Summed over a run that is the last line,
which holds for every m: the sums about the first row are moved to the mean. The mean is as before,
bit for bit.

What rounds. f is a row of its run, so u**2 is at most the sum S that is wanted, and the terms of
the last line are at most about 4 * k * S. If f is a row like others, that rounds about twice as
much as two passes do; if all others are near the mean and f is far from it, up to k times as much.
So sums must be wider than what they add. T6 to T9 are

    Float     on a GPU, of what was cast from 16 bits
    Double    on a CPU, and on a GPU that computes with Double at half of Float's speed, but not
              under `repeatable`: this costs less than reading memory once more

Rows that are all equal give k * u**2, as two passes do: T7 and T9 are 0. NaN and infinite elements
give NaN, as two passes do.

A sum of squares has other bits than in two passes, and under `repeatable` no sum's bits may depend
on its surroundings. So the mean has to have axes of size 1, as in var_mean: that is a single op of
a trace, so both of its sums are always in one fusion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from thunder_fuser.analysis.cost import is_recomputable
from thunder_fuser.analysis.domain_map import is_unit
from thunder_fuser.analysis.part import Part, Parts
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import AttrValue, Literal, OpRecord, names_of
from thunder_fuser.presegment.rewrite import RewriteRule, makers
from thunder_fuser.schedule.axes import summed_order
from thunder_fuser.target import Target

NARROW = 2  # bytes of an element of x: sums of Float are much wider


@dataclass(frozen=True, slots=True)
class Spread:
    """A partial sum of squares of x - mean.

    record: the sum; places: the axes of x in the order in which the sum has them; dims: those of x
    that it reduces, slowest first.
    """

    record: OpRecord
    x: str
    mean: str
    places: tuple[int, ...]
    dims: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes of x that are kept, in the order of the result."""
        return tuple(at for at in self.places if at not in self.dims)

    @property
    def run(self) -> int:
        """The rows of a run."""
        return self.record.integer("chunk")


def one_pass_variance(fusion: Fusion, target: Target, options: CompileOptions) -> RewriteRule:
    """Sums squares about the first row of each run, where they would wait for a mean."""
    spreads = [
        spread for record in fusion.exprs if record.attr("chunk") is not None
        and (spread := _spread(fusion, record)) is not None
    ]
    if not spreads:
        return {}
    whole = Parts(fusion).of(fusion.exprs)
    return {
        spread.record: _SpreadWriter(fusion, spread, wide).records()
        for spread in spreads
        if _saves_a_pass(whole, spread)
        and (wide := _wide_type(whole, spread, target, options)) is not None
    }


# ---- which sums


def joins_its_mean(
    fusion: Fusion, whole: Part, record: OpRecord, target: Target, options: CompileOptions
) -> bool:
    """True for a sum of squares that will be in one pass with the mean if both are made in runs."""
    spread = _spread(fusion, record)
    return spread is not None and (
        _is_cheap(whole, spread) and _wide_type(whole, spread, target, options) is not None
    )


def _spread(fusion: Fusion, record: OpRecord) -> Spread | None:
    """The sum as one of squares of differences from a mean; None if it is another."""
    if record.op != "sum":
        return None
    places = tuple(range(len(fusion.tensors[names_of(record)[0]].shape)))
    maker = fusion.producer.get(names_of(record)[0])
    if maker is not None and maker.op == "permute":
        places = tuple(at % len(places) for at in maker.ints("dims"))
        maker = fusion.producer.get(names_of(maker)[0])
    if maker is None or maker.op != "mul" or maker.inputs[0] != maker.inputs[1]:
        return None
    maker = fusion.producer.get(str(maker.inputs[0]))
    if maker is None or maker.op != "sub" or len(names_of(maker)) != len(maker.inputs):
        return None
    (x, mean), dims = names_of(maker), (places[at] for at in sorted(record.ints("dims")))
    spread = Spread(record, x, mean, places, tuple(dims))
    return spread if _is_of_columns(fusion, spread) else None


def _is_of_columns(fusion: Fusion, spread: Spread) -> bool:
    """True if x has all axes and the mean only kept ones, all in the order of the result.

    A mean over more axes, as of a group norm, has size 1 along these too, and x may be one image.
    """
    x, mean = fusion.tensors[spread.x], fusion.tensors[spread.mean]
    if {x.dtype, mean.dtype} != {DataType.Float} or len(x.shape) != len(mean.shape):
        return False
    flat = all(mean.domain.no_reductions[at].is_broadcast for at in spread.dims)
    alike = all(mean.sizes[at] in (1, x.sizes[at]) for at in spread.kept)
    in_runs = spread.record.attr("chunk") is not None
    is_plain = in_runs and all(x.sizes[at] == mean.sizes[at] for at in spread.kept)
    broadcast = [axis for axis in x.domain.no_reductions if axis.is_broadcast]
    whole = not broadcast or (not is_plain and all(map(is_unit, broadcast)))
    return flat and alike and whole and list(spread.kept) == sorted(spread.kept)


def _saves_a_pass(whole: Part, spread: Spread) -> bool:
    """True if the mean waits for sums over the same runs, and computing x once more is cheap."""
    pattern, name = whole.patterns[spread.record.outputs[0]], spread.record.outputs[0]
    needed = makers(whole.producer, spread.mean)
    before = [expr.outputs[0] for expr in needed if expr.attr("chunk") == spread.run]
    return _is_cheap(whole, spread) and any(
        whole.patterns.get(at) == pattern for at in before if at != name
    )


def _is_cheap(whole: Part, spread: Spread) -> bool:
    """True if x can be computed at any place, for the first rows once more."""
    return all(map(is_recomputable, makers(whole.producer, spread.x)))


def _wide_type(
    whole: Part, spread: Spread, target: Target, options: CompileOptions
) -> DataType | None:
    """The type of the new sums, wider than x; None if two passes cost less.

    What else is in the fusion of x depends on the surroundings, so under `repeatable` a GPU takes
    only a cast itself, not a view behind it. On a CPU the kept axes must be fastest: sums of Double
    along a row take longer than reading it once more.
    """
    if target.is_cpu:
        name = spread.record.outputs[0]
        last = summed_order(whole, spread.record, whole.patterns[name].walked, options)[-1]
        is_along = last in whole.domain_map.reduced(whole.tensors[name])
        return None if is_along else DataType.Double
    maker = whole.producer.get(spread.x)
    while maker is not None and maker.op in ("reshape", "permute") and not options.repeatable:
        maker = whole.producer.get(names_of(maker)[0])
    operands = names_of(maker) if maker is not None and maker.op == "cast" else ()
    dtypes = [whole.tensors[name].dtype for name in operands]
    if any(dtype.is_float and dtype.bytes <= NARROW for dtype in dtypes):
        return DataType.Float
    return DataType.Double if target.has_fast_doubles and not options.repeatable else None


# ---- writing the new sums


class _SpreadWriter:
    """The records that stand for one sum."""

    def __init__(self, fusion: Fusion, spread: Spread, wide: DataType) -> None:
        self.spread, self.wide, self.written = spread, wide, list[OpRecord]()
        sizes = fusion.tensors[spread.x].sizes
        self.reduced = tuple(int(sizes[at]) for at in spread.dims)
        self.kept = tuple(int(sizes[at]) for at in spread.kept)
        self.rows = prod(self.reduced)
        self.runs = -(-self.rows // spread.run)

    def records(self) -> list[OpRecord]:
        spread, (name,) = self.spread, self.spread.record.outputs
        x, mean = self.widened(spread.x), self.widened(spread.mean)
        first = self.first(x)
        about = self.add("sub", x, self.of_rows(first))
        sums = self.summed(about), self.summed(self.add("mul", about, about))
        moved = self.moved(first, mean, *sums)
        if self.wide is not DataType.Float:
            self.add("cast", moved, dtype=DataType.Float)
        return [*self.written[:-1], replace(self.written[-1], outputs=(name,))]

    def add(self, op: str, *operands: str | float, **attrs: AttrValue) -> str:
        """Adds a record and returns the name of its result."""
        result = f"{self.spread.record.outputs[0]}.about{len(self.written)}"
        inputs = tuple(a if isinstance(a, str) else Literal.of(a) for a in operands)
        self.written.append(OpRecord(op, inputs, (result,), tuple(attrs.items())))
        return result

    def widened(self, name: str) -> str:
        return name if self.wide is DataType.Float else self.add("cast", name, dtype=self.wide)

    def first(self, x: str) -> str:
        """The first row of each run: [runs, *kept]"""
        order = (*self.spread.dims, *self.spread.kept)
        lying = x if order == tuple(sorted(order)) else self.add("permute", x, dims=order)
        shape = (self.rows, *self.kept)
        flat = self.add("reshape", lying, new_shape=shape)
        steps = (self.spread.run, *(1 for _ in self.kept))
        starts = tuple(0 for _ in shape)
        return self.add("slice", flat, start_indices=starts, end_indices=shape, strides=steps)

    def of_rows(self, first: str) -> str:
        """The first row of its run for every row, as x lies."""
        run, dims = self.spread.run, (0, *range(2, len(self.kept) + 2))
        shape = (self.runs, run, *self.kept)
        wide = self.add("broadcast_in_dim", first, shape=shape, broadcast_dims=dims)
        shape = (self.runs * run, *self.kept)
        rows = self.add("reshape", wide, new_shape=shape)
        if shape[0] != self.rows:
            starts, ends = tuple(0 for _ in shape), (self.rows, *self.kept)
            rows = self.add("slice", rows, start_indices=starts, end_indices=ends)
        rows = self.add("reshape", rows, new_shape=(*self.reduced, *self.kept))
        order = (*self.spread.dims, *self.spread.kept)
        back = tuple(order.index(at) for at in range(len(order)))
        return rows if back == tuple(range(len(order))) else self.add("permute", rows, dims=back)

    def summed(self, value: str) -> str:
        """The sums of runs, as the record has them."""
        places = self.spread.places
        if places != tuple(range(len(places))):
            value = self.add("permute", value, dims=places)
        return self.add("sum", value, **dict(self.spread.record.attrs))

    def moved(self, first: str, mean: str, sums: str, squares: str) -> str:
        """squares + u * (2 * sums + u * rows of the run), u = first - mean; not below 0"""
        columns = self.add("squeeze", mean, dims=self.spread.dims)
        flags = (True, *(False for _ in self.kept))
        u = self.add("sub", first, self.add("broadcast", columns, is_broadcast_dim=flags))
        twice, scaled = self.add("mul", sums, 2.0), self.add("mul", u, self.lengths())
        more = self.add("mul", u, self.add("add", twice, scaled))
        return self.add("maximum", self.add("add", squares, more), 0.0)

    def lengths(self) -> str | float:
        """The number of rows of each run; the last one may be short."""
        run = self.spread.run
        if self.rows % run == 0:
            return float(run)
        numbers = self.add("iota", 0, 1, length=self.runs, dtype=DataType.Int)
        left = self.add("sub", self.rows, self.add("mul", numbers, run))
        left = self.add("cast", self.add("minimum", left, run), dtype=self.wide)
        flags = (False, *(True for _ in self.kept))
        return self.add("broadcast", left, is_broadcast_dim=flags)
