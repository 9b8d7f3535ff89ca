# SPDX-License-Identifier: Apache-2.0
"""Which call a product and its collective become, for any caller: names, axes, types, a bias."""

from __future__ import annotations

from typing import Any

import pytest

from thunder_fuser.communication.products.pairs import MatrixProduct, SumOverDevices, pairs_of
from thunder_fuser.ir.dtypes import DataType

A, B, RESULT = (8, 4), (4, 6), (8, 6)


def product(
    *sizes: tuple[int, ...], linear: bool = False, dtype: Any = DataType.Float
) -> MatrixProduct:
    return MatrixProduct("product", linear, sizes, (dtype,) * len(sizes))


def sum_of(kind: str, devices: int) -> SumOverDevices:
    return SumOverDevices(kind, devices, "post")


def names(
    product: MatrixProduct, gathered: tuple[int, ...] = (), post: SumOverDevices | None = None
) -> list[str]:
    pairs = pairs_of(product, lambda _, at: "gather" if at in gathered else None, lambda _: post)
    return [pair.name for pair in pairs]


def test_a_gathered_operand() -> None:
    assert names(product(A, B, RESULT), (0, 1)) == ["all_gather_matmul"]
    linear = product(A, (6, 4), RESULT, linear=True)
    assert names(linear, (0, 1)) == ["all_gather_matmul", "all_gather_linear"]
    batched = product((2, 8, 4), (6, 4), (2, 8, 6), linear=True)
    assert names(batched, (0, 1)) == ["all_gather_matmul"]


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_reduce"])
def test_a_reduced_result(kind: str) -> None:
    plain = product(A, B, RESULT)
    assert names(plain, (), sum_of(kind, 2)) == [f"matmul_{kind}"]
    assert names(plain, (), sum_of(kind, 3)) == []  # rows that devices do not divide
    assert names(product(A, (6, 4), (6,), RESULT, linear=True), (), sum_of(kind, 2)) == []


@pytest.mark.parametrize("wrong", [
    product(A, B, RESULT, dtype=DataType.Int), product(A, B, RESULT, dtype=None),
    product((4,), B, (6,)), product(A, (2, 4, 6), (2, 8, 6)), product((0, 4), B, (0, 6)),
    product(A, (6, 4), (1,), RESULT, linear=True),
])  # fmt: skip
def test_products_that_no_call_takes(wrong: MatrixProduct) -> None:
    assert names(wrong, (0,), SumOverDevices("all_reduce", 1, "post")) == []


def test_a_weight_is_transposed_unless_it_is_gathered() -> None:
    linear = product(A, (6, 4), RESULT, linear=True)
    pairs = pairs_of(linear, lambda *_: "gather", lambda _: SumOverDevices("all_reduce", 2, "post"))
    assert [pair.transposed for pair in pairs] == [True, False, True]
