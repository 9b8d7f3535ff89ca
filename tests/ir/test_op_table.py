# SPDX-License-Identifier: Apache-2.0
"""Every row of the op table, in every dtype, against eager torch: values and result types.

The type rule, said once more in torch's words: 16-bit floats are computed in, and stay, float32;
otherwise the result has the type that torch gives.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from helpers.cases import REAL
from helpers.definitions import told
from helpers.strategies import filled

from thunder_fuser.errors import DefinitionError, DtypeError
from thunder_fuser.ir.dtypes import COMPUTED, DataType
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import DtypeRule, Op, OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.rules.build import define
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.runtime.torch_types import from_torch_dtype, to_torch_dtype

APART = ("cast", "imag", "complex")
POINTWISE = [r for r in OPS.values() if r.kind is OpKind.POINTWISE and r.name not in APART]
REDUCTIONS = [row for row in OPS.values() if row.kind is OpKind.REDUCTION]

def _floats(a: torch.Tensor) -> torch.Tensor:
    return a if a.is_floating_point() else a.float()


def _unsigned_shift(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    bits = torch.iinfo(a.dtype).bits
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    numbers = [(x % 2**bits) >> y for x, y in pairs]
    signed = a.dtype.is_signed
    wrapped = [n - 2**bits if signed and n >= 2 ** (bits - 1) else n for n in numbers]
    return torch.tensor(wrapped, dtype=a.dtype)


# What eager torch calls a row, where that is not torch.<name>.
EAGER: dict[str, Callable[..., torch.Tensor]] = {
    "one_plus_tanh": lambda a: 1 + torch.tanh(a),
    "div": lambda a, b: torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc"),
    "truediv": torch.true_divide,
    "mod": torch.fmod,
    "silu": lambda a: a * torch.sigmoid(a),
    "erfcinv": lambda a: torch.erfinv(1 - a.double()).to(torch.promote_types(a.dtype, torch.float)),
    "threshold": lambda a, b, c: torch.where(a > b, a, c),
    "where": lambda a, b, c: torch.where(a.bool(), b, c),
    "logical_right_shift": _unsigned_shift,
    # torch takes floats only; integers become Float here as for all the math around them
    "frac": lambda a: torch.frac(_floats(a)),
    "nextafter": lambda a, b: torch.nextafter(_floats(a), _floats(b)),
    "lerp": lambda a, b, c: torch.lerp(*map(_floats, (a, b, c))),
}
EAGER |= {name: getattr(torch.special, name) for name in ("ndtri", "zeta")}
KEEPS_HALF = {"where"}
INTEGERS_ONLY = {r.name for r in POINTWISE if r.rule is DtypeRule.INTEGER}


def one_op(row: Op, dtypes: tuple[DataType, ...], **attrs: object) -> Fusion:
    fd = Recorder()
    tensors = [fd.define_tensor([-1], True, dtype) for dtype in dtypes]
    fd.add_output(getattr(fd.ops, row.name)(*tensors, **attrs))
    return define(fd.definition)


def sample(row: Op, dtypes: tuple[DataType, ...]) -> list[torch.Tensor]:
    tensors = [filled([11 + at], to_torch_dtype(d))[:11] for at, d in enumerate(dtypes)]
    shifts = "shift" in row.name
    if (shifts or row.name in ("div", "fmod", "mod", "remainder", "pow")) and len(tensors) > 1:
        tensors[1] = tensors[1].abs() if shifts else tensors[1].abs() + 1
    return tensors


def assert_eager(row: Op, dtypes: tuple[DataType, ...]) -> None:
    fusion = one_op(row, dtypes)
    tensors = sample(row, dtypes)
    (result,) = evaluate(fusion, tensors)
    common = tensors
    if row.name not in KEEPS_HALF:
        common = [t.float() if d.is_half else t for t, d in zip(tensors, dtypes, strict=True)]
    call = EAGER.get(row.name) or getattr(torch, row.name)
    expected = call(*common)
    assert result.dtype is expected.dtype
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("row", POINTWISE, ids=lambda r: r.name)
def test_row_in_every_dtype(row: Op) -> None:
    for dtype in COMPUTED:
        dtypes = (dtype,) * row.arity
        if row.rule is DtypeRule.SELECT:
            dtypes = (DataType.Bool, *dtypes[1:])
        if dtype.is_float and row.name in INTEGERS_ONLY:
            continue
        if dtype is DataType.Bool and not row.bools:
            continue
        assert_eager(row, dtypes)


# Eager torch itself does not promote in these.
_ALONE = ("logical_right_shift", "gcd", "nextafter", "atan2", "div")
PAIRED = [r for r in POINTWISE if r.arity == 2 and r.name not in _ALONE]


@pytest.mark.parametrize("row", PAIRED, ids=lambda r: r.name)
def test_two_dtypes_promote_as_torch_promotes(row: Op) -> None:
    fits = [d for d in COMPUTED if not (d.is_float and row.name in INTEGERS_ONLY)]
    fits = [d for d in fits if row.bools or d is not DataType.Bool]
    for pair in itertools.permutations(fits, 2):
        assert_eager(row, pair)


@pytest.mark.parametrize("dtype", REAL, ids=lambda d: d.short)
def test_casts(dtype: DataType) -> None:
    for to in REAL:
        x = filled([11], to_torch_dtype(dtype))
        x = x.float().abs().to(x.dtype) if dtype.is_float else x
        (result,) = evaluate(one_op(OPS["cast"], (dtype,), dtype=to), [x])
        expected = x.to(to_torch_dtype(to))
        assert result.dtype is expected.dtype
        assert torch.equal(result.double(), expected.double())


# ---- refusals: the same dtypes that torch refuses, and floats where integers are meant


@pytest.mark.parametrize("row", [r for r in POINTWISE if not r.bools], ids=lambda r: r.name)
def test_rows_that_do_not_take_bools(row: Op) -> None:
    with pytest.raises(DtypeError) as error:
        one_op(row, (DataType.Bool,) * row.arity)
    assert told(error.value) == (
        f"ops.{row.name}: expected numbers, got Bool. To fix it: cast to DataType.Int first."
    )
    if row.name in EAGER or row.name == "gcd":
        return
    with pytest.raises((RuntimeError, NotImplementedError)):
        getattr(torch, row.name)(*[torch.tensor([True])] * row.arity)


@pytest.mark.parametrize("name", ["add", "exp", "lt", "isnan", "logical_not", "sum", "cumsum"])
@pytest.mark.parametrize("dtype", [d for d in REAL if d not in COMPUTED], ids=lambda d: d.short)
def test_8_bit_floats_are_not_computed_with(name: str, dtype: DataType) -> None:
    row = OPS[name]
    with pytest.raises(DtypeError) as error:
        one_op(row, (dtype,) * row.arity, **({"dim": 0} if name == "cumsum" else {}))
    assert told(error.value) == (
        f"ops.{name}: expected a type with arithmetic, got {dtype.name}. "
        "To fix it: cast to DataType.Float first."
    )


@pytest.mark.parametrize("name", sorted(INTEGERS_ONLY))
def test_rows_that_take_integers_only(name: str) -> None:
    row = OPS[name]
    with pytest.raises(DtypeError) as error:
        one_op(row, (DataType.BFloat16,) * row.arity)
    kinds = "integers or bools" if row.bools else "integers"
    assert told(error.value) == f"ops.{name}: expected {kinds}, got Float"


# ---- scalars beside tensors


@pytest.mark.parametrize("dtype", COMPUTED, ids=lambda d: d.short)
@pytest.mark.parametrize("number", [True, 3, 2.5], ids=str)
def test_a_number_wins_only_by_category(dtype: DataType, number: float) -> None:
    if dtype is DataType.Bool and isinstance(number, bool):
        return
    x = filled([5], to_torch_dtype(dtype))
    (result,) = evaluate(one_op(OPS["mul"], (dtype,), rhs=number), [x])
    expected = (x.float() if dtype.is_half else x) * number
    assert result.dtype is expected.dtype
    torch.testing.assert_close(result, expected)


# ---- reductions


@pytest.mark.parametrize("row", REDUCTIONS, ids=lambda r: r.name)
@pytest.mark.parametrize("dtype", COMPUTED, ids=lambda d: d.short)
def test_reductions(row: Op, dtype: DataType) -> None:
    eager = {"max": torch.amax, "min": torch.amin, "sum": torch.sum, "prod": _prod}[row.name]
    x = filled([2, 3, 4], to_torch_dtype(dtype))
    for dims in ([0], [1, 2], [-1], [0, 1, 2], None):
        for keepdim in (False, True):
            fusion = _reduce(row, dtype, dims, keepdim, None)
            (result,) = evaluate(fusion, [x])
            wide = x.float() if dtype.is_half else x
            expected = eager(wide, (0, 1, 2) if dims is None else tuple(dims), keepdim)
            if row.name in ("max", "min"):
                expected = expected.to(x.dtype)
            assert result.dtype is expected.dtype
            torch.testing.assert_close(result, expected)


def _prod(x: torch.Tensor, dims: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    for dim in sorted((d % 3 for d in dims), reverse=True):
        x = x.prod(dim, keepdim)
    return x


def _reduce(
    row: Op, dtype: DataType, dims: list[int] | None, keepdim: bool, to: DataType | None
) -> Fusion:
    fd = Recorder()
    x = fd.define_tensor([-1, -1, -1], True, dtype)
    fd.add_output(getattr(fd.ops, row.name)(x, dims, keepdim, to))
    return define(fd.definition)


@pytest.mark.parametrize("to", DataType, ids=lambda d: d.short)
def test_a_sum_in_a_given_dtype(to: DataType) -> None:
    x = filled([2, 3, 4], torch.float32)
    (result,) = evaluate(_reduce(OPS["sum"], DataType.Float, [0], False, to), [x])
    assert from_torch_dtype(result.dtype) is to


# ---- the table itself


@pytest.mark.parametrize("row", OPS.values(), ids=lambda r: r.name)
def test_a_row_is_complete(row: Op) -> None:
    compile(row.torch, row.name, "eval")
    assert row.arity <= len(row.parameters.parameters)
    if row.kind is OpKind.POINTWISE:
        for letter, at in (("a", 0), ("b", 1), ("c", 2)):
            used = any(name == letter for name in compile(row.torch, "", "eval").co_names)
            assert used == (at < row.arity)
        spellings = [c for c in (row.c, row.c_complex) if c and c != "true"]
        assert spellings or row.name == "isreal"
        for spelling in spellings:
            assert all(f"{{{at}}}" in spelling for at in range(row.arity))


def test_a_call_that_does_not_fit() -> None:
    fd = Recorder()
    x = fd.define_tensor([-1], True)
    with pytest.raises(DefinitionError) as error:
        fd.ops.add(x)
    assert str(error.value) == (
        "ops.add: expected (lhs, rhs), got missing a required argument: 'rhs'"
    )
    with pytest.raises(DefinitionError) as error:
        fd.ops.log(x, scale=2)
    assert str(error.value) == (
        "ops.log: expected (x), got an unexpected keyword argument 'scale'"
    )
