# SPDX-License-Identifier: Apache-2.0
"""Which steps of an odd row may lie at its ends, and where a loop ends."""

from __future__ import annotations

import re

import pytest
import torch
from helpers.cases import poisoned
from helpers.graphs import softmax, summed
from helpers.kernels import scheduled
from hypothesis import given
from hypothesis import strategies as st

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.scalar import const, symbol
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.guards import clip, either, whole_steps
from thunder_fuser.lower.scope import Scope
from thunder_fuser.options import options
from thunder_fuser.schedule.loop_index import Guard
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


@given(st.integers(1, 130), st.integers(1, 40), st.integers(1, 4000), st.integers(0, 300))
def test_a_loop_ends_where_its_guard_fails(growth: int, steps: int, extent: int, base: int) -> None:
    """Its number of steps is that of the steps in which the guard holds; 0 or less if none does."""
    loop, thread, j = symbol("s", 0, steps - 1), symbol("t", 0, 300), symbol("j", 0, 1 << 20)
    guard = Guard("i1", j, loop * growth + thread, const(extent))
    assert guard.growth(loop) == growth
    end = clip(Scope(frozenset()), guard, loop, const(steps)).substitute({"t": const(base)})
    valid = [step for step in range(steps) if step * growth + base < extent]
    assert valid == list(range(max(int(end.value), 0)))


def test_uneven_growth() -> None:
    loop, j = symbol("s", 0, 9), symbol("j", 0, 99)
    for value in (loop // 2, loop * loop, const(9) - loop, symbol("t", 0, 9)):
        assert Guard("i1", j, value, const(50)).growth(loop) == 0


@pytest.mark.parametrize("shape", [(1_000_003, 64), (99_991, 100), (77, 4096)])
@pytest.mark.parametrize("repeatable", [False, True])
def test_loads_of_a_sum_are_behind_no_branch(shape: tuple[int, int], repeatable: bool) -> None:
    """Where neither the threads nor the runs divide the rows."""
    fd, inputs = summed(*shape, dims=[0], dtype=DataType.BFloat16)
    with options(repeatable=repeatable):
        text = fd.sources(inputs, target="h200")[0].text
    loop = re.search(r"  #pragma unroll (4|8)\n  for \(i32 j(.|\n)*?\n  }\n", text)
    assert loop is not None and " if (" not in loop.group()


@pytest.mark.parametrize("shape", [(4099, 9), (1031, 33), (300, 130), (7, 70), (66_001, 1)])
@pytest.mark.parametrize("repeatable", [False, True])
def test_sums_of_odd_columns(shape: tuple[int, int], repeatable: bool) -> None:
    (fd, _), x = summed(*shape, dims=[0]), torch.randn(shape)
    with options(repeatable=repeatable), poisoned():
        (found,) = fd.execute([x], target="emulator")
    torch.testing.assert_close(found.double(), x.double().exp().sum(0), rtol=1e-5, atol=1e-4)
