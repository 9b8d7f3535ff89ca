# SPDX-License-Identifier: Apache-2.0
"""Rows of groups in one kernel: text, what is refused, results, bits."""

from __future__ import annotations

import pytest
import torch
from conftest import Golden
from helpers.graphs import Graph
from helpers.kernels import kernel_text, scheduled
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.analysis.part import Parts
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.options import compile_options, options
from thunder_fuser.presegment import run_passes
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.runtime.torch_types import to_torch_dtype
from thunder_fuser.schedule.nested import Nested
from thunder_fuser.schedule.scheduler import NoMatch
from thunder_fuser.target import A100, CPU, H200, TARGETS, Target

D = DataType
TOLERANCE = {D.Float: 1e-6, D.Half: 1e-3, D.BFloat16: 8e-3}
BOTH = pytest.mark.parametrize("target", ["cpu", "emulator"])
Sizes = tuple[int, int, int, int]  # groups on two axes, rows of one, columns


def wide(fd: FusionDefinition, value: Tensor, sizes: tuple[int, ...], axes: int = 2) -> Tensor:
    """The value of each group, or row, for all its elements."""
    return fd.ops.broadcast_in_dim(value, sizes, list(range(axes)))


def norm_backward(sizes: Sizes, dtype: DataType = D.Float, device: str = "cpu") -> Graph:
    """(x, dy, weight) -> (sums of rows, dx) of a group norm, less what is small in it."""
    fd = FusionDefinition()
    x, dy = (fd.define_tensor([-1] * 4, True, dtype) for _ in range(2))
    weight = fd.define_tensor([1, -1, -1, 1], [None, True, True, None], dtype)
    scaled = fd.ops.mul(dy, weight)
    of_rows = fd.ops.sum(fd.ops.mul(x, dy), [3])
    along, plain = (
        fd.ops.sum(fd.ops.sum(one, [3]), [2]) for one in (fd.ops.mul(scaled, x), scaled)
    )
    both = fd.ops.add(fd.ops.mul(x, wide(fd, along, sizes)), wide(fd, plain, sizes))
    dx = fd.ops.sub(scaled, fd.ops.mul(both, 1 / (sizes[2] * sizes[3])))
    for result in (of_rows, fd.ops.cast(dx, dtype)):
        fd.add_output(result)
    kind = to_torch_dtype(dtype)
    values = [torch.empty(sizes, device=device, dtype=kind) for _ in range(2)]
    values.append(torch.empty(1, sizes[1], sizes[2], 1, device=device, dtype=kind))
    return fd, values if device == "meta" else [value.normal_() for value in values]


def turns(sizes: Sizes) -> Graph:
    """Reductions that wait for each other: four loops over rows, and rows kept between them."""
    fd = FusionDefinition()
    ops, x, weight = fd.ops, fd.define_tensor([-1] * 4, True), fd.define_tensor([-1] * 3, True)
    rows = ops.sum(x, [3])
    mean = ops.mul(ops.sum(ops.mul(rows, weight), [2]), 1 / (sizes[2] * sizes[3]))
    centred = ops.sub(x, wide(fd, mean, sizes))
    squares = ops.sum(ops.mul(centred, centred), [3])
    top = ops.max(ops.max(x, [3]), [2])
    more = ops.sum(ops.sub(squares, rows), [2])
    apart = ops.sub(ops.mul(rows, 1 / sizes[3]), wide(fd, mean, sizes[:3]))
    far = ops.sum(ops.exp(apart), [2])
    y = ops.mul(ops.exp(ops.sub(x, wide(fd, top, sizes))), wide(fd, rows, sizes, 3))
    y = ops.add(y, ops.mul(centred, wide(fd, more, sizes)))
    for result in (y, squares, ops.add(rows, wide(fd, more, sizes[:3])), mean, far, top):
        fd.add_output(result)
    return fd, [torch.randn(sizes), torch.randn(sizes[:3])]


def schedulers(graph: Graph, target: str) -> list[str]:
    fd, values = graph
    return [segment.scheduler.name for segment in fd.plan(values, target=target).segments]


