# SPDX-License-Identifier: Apache-2.0
"""Every row of the support table, in every type it takes, beside Thunder's own torch executor."""

from __future__ import annotations

from typing import Any

import pytest
import thunder.torch as ltorch
import torch
from helpers.cases import REAL
from helpers.traced import traced
from thunder.core import devices, dtypes, prims
from thunder.core.prims import PrimIDs

from thunder_fuser import fuser as compiled_fuser
from thunder_fuser import options
from thunder_fuser.errors import DefinitionError
from thunder_fuser.executors.fuser import ThunderFuser
from thunder_fuser.executors.support.check import ROWS
from thunder_fuser.executors.support.dtypes import ARITHMETIC
from thunder_fuser.executors.support.index_rows import INDEXING
from thunder_fuser.executors.support.pooling import POOLED
from thunder_fuser.executors.support.products import PRODUCTS
from thunder_fuser.executors.support.rows import Row
from thunder_fuser.executors.support.upsampling import UPSAMPLED
from thunder_fuser.ir.dtypes import COMPUTED, DataType
from thunder_fuser.runtime.torch_types import to_torch_dtype

SYMBOLS = {s.id: s for s in vars(prims).values() if isinstance(s, prims.Symbol)}
SYMBOLS |= {f"torch.{name}": getattr(ltorch, name) for name in ("cumsum", "relu")}
CPU = devices.cpu
REDUCTIONS = (PrimIDs.SUM, PrimIDs.PROD, PrimIDs.AMAX, PrimIDs.AMIN)

# Further arguments of the rows that take more than tensors; the others take `arity` tensors.
MORE: dict[PrimIDs | str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    PrimIDs.BROADCAST_IN_DIM: (((2, 3, 4), (1, 2)), {}),
    PrimIDs.RESHAPE: (((4, 3),), {}),
    PrimIDs.TRANSPOSE: (((1, 0),), {}),
    PrimIDs.STRIDE_ORDER: (((0, 1),), {}),
    PrimIDs.SLICE: (((1, 0), (3, 2)), {}),
    PrimIDs.VAR: (((1,),), {"correction": 1}),
    PrimIDs.VAR_MEAN: (((0, 1),), {"correction": 0}),
    PrimIDs.FLIP: (((1,),), {}),
    PrimIDs.ARGMAX: ((1,), {}),
    PrimIDs.ARGMIN: ((0,), {}),
    **{id: (((1,),), {}) for id in REDUCTIONS},
    "torch.cumsum": ((1,), {}),
    PrimIDs.STD: (((1,),), {"correction": 1}),
}
BINARY = """ADD SUB MUL DIV FMOD REMAINDER POW ATAN2 ZETA NEXTAFTER MAXIMUM MINIMUM EQ NE LT LE GT
GE BITWISE_AND BITWISE_OR BITWISE_XOR BITWISE_LEFT_SHIFT BITWISE_RIGHT_SHIFT"""
ARITY = {PrimIDs[name]: 2 for name in BINARY.split()} | {PrimIDs.LERP: 3}
APART = (PrimIDs.WHERE, PrimIDs.FULL, PrimIDs.IOTA, PrimIDs.PAD, PrimIDs.CAT, PrimIDs.SQUEEZE,
         PrimIDs.CONVERT_ELEMENT_TYPE, PrimIDs.UNIFORM, PrimIDs.RANDN, PrimIDs.UNIFORM_PHILOX,
         "random_uniform", "random_normal")  # fmt: skip
INDEXED = {row.id for row in INDEXING}  # in test_indexing.py
FEW_ROWS = {row.id for row in PRODUCTS}  # in test_few_rows.py
OF_IMAGES = {row.id for row in (*POOLED, *UPSAMPLED)}  # in test_pooling.py, test_upsampling.py
SHARDED = {id for id in ROWS if "dtensor" in str(id).lower()}  # in test_dtensor.py
CASES = [
    pytest.param(row, dtype, id=f"{row.name}-{dtype.short}")
    for row in ROWS.values() if row.id not in INDEXED.union(APART, SHARDED, FEW_ROWS, OF_IMAGES)
    for dtype in DataType if dtype in row.dtypes
]


DIVISIONS = (PrimIDs.DIV, PrimIDs.FMOD, PrimIDs.REMAINDER)


