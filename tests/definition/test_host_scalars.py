# SPDX-License-Identifier: Apache-2.0
"""Scalars that sizes, pad widths and k are made of, and scalars in place of tensors."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from helpers.cases import Runner, ints, rand
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.errors import DefinitionError, DtypeError
from thunder_fuser.ir.record import Literal, OpRecord
from thunder_fuser.ir.rules.host_scalars import computed

X = rand(3, 4)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (-1, 3), (0, 0), (1, -1)])
def test_pad_widths_are_scalars(run: Runner, before: int, after: int) -> None:
    def build(fd: FusionDefinition) -> None:
        t, a = fd.from_pytorch(X), fd.define_scalar(dtype=DataType.Int)
        b = fd.define_scalar(dtype=DataType.Int32)
        fd.add_output(fd.ops.neg(fd.ops.pad(t, [a, 1, b, 0], 5.0)))

    run(build, [X, before, after], [-F.pad(X, [before, 1, after, 0], value=5.0)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_a_pad_of_a_scalar(run: Runner, dtype: torch.dtype) -> None:
    """One that the call gives, and a size; with widths that are scalars, and that cut."""
    x = (X * 4).to(dtype)

    def build(fd: FusionDefinition) -> None:
        t, a = fd.from_pytorch(x), fd.define_scalar(dtype=DataType.Int)
        value = fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.pad(t, [a, 1], value))
        fd.add_output(fd.ops.pad(t, [-1, 2, 1, 0], value=t.size(0)))

    run(build, [x, 2, -7], [F.pad(x, [2, 1], value=-7), F.pad(x, [-1, 2, 1, 0], value=3)])


def test_too_much_is_taken_away_by_a_scalar_width() -> None:
    with FusionDefinition() as fd:
        t, a = fd.from_pytorch(X), fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.pad(t, [a, 0]))
    with pytest.raises(DefinitionError, match="at most its 4 elements removed, got 7"):
        fd.execute([X, -7])


@pytest.mark.parametrize("dtype", [DataType.Int, DataType.Int32])
def test_integers_of_32_and_64_bits_are_sizes(run: Runner, dtype: DataType) -> None:
    def build(fd: FusionDefinition) -> None:
        n = fd.define_scalar(dtype=dtype)
        fd.add_output(fd.ops.full([n, 2], 1.0, DataType.Float))
        fd.add_output(fd.ops.iota(fd.ops.add(n, 1), None, None))

    for n in (5, 1, 0):
        run(build, [n], [torch.ones(n, 2), torch.arange(n + 1)])


@given(number=st.floats(0, 20), rows=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_sizes_computed_through_casts(number: float, rows: int) -> None:
    """Of a double argument, and of a size; the result has the size that Python computes."""
    x = rand(rows, 4)
    with FusionDefinition() as fd:
        t, s = fd.from_pytorch(x), fd.define_scalar(dtype=DataType.Double)
        many = fd.ops.cast(fd.ops.mul(s, t.size(0)), DataType.Int)
        fd.add_output(fd.ops.full([many, 2], 1.0, DataType.Float))
        columns = fd.ops.cast(t.size(1), DataType.Double)
        half = fd.ops.cast(fd.ops.truediv(columns, 2.0), DataType.Int)
        fd.add_output(fd.ops.reshape(t, [t.size(0), half, 2]))
    filled, halves = fd.execute([x, number])
    assert filled.shape == (int(number * rows), 2)
    assert torch.equal(halves, x.reshape(rows, 2, 2))


def test_sizes_of_constants(run: Runner) -> None:
    def build(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(X)
        product = fd.ops.mul(fd.define_scalar(2.5, DataType.Float), fd.define_scalar(7))
        width = fd.ops.cast(product, DataType.Int)
        fd.add_output(fd.ops.pad(t, [width, width, 0, 0]))

    run(build, [X], [F.pad(X, [17, 17])])


@pytest.mark.parametrize("end", [3, 9, -9, 0])
def test_a_slice_clipped_by_the_definition(run: Runner, end: int) -> None:
    def build(fd: FusionDefinition) -> None:
        t, given = fd.from_pytorch(X), fd.define_scalar(dtype=DataType.Int)
        end = fd.ops.minimum(t.size(1), given)
        end = fd.ops.where(fd.ops.lt(end, 0), 0, end)
        fd.add_output(fd.ops.neg(fd.ops.slice(t, [0, 0], [3, end])))

    run(build, [X, end], [-X[:, : max(end, 0)]])


def test_a_float_is_no_size() -> None:
    fd = FusionDefinition()
    fd.add_output(fd.ops.full([fd.define_scalar(dtype=DataType.Double)], 1.0, DataType.Float))
    with pytest.raises(DefinitionError, match="or a scalar computed from sizes"):
        fd.fusion


@pytest.mark.parametrize(
    ("op", "operands", "dtype", "value"),
    [
        ("div", (-7, 2), DataType.Int, -3),
        ("div", (7, 0), DataType.Int, None),
        ("mod", (-7, 3), DataType.Int, -1),
        ("remainder", (-7, 3), DataType.Int, 2),
        ("truediv", (7, 2), DataType.Float, 3.5),
        ("cast", (2.0**31,), DataType.Int32, -(2**31)),
        ("cast", (math.inf,), DataType.Int, None),
        ("cast", (0.1,), DataType.Float, 0.10000000149011612),
        ("cast", (0.1,), DataType.Half, 0.0999755859375),
        ("cast", (0.1,), DataType.BFloat16, 0.10009765625),
        ("cast", (0.1,), DataType.Float8_e4m3fn, None),
        ("cast", (0.1,), DataType.ComplexFloat, None),
        ("cast", (1e39,), DataType.Float, math.inf),
        ("add", (2**63 - 1, 1), DataType.Int, -(2**63)),
        ("minimum", (math.nan, 1.0), DataType.Double, None),
        ("floor", (2.5,), DataType.Double, 2.0),
        ("exp", (1.0,), DataType.Double, math.e),
        ("digamma", (1.0,), DataType.Double, None),
    ],
)
def test_what_the_host_computes(op: str, operands: tuple, dtype: DataType, value: object) -> None:
    record = OpRecord(op, tuple(map(Literal.of, operands)), ("S0",), (("dtype", dtype),))
    found = computed(record, operands, dtype)
    assert (type(found), found) == (type(value), value)


# ---- numbers of the call in place of attributes and tensors


@pytest.mark.parametrize("k", [0, 2, 4])
def test_k_is_a_scalar(run: Runner, k: int) -> None:
    def build(fd: FusionDefinition) -> None:
        t, most = fd.from_pytorch(X), fd.define_scalar(dtype=DataType.Int)
        values, indices = fd.ops.topk(t, most, 1, True, True)
        fd.add_output(fd.ops.neg(values))
        fd.add_output(indices)

    values, indices = X.topk(k, 1)
    run(build, [X, k], [-values, indices])


def test_k_is_out_of_range() -> None:
    with FusionDefinition() as fd:
        t, most = fd.from_pytorch(X), fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.topk(t, most, 1)[0])
    with pytest.raises(DefinitionError, match="k: expected 0 to 4, got 5"):
        fd.execute([X, 5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_scatter_of_a_scalar(run: Runner, dtype: torch.dtype) -> None:
    """A number of the definition, of the call, and a computed one."""
    x, index = (X * 3).to(dtype), ints(2, 4, low=0, high=3)

    def build(fd: FusionDefinition) -> None:
        t, i = fd.from_pytorch(x), fd.from_pytorch(index)
        s = fd.define_scalar(dtype=DataType.Double)
        for src in (fd.define_scalar(3), s, fd.ops.mul(s, 2)):
            fd.add_output(fd.ops.scatter(t, i, src, 0))

    run(build, [x, index, 2.0], [x.scatter(0, index, value) for value in (3, 2, 4)])


# ---- refusals and types


def test_a_condition_is_bool() -> None:
    fd = FusionDefinition()
    t = fd.from_pytorch(X)
    fd.add_output(fd.ops.where(t, t, t))
    with pytest.raises(DtypeError, match=r"ops\.where: expected a condition of type Bool, got Fl"):
        fd.fusion


def test_a_step_is_not_zero() -> None:
    fd = FusionDefinition()
    fd.add_output(fd.ops.iota(5, 0, 0))
    with pytest.raises(DefinitionError, match="iota: step: expected a number other than 0"):
        fd.fusion


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32], ids=str)
def test_scans_keep_16_bits(run: Runner, dtype: torch.dtype) -> None:
    x = (rand(3, 40) * 2).to(dtype)

    def build(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        for op in (fd.ops.cumsum, fd.ops.cummax, fd.ops.cummin):
            fd.add_output(op(t, 1))

    run(build, [x], [x.cumsum(1), x.cummax(1).values, x.cummin(1).values], tolerance=0.05)


@pytest.mark.parametrize("order", [2.0, 1.0, 3.0, 0.0, math.inf])
def test_rows_of_an_embedding_have_a_greatest_norm(run: Runner, order: float) -> None:
    weight, index = rand(10, 5) * 3, ints(4, 3, low=0, high=10)
    weight[0] = 0.0
    expected = F.embedding(index, weight.clone(), max_norm=1.5, norm_type=order)

    def build(fd: FusionDefinition) -> None:
        i, w = fd.from_pytorch(index), fd.from_pytorch(weight)
        most = fd.define_scalar(dtype=DataType.Double)
        for greatest in (1.5, most):
            fd.add_output(fd.ops.embedding_fwd(i, w, None, greatest, order))

    before = weight.clone()
    run(build, [index, weight, 1.5], [expected, expected], tolerance=1e-6)
    assert torch.equal(weight, before)
