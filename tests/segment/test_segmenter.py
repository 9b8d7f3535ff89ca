# SPDX-License-Identifier: Apache-2.0
"""Which expressions share a kernel; planned for an H200, an A100 and the CPU, nothing compiled."""

from __future__ import annotations

import pytest
from conftest import Golden
from helpers.graphs import Graph, biased, layer_norm, meta, rows, softmax, summed

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.segment.plan import SegmentedFusion

D = DataType
TARGETS = ("h200", "a100", "cpu")


def names(plan: SegmentedFusion) -> list[str]:
    return [segment.scheduler.name for segment in plan.segments]


def row_and_column_sums() -> Graph:
    fd, x = rows(64, 128)
    y = fd.ops.exp(x)
    fd.add_output(fd.ops.sum(y, [1]))
    fd.add_output(fd.ops.sum(y, [0]))
    return fd, [meta(64, 128)]


def cheap_edge() -> Graph:
    """Both sums cast the bfloat16 input themselves, and read 2 bytes instead of 4."""
    fd, x = rows(64, 128, dtype=D.BFloat16)
    y = fd.ops.mul(x, 2.0)
    fd.add_output(fd.ops.sum(y, [1]))
    fd.add_output(fd.ops.sum(y, [0]))
    return fd, [meta(64, 128, dtype=D.BFloat16)]


def forced_cut() -> Graph:
    fd, x = rows(64, 128)
    fd.add_output(fd.ops.relu(fd.ops.segment_set(fd.ops.exp(x))))
    return fd, [meta(64, 128)]


def cycle() -> Graph:
    """b reads a through a sum over columns: a and b cannot share a kernel around it."""
    fd, x = rows(64, 128)
    a = fd.ops.exp(x)
    middle = fd.ops.matmul(a, fd.ops.permute(a, [1, 0]))
    fd.add_output(fd.ops.add(fd.ops.sum(a, [1]), fd.ops.sum(middle, [1])))
    fd.add_output(fd.ops.sin(a))
    return fd, [meta(64, 128)]


def around_a_matmul() -> Graph:
    fd, x = rows(64, 64)
    y = fd.ops.matmul(fd.ops.relu(x), x)
    fd.add_output(fd.ops.tanh(y))
    return fd, [meta(64, 64)]


def empty() -> Graph:
    fd, x = rows(0, 4)
    fd.add_output(fd.ops.exp(x))
    fd.add_output(fd.ops.sum(x, [0]))
    return fd, [meta(0, 4)]


def expensive_edge() -> Graph:
    """What costs more than it moves is not computed twice: the second segment reads it."""
    fd, x = rows(64, 128)
    y = fd.ops.lgamma(fd.ops.digamma(x))
    fd.add_output(fd.ops.sum(y, [1]))
    fd.add_output(fd.ops.max(y, [0]))
    return fd, [meta(64, 128)]


def two_results() -> Graph:
    """Results over different axes that share an input, too large to share a launch."""
    fd, x = rows(4096, 2048)
    bias = fd.define_tensor([-1], [True])
    fd.add_output(fd.ops.add(x, bias))
    fd.add_output(fd.ops.exp(bias))
    return fd, [meta(4096, 2048), meta(2048)]


GRAPHS = {
    "bias": (biased(64, 128), ["pointwise"]),
    "sum": (summed(64, 128, dims=[1]), ["reduction"]),
    "softmax": (softmax(64, 128), ["persistent"]),
    "layer_norm": (layer_norm(64, 128), ["persistent"]),
    "row_and_column_sums": (row_and_column_sums(), ["reduction", "reduction"]),
    "cheap_edge": (cheap_edge(), ["reduction", "reduction"]),
    "expensive_edge": (expensive_edge(), ["reduction", "reduction"]),
    "forced_cut": (forced_cut(), ["pointwise", "pointwise"]),
    "around_a_matmul": (around_a_matmul(), ["pointwise", "expr_eval", "pointwise"]),
    "two_results": (two_results(), ["pointwise", "pointwise"]),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GRAPHS)
def test_schedulers(name: str, target: str) -> None:
    (fd, inputs), expected = GRAPHS[name]
    assert names(fd.plan(inputs, target=target)) == expected


@pytest.mark.parametrize("name", [*GRAPHS, "empty"])
def test_text(name: str, golden: Golden) -> None:
    fd, inputs = empty() if name == "empty" else GRAPHS[name][0]
    golden(str(fd.plan(inputs, target="h200")))


def test_nothing_is_joined_into_a_cycle() -> None:
    fd, inputs = cycle()
    plan = fd.plan(inputs)
    made: set[str] = set(plan.fusion.inputs)
    for segment in plan.segments:
        assert set(segment.part.inputs) <= made
        made |= set(segment.part.outputs)
    assert {output.name for output in plan.fusion.outputs} <= made
    assert "expr_eval" in names(plan)


def test_cheap_edges_are_recomputed() -> None:
    """No segment reads what another wrote."""
    fd, inputs = cheap_edge()
    plan = fd.plan(inputs)
    assert [segment.part.inputs for segment in plan.segments] == [("T0",), ("T0",)]


def test_expensive_edges_are_read() -> None:
    fd, inputs = expensive_edge()
    first, second = fd.plan(inputs).segments
    assert set(second.part.inputs) <= set(first.part.outputs)


def test_the_same_plan_every_time() -> None:
    for (fd, inputs), _ in GRAPHS.values():
        assert str(fd.plan(inputs)) == str(fd.plan(inputs))


def test_a_refusal_says_why() -> None:
    fd, inputs = row_and_column_sums()
    text = str(fd.plan(inputs))
    assert "not joined: " in text
    assert "reduction: reductions of 2 patterns" in text
