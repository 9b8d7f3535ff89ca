# SPDX-License-Identifier: Apache-2.0
"""Sums over the rows of a group that keep the columns: attention of few queries as one kernel."""

from __future__ import annotations

import pytest
import torch
from conftest import Golden
from helpers.cases import rand
from helpers.graphs import Graph
from helpers.kernels import kernel_text, scheduled
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.options import options
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.runtime.torch_types import to_torch_dtype
from thunder_fuser.target import H200

D = DataType
Sizes = tuple[int, int, int]  # heads of keys, keys, columns
TOLERANCE = {D.Float: 2e-6, D.Half: 2e-3, D.BFloat16: 1e-2}
QUERIES = 3


def attention(
    sizes: Sizes, dtype: DataType = D.Float, *, width: int = 0, keeps: str = "", device: str = "cpu"
) -> Graph:
    """(q, k, v, mask) -> softmax(q.k where mask).v for each query of each head, unscaled.

    width: the columns of v, if they are not those of k. keeps: what is a result too, or what is
    added to the result.
    """
    heads, keys, columns = sizes
    fd = FusionDefinition()
    ops, all_keys = fd.ops, [heads, QUERIES, keys]
    q, k, v = (fd.define_tensor([-1] * 3, True, dtype) for _ in range(3))
    mask = fd.define_tensor([-1], True, D.Bool)
    wide = [ops.cast(each, D.Float) for each in (q, k, v)]
    rows = [
        ops.broadcast_in_dim(each, [*all_keys, each.shape()[-1]], axes)
        for each, axes in zip(wide, ([0, 1, 3], [0, 2, 3], [0, 2, 3]), strict=True)
    ]
    scores = ops.sum(ops.mul(rows[0], rows[1]), [3])
    scores = ops.where(ops.broadcast_in_dim(mask, all_keys, [2]), scores, -1e4)
    most = ops.broadcast_in_dim(ops.max(scores, [2]), all_keys, [0, 1])
    powers = ops.exp(ops.sub(scores, most))
    total = ops.sum(powers, [2])
    each = ops.broadcast_in_dim(powers, [*all_keys, width or columns], [0, 1, 2])
    out = ops.sum(ops.mul(each, rows[2]), [2])
    if keeps == "twice":
        out = ops.add(out, ops.broadcast_in_dim(ops.max(out, [2]), out.shape(), [0, 1]))
    of_all = ops.broadcast_in_dim(total, [heads, QUERIES, width or columns], [0, 1])
    result = ops.cast(ops.div(out, of_all), dtype)
    if keeps == "residual":
        result = ops.cast(ops.add(result, fd.define_tensor([-1] * 3, True, dtype)), dtype)
    fd.add_output(result)
    if keeps == "powers":
        fd.add_output(powers)
    shapes = (heads, QUERIES, columns), (heads, keys, columns), (heads, keys, width or columns)
    kind = to_torch_dtype(dtype)
    if device == "meta":
        values = [torch.empty(shape, dtype=kind, device=device) for shape in shapes]
        return fd, [*values, torch.empty(keys, dtype=torch.bool, device=device)]
    values = [rand(*shape, dtype=kind, seed=at) for at, shape in enumerate(shapes)]
    behind = [rand(*shapes[0], dtype=kind, seed=4)] if keeps == "residual" else []
    return fd, [*values, rand(keys, seed=3) > -0.5, *behind]


def schedulers(graph: Graph, target: str = "emulator") -> list[str]:
    fd, values = graph
    return [segment.scheduler.name for segment in fd.plan(values, target=target).segments]


def assert_close(graph: Graph, tolerance: float, target: str = "emulator") -> None:
    fd, values = graph
    wanted = evaluate(fd.fusion, values, torch.float64)
    for got, want in zip(fd.execute(values, target=target), wanted, strict=True):
        assert (got.double() - want).abs().max() < tolerance * want.abs().max()


