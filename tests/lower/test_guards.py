# SPDX-License-Identifier: Apache-2.0
"""Which steps of an odd row may lie at its ends."""

from __future__ import annotations

import pytest
from helpers.graphs import softmax
from helpers.kernels import scheduled

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.scalar import const, symbol
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.guards import either, whole_steps
from thunder_fuser.target import H200


def test_either() -> None:
    i, j = symbol("i", 0, 9), symbol("j", 0, 9)
    one, other = i.lt(3), const(4).lt(j)
    assert either(const(0), one) is one and either(one, const(0)) is one
    assert either(const(1), one) is const(1) and either(one, const(1)) is const(1)
    assert str(either(one, other)) == "min(i - 3, -1*j + 4) < 0"


@pytest.mark.parametrize("columns", [1031, 4095, 4097, 7001, 50257])
def test_whole_steps_have_no_ends(columns: int) -> None:
    """By the positions of every lane of every step, for every place that a row may begin at."""
    ctx = Context(scheduled(softmax(8, columns, dtype=DataType.BFloat16), H200)[0])
    assert ctx.loops.edge is not None
    begun, ended = whole_steps(ctx)
    width = ctx.lanes * ctx.threads[0] * ctx.cluster
    (loop,) = (a for a in ctx.nest_loops if a is not ctx.lane)
    name = str(ctx.loops.loops[loop.name])
    for step in range(int(loop.extent.value)):
        at = {name: const(step)}
        if begun.substitute(at) == const(1):
            assert step * width - (ctx.lanes - 1) >= 0
        if ended.substitute(at) == const(1):
            assert (step + 1) * width <= columns
    middle = {name: const(1)}
    assert begun.substitute(middle) == const(1)
