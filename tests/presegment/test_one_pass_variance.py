# SPDX-License-Identifier: Apache-2.0
"""A mean and a variance in one pass: where the pass fires, where not, and how exact it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from conftest import Golden
from helpers.cases import poisoned
from helpers.pairs import pairs
from helpers.rows import after_row
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.rules.verify import verify
from thunder_fuser.options import compile_options, options
from thunder_fuser.presegment import PASSES, run_passes
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.target import CPU, H200, TARGETS, Target

D = DataType
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
IMAGES = (0, 2, 3)  # what a batch norm sums over
SLOW_DOUBLES = replace(H200, arch="sm_89")


def images(*shape: int, dtype: torch.dtype = BF16, last: bool = True) -> torch.Tensor:
    """An argument without memory, channels last or not."""
    form = torch.channels_last if last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device="meta").to(memory_format=form)


def statistics(x: torch.Tensor, dims: tuple[int, ...] = IMAGES) -> FusionDefinition:
    """var_mean of x in Float, as batch norms have it."""
    with FusionDefinition() as fd:
        wide = fd.ops.cast(fd.from_pytorch(x), D.Float)
        for one in fd.ops.var_mean(wide, list(dims), 0):
            fd.add_output(one)
    return fd


FOR_A_TARGET = [row for row in PASSES[:-3] if row.for_target]


def passed(
    fd: FusionDefinition, x: torch.Tensor, target: Target, *, repeatable: bool = True
) -> tuple[Fusion, Fusion]:
    """The fusion before and after the pass."""
    with options(repeatable=repeatable):
        known = compile_options()
        fusion = run_passes(specialise(fd.fusion, input_keys(fd.fusion, (x,))), known)
        for row in FOR_A_TARGET:
            fusion = after_row(row.name, fusion, target, known)
        after = after_row("one_pass_variance", fusion, target, known)
        return fusion, after_row("remove_dead", after)


def test_it_is_the_last_one_that_changes_sums() -> None:
    last = ["one_pass_variance", "materialize_straddled", "remove_dead"]
    assert [row.name for row in PASSES[-3:]] == last


# ---- where it fires

RESNET = images(32, 64, 56, 56)
FIRES = {
    "batch norm, channels last": (RESNET, IMAGES, H200),
    "runs do not divide": (images(7, 64, 55, 53), IMAGES, H200),
    "deep layer": (images(32, 2048, 7, 7), IMAGES, H200),
    "instance norm, channels last": (RESNET, (2, 3), H200),
    "bf16, slow doubles": (RESNET, IMAGES, SLOW_DOUBLES),
    "f16": (images(32, 64, 56, 56, dtype=F16), IMAGES, H200),
    "one dimension": (torch.empty(8192, 256, dtype=BF16, device="meta"), (0,), H200),
    "channels first, too long for a chip": (
        images(256, 64, 56, 56, last=False), IMAGES, H200
    ),
    "all elements": (torch.empty(1 << 20, dtype=BF16, device="meta"), (0,), H200),
    "cpu": (images(8, 64, 56, 56, dtype=F32), IMAGES, CPU),
    "cpu, bf16": (RESNET, IMAGES, CPU),
}  # fmt: skip
FIRES_IF_FREE = {"f32": (images(32, 64, 56, 56, dtype=F32), IMAGES, H200)}  # if sums are
KEEPS = {
    "channels stay on chip": (images(32, 64, 56, 56, last=False), IMAGES, H200),
    "rows stay on chip": (torch.empty(4096, 1024, dtype=BF16, device="meta"), (1,), H200),
    "groups stay on chip": (images(32, 64, 56, 56, last=False), (2, 3), H200),
    "f32, slow doubles": (images(32, 64, 56, 56, dtype=F32), IMAGES, SLOW_DOUBLES),
    "little work": (images(2, 8, 16, 16), IMAGES, H200),
    "cpu, channels first": (images(8, 64, 56, 56, dtype=F32, last=False), IMAGES, CPU),
}


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("name", FIRES)
def test_fires(name: str, repeatable: bool) -> None:
    x, dims, target = FIRES[name]
    before, after = passed(statistics(x, dims), x, target, repeatable=repeatable)
    assert after is not before
    assert rebuild(str(verify(after))) == after
    assert after_row("one_pass_variance", after, target, compile_options()) is after


@pytest.mark.parametrize("name", FIRES_IF_FREE)
def test_keeps_if_repeatable(name: str) -> None:
    """What else is in the fusion of x would decide about the bits of its variance."""
    x, dims, target = FIRES_IF_FREE[name]
    for repeatable in (False, True):
        before, after = passed(statistics(x, dims), x, target, repeatable=repeatable)
        assert (after is before) == repeatable


@pytest.mark.parametrize("op", ["exp", "erf", "digamma", "relu"])
def test_a_variance_does_not_depend_on_what_made_its_input(op: str) -> None:
    """Under `repeatable`, of float32: computed in one fusion or in two, its bits are the same."""
    x = torch.randn(8, 32, 24, 24).contiguous(memory_format=torch.channels_last)

    def statistics_of(value: torch.Tensor, *, made: bool) -> list[torch.Tensor]:
        with FusionDefinition() as fd:
            y = fd.from_pytorch(value)
            y = y if made else getattr(fd.ops, op)(y)
            fd.add_output(y, stride_order=[3, 0, 2, 1])
            for one in fd.ops.var_mean(y, list(IMAGES), 0):
                fd.add_output(one)
        with options(repeatable=True):
            return fd.execute([value], target="emulator")

    y, *together = statistics_of(x, made=False)
    _, *apart = statistics_of(y, made=True)
    torch.testing.assert_close(together, apart, rtol=0, atol=0, equal_nan=True)  # digamma(0) is inf


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("name", KEEPS)
def test_keeps(name: str, repeatable: bool) -> None:
    x, dims, target = KEEPS[name]
    before, after = passed(statistics(x, dims), x, target, repeatable=repeatable)
    assert after is before


def _wide(fd: FusionDefinition, x: torch.Tensor) -> tuple[object, object]:
    wide = fd.ops.cast(fd.from_pytorch(x), D.Float)
    mean = fd.ops.truediv(fd.ops.sum(wide, list(IMAGES), keepdim=True), 100352.0)
    return wide, mean


def _no_square(fd: FusionDefinition, x: torch.Tensor) -> None:
    wide, mean = _wide(fd, x)
    away = fd.ops.sub(wide, mean)
    fd.add_output(fd.ops.sum(fd.ops.mul(away, wide), list(IMAGES)))


def _sums_of_rows(fd: FusionDefinition, x: torch.Tensor) -> None:
    """What is subtracted differs from row to row."""
    wide, _ = _wide(fd, x)
    away = fd.ops.sub(wide, fd.ops.sum(wide, [1], keepdim=True))
    fd.add_output(fd.ops.sum(fd.ops.mul(away, away), list(IMAGES)))


def _given_mean(fd: FusionDefinition, x: torch.Tensor) -> None:
    """Nothing waits for a sum: today's kernel reads x once."""
    wide = fd.ops.cast(fd.from_pytorch(x), D.Float)
    mean = fd.define_tensor([1, -1, 1, 1], [None, True, None, None], D.Float)
    away = fd.ops.sub(wide, mean)
    fd.add_output(fd.ops.sum(fd.ops.mul(away, away), list(IMAGES)))


