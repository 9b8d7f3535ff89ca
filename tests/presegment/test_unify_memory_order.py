# SPDX-License-Identifier: Apache-2.0
"""Sums of tensors that lie in two memory orders: a copy into one order, where it pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from conftest import Golden
from helpers.cases import rand
from helpers.graphs import Graph, after_passes
from helpers.rows import after_row

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.rules.verify import verify
from thunder_fuser.options import compile_options, options
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.target import CPU, EMULATOR, H200, Target

D = DataType
SHAPE = (8, 320, 64, 64)
LAST, FIRST = torch.channels_last, torch.contiguous_format
Make = Callable[..., Graph]
# Small tensors are worth a copy here, and a few blocks are enough for a transpose.
CHEAP = replace(EMULATOR, launch_seconds=1e-12, sm_count=2)


def images(shape: tuple[int, ...], device: str, *orders: torch.memory_format) -> list[torch.Tensor]:
    if device == "meta":
        return [torch.empty(shape, device=device).bfloat16().to(memory_format=o) for o in orders]
    return [
        rand(*shape, seed=at).bfloat16().to(memory_format=o) for at, o in enumerate(orders)
    ]


def squares(shape: tuple[int, ...] = SHAPE, device: str = "meta") -> Graph:
    """The sum of squared distances between a channels-last image and a contiguous one."""
    values, fd = images(shape, device, LAST, FIRST), FusionDefinition()
    a, b = (fd.ops.cast(fd.from_pytorch(value), D.Float) for value in values)
    off = fd.ops.sub(a, b)
    fd.add_output(fd.ops.sum(fd.ops.mul(off, off), [0, 1, 2, 3]))
    return fd, values


def of_channels(shape: tuple[int, ...] = SHAPE, device: str = "meta") -> Graph:
    """Most bytes are channels last; sums of channels, beside a result."""
    values, fd = images(shape, device, LAST, FIRST), FusionDefinition()
    a, b = (fd.ops.cast(fd.from_pytorch(value), D.Float) for value in values)
    off = fd.ops.sub(a, b)
    fd.add_output(fd.ops.cast(off, D.BFloat16), stride_order=[3, 0, 2, 1])
    fd.add_output(fd.ops.sum(off, [0, 2, 3]))
    return fd, values


def through_a_reshape(shape: tuple[int, ...] = SHAPE, device: str = "meta") -> Graph:
    """Channels as groups of channels, as in a group norm's backward."""
    (x, dy), fd = images(shape, device, FIRST, LAST), FusionDefinition()
    n, c, h, w = shape
    x = x.view(n, 4, c // 4, h, w)
    a, b = (fd.ops.cast(fd.from_pytorch(value), D.Float) for value in (x, dy))
    made = fd.ops.mul(a, fd.ops.reshape(b, list(x.shape)))
    fd.add_output(fd.ops.sum(made, [0, 3, 4]))
    fd.add_output(fd.ops.sum(fd.ops.mul(made, a), [0, 3, 4]))
    return fd, [x, dy]


def alike() -> Graph:
    """Both are channels last."""
    values, fd = images(SHAPE, "meta", LAST, LAST), FusionDefinition()
    a, b = (fd.ops.cast(fd.from_pytorch(value), D.Float) for value in values)
    fd.add_output(fd.ops.sum(fd.ops.mul(a, b), [0, 2, 3]))
    return fd, values


def small() -> Graph:
    """A launch costs more than all sectors."""
    return squares((2, 32, 16, 16))


def few_channels() -> Graph:
    """A warp's reads of three channels are whole sectors in either order."""
    return squares((32, 3, 512, 512))


def pointwise() -> Graph:
    """Without a sum the transpose scheduler takes it."""
    values, fd = images(SHAPE, "meta", LAST, FIRST), FusionDefinition()
    a, b = map(fd.from_pytorch, values)
    fd.add_output(fd.ops.add(a, b))
    return fd, values


FIRES = {"squares": squares, "of channels": of_channels, "through a reshape": through_a_reshape}
KEEPS = {"alike": alike, "small": small, "few channels": few_channels, "pointwise": pointwise}


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("name", FIRES)
def test_fires(name: str, repeatable: bool) -> None:
    with options(repeatable=repeatable):
        chosen, before = compile_options(), after_passes(FIRES[name]())
        after = verify(after_row("unify_memory_order", before, H200, chosen))
        (copy,) = [expr for expr in after.exprs if expr.op == "stride_order"]
        assert len(after.exprs) == len(before.exprs) + 1
        assert copy.inputs[0] in after.inputs and len(after.uses[copy.inputs[0]]) == 1
        assert after_row("unify_memory_order", after, H200, chosen) is after


@pytest.mark.parametrize("name", KEEPS)
def test_keeps(name: str) -> None:
    before = after_passes(KEEPS[name]())
    assert after_row("unify_memory_order", before, H200, compile_options()) is before


@pytest.mark.parametrize("name", FIRES)
def test_a_cpu_needs_no_copy(name: str) -> None:
    before = after_passes(FIRES[name]())
    assert after_row("unify_memory_order", before, CPU, compile_options()) is before


@pytest.mark.parametrize("name", FIRES)
def test_plans(name: str, golden: Golden) -> None:
    """A transposing copy, then a sum whose tensors all lie alike."""
    fd, values = FIRES[name]()
    plan = fd.plan(values, target="h200")
    assert [one.scheduler.name for one in plan.segments][:2] == ["transpose", "reduction"]
    golden(str(plan))


@pytest.mark.parametrize("name", KEEPS)
def test_others_have_no_kernel_more(name: str) -> None:
    fd, values = KEEPS[name]()
    plan = fd.plan(values, target="h200")
    assert sum(one.edge_bytes > 1 << 20 for one in plan.segments) <= 1


@pytest.mark.parametrize("target", ["cpu", CHEAP], ids=["cpu", "emulator"])
@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("shape", [(2, 64, 16, 16), (3, 36, 9, 7)])
@pytest.mark.parametrize("name", FIRES)
def test_results(
    name: str, shape: tuple[int, ...], repeatable: bool, target: str | Target
) -> None:
    fd, values = FIRES[name](shape, "cpu")
    wanted = evaluate(fd.fusion, values, torch.float64)
    with options(repeatable=repeatable):
        names = [one.scheduler.name for one in fd.plan(values, target=target).segments]
        assert target == "cpu" or "transpose" in names or shape[0] == 3
        for got, want in zip(fd.execute(values, target=target), wanted, strict=True):
            most = want.abs().max()
            tolerance = 8e-3 if got.dtype is torch.bfloat16 else 1e-5
            assert got.shape == want.shape and (got.double() - want).abs().max() < tolerance * most