def operands(dtype: DataType, count: int, shape: tuple[int, ...] = (3, 4)) -> list[torch.Tensor]:
    """In (0, 1) or 1..4: inside the domain of every function of the table."""
    torch.manual_seed(0)
    made = [torch.rand(shape) for _ in range(count)]
    if not dtype.is_float:
        made = [torch.randint(0 if dtype is DataType.Bool else 1, 5, shape) for _ in range(count)]
    return [t.to(to_torch_dtype(dtype)) for t in made]


def compare(fuser: ThunderFuser, function: Any, args: list[Any]) -> None:
    same(fuser, function, args, traced(function, args))


def same(fuser: ThunderFuser, function: Any, args: list[Any], expected: Any) -> None:
    got = traced(function, args, [fuser])
    assert fuser.last_claims is not None
    assert len(fuser.last_claims.regions) == 1
    many = isinstance(expected, tuple)
    for g, e in zip(got if many else [got], expected if many else [expected], strict=True):
        # Thunder says that a sum of int32 is an int32, torch gives int64: what follows in the trace
        # was typed by Thunder, so it is right.
        assert g.dtype is e.dtype or not e.is_floating_point()
        if e.is_floating_point() and e.itemsize == 1:  # torch compares no 8-bit floats
            g, e = g.float(), e.float()
        rounds = e.is_floating_point() or e.is_complex()
        eps = 4 * torch.finfo(e.dtype).eps if rounds else 0.0
        torch.testing.assert_close(g, e.to(g.dtype), rtol=eps, atol=eps, equal_nan=True)


@pytest.mark.parametrize(("row", "dtype"), CASES)
def test_row_gives_what_torch_gives(fuser: ThunderFuser, row: Row, dtype: DataType) -> None:
    symbol = SYMBOLS[row.id]
    more, kwargs = MORE.get(row.id, ((), {}))
    args = operands(dtype, ARITY.get(row.id, 1))
    if row.id in DIVISIONS and dtype.is_int:  # torch has those by tensors, see rows.py
        compare(fuser, lambda a: symbol(a, 3), args[:1])
        return
    if row.id in (PrimIDs.ACOSH, PrimIDs.ZETA):
        args = [a + 1 for a in args]
    if row.id is PrimIDs.LERP:  # Thunder's torch executor has none
        same(fuser, symbol, args, torch.lerp(*args))
        return
    views = row.id in (PrimIDs.RESHAPE, PrimIDs.TRANSPOSE, PrimIDs.BROADCAST_IN_DIM,
                       PrimIDs.SLICE, PrimIDs.SHALLOW_COPY)  # fmt: skip
    if not views:
        compare(fuser, lambda *ts: symbol(*ts, *more, **kwargs), args)
        return

    def both_sides(*ts: Any) -> Any:  # views enter regions only between ops that compute
        return prims.clone(symbol(prims.clone(ts[0]), *more, **kwargs))

    compare(fuser, both_sides, args)


@pytest.mark.parametrize("source", REAL)
@pytest.mark.parametrize("target", REAL)
def test_cast(fuser: ThunderFuser, source: DataType, target: DataType) -> None:
    wanted = dtypes.to_dtype(to_torch_dtype(target))
    compare(fuser, lambda a: prims.convert_element_type(a, wanted), operands(source, 1))


@pytest.mark.parametrize("dtype", COMPUTED)
def test_where_pad_cat_squeeze_full_iota(fuser: ThunderFuser, dtype: DataType) -> None:
    a, b = operands(dtype, 2)
    mask = a > b
    torch_dtype = to_torch_dtype(dtype)
    wanted = dtypes.to_dtype(torch_dtype)
    number: Any = True if dtype is DataType.Bool else 2.0 if dtype.is_float else 2
    compare(fuser, prims.where, [mask, a, b])
    compare(fuser, lambda m, x: prims.where(m, x, number), [mask, a])
    compare(fuser, lambda x: prims.pad(x, number, ((1, 2, 0), (0, 3, 0))), [a])
    compare(fuser, lambda x, y: prims.cat([x, y, x], 1), [a, b])
    compare(fuser, lambda x: prims.clone(prims.squeeze(prims.clone(x), (0,))), [a[:1]])
    compare(fuser, lambda: prims.full((2, 3), number, device=CPU, dtype=wanted), [])
    if dtype.is_int:
        compare(fuser, lambda: prims.iota(5, start=2, step=3, device=CPU, dtype=wanted), [])


