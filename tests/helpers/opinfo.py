# SPDX-License-Identifier: Apache-2.0
"""Samples of every op for the kernels: what to build, what to call it with, how near to come.

A row's dtypes and its odd values (NaN, infinities, signed zeros, subnormals) share one fusion, so
one compilation; layouts are the same for all pointwise rows, so one row of each arity meets them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from helpers.cases import REAL
from helpers.opinfo_index import index_samples
from thunder_fuser.ir.dtypes import COMPUTED, DataType
from thunder_fuser.ir.frontend.kinds import Value
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.op_schema import DtypeRule, Op, OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.runtime.torch_types import from_torch_dtype, to_torch_dtype

D = DataType
Input = torch.Tensor | float | int
Body = Callable[..., Sequence[Value] | Value]


@dataclass(frozen=True, eq=False)
class Sample:
    """One call: `body(fd, *values)` gives the outputs. `ulps` is the error allowed, in units of
    the last place of a result; `floor` is an absolute error allowed beside it."""

    row: str
    name: str
    inputs: tuple[Input, ...]
    body: Body
    ulps: float = 1
    floor: float = 0.0
    reference: bool = True  # False where float64 is no reference (nextafter)

    def build(self, fd: Recorder) -> None:
        """Records inputs, ops and outputs."""
        values = [_define(fd, x) for x in self.inputs]
        made = self.body(fd, *values)
        for value in [made] if isinstance(made, Value) else made:
            fd.add_output(value)

    def __repr__(self) -> str:
        return f"{self.row}-{self.name}"


def _define(fd: Recorder, x: Input) -> Any:
    if isinstance(x, torch.Tensor):
        dtype = from_torch_dtype(x.dtype)
        return fd.define_tensor(sizes=tuple(x.shape), strides=x.stride(), dtype=dtype)
    return fd.define_scalar(dtype=D.Double if isinstance(x, float) else D.Int)


# ---- values


@dataclass(frozen=True)
class Domain:
    """Where a row is sampled, and how accurate it is there."""

    low: float = -4.0
    high: float = 4.0
    odd: tuple[float, ...] = (
        0.0, -0.0, 1.0, -1.0, 0.5, 1.5, -2.5, 1e-40, 3e38, math.inf, -math.inf, math.nan
    )
    ulps: float = 4.0
    floor: float = 0.0


_UNIT = (0.0, -0.0, 0.25, -0.75, 1.0, -1.0, 2.0, math.nan)

DOMAINS = {
    "acosh": Domain(low=1.0, high=9.0),
    "asin": Domain(low=-1.0, high=1.0, odd=_UNIT),
    "acos": Domain(low=-1.0, high=1.0, odd=_UNIT),
    "atanh": Domain(low=-0.99, high=0.99, odd=_UNIT),
    "erfinv": Domain(low=-0.99, high=0.99, odd=_UNIT, ulps=16),
    "erfcinv": Domain(low=0.02, high=1.9, odd=(0.5, 1.0, 1.5, 1e-6), ulps=64, floor=1e-7),
    # erfc is small where exp(-x*x) is; an ulp of x*x is many of the result.
    "erfc": Domain(low=-3.0, high=3.0, ulps=32),
    # lgamma crosses zero at 1 and 2.
    "lgamma": Domain(low=0.1, high=9.0, odd=(0.5, 1.0, 2.0, 1e-40, math.inf, math.nan), ulps=16,
                     floor=1e-6),
    # Crosses zero near 1.46.
    "digamma": Domain(low=0.1, high=9.0, odd=(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, -2.5, 1e-40, 3e38,
                      math.inf, -math.inf, math.nan), ulps=16, floor=1e-6),
    "ndtri": Domain(low=0.01, high=0.99, odd=(0.0, -0.0, 1.0, 2.0, -1.0, 0.25, math.nan), ulps=64,
                    floor=1e-6),
    "zeta": Domain(low=1.2, high=9.0, odd=(1.0, 2.0, 0.5, 3.0, -1.0, -2.5, 0.0, 30.0, math.nan),
                   ulps=64),
    "lerp": Domain(odd=(0.0, 1.0, 0.5), ulps=4, floor=1e-6),
    # Near 0 for x < 0, where torch's 1 + tanh(x) has the rounding of numbers near 1.
    "one_plus_tanh": Domain(ulps=4, floor=2.4e-7),
    "pow": Domain(ulps=16),
    "tan": Domain(ulps=8),
}
# torch's own vector fmod gives NaN for a subnormal divisor and where the quotient overflows.
_WHOLE = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, -2.5, 1e9, math.inf, -math.inf, math.nan)
for _name in ("fmod", "mod", "remainder"):
    DOMAINS[_name] = Domain(odd=_WHOLE)
for _name in ("log", "log2", "log10", "sqrt", "rsqrt"):
    DOMAINS[_name] = Domain(low=0.01, high=9.0)

_NONZERO_RIGHT = {"div", "fmod", "mod", "remainder"}
_SHAPE = (12, 13)  # room for all pairs of odd values


def _floats(row: Op, at: int, dtype: DataType) -> torch.Tensor:
    """Odd values first, each beside each of the other operand's, then random ones."""
    domain = DOMAINS.get(row.name, Domain())
    count = math.prod(_SHAPE)
    generator = torch.Generator().manual_seed(at + 1)
    spread = torch.rand(count, generator=generator, dtype=torch.float64)
    values = spread * (domain.high - domain.low) + domain.low
    odd = torch.tensor(domain.odd, dtype=torch.float64)
    pairs = odd.repeat_interleave(len(odd)) if at == 0 else odd.repeat(len(odd))
    values[: len(pairs)] = pairs if row.arity > 1 else pairs[: len(values)]
    return values.to(to_torch_dtype(dtype)).reshape(_SHAPE)


