# SPDX-License-Identifier: Apache-2.0
"""What is cheap, what is expensive, and what a kernel pays for computing values again."""

from __future__ import annotations

import pytest

from thunder_fuser.analysis.cost import is_cheap, is_expensive, outer_repeats, passes, work
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.target import H200


def test_rows_are_cheap_or_expensive() -> None:
    cheap = {row.name for row in OPS.values() if is_cheap(row)}
    assert cheap >= {"add", "cast", "truediv", "sqrt", "slice", "full", "uniform"}
    assert cheap.isdisjoint({"exp", "pow", "normal", "sum", "cumsum", "embedding_fwd"})
    for row in OPS.values():  # of arithmetic on single elements, each is either
        assert is_expensive(row) == (
            row.kind in (OpKind.POINTWISE, OpKind.RANDOM) and row.name not in cheap
        )


def test_work_is_in_bytes() -> None:
    assert work(OPS["exp"], 61, H200) == pytest.approx(8 * 61 / 6.1)
    assert work(OPS["add"], 61, H200) == pytest.approx(10.0)


def test_each_further_pass_computes_half_again() -> None:
    assert [passes(depths) for depths in range(4)] == [1, 1, 1.5, 2]


@pytest.mark.parametrize(
    ("sizes", "wanted", "times"),
    [
        ((1, 8, 1), (2, 8, 4), 2),  # once for all of the innermost axis, which it lacks
        ((2, 8, 1), (2, 8, 4), 1),
        ((1, 1, 4), (2, 8, 4), 16),
        ((1, 1, 1), (2, 8, 4), 1),
        ((2, 8, 4), (2, 8, 4), 1),
        ((), (), 1),
    ],
)
def test_repeats_in_a_loop(sizes: tuple[int, ...], wanted: tuple[int, ...], times: int) -> None:
    assert outer_repeats(sizes, wanted) == times