def assert_close(graph: Graph, target: str, tolerance: float) -> None:
    fd, values = graph
    wanted = evaluate(fd.fusion, values, torch.float64)
    for got, want in zip(fd.execute(values, target=target), wanted, strict=True):
        off = (got.double() - want).abs().max() / want.abs().max()
        assert off < tolerance


def test_text_of_a_cluster(golden: Golden) -> None:
    """Five blocks have two rows each of a group, and send each other their sums."""
    _, source = scheduled(norm_backward((32, 32, 10, 4096), D.BFloat16, "meta"), H200)
    golden(kernel_text(source), ext="cu")


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
def test_text(target: Target, golden: Golden) -> None:
    """Two rows a thread: arrays hold both, and loops over them are unrolled."""
    made, source = scheduled(norm_backward((8, 32, 16, 1024), D.BFloat16, "meta"), target)
    golden(str(made), ext="py")
    golden(kernel_text(source), ext="cu" if target is H200 else "cpp")


@BOTH
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16, D.Half])
@pytest.mark.parametrize(
    "sizes",
    [
        (2, 8, 8, 1024),
        (4, 4, 10, 64),  # a power of two of columns, and not of rows
        (3, 6, 5, 49),  # odd: no vectors; threads beside the rows
        (4, 4, 70, 33),  # a few rows a thread, the last of which are missing
        (2, 8, 3, 3),  # fewer columns than a warp has threads
        (17, 1, 2, 2),
        (1, 16, 10, 4096),  # two rows in each of five blocks
    ],
    ids=str,
)
def test_results(sizes: Sizes, dtype: DataType, target: str) -> None:
    graph = norm_backward(sizes, dtype)
    assert schedulers(graph, target) == ["nested"]
    assert_close(graph, target, TOLERANCE[dtype])


@BOTH
@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize(
    "sizes", [(2, 8, 8, 64), (4, 4, 70, 33), (3, 6, 20, 50), (4, 4, 200, 256)], ids=str
)
def test_reductions_that_wait_for_each_other(sizes: Sizes, repeatable: bool, target: str) -> None:
    with options(repeatable=repeatable):
        graph = turns(sizes)
        assert schedulers(graph, target) == ["nested"]
        assert_close(graph, target, 2e-6)


@pytest.mark.parametrize("sizes", [(4, 4, 70, 33), (4, 4, 200, 256)], ids=str)
def test_threads_in_any_order(sizes: Sizes) -> None:
    with options(emulate_reversed=True):
        assert_close(turns(sizes), "emulator", 2e-6)


@BOTH
def test_nan_and_infinity_stay_in_their_group(target: str) -> None:
    fd, values = norm_backward((2, 8, 10, 65))
    values[0][0, 1, 2, 3], values[1][1, 2, 9, 64] = float("nan"), float("inf")
    of_rows, dx = fd.execute(values, target=target)
    wanted = evaluate(fd.fusion, values, torch.float64)
    for got, want in zip((of_rows, dx), wanted, strict=True):
        assert torch.equal(got.isfinite(), want.isfinite())
    assert (~dx.isfinite()).flatten(2).any(-1).sum() == 2


# ------------------------------------------------------------------------------- the same bits


def of_rows() -> FusionDefinition:
    fd = FusionDefinition()
    x, dy = (fd.define_tensor([-1] * 4, True) for _ in range(2))
    fd.add_output(fd.ops.sum(fd.ops.mul(x, dy), [3]))
    return fd


def of_groups() -> FusionDefinition:
    fd = FusionDefinition()
    fd.add_output(fd.ops.sum(fd.define_tensor([-1] * 3, True), [2]))
    return fd


def together(sizes: Sizes) -> FusionDefinition:
    fd = FusionDefinition()
    x, dy = (fd.define_tensor([-1] * 4, True) for _ in range(2))
    rows = fd.ops.sum(fd.ops.mul(x, dy), [3])
    groups = fd.ops.sum(rows, [2])
    for result in (rows, groups, fd.ops.mul(x, wide(fd, groups, sizes))):
        fd.add_output(result)
    return fd