def _integers(row: Op, at: int, dtype: DataType) -> torch.Tensor:
    generator = torch.Generator().manual_seed(at + 7)
    low, high = (0 if dtype is D.UInt8 else -9), 10
    if at == 1 and ("shift" in row.name or row.name == "pow"):
        low, high = 0, 4
    if at == 1 and row.name in _NONZERO_RIGHT:
        low = 1
    numbers = torch.randint(low, high, _SHAPE, generator=generator)
    return numbers > 0 if dtype is D.Bool else numbers.to(to_torch_dtype(dtype))


def _operand(row: Op, at: int, dtype: DataType) -> torch.Tensor:
    if row.rule is DtypeRule.SELECT and at == 0:
        return _integers(row, at, D.Bool)
    return _floats(row, at, dtype) if dtype.is_float else _integers(row, at, dtype)


def dtypes_of(row: Op) -> list[DataType]:
    """The types a pointwise row takes."""
    fits = [d for d in COMPUTED if row.bools or d is not D.Bool]
    return [d for d in fits if d.is_int or not d.is_float or row.rule is not DtypeRule.INTEGER]


# ---- pointwise rows: every dtype in one fusion


def _pointwise(row: Op) -> Sample:
    domain = DOMAINS.get(row.name, Domain())
    dtypes = dtypes_of(row)
    inputs = [_operand(row, at, dtype) for dtype in dtypes for at in range(row.arity)]

    def body(fd: Recorder, *values: Value) -> list[Value]:
        outputs = []
        for at, dtype in enumerate(dtypes):
            operands = values[at * row.arity : (at + 1) * row.arity]
            result = getattr(fd.ops, row.name)(*operands)
            outputs.append(result)
            if dtype.is_half:
                outputs.append(fd.ops.cast(result, dtype))
        return outputs

    exact = row.cost <= 1 and row.name not in DOMAINS
    return Sample(
        row.name, "dtypes", tuple(inputs), body,
        ulps=0 if exact else domain.ulps, floor=domain.floor,
        reference=row.name != "nextafter",
    )


def _casts() -> list[Sample]:
    """From each type to each type; floats stay in the range of all integers."""
    samples = []
    for dtype in REAL:
        x = _fractions(dtype) if dtype.is_float else _integers(OPS["cast"], 0, dtype)

        def body(fd: Recorder, value: Value) -> list[Value]:
            return [fd.ops.cast(value, to) for to in REAL]

        samples.append(Sample("cast", f"from {dtype.short}", (x,), body, ulps=0))
    odd = torch.tensor(
        [math.nan, math.inf, -math.inf, -0.0, 1e-40, 65504.0, 65519.0, 65520.0, 3e38, 1 + 2**-9]
    )

    def floats(fd: Recorder, value: Value) -> list[Value]:
        return [fd.ops.cast(value, to) for to in (D.Half, D.BFloat16, D.Double, D.Bool)]

    return [*samples, Sample("cast", "odd floats", (odd,), floats, ulps=0)]


