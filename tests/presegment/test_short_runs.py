# SPDX-License-Identifier: Apache-2.0
"""Group norms of images, channels last: sums of columns first, where pieces of groups are short."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from conftest import Golden
from helpers.cases import poisoned
from helpers.graphs import Graph, after_passes, group_norm
from helpers.rows import after_row

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.rules.verify import verify
from thunder_fuser.options import compile_options, options
from thunder_fuser.presegment import materialize_broadcasts, rfactor, run_passes
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.target import A100, CPU, H200, TARGETS, Target

D = DataType
BF16, F32 = torch.bfloat16, torch.float32


def split(graph: Graph, target: Target) -> tuple[Fusion, Fusion]:
    """The fusion before and after the pass."""
    before = after_passes(graph)
    return before, after_row("short_runs", before, target, compile_options())


# ---- where it fires

FIRES = {
    "8 channels": (group_norm((64, 56, 56, 256), 32), H200),
    "10 channels": (group_norm((32, 64, 64, 320), 32), H200),
    "one image": (group_norm((1, 512, 512, 320), 32), H200),
    "smaller device": (group_norm((64, 56, 56, 256), 32), A100),
    "2 channels": (group_norm((64, 56, 56, 256), 128), H200),
    "f32, 4 channels": (group_norm((32, 64, 64, 128), 32, D.Float), H200),
}
KEEPS = {
    "pieces of 64 bytes": (group_norm((256, 14, 14, 1024), 32), H200),
    "longer pieces": (group_norm((8, 64, 64, 320), 8), H200),
    "images stay in cache": (group_norm((8, 64, 64, 320), 32), H200),
    "f32, three reads for one": (group_norm((32, 64, 64, 320), 32, D.Float), H200),
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


@pytest.mark.parametrize("name", ["8 channels", "10 channels", "one image"])
def test_reads_images_twice(name: str) -> None:
    """The mean and the squares in one kernel, and one that normalises; both take whole vectors."""
    graph, target = FIRES[name]
    plan = graph[0].plan(graph[1], target=target)
    x, size = graph[1][0].numel(), 2 * graph[1][0].numel()
    assert x and 3 * size < plan.edge_bytes < 3.05 * size
    first, last = plan.segments[0], plan.segments[-1]
    assert (first.scheduler.name, last.scheduler.name) == ("reduction", "pointwise")
    texts = [one.text for one in graph[0].sources(graph[1], target=target)]
    assert all("= ldv<8>(T0" in text for text in (texts[0], texts[-1]))
    assert "index_mod(index_div((i_i" not in texts[-1]  # no element looks for its own group


def test_f32_reads_images_once_more() -> None:
    """Squares about a first row would not be exact enough."""
    graph, target = FIRES["f32, 4 channels"]
    plan = graph[0].plan(graph[1], target=target)
    size = 4 * graph[1][0].numel()
    assert 4 * size < plan.edge_bytes < 4.05 * size


# ---- what it computes


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small images too are worth it."""
    monkeypatch.setattr(rfactor, "MAX_CACHED", 0)
    monkeypatch.setattr(rfactor, "PIECE_PRICE", 1 << 40)
    monkeypatch.setattr(materialize_broadcasts, "STRADDLED_OPS", 1 << 30)
    yield


def images_of(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 2 + 0.5).to(dtype)


def runs(fusion: Fusion) -> list[int]:
    return [e.integer("chunk") for e in fusion.exprs if e.attr("chunk") is not None]


def norm(
    x: torch.Tensor, groups: int, *, rounds: int = 1, dtype: D = D.BFloat16
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """[silu of the group norm, variance, mean] in the emulator, and in float64."""
    fd, meta = group_norm(tuple(x.shape), groups, dtype, with_statistics=True)
    values = [x, *(images_of(x.shape[-1], dtype=x.dtype) for _ in range(2))]
    after = run_passes(split((fd, values), TARGETS["emulator"])[1], compile_options())
    assert len(runs(after)) >= 2 and len(meta) == 3
    with poisoned():
        found = fd.execute(values, target="emulator")
    return found, evaluate(fd.fusion, values, torch.float64)


SHAPES = {
    "groups of 8": ((3, 9, 11, 64), 8),
    "groups of 10": ((2, 13, 7, 60), 6),
    "groups of 10, no vectors": ((2, 17, 9, 50), 5),
    "groups of 3": ((2, 15, 15, 21), 7),
    "groups of 12": ((3, 16, 16, 48), 4),
    "one image": ((1, 23, 29, 80), 8),
    "one image, groups of 10": ((1, 31, 33, 40), 4),
    "one row": ((4, 1, 160, 40), 5),
    "one column": ((4, 160, 1, 40), 5),
}