@BOTH
@pytest.mark.parametrize(
    "sizes",
    [(2, 8, 8, 1024), (4, 4, 70, 33), (3, 6, 20, 50), (2, 8, 100, 64), (2, 8, 7, 6000)],
    ids=str,
)
def test_sums_have_the_bits_of_other_kernels(sizes: Sizes, target: str) -> None:
    """Of `reduction`, which has each sum alone; as a policy may have it in another region."""
    x, dy = torch.randn(sizes), torch.randn(sizes)
    with options(repeatable=True):
        fd = together(sizes)
        assert schedulers((fd, [x, dy]), target) == ["nested"]
        rows, groups, _ = fd.execute([x, dy], target=target)
        (alone,) = of_rows().execute([x, dy], target=target)
        (over,) = of_groups().execute([alone], target=target)
    assert torch.equal(rows, alone)
    assert torch.equal(groups, over)


# ----------------------------------------------------------------------------------- refusals


def refusal(graph: Graph, target: Target = H200) -> NoMatch | None:
    """What the scheduler says of a whole fusion."""
    fd, values = graph
    fusion = run_passes(specialise(fd.fusion, input_keys(fd.fusion, values)), compile_options())
    found = Nested.match(Parts(fusion).of(fusion.exprs), target, compile_options())
    return found if isinstance(found, NoMatch) else None


def summed_twice(shape: tuple[int, ...], first: list[int], second: list[int]) -> Graph:
    fd = FusionDefinition()
    x = fd.define_tensor([-1] * len(shape), True)
    fd.add_output(fd.ops.sum(fd.ops.sum(x, first), second))
    return fd, [torch.empty(shape, device="meta")]


def strided(order: tuple[int, ...], shape: tuple[int, ...]) -> Graph:
    fd, _ = summed_twice(shape, [3], [2])
    x = torch.empty([shape[at] for at in order], device="meta")
    return fd, [x.permute([order.index(at) for at in range(4)])]


REFUSED = {
    "one pattern": (summed_twice((8, 8, 64), [2], []), "reductions of 1 patterns"),
    "no groups": (summed_twice((64, 64), [1], [0]), "over groups of"),
    "groups apart in memory": (summed_twice((16, 8, 64), [2], [0]), "neighbours in memory"),
    "columns apart in memory": (strided((0, 1, 3, 2), (4, 4, 8, 64)), "neighbours in memory"),
    "too large": (summed_twice((8, 64, 4096), [2], [1]), "does not fit on chip"),
    "rows too long": (summed_twice((8, 2, 1 << 15), [2], [1]), "does not fit on chip"),
    "rows too many": (summed_twice((8, 1000, 8), [2], [1]), "does not fit on chip"),
    "no elements": (summed_twice((0, 8, 64), [2], [1]), "no elements"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    graph, reason = REFUSED[name]
    found = refusal(graph)
    assert found is not None
    assert reason in found.reason


def test_clusters_hold_more_than_a_block() -> None:
    graph = norm_backward((32, 32, 16, 4096), D.BFloat16, "meta")
    assert refusal(graph) is None
    found = refusal(graph, A100)
    assert found is not None
    assert "does not fit on chip" in found.reason


def test_few_groups_are_no_work_for_the_threads_of_a_cpu() -> None:
    found = refusal(summed_twice((8, 8, 64), [2], [1]), CPU)
    assert found is not None
    assert refusal(summed_twice((16, 8, 64), [2], [1]), CPU) is None


def test_what_registers_may_not_keep_is_not_taken() -> None:
    graph = norm_backward((2, 8, 8, 1024))
    assert refusal(graph, TARGETS["emulator"]) is None
    with options(max_registers_bytes=0):
        assert refusal(graph, TARGETS["emulator"]) is not None
        assert_close(graph, "emulator", 1e-6)


# --------------------------------------------------------------------------------- any sizes


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    sizes=st.tuples(
        st.integers(1, 4), st.integers(5, 9), st.integers(2, 40), st.integers(2, 300)
    ),
    target=st.sampled_from(["cpu", "emulator"]),
    repeatable=st.booleans(),
)
def test_any_sizes(sizes: Sizes, target: str, repeatable: bool) -> None:
    with options(repeatable=repeatable):
        assert_close(turns(sizes), target, 3e-6)