def _fractions(dtype: DataType) -> torch.Tensor:
    return (torch.arange(77) * 0.4375).to(to_torch_dtype(dtype)).reshape(7, 11)


# ---- layouts


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal values, the same on each call."""
    generator = torch.Generator().manual_seed(seed + math.prod(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def misaligned(x: torch.Tensor) -> torch.Tensor:
    """The same values one element after an aligned address."""
    memory = torch.zeros(x.numel() + 1, dtype=x.dtype)
    moved = memory[1:].view(x.shape)
    return moved.copy_(x)


def layouts(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Tensors that broadcast to [rows, columns], one of each memory layout."""
    return [
        normal(rows, columns, dtype=dtype),
        normal(columns, rows, dtype=dtype).t(),
        normal(rows, 2 * columns, dtype=dtype)[:, ::2],
        normal(2 * rows, columns, dtype=dtype)[::2],
        normal(rows, columns + 3, dtype=dtype)[:, 1 : columns + 1],
        misaligned(normal(rows, columns, dtype=dtype)),
        normal(1, columns, dtype=dtype).expand(rows, columns),
        normal(rows, 1, dtype=dtype).expand(rows, columns),
        normal(1, columns, dtype=dtype),
        normal(rows, 1, dtype=dtype),
        normal(1, 1, dtype=dtype),
        normal(columns, dtype=dtype),
        normal(dtype=dtype),
    ]


def _unary_of_each(fd: Recorder, *values: Value) -> list[Value]:
    return [fd.ops.neg(value) for value in values]


def _sum_with_each(fd: Recorder, first: Value, *values: Value) -> list[Value]:
    return [fd.ops.add(first, value) for value in values]


def _select_between(fd: Recorder, first: Value, *values: Value) -> list[Value]:
    pairs = itertools.pairwise([first, *values])
    return [fd.ops.where(fd.ops.gt(a, 0.0), b, first) for a, b in pairs]


def _layouts() -> list[Sample]:
    whole = layouts(6, 10)[:8]
    many = [normal(2, 3, 4).permute(order) for order in itertools.permutations(range(3))]
    samples = [
        Sample("neg", "layouts", tuple(whole), _unary_of_each, ulps=0),
        Sample("add", "layouts", tuple(layouts(6, 10)), _sum_with_each, ulps=0),
        Sample("where", "layouts", tuple(layouts(6, 10)), _select_between, ulps=0),
        Sample("add", "wide rows", tuple(layouts(8, 64)), _sum_with_each, ulps=0),
        Sample("add", "wide rows bf16", tuple(layouts(8, 64, torch.bfloat16)), _sum_with_each, 0),
        Sample("neg", "all permutations", tuple(many), _unary_of_each, ulps=0),
        Sample("neg", "no elements", (normal(0, 5), normal(5, 0)), _unary_of_each, ulps=0),
        Sample("add", "no elements", (normal(0, 5), normal(1, 5)), _sum_with_each, ulps=0),
        Sample("add", "one element", (normal(1, 1), normal(1), normal()), _sum_with_each, ulps=0),
        Sample("neg", "rank 0", (normal(),), _unary_of_each, ulps=0),
        Sample("add", "rank 5", (normal(2, 1, 3, 1, 2), normal(4, 1, 5, 1)), _sum_with_each, 0),
        Sample("add", "numbers", (normal(7), 2.5, 3), _numbers, ulps=0),
        Sample("stride_order", "outputs", (normal(3, 4, 5), normal(5, 3, 4)), _orders, ulps=0),
    ]
    for count in (1, 3, 17, 1023, 4096):
        samples.append(Sample("neg", f"{count} elements", (normal(count),), _unary_of_each, 0))
    return samples


def _numbers(fd: Recorder, x: Value, a: Value, n: Value) -> list[Value]:
    """Numbers of the definition, of the call, and computed from those of the call."""
    ops = fd.ops
    return [ops.add(x, 0.1), ops.add(x, a), ops.mul(x, n), ops.add(x, ops.mul(a, n))]


def _orders(fd: Recorder, x: Value, y: Value) -> list[Value]:
    orders = itertools.permutations(range(3))
    y = fd.ops.permute(y, [1, 2, 0])
    return [fd.ops.stride_order(fd.ops.add(x, y), list(order)) for order in orders]


# ---- reductions