def _expensive(fd: FusionDefinition, x: torch.Tensor) -> None:
    """The first rows would be computed once more."""
    wide, _ = _wide(fd, x)
    narrow = fd.ops.cast(fd.ops.exp(wide), D.BFloat16)
    for one in fd.ops.var_mean(fd.ops.cast(narrow, D.Float), list(IMAGES), 0):
        fd.add_output(one)


@pytest.mark.parametrize("body", [_no_square, _sums_of_rows, _given_mean, _expensive])
def test_keeps_other_sums(body: Callable[[FusionDefinition, torch.Tensor], None]) -> None:
    fd, inputs = FusionDefinition(), [RESNET]
    with fd:
        body(fd, RESNET)
    if len(fd.fusion.inputs) > 1:
        inputs.append(torch.empty(1, 64, 1, 1, device="meta"))
    with options(repeatable=True):
        known = compile_options()
        fusion = run_passes(specialise(fd.fusion, input_keys(fd.fusion, tuple(inputs))), known)
        for row in FOR_A_TARGET:
            fusion = after_row(row.name, fusion, H200, known)
        assert any(expr.attr("chunk") for expr in fusion.exprs)
        assert after_row("one_pass_variance", fusion, H200, known) is fusion


@pytest.mark.parametrize("name", ["batch norm, channels last", "runs do not divide", "f32", "cpu"])
def test_text(name: str, golden: Golden) -> None:
    x, dims, target = (FIRES | FIRES_IF_FREE)[name]
    before, after = passed(statistics(x, dims), x, target, repeatable=name in FIRES)
    golden(f"{before}\n\n{after}")


