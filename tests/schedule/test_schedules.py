# SPDX-License-Identifier: Apache-2.0
"""The schedules and the kernels of well-known graphs, as text, for an H200 and for the CPU."""

from __future__ import annotations

import itertools
from math import prod

import pytest
from conftest import Golden
from helpers.graphs import Graph, biased, layer_norm, scanned, softmax, summed, transposed, turned
from helpers.kernels import kernel_text, scheduled
from helpers.watch import check_sources, compile_waiting

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.scalar import Scalar
from thunder_fuser.schedule.loop_index import LoopIndex, loop_index
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.target import CPU, H200, named

D = DataType

GRAPHS: dict[str, Graph] = {
    "pointwise": biased(4096, 1024, dtype=D.BFloat16),
    "pointwise_odd": biased(33, 77),
    "reduction_inner": summed(4096, 1024, dims=[1], dtype=D.BFloat16),
    "reduction_outer": summed(512, 32768, dims=[0], dtype=D.BFloat16),
    "reduction_few_columns": summed(64, 12, dims=[0]),
    "reduction_partial": summed(4096, 1024, dims=[0], dtype=D.BFloat16),
    "reduction_partial_inner": summed(8, 65536, dims=[1]),
    "reduction_all": summed(64, 128, dims=[0, 1]),
    "transposed": transposed(96, 64),
    "transpose": turned(8192, 4096, dtype=D.BFloat16),
    "transpose_odd": turned(8191, 4096, dtype=D.BFloat16),
    "transpose_two_columns": turned(1000000, 2),
    "softmax_registers": softmax(4096, 8192, dtype=D.BFloat16),
    "softmax_long": softmax(64, 40000),
    "softmax_longer": softmax(16, 262144),
    "scan_rows": scanned(4096, 8192, dim=1),
    "scan_rows_odd": scanned(33, 77, dim=1, op="cumprod"),
    "scan_columns": scanned(512, 65536, dim=0, op="cummax"),
    "scan_few_columns": scanned(4096, 24, dim=0),
    "layer_norm": layer_norm(4096, 1024, dtype=D.BFloat16),
}
# Where rows stay, and the blocks that share one: a target without clusters has other means.
MEMORY = {
    ("softmax_registers", "h200"): ("registers", 1),
    ("softmax_registers", "a100"): ("registers", 1),
    ("softmax_long", "h200"): ("registers", 4),
    ("softmax_long", "a100"): ("shared", 1),
    ("softmax_longer", "h200"): ("registers", 16),
    ("softmax_longer", "a100"): ("none", 1),
}
TARGETS = {"h200": H200, "cpu": CPU}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GRAPHS)
def test_text(name: str, target: str, golden: Golden) -> None:
    made, source = scheduled(GRAPHS[name], TARGETS[target])
    golden(str(made), ext="py")
    golden(kernel_text(source), ext="cu" if source.dialect == "cuda" else "cpp")


def test_misaligned_twin(golden: Golden) -> None:
    """No access wider than the alignment."""
    made, source = scheduled(GRAPHS["pointwise"], H200, alignment=2)
    golden(str(made), ext="py")
    golden(kernel_text(source), ext="cu")
    assert "ldv<" not in source.text


def test_aligned_accesses_are_16_bytes() -> None:
    made, source = scheduled(GRAPHS["pointwise"], H200)
    assert made.params.vectorize == 8
    assert "ldv<8>" in source.text


@pytest.mark.parametrize(("name", "target"), MEMORY)
def test_where_rows_stay(name: str, target: str, golden: Golden) -> None:
    made, source = scheduled(GRAPHS[name], named(target))
    assert (made.params.memory, made.params.cluster) == MEMORY[name, target]
    assert source.cluster == made.params.cluster
    if target == "a100":
        golden(kernel_text(source), ext="cu")


@pytest.mark.parametrize("columns", [16384, 16385, 50257, 131072])
@pytest.mark.parametrize("dtype", [D.BFloat16, D.Float])
def test_a_row_needs_at_most_half_the_registers(columns: int, dtype: DataType) -> None:
    """What a thread keeps at once leaves room for a second block on an SM."""
    for graph in (softmax(512, columns, dtype=dtype), layer_norm(512, columns, dtype=dtype)):
        made = scheduled(graph, H200)[0]
        params = made.params
        threads = params.threads[0] * params.cluster
        words = max(buffer.bytes for buffer in made.persistent) // 4  # x and exp(x): one at a time
        assert params.memory == "registers"
        assert 2 * params.threads[0] * (-(-words // threads) + 32) <= 65536
        assert -(-columns // threads) <= 108
        assert params.cluster == 1 or columns > 16384


def test_every_text_compiles() -> None:
    """Also for the architecture of an A100, if it has no clusters."""
    check_sources([scheduled(graph, H200)[1] for graph in GRAPHS.values()], "this test")
    compile_waiting()


def test_the_same_schedule_every_time() -> None:
    for graph in GRAPHS.values():
        assert scheduled(graph, H200)[1] == scheduled(graph, H200)[1]


@pytest.mark.parametrize(("columns", "threads"), [(33, 8), (64, 8), (128, 16), (256, 32)])
def test_no_thread_of_a_column_sum_is_idle(columns: int, threads: int) -> None:
    """A row of few columns has a vector for each thread across, unless they are fewer than 8."""
    made = scheduled(summed(1 << 20, columns, dims=[0], dtype=DataType.BFloat16), H200)[0]
    assert made.params.threads[0] == threads and prod(made.params.threads) == 1024
    assert made.params.vectorize == (1 if columns % 2 else 8)


# ---- every element is computed once


SMALL = {
    "pointwise": biased(5, 12),
    "pointwise_odd": biased(3, 7),
    "reduction_inner": summed(5, 70, dims=[1]),
    "reduction_outer": summed(37, 70, dims=[0]),
    "reduction_all": summed(3, 50, dims=[0, 1]),
    "softmax": softmax(3, 130),
    "transposed": transposed(9, 7),
    "scan_rows": scanned(5, 70, dim=1),
    "scan_long_row": scanned(2, 1500, dim=1),
    "scan_columns": scanned(37, 3, dim=0),
    "one": biased(1, 1),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SMALL)
def test_every_element_once(name: str, target: str) -> None:
    """The loops, guards applied, visit each point of the axes exactly once."""
    made, _ = scheduled(SMALL[name], TARGETS[target])
    assert sorted(visited(made)) == sorted(points(made))


def points(made: ScheduledFusion) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(axis.extent.value) for axis in made.axes)))


def visited(made: ScheduledFusion) -> list[tuple[int, ...]]:
    loops = loop_index(made.axes, made.transforms)
    found = []
    for values in itertools.product(*(range(axis.extent.value) for axis in made.loop)):
        at = {loops.loops[axis.name]: v for axis, v in zip(made.loop, values, strict=True)}
        point = position(loops, at, [axis.name for axis in made.axes])
        if point is not None:
            found.append(point)
    return found


def position(loops: LoopIndex, at: dict[Scalar, int], axes: list[str]) -> tuple[int, ...] | None:
    """The point of the axes that loop values stand for; None if a guard forbids it."""
    values = {str(symbol): value for symbol, value in at.items() if not symbol.is_const}
    for guard in loops.guards:
        value = guard.value.substitute(values).value
        if value >= guard.extent.value:
            return None
        values[str(guard.variable)] = value
    return tuple(loops.index[name].substitute(values).value for name in axes)