_ALL = [d for d in COMPUTED if d is not D.Bool]


def _reduced(row: str, dims: list[int] | None, keepdim: bool = False) -> Body:
    def body(fd: Recorder, *values: Value) -> list[Value]:
        return [getattr(fd.ops, row)(value, dims, keepdim) for value in values]

    return body


def _near_one(shape: Sequence[int], dtype: DataType) -> torch.Tensor:
    """Products of these neither overflow nor vanish."""
    signs = torch.where(normal(*shape) > 0, 1.0, -1.0)
    return ((1 + 0.01 * normal(*shape)) * signs).to(to_torch_dtype(dtype))


def values_for(row: str, shape: Sequence[int], dtype: DataType) -> torch.Tensor:
    if row == "prod":
        return _near_one(shape, dtype)
    x = normal(*shape) * 3
    return (x.abs() if dtype is D.UInt8 else x).to(to_torch_dtype(dtype))


def _reductions(row: str) -> list[Sample]:
    def of(name: str, shape: Sequence[int], dims: list[int] | None, keepdim: bool = False,
           dtypes: Sequence[DataType] = (D.Float,)) -> Sample:
        inputs = tuple(values_for(row, shape, dtype) for dtype in dtypes)
        # A sum of n numbers of size 3 may cancel; its error goes with n, not with the result.
        floor = {"sum": 1e-6 * max(math.prod(shape), 1) ** 0.5, "prod": 1e-5}.get(row, 0.0)
        # Float sums are compared in the result's ulps, doubles in theirs.
        ulps = {"sum": 16.0, "prod": 64.0}.get(row, 0.0)
        return Sample(row, name, inputs, _reduced(row, dims, keepdim), ulps, floor)

    samples = [
        of("inner dtypes", (5, 37), [1], dtypes=_ALL),
        of("outer dtypes", (37, 5), [0], dtypes=_ALL),
        of("inner keepdim", (4, 70), [-1], True),
        of("middle", (3, 17, 5), [1]),
        of("two axes", (3, 17, 5), [0, 2], True),
        of("all", (7, 13), None),
        of("long row", (2, 5000), [1]),
        of("long column", (5000, 2), [0]),
        of("one row", (1, 33), [1]),
        of("axis of size 1", (6, 1), [1]),
        of("rank 1", (129,), [0]),
    ]
    permuted = Sample(
        row, "permuted", tuple(values_for(row, (6, 40), D.Float).t() for _ in range(1)),
        _reduced(row, [0]), samples[0].ulps, samples[0].floor,
    )
    odd = torch.tensor([[math.nan, 1, 2], [math.inf, 1, 2], [-math.inf, math.inf, 0], [3, 4, 5]])
    samples += [permuted, Sample(row, "odd values", (odd,), _reduced(row, [1]), 4)]
    if row in ("sum", "prod"):
        samples.append(Sample(row, "of nothing", (normal(3, 0),), _reduced(row, [1]), 0))
    return samples


def _softmax(fd: Recorder, x: Value) -> Value:
    shifted = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
    return fd.ops.truediv(shifted, fd.ops.sum(shifted, [1], True))


def _variance(fd: Recorder, x: Value) -> tuple[Value, Value]:
    return fd.ops.var_mean(x, [1], 1, True)


def _centred_max(fd: Recorder, x: Value) -> list[Value]:
    """A reduction of a reduction, and a value that outlives both."""
    centred = fd.ops.sub(x, fd.ops.sum(x, [1], True))
    return [fd.ops.max(centred, [0]), fd.ops.abs(centred)]


def _chains() -> list[Sample]:
    return [
        Sample("sum", "softmax", (normal(9, 50),), _softmax, 16, 1e-7),
        Sample("sum", "softmax bf16", (normal(9, 64, dtype=torch.bfloat16),), _softmax, 16, 1e-7),
        Sample("sum", "var_mean", (normal(9, 50),), _variance, 16, 1e-6),
        Sample("max", "after a sum", (normal(9, 50),), _centred_max, 16, 2e-5),
    ]


# ---- movement and factories


def _movement() -> list[Sample]:
    return [Sample(row, name, inputs, body, 8, 2e-6) for row, name, inputs, body in MOVEMENT]