# ---- what it saves


@pytest.mark.parametrize("target", ["h200", "cpu"])
def test_two_kernels(target: str) -> None:
    """One reads x; the other one what is left of it."""
    x = images(32, 64, 56, 56, dtype=BF16)
    with options(repeatable=True):
        plan = statistics(x).plan([x], target=target)
    assert [one.scheduler.name for one in plan.segments] == ["reduction", "persistent"]
    assert plan.edge_bytes < 1.2 * x.numel() * x.element_size()


def test_first_rows_are_read_before_the_loop() -> None:
    """Where runs do not divide, the row's number has a variable of its own."""
    x = FIRES["runs do not divide"][0]
    with options(repeatable=True):
        source = statistics(x).sources([x], target="h200")[0].text
    lines = [line.strip() for line in source.splitlines()]
    loads = [at for at, line in enumerate(lines) if "= ldv<8>(T0" in line]
    loop = next(at for at, line in enumerate(lines) if line.startswith("for (i32 j_i_o"))
    assert len(loads) == 2
    assert loads[0] < loop < loads[1]


# ---- how exact it is


@contextmanager
def two_passes() -> Iterator[None]:
    """Compiles without the pass."""
    with options(skip_passes="one_pass_variance"):
        yield


def run(
    x: torch.Tensor, target: str, dims: tuple[int, ...] = IMAGES, *, repeatable: bool = True
) -> list[torch.Tensor]:
    """[variance, mean]"""
    with options(repeatable=repeatable), poisoned():
        return statistics(x, dims).execute([x], target=target)


def error(x: torch.Tensor, variance: torch.Tensor) -> float:
    """The largest relative error of a channel."""
    wanted = x.double().var(IMAGES, correction=0)
    away = (variance.double() - wanted).abs()
    return torch.where(away > 0, away / wanted, 0.0).max().item()


SHAPE = (6, 32, 25, 27)
RUNS = (8, 64, 145)  # rows at which a run may begin