def test_text(golden: Golden) -> None:
    """Each thread has eight keys, the values of which it loads before the first barrier."""
    made, source = scheduled(attention((32, 512, 64), D.BFloat16, device="meta"), H200)
    golden(str(made), ext="py")
    golden(kernel_text(source), ext="cu")


def test_text_where_blocks_share_an_sm(golden: Golden) -> None:
    """Each thread loads values where it adds them, so two blocks fit."""
    made, source = scheduled(attention((64, 512, 64), D.BFloat16, device="meta"), H200)
    assert made.params.blocks == 2
    golden(kernel_text(source), ext="cu")


@pytest.mark.parametrize(("heads", "lets"), [(32, True), (88, True), (89, False)])
def test_the_next_kernel_starts_behind_two_blocks_an_sm(heads: int, lets: bool) -> None:
    """Each head has three blocks."""
    _, source = scheduled(attention((heads, 512, 64), D.BFloat16, device="meta"), H200)
    assert source.lets_next_start == lets


@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.Half])
@pytest.mark.parametrize(
    "sizes",
    [
        (45, 20, 16),  # more blocks than SMs
        (2, 512, 64),
        (2, 61, 32),  # keys that no power of two divides
        (1, 37, 40),  # fewer vectors than threads
        (3, 50, 33),  # no vectors
        (2, 9, 8),
        (2, 5, 128),
    ],
    ids=str,
)
def test_results(sizes: Sizes, dtype: DataType) -> None:
    graph = attention(sizes, dtype)
    if dtype is not D.Float or sizes[1] < 512:  # 512 values of float32 do not fit in registers
        assert schedulers(graph) == ["nested"]
    assert_close(graph, TOLERANCE[dtype])


def test_threads_in_any_order() -> None:
    graph = attention((2, 61, 32))
    with options(emulate_reversed=True):
        assert_close(graph, 2e-6)


def test_a_mask_of_no_keys_but_one() -> None:
    fd, values = attention((2, 61, 32))
    values[3][:] = torch.arange(61) == 7
    assert schedulers((fd, values)) == ["nested"]
    (out,) = fd.execute(values, target="emulator")
    torch.testing.assert_close(out, values[2][:, 7:8].expand_as(out))


def test_powers_may_be_a_result_too() -> None:
    graph = attention((2, 61, 32), keeps="powers")
    assert schedulers(graph) == ["nested"]
    assert_close(graph, 2e-6)


@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16])
@pytest.mark.parametrize("sizes", [(2, 61, 32), (2, 257, 3), (1, 40, 33)], ids=str)
def test_a_residual_behind(sizes: Sizes, dtype: DataType) -> None:
    """It is not read early: it has no rows."""
    graph = attention(sizes, dtype, keeps="residual")
    assert schedulers(graph) == ["nested"]
    assert_close(graph, TOLERANCE[dtype])


STAYS: dict[str, Graph] = {
    "columns of another length": attention((2, 64, 32), width=16),
    "a sum that is reduced again": attention((2, 64, 32), keeps="twice"),
    "many keys": attention((2, 4096, 32)),
}


@pytest.mark.parametrize("name", STAYS)
def test_others_are_several_kernels(name: str) -> None:
    assert len(schedulers(STAYS[name])) > 1
    assert_close(STAYS[name], 2e-6)


def test_a_fixed_order_of_sums() -> None:
    graph = attention((2, 64, 32))
    with options(repeatable=True):
        assert len(schedulers(graph)) > 1
        assert_close(graph, 2e-6)


def test_a_cpu_has_several_kernels() -> None:
    graph = attention((2, 64, 32))
    assert len(schedulers(graph, "cpu")) > 1
    assert_close(graph, 2e-6, "cpu")


@settings(max_examples=12, deadline=None, derandomize=True)
@given(sizes=st.tuples(st.integers(1, 3), st.integers(2, 130), st.integers(2, 70)))
def test_any_sizes(sizes: Sizes) -> None:
    assert_close(attention(sizes), 3e-6)
