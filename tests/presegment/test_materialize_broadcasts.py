# SPDX-License-Identifier: Apache-2.0
"""Expensive values that are broadcast: a kernel of their own, where it pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from helpers.cases import rand
from helpers.graphs import Graph, after_passes
from helpers.rows import after_row

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.rules.verify import verify
from thunder_fuser.options import compile_options, options
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.target import CPU, EMULATOR, H200, Target

SHAPE = (4, 12, 2048, 128)
Make = Callable[..., Graph]
# A launch costs nothing, so small tensors are worth a kernel of their own.
CHEAP = {one.name: replace(one, launch_seconds=1e-12) for one in (EMULATOR, CPU)}


def given(*shapes: tuple[int, ...], device: str) -> tuple[FusionDefinition, list[torch.Tensor]]:
    values = [
        torch.empty(shape, device=device) if device == "meta" else rand(*shape, seed=at)
        for at, shape in enumerate(shapes)
    ]
    return FusionDefinition(), values


def rotary(shape: tuple[int, ...] = SHAPE, device: str = "meta") -> Graph:
    """Both tables, computed from angles of half a head."""
    fd, values = given(shape, (shape[2], shape[3] // 2), device=device)
    x, half = map(fd.from_pytorch, values)
    angles = fd.ops.cat([half, half], 1)
    y = fd.ops.mul(x, fd.ops.broadcast_in_dim(fd.ops.cos(angles), list(shape), [2, 3]))
    turned = fd.ops.flip(fd.ops.mul(x, fd.ops.broadcast_in_dim(
        fd.ops.sin(angles), list(shape), [2, 3])), [3])  # fmt: skip
    fd.add_output(fd.ops.add(y, turned))
    return fd, values


def multiplied(
    table: tuple[int, ...], function: Callable[[FusionDefinition, Tensor], Tensor],
    shape: tuple[int, ...], device: str,
) -> Graph:  # fmt: skip
    """x * function(a), where a has axes of size 1."""
    fd, values = given(shape, table, device=device)
    x, a = map(fd.from_pytorch, values)
    fd.add_output(fd.ops.mul(x, function(fd, a)))
    return fd, values


def summed(shape: tuple[int, ...] = SHAPE, device: str = "meta") -> Graph:
    """The sum of the products over batch and heads."""
    fd, values = given(shape, (1, 1, *shape[2:]), device=device)
    x, a = map(fd.from_pytorch, values)
    fd.add_output(fd.ops.sum(fd.ops.mul(x, fd.ops.sin(a)), [0, 1]))
    return fd, values


def returned(shape: tuple[int, ...] = SHAPE, device: str = "meta") -> Graph:
    """The table is a result too."""
    fd, values = given(shape, (1, 1, *shape[2:]), device=device)
    x, a = map(fd.from_pytorch, values)
    table = fd.ops.sin(a)
    fd.add_output(table)
    fd.add_output(fd.ops.mul(x, fd.ops.expand(table, list(shape))))
    return fd, values


def in_place(shape: tuple[int, ...] = SHAPE, device: str = "meta") -> Graph:
    return multiplied((1, 1, *shape[2:]), lambda fd, a: fd.ops.cos(a), shape, device)


def of_the_same_size() -> Graph:
    return multiplied(SHAPE, lambda fd, a: fd.ops.exp(a), SHAPE, "meta")


def along_a_row() -> Graph:
    return multiplied((*SHAPE[:3], 1), lambda fd, a: fd.ops.exp(a), SHAPE, "meta")


def cheap() -> Graph:
    return multiplied((1, 1, *SHAPE[2:]), lambda fd, a: fd.ops.rsqrt(a), SHAPE, "meta")


def small() -> Graph:
    """A launch costs more than all the cosines."""
    return in_place((2, 4, 64, 64))


def after_a_reduction() -> Graph:
    """A softmax over the first axis: the kernel that reduces has the logarithms already."""
    fd, values = given((2048, 8192), device="meta")
    x = fd.from_pytorch(values[0])
    total = fd.ops.sum(fd.ops.exp(x), [0], keepdim=True)
    fd.add_output(fd.ops.sub(x, fd.ops.log(total)))
    return fd, values


FIRES = {"rotary": rotary, "summed": summed, "returned": returned, "in place": in_place}
KEEPS = {
    "of the same size": of_the_same_size, "along a row": along_a_row, "cheap": cheap,
    "small": small, "after a reduction": after_a_reduction,
}  # fmt: skip


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("name", FIRES)
def test_fires(name: str, repeatable: bool) -> None:
    with options(repeatable=repeatable):
        before, chosen = after_passes(FIRES[name]()), compile_options()
        after = verify(after_row("materialize_broadcasts", before, H200, chosen))
        stored = [expr for expr in after.exprs if expr.op == "segment_set"]
        assert len(stored) == (2 if name == "rotary" else 1)
        assert len(after.exprs) == len(before.exprs) + len(stored)
        assert after_row("materialize_broadcasts", after, H200, chosen) is after


@pytest.mark.parametrize("name", KEEPS)
def test_keeps(name: str) -> None:
    before = after_passes(KEEPS[name]())
    assert after_row("materialize_broadcasts", before, H200, compile_options()) is before


@pytest.mark.parametrize("name", FIRES)
def test_one_small_kernel_more(name: str) -> None:
    """It has all sines and cosines, and stores what a table has; the other one reads that."""
    fd, values = FIRES[name]()
    first, second, *more = fd.plan(values, target="h200").segments
    table = SHAPE[2] * SHAPE[3] * 4
    assert first.edge_bytes <= 3 * table and set(first.outputs) <= set(second.inputs)
    assert not {"sin", "cos"} & {expr.op for one in (second, *more) for expr in one.ops}


@pytest.mark.parametrize("target", CHEAP.values(), ids=CHEAP)
@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("name", FIRES)
def test_results(name: str, repeatable: bool, target: Target) -> None:
    fd, values = FIRES[name]((2, 5, 24, 16), "cpu")
    wanted = evaluate(fd.fusion, values, torch.float64)
    with options(repeatable=repeatable):
        assert len(fd.plan(values, target=target).segments) > 1
        for got, want in zip(fd.execute(values, target=target), wanted, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