def _halves_turned_round(fd: Recorder, x: Value) -> Value:
    """What rotary embeddings do: [a, b] -> [-b, a]."""
    left, right = fd.ops.slice(x, [0, 0], [4, 3]), fd.ops.slice(x, [0, 3], [4, 6])
    return fd.ops.cat([fd.ops.neg(right), left], 1)


def _neighbours(fd: Recorder, x: Value) -> Value:
    return fd.ops.add(fd.ops.slice(x, [0, 0], [4, 3]), fd.ops.slice(x, [0, 3], [4, 6]))


def _outer_sum(fd: Recorder, x: Value) -> Value:
    """One vector along both axes of a matrix."""
    column, row = fd.ops.broadcast(x, [False, True]), fd.ops.broadcast(x, [True, False])
    return fd.ops.sub(column, row)


def _beside_its_transpose(fd: Recorder, x: Value) -> list[Value]:
    y = fd.ops.exp(x)
    turned = fd.ops.permute(y, [1, 0])
    return [fd.ops.sub(x, fd.ops.permute(x, [1, 0])), fd.ops.sub(y, turned)]


def _rows_of_a_size(fd: Recorder, x: Value) -> Value:
    shape = [2, fd.ops.size(x, 0), fd.ops.size(x, 1)]
    return fd.ops.broadcast_in_dim(x, shape, [1, 2])


_X = normal(4, 6)
_REAL = [dtype for dtype in D if dtype.is_float and not dtype.is_float8]
# (row, what is special, inputs, the call)
MOVEMENT: list[tuple[str, str, tuple[Input, ...], Body]] = [
    ("set", "copy", (_X, _X.t()), lambda fd, a, b: [fd.ops.set(a), fd.ops.set(b)]),
    ("segment_set", "between ops", (_X,),
     lambda fd, a: fd.ops.neg(fd.ops.segment_set(fd.ops.exp(a)))),
    ("broadcast", "new axes", (normal(6),),
     lambda fd, a: fd.ops.broadcast(a, [True, False, True])),
    ("broadcast", "beside a tensor", (normal(6), _X),
     lambda fd, a, b: fd.ops.mul(fd.ops.broadcast(a, [True, False]), b)),
    ("broadcast_in_dim", "rows", (normal(6),),
     lambda fd, a: fd.ops.broadcast_in_dim(a, [4, 6], [1])),
    ("broadcast_in_dim", "columns", (normal(4),),
     lambda fd, a: fd.ops.broadcast_in_dim(a, [4, 6], [0])),
    ("expand", "of an input", (normal(4, 1),), lambda fd, a: fd.ops.expand(a, [-1, 6])),
    ("expand", "of a result", (normal(4, 1),),
     lambda fd, a: fd.ops.expand(fd.ops.neg(a), [4, 6])),
    ("squeeze", "ones", (normal(4, 1, 6, 1),), lambda fd, a: fd.ops.squeeze(a, [1, 3])),
    ("squeeze", "a kept axis", (_X,),
     lambda fd, a: fd.ops.squeeze(fd.ops.sum(a, [1], True), [1])),
    ("broadcast", "outer sum", (normal(6),), _outer_sum),
    ("permute", "beside itself", (normal(5, 5),), _beside_its_transpose),
    ("permute", "of an input", (_X,), lambda fd, a: fd.ops.permute(a, [1, 0])),
    ("permute", "within an op", (_X, normal(6, 4)),
     lambda fd, a, b: fd.ops.add(fd.ops.permute(a, [1, 0]), b)),
    ("permute", "three axes", (normal(2, 3, 4),),
     lambda fd, a: fd.ops.neg(fd.ops.permute(a, [2, 0, 1]))),
    ("reshape", "flat", (_X,), lambda fd, a: fd.ops.reshape(a, [24])),
    ("reshape", "split", (_X,), lambda fd, a: fd.ops.neg(fd.ops.reshape(a, [2, 2, 3, 2]))),
    ("reshape", "merge and split", (_X,), lambda fd, a: fd.ops.exp(fd.ops.reshape(a, [3, 8]))),
    ("reshape", "of a permuted", (_X.t(),), lambda fd, a: fd.ops.reshape(a, [-1])),
    ("reshape", "between ops", (_X, normal(8, 3)),
     lambda fd, a, b: fd.ops.mul(fd.ops.reshape(fd.ops.exp(a), [8, 3]), b)),
    ("reshape", "before a sum", (_X,),
     lambda fd, a: fd.ops.sum(fd.ops.reshape(a, [8, 3]), [1])),
    ("slice", "both axes", (_X,), lambda fd, a: fd.ops.slice(a, [1, 2], [3, 6])),
    ("slice", "within an op", (_X,), _neighbours),
    ("slice", "of a result", (_X,), lambda fd, a: fd.ops.slice(fd.ops.exp(a), [0, 1], [4, 5])),
    ("pad", "both axes", (_X,), lambda fd, a: fd.ops.pad(a, [1, 2, 0, 1])),
    ("pad", "a value", (_X,), lambda fd, a: fd.ops.pad(fd.ops.exp(a), [1, 2], -2.5)),
    ("pad", "less", (_X,), lambda fd, a: fd.ops.pad(a, [-1, 2])),
    ("cat", "rows", (_X, normal(3, 6)), lambda fd, a, b: fd.ops.cat([a, b], 0)),
    ("cat", "columns of results", (_X, normal(4, 3)),
     lambda fd, a, b: fd.ops.cat([fd.ops.neg(a), b, fd.ops.exp(a)], -1)),
    ("cat", "halves turned round", (_X,), _halves_turned_round),
    ("full", "each dtype", (), lambda fd: [fd.ops.full([3, 4], 1, dtype) for dtype in REAL]),
    ("full", "a number of the call", (2.5,), lambda fd, a: fd.ops.full([3], a, D.Float)),
    ("iota", "dtypes", (),
     lambda fd: [fd.ops.iota(10, 3, 2, d) for d in REAL if d is not D.Bool]),
    ("iota", "fractions", (), lambda fd: fd.ops.iota(10, 0.5, 0.25, D.Float)),
    ("uniform", "types", (),
     lambda fd: [fd.ops.uniform(-1.0, 2.0, [5, 9], d, 3, 7) for d in _REAL]),
    ("uniform", "a stream of the call", (3, 7, 0.25, 0.5),
     lambda fd, seed, offset, lo, hi: fd.ops.uniform(lo, hi, [70], D.Float, seed, offset)),
    ("normal", "types", (), lambda fd: [fd.ops.normal(0.5, 0.5, [5, 9], d, 3, 7) for d in _REAL]),
    ("size", "within an op", (_X,), lambda fd, a: fd.ops.mul(a, fd.ops.size(a, 1))),
    ("size", "of a shape", (_X,), _rows_of_a_size),
    ("where", "triu", (normal(5, 5),), lambda fd, a: fd.ops.triu(a, 1)),
    ("matmul", "two matrices", (_X, normal(6, 3)), lambda fd, a, b: fd.ops.matmul(a, b)),
    ("linear", "with a bias", (_X, normal(5, 6), normal(5)),
     lambda fd, a, b, c: fd.ops.silu(fd.ops.linear(a, b, c))),
]


