# SPDX-License-Identifier: Apache-2.0
"""Group norms of images, channels last: sums of columns first, where pieces of groups are short."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from math import prod

import pytest
import torch
import torch.nn.functional as F
from conftest import Golden
from helpers.cases import poisoned
from helpers.graphs import Graph, after_passes, group_norm
from helpers.rows import after_row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.rules.verify import verify
from thunder_fuser.options import compile_options, options
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.target import A100, CPU, H200, Target

D = DataType
BF16, F32 = torch.bfloat16, torch.float32
SLOW_DOUBLES = replace(H200, arch="sm_89")


def split(graph: Graph, target: Target) -> tuple[Fusion, Fusion]:
    """The fusion before and after the pass."""
    before = after_passes(graph)
    return before, after_row("short_runs", before, target, compile_options())


# ---- where it fires

FIRES = {
    "8 channels": (group_norm((64, 56, 56, 256), 32), H200),
    "10 channels": (group_norm((32, 64, 64, 320), 32), H200),
    "one image": (group_norm((1, 512, 512, 320), 32), H200),
    "one image, 20 channels": (group_norm((1, 512, 512, 320), 16), H200),
    "smaller device": (group_norm((64, 56, 56, 256), 32), A100),
    "2 channels": (group_norm((64, 56, 56, 256), 128), H200),
    "f32, 4 channels": (group_norm((32, 64, 64, 128), 32, D.Float), H200),
    "f32, 10 channels": (group_norm((32, 64, 64, 320), 32, D.Float), H200),
    "f32, three reads": (group_norm((32, 64, 64, 128), 32, D.Float), SLOW_DOUBLES),
}
KEEPS = {
    "pieces of 64 bytes": (group_norm((256, 14, 14, 1024), 32), H200),
    "longer pieces": (group_norm((8, 64, 64, 320), 8), H200),
    "images stay in cache": (group_norm((8, 64, 64, 320), 32), H200),
    "f32, pieces of 32 bytes": (group_norm((64, 56, 56, 256), 32, D.Float), H200),
    "f32, three reads for one": (group_norm((32, 64, 64, 320), 32, D.Float), SLOW_DOUBLES),
    "one group": (group_norm((64, 16, 16, 256), 1), H200),
    "cpu": (group_norm((64, 56, 56, 256), 32), CPU),
}


@pytest.mark.parametrize("name", FIRES)
def test_fires(name: str) -> None:
    before, after = split(*FIRES[name])
    assert after is not before
    assert rebuild(str(verify(after))) == after
    assert after_row("short_runs", after, FIRES[name][1], compile_options()) is after


@pytest.mark.parametrize("name", KEEPS)
def test_keeps(name: str) -> None:
    graph, target = KEEPS[name]
    before, after = split(graph, target)
    assert after is before
    plan = graph[0].plan(graph[1], target=target)
    assert target is CPU or [one.scheduler.name for one in plan.segments] == ["persistent"]


def test_keeps_what_may_not_depend_on_surroundings() -> None:
    with options(repeatable=True):
        before, after = split(*FIRES["8 channels"])
        assert after is before


def channels(ops: object, x: object) -> list[object]:
    """Rows of channels: kept axes are outside."""
    return [ops.sum(x, [3])]  # type: ignore[attr-defined]


def instances(ops: object, x: object) -> list[object]:
    """Groups of one channel are kept axes inside, too."""
    one = ops.reshape(x, [64, 56, 56, 256, 1])  # type: ignore[attr-defined]
    return [ops.sum(one, [1, 2, 4])]  # type: ignore[attr-defined]


def images(ops: object, x: object) -> list[object]:
    """Kept axes are inside: an outer reduction as it is."""
    return [ops.sum(x, [1, 2])]  # type: ignore[attr-defined]


def two_patterns(ops: object, x: object) -> list[object]:
    """Sums over other axes share the kernel, or not: two_stage_reductions has looked."""
    split = ops.reshape(x, [64, 56, 56, 32, 8])  # type: ignore[attr-defined]
    return [ops.sum(split, dims) for dims in ([1, 2, 4], [0, 1, 2])]  # type: ignore[attr-defined]


@pytest.mark.parametrize("body", [channels, instances, images, two_patterns])
def test_keeps_other_sums(body: object) -> None:
    with FusionDefinition() as fd:
        value = torch.empty(64, 56, 56, 256, dtype=BF16, device="meta")
        x = fd.ops.cast(fd.from_pytorch(value), D.Float)
        for one in body(fd.ops, x):  # type: ignore[operator]
            fd.add_output(one)
    before, after = split((fd, [value]), H200)
    assert after is before


@pytest.mark.parametrize("name", ["8 channels", "10 channels"])
def test_text(name: str, golden: Golden) -> None:
    graph, target = FIRES[name]
    plan = graph[0].plan(graph[1], target=target)
    lines = str(plan).splitlines()
    golden("\n".join(line for line in lines if not line.startswith("not joined")))


@pytest.mark.parametrize("name", ["8 channels", "10 channels", "one image", "f32, 10 channels"])
def test_reads_images_twice(name: str) -> None:
    """The mean and the squares in one kernel, and one that normalises; both take whole vectors."""
    graph, target = FIRES[name]
    plan = graph[0].plan(graph[1], target=target)
    itemsize = graph[1][0].element_size()
    size = itemsize * graph[1][0].numel()
    assert size and 3 * size < plan.edge_bytes < 3.05 * size
    first, last = plan.segments[0], plan.segments[-1]
    assert (first.scheduler.name, last.scheduler.name) == ("reduction", "pointwise")
    texts = [one.text for one in graph[0].sources(graph[1], target=target)]
    assert all(f"= ldv<{16 // itemsize}>(T0" in text for text in (texts[0], texts[-1]))
    assert "index_mod(index_div((i_i" not in texts[-1]  # no element looks for its own group


@pytest.mark.parametrize("name", ["8 channels", "10 channels", "one image", "f32, 10 channels"])
def test_runs_fill_the_device(name: str) -> None:
    """The blocks that sum columns are those that the runs were chosen for."""
    graph, target = FIRES[name]
    source = graph[0].sources(graph[1], target=target)[0]
    assert 0.9 * target.sm_count < prod(source.grid) <= 2 * target.sm_count


def test_f32_reads_images_once_more() -> None:
    """Without fast doubles: Float squares about a first row would not be exact enough."""
    graph, target = FIRES["f32, three reads"]
    plan = graph[0].plan(graph[1], target=target)
    size = 4 * graph[1][0].numel()
    assert 4 * size < plan.edge_bytes < 4.05 * size


# ---- what it computes


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small images too are worth it. In the package, names of passes hide their files."""
    rfactor, broadcasts = (
        sys.modules[f"thunder_fuser.presegment.{name}"]
        for name in ("rfactor", "materialize_broadcasts")
    )
    monkeypatch.setattr(rfactor, "MAX_CACHED", 0)
    monkeypatch.setattr(rfactor, "SECTOR", 1 << 40)
    monkeypatch.setattr(rfactor, "PIECE_PRICE", 1 << 40)
    monkeypatch.setattr(broadcasts, "STRADDLED_OPS", 1 << 30)