def normal(scale: float = 1.0, offset: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(SHAPE, generator=generator, dtype=F64) * scale + offset


def by_rows(change: Callable[[torch.Tensor], object]) -> torch.Tensor:
    """Normal numbers whose rows [n * h * w, c] were changed in place."""
    n, c, h, w = SHAPE
    rows = normal().permute(0, 2, 3, 1).reshape(-1, c).contiguous()
    change(rows)
    return rows.reshape(n, h, w, c).permute(0, 3, 1, 2)


HARD = {
    "normal": normal(),
    "far from zero": normal(0.1, 100.0),
    "farther from zero": normal(1.0, 1e4),
    "trend": by_rows(lambda rows: rows.cumsum_(0)),
    "first row far away": by_rows(lambda rows: rows[0].fill_(1e4)),
    **{
        f"rows far away, each {run}": by_rows(lambda rows, run=run: rows[::run].add_(300.0))  # type: ignore[misc]
        for run in RUNS
    },
    "halves apart": by_rows(lambda rows: rows[: len(rows) // 2].sub_(1000.0)),
    "channels of many sizes": normal() * torch.logspace(-4, 3, SHAPE[1])[:, None, None],
}


@pytest.mark.parametrize(
    ("name", "dtype", "target"), pairs([*HARD], [BF16, F16, F32], ["cpu", "emulator"])
)
def test_errors(name: str, dtype: torch.dtype, target: str) -> None:
    """The mean has the bits of two passes. The variance is as exact where sums are Double. The
    error of 16-bit images on a GPU grows if the first row of a run is far from all others, but
    stays far below that of 16 bits."""
    x = HARD[name].to(dtype).contiguous(memory_format=torch.channels_last)
    repeatable = target == "cpu" or dtype is not F32
    fused = passed(statistics(x), x, TARGETS[target], repeatable=repeatable)
    assert fused[0] is not fused[1]
    variance, mean = run(x, target, repeatable=repeatable)
    with two_passes():
        plain, plain_mean = run(x, target, repeatable=repeatable)
    torch.testing.assert_close(mean, plain_mean, rtol=0, atol=0)
    bound = 2 * error(x, plain) + 1e-7
    is_double = target == "cpu" or dtype is F32
    assert error(x, variance) < (bound if is_double else max(bound, 2e-5))


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("value", [0.0, 1.0, 3.3, -1e4, 6e4])
def test_constant_channels(value: float, target: str) -> None:
    x = torch.full(SHAPE, value).bfloat16().contiguous(memory_format=torch.channels_last)
    variance, mean = run(x, target)
    with two_passes():
        plain, plain_mean = run(x, target)
    torch.testing.assert_close(mean, plain_mean, rtol=0, atol=0)
    assert variance.min() >= 0
    torch.testing.assert_close(variance, plain, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_nan_and_infinity(target: str) -> None:
    """In any row of a run, also in the first one."""
    inf, nan = float("inf"), float("nan")

    def put(rows: torch.Tensor) -> None:
        for channel, (row, value) in enumerate(
            [(0, nan), (77, nan), (0, inf), (77, inf), (0, -inf), (77, -inf), (len(rows) - 1, nan)]
        ):
            rows[row, channel] = value
        rows[3, 7], rows[80, 7] = inf, -inf

    x = by_rows(put).bfloat16().contiguous(memory_format=torch.channels_last)
    results = run(x, target)
    with two_passes():
        plain = run(x, target)
    for result, wanted in zip(results, plain, strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert results[0][:8].isnan().all()


@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 5), st.integers(1, 40), st.integers(1, 30), st.integers(1, 30),
    st.sampled_from(["cpu", "emulator"]), st.sampled_from([BF16, F32]), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_any_shape(  # noqa: PLR0917 - what is drawn
    n: int, c: int, h: int, w: int, target: str, dtype: torch.dtype, last: bool, repeatable: bool
) -> None:
    n = n + (1 << 16) // (n * c * h * w) * n  # enough elements for runs
    x = torch.randn(n, c, h, w, generator=torch.Generator().manual_seed(n)).to(dtype) * 2 + 5
    x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    variance, mean = run(x, target, repeatable=repeatable)
    wanted = x.double().var(IMAGES, correction=0)
    torch.testing.assert_close(variance.double(), wanted, rtol=2e-6, atol=0)
    torch.testing.assert_close(mean.double(), x.double().mean(IMAGES), rtol=1e-6, atol=1e-6)


OTHERS = {
    "images in the order h n w c": (torch.randn(25, 6, 27, 32).permute(1, 3, 0, 2), IMAGES),
    "planes": (torch.randn(66, 3, 63, 65), IMAGES),
    "planes of even size": (torch.randn(40, 2, 64, 112), IMAGES),
    "all elements": (torch.randn(300_001), (0,)),
    "two kept axes": (torch.randn(8, 300, 5, 16), (0, 1)),
    "kept around reduced": (torch.randn(4, 700, 48), (1,)),
}


@pytest.mark.parametrize(
    ("name", "repeatable", "target"), pairs([*OTHERS], [False, True], ["cpu", "emulator"])
)
def test_other_layouts(name: str, repeatable: bool, target: str) -> None:
    """Long rows and axes that lie in another order than the tensor has them."""
    value, dims = OTHERS[name]
    x = (value * 3 - 1).bfloat16()
    fused = passed(statistics(x, dims), x, TARGETS[target], repeatable=repeatable)
    assert fused[0] is not fused[1] or target == "cpu" or not repeatable
    variance, mean = run(x, target, dims, repeatable=repeatable)
    wanted = x.double().var(dims, correction=0)
    torch.testing.assert_close(variance.double(), wanted, rtol=2e-6, atol=0)
    torch.testing.assert_close(mean.double(), x.double().mean(dims), rtol=1e-5, atol=1e-6)


def test_runs_through_all_passes() -> None:
    x = RESNET
    with options(repeatable=True):
        known, fd = compile_options(), statistics(x)
        after = run_passes(specialise(fd.fusion, input_keys(fd.fusion, (x,))), known, H200)
    assert after == passed(statistics(x), x, H200)[1]