# In opinfo_complex.py, and in test_quantized.py.
APART = ("cast", "imag", "complex")


def samples() -> list[Sample]:
    """All of them, rows in the table's order within each group."""
    pointwise = [r for r in OPS.values() if r.kind is OpKind.POINTWISE and r.name not in APART]
    reductions = [r.name for r in OPS.values() if r.kind is OpKind.REDUCTION]
    return [
        *map(_pointwise, pointwise), *_casts(), *_layouts(),
        *itertools.chain.from_iterable(map(_reductions, reductions)), *_chains(), *_movement(),
        # scatter_add adds into an element more than once
        *(Sample(*one, ulps=8 * (one[0] == "scatter_add")) for one in index_samples()),
    ]


def assert_near(result: torch.Tensor, expected: torch.Tensor, ulps: float, floor: float) -> None:
    """Equal types and shapes; values within `ulps` units of the last place, or within `floor`."""
    assert result.shape == expected.shape
    assert result.dtype is expected.dtype
    if result.is_complex():
        result, expected = torch.view_as_real(result), torch.view_as_real(expected)
    if not result.dtype.is_floating_point:
        assert torch.equal(result, expected)
        return
    if result.dtype.itemsize == 1:  # torch compares no 8-bit floats
        result, expected = result.float(), expected.float()
    facts = torch.finfo(result.dtype)
    # Below the smallest normal number, ulps do not shrink; a math function may stop there.
    least = 0.0 if ulps == 0 else facts.smallest_normal
    torch.testing.assert_close(
        result, expected, rtol=ulps * facts.eps, atol=max(floor, least), equal_nan=True
    )