def images_of(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def norm(
    x: torch.Tensor, groups: int, most: int = 4
) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """[silu of the group norm, variance, mean] in the emulator and in float64; eager's result.

    most: kernels.
    """
    kind = D.BFloat16 if x.dtype is BF16 else D.Float
    fd, _ = group_norm(tuple(x.shape), groups, kind, with_statistics=True)
    values = [x, *(images_of(n, x.shape[-1]).to(x.dtype)[0] for n in (2, 3))]
    plan = fd.plan(values, target="emulator")
    assert any(e.attr("chunk") for one in plan.segments for e in one.part.exprs)
    assert len(plan.segments) <= most
    with poisoned():
        found = fd.execute(values, target="emulator")
    eager = F.silu(F.group_norm(x.permute(0, 3, 1, 2), groups, *values[1:], 1e-5))
    return found, evaluate(fd.fusion, values, torch.float64), eager.permute(0, 2, 3, 1)


SHAPES = {
    "groups of 8": ((3, 9, 11, 64), 8),
    "groups of 10": ((2, 13, 7, 60), 6),
    "groups of 10, no vectors": ((2, 17, 9, 50), 5),
    "groups of 3": ((2, 15, 15, 21), 7),
    "groups of 12": ((3, 16, 16, 48), 4),
    "one image": ((1, 23, 29, 80), 10),
    "one image, groups of 10": ((1, 31, 33, 40), 4),
    "one row": ((4, 1, 160, 40), 5),
    "one column": ((4, 160, 1, 40), 5),
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("name", SHAPES)
def test_values(name: str, dtype: torch.dtype) -> None:
    shape, groups = SHAPES[name]
    found, wanted, eager = norm((images_of(*shape) * 2 + 0.5).to(dtype), groups)
    torch.testing.assert_close(found[1].double(), wanted[1], rtol=1e-6, atol=0)
    torch.testing.assert_close(found[2].double(), wanted[2], rtol=1e-6, atol=1e-6)
    away, away_of_eager = ((y.double() - wanted[0]).abs() for y in (found[0], eager))
    assert away.mean() <= 1.2 * away_of_eager.mean()
    assert away.max() <= (1.2 if dtype is BF16 else 2) * away_of_eager.max()


SHAPE, GROUPS = (2, 25, 27, 40), 4
RUNS = (8, 64, 81)  # rows at which a run may begin


def by_rows(change: Callable[[torch.Tensor], object]) -> torch.Tensor:
    """Normal numbers whose rows [n, h * w, c] were changed in place."""
    rows = images_of(*SHAPE).reshape(SHAPE[0], -1, SHAPE[3])
    change(rows)
    return rows.reshape(SHAPE)


HARD = {
    "far from zero": images_of(*SHAPE) + 1000.0,
    "farther from zero": images_of(*SHAPE) * 16 + 1e4,
    "trend": by_rows(lambda rows: rows.cumsum_(1)),
    "first row far away": by_rows(lambda rows: rows[:, 0].fill_(1e4)),
    **{
        f"rows far away, each {run}":
            by_rows(lambda rows, run=run: rows[:, ::run].add_(300.0))  # type: ignore[misc]
        for run in RUNS
    },
    "channels far apart": images_of(*SHAPE) + torch.linspace(-300, 300, SHAPE[3]),
    "channels of many sizes": images_of(*SHAPE) * torch.logspace(-4, 3, SHAPE[3]),
    "one channel far away": images_of(*SHAPE) + 1e4 * (torch.arange(SHAPE[3]) % 10 == 0),
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("name", HARD)
def test_errors(name: str, dtype: torch.dtype) -> None:
    """Of the variance, beside torch's in float32, and of the result, beside eager's.

    First rows of runs far from all others cost bits of the variance of 16-bit images, as
    one_pass_variance.py says.
    """
    x = HARD[name].to(dtype)
    (y, variance, mean), wanted, eager = norm(x, GROUPS)
    grouped = x.float().reshape(*SHAPE[:3], GROUPS, -1)
    plain, plain_mean = torch.var_mean(grouped, (1, 2, 4), correction=0, keepdim=True)
    error, error_of_plain = (
        ((v.double() - wanted[1]) / wanted[1]).abs().max() for v in (variance, plain)
    )
    is_far = "row" in name and dtype is BF16
    assert error <= max(1.2 * error_of_plain, 2e-5 if is_far else 2e-6)
    torch.testing.assert_close(mean, plain_mean, rtol=1e-6, atol=1e-5)
    away, away_of_eager = ((one.double() - wanted[0]).abs() for one in (y, eager))
    assert away.mean() <= 1.2 * away_of_eager.mean()
    assert away.max() <= 1.2 * away_of_eager.max()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("value", [0.0, 1.0, 3.3, -1e4, 6e4])
def test_constant_groups(value: float) -> None:
    """The variance is that of the mean's rounding at most."""
    x = torch.full(SHAPE, value).bfloat16()
    (y, variance, mean), wanted, _ = norm(x, GROUPS)
    torch.testing.assert_close(mean.double(), wanted[2], rtol=1e-6, atol=0)
    assert variance.min() >= 0
    assert variance.max() <= (1e-6 * value) ** 2
    assert not y.isnan().any()


@pytest.mark.usefixtures("always")
def test_nan_and_infinity() -> None:
    """In any row of a run and any channel: their group alone has no variance."""
    inf, nan = float("inf"), float("nan")
    x, places = images_of(4, 15, 31, 40).bfloat16(), list[tuple[int, int]]()
    for at, value in enumerate((nan, nan, inf, -inf, inf, nan)):
        image, group, row = at % 4, at % 3, (0, 77, 464)[at % 3]
        x[image, row // 31, row % 31, 10 * group + at] = value
        places.append((image, group))
    (y, variance, _), wanted, _ = norm(x, 4)
    bad = variance[:, 0, 0, :, 0].isnan()
    assert sorted(map(tuple, bad.nonzero().tolist())) == sorted(places)
    torch.testing.assert_close(variance.double(), wanted[1], rtol=1e-6, atol=0, equal_nan=True)
    torch.testing.assert_close(y.double(), wanted[0], rtol=1e-2, atol=1e-2, equal_nan=True)


@pytest.mark.usefixtures("always")
def test_channels_last_as_thunder_writes_it() -> None:
    """[n, g, c, h, w] whose memory is [n, h, w, g, c], with statistics of an image's shape."""
    memory = (images_of(2, 21, 23, 6, 10) + 3).bfloat16()
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.from_pytorch(memory.permute(0, 3, 4, 1, 2)), D.Float)
        variance, mean = fd.ops.var_mean(x, [2, 3, 4], 0)
        rstd = fd.ops.rsqrt(fd.ops.add(variance, 1e-5))
        full = [fd.ops.broadcast_in_dim(v, [2, 6, 10, 21, 23], [0, 1]) for v in (mean, rstd)]
        y = fd.ops.cast(fd.ops.mul(fd.ops.sub(x, full[0]), full[1]), D.BFloat16)
        fd.add_output(y, stride_order=[4, 1, 0, 3, 2])
    values = [memory.permute(0, 3, 4, 1, 2)]
    plan = fd.plan(values, target="emulator")
    names = [one.scheduler.name for one in plan.segments]
    assert names == ["reduction", "persistent", "pointwise", "pointwise"]
    with poisoned():
        (found,) = fd.execute(values, target="emulator")
    (wanted,) = evaluate(fd.fusion, values, torch.float64)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("always")
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.integers(1, 3), st.integers(1, 20), st.integers(2, 30), st.integers(2, 7),
    st.integers(2, 15), st.sampled_from([BF16, F32]),
)  # fmt: skip
def test_any_shape(  # noqa: PLR0917 - what is drawn
    n: int, h: int, w: int, groups: int, size: int, dtype: torch.dtype
) -> None:
    h += 400 // (h * w) * h  # enough rows for statistics
    x = (images_of(n, h, w, groups * size) * 2 + 5).to(dtype)
    found, wanted, _ = norm(x, groups, most=8)  # such tiny groups have several small kernels
    torch.testing.assert_close(found[1].double(), wanted[1], rtol=2e-6, atol=0)
    torch.testing.assert_close(found[2].double(), wanted[2], rtol=1e-6, atol=1e-6)
    near = 2e-2 if dtype is BF16 else 1e-5
    torch.testing.assert_close(found[0].double(), wanted[0], rtol=near, atol=near)