@pytest.mark.parametrize("dtype", sorted(ARITHMETIC, key=str))
def test_numbers_stand_on_either_side(fuser: ThunderFuser, dtype: DataType) -> None:
    (a,) = operands(dtype, 1)
    two: Any = 2.0 if dtype.is_float else 2
    for symbol in (prims.add, prims.sub, prims.mul, prims.div, prims.lt, prims.maximum):
        filled = torch.full_like(a, two)  # torch's own lt takes no number on the left
        same(fuser, lambda x, s=symbol: s(x, two), [a], traced(symbol, [a, filled]))
        if symbol is not prims.div or not dtype.is_int:
            same(fuser, lambda x, s=symbol: s(two, x), [a], traced(symbol, [filled, a]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.float64])
def test_cumsum_in_another_type(fuser: ThunderFuser, dtype: torch.dtype) -> None:
    """Cast first, as torch does, and fused with what stands around it."""
    x = torch.linspace(-2, 9, 60).reshape(3, 20)

    def scaled(a: torch.Tensor) -> torch.Tensor:
        return ltorch.cumsum(a * 2, -1, dtype=dtype) * 3

    same(fuser, scaled, [x], torch.cumsum(x * 2, -1, dtype=dtype) * 3)


def test_integer_division_truncates(fuser: ThunderFuser) -> None:
    for divisor in (2, -2):
        compare(fuser, lambda a, d=divisor: prims.div(a, d), [torch.tensor([-7, 7])])


def test_relu_keeps_nan(fuser: ThunderFuser) -> None:
    x = torch.tensor([torch.nan, -1.0, 2.0, -torch.inf])
    same(fuser, lambda a: ltorch.relu(a) * 2, [x], torch.relu(x) * 2)


def test_bitwise_not_of_bool(fuser: ThunderFuser) -> None:
    compare(fuser, prims.bitwise_not, [torch.tensor([True, False])])


@pytest.mark.parametrize("dims", [(), (0,)])
def test_reductions_of_a_0_dim_tensor(fuser: ThunderFuser, dims: tuple[int, ...]) -> None:
    x = torch.tensor(2.5)
    for symbol in (prims.sum, prims.prod, prims.amax, prims.amin):
        same(fuser, lambda a, s=symbol: s(a, dims), [x], x)
    for correction, variance in ((0, torch.tensor(0.0)), (1, torch.tensor(torch.nan))):
        same(fuser, lambda a, c=correction: prims.var(a, dims, correction=c), [x], variance)
        root = variance.sqrt()
        same(fuser, lambda a, c=correction: prims.std(a, dims, correction=c), [x], root)
        both = (variance, x)
        same(fuser, lambda a, c=correction: prims.var_mean(a, dims, correction=c), [x], both)


@pytest.mark.parametrize(
    "config",
    [((0, 0, 1), (0, 0, 0)), ((1, 2, 3), (-1, 0, 2)), ((-2, -1, 1), (3, -4, 2)), ((0, 0, 0),) * 2],
    ids=str,
)
@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (2, 1)])
@pytest.mark.parametrize("emulate", [False, True], ids=["cpu", "emulator"])
def test_pad_between_elements(shape: Any, config: Any, emulate: bool) -> None:
    """Beside Thunder's own; the padding is the gradient of a slice by steps."""
    x = torch.arange(float(shape[0] * shape[1])).reshape(shape)

    def padded(executors: list[Any]) -> torch.Tensor:
        return traced(lambda a: prims.pad(a * 2, 7.0, config), [x], executors)

    cut = [min(low, 0) + min(high, 0) for low, high, _ in config]
    spread = [n + (n - 1) * dilation for n, (_, _, dilation) in zip(shape, config, strict=True)]
    with options(emulate=emulate, strict=True):
        if any(size + less < 0 for size, less in zip(spread, cut, strict=True)):
            with pytest.raises((DefinitionError, RuntimeError), match=r"removed|would be.*< 0"):
                padded([compiled_fuser])
            return
        torch.testing.assert_close(padded([compiled_fuser]), padded([]), rtol=0, atol=0)
    assert compiled_fuser.last_claims.regions


def test_every_row_is_tested() -> None:
    elsewhere = {*APART, *INDEXED, *SHARDED, *FEW_ROWS, *OF_IMAGES}
    assert set(ROWS) == {case.values[0].id for case in CASES} | elsewhere
