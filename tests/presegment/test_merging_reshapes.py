# SPDX-License-Identifier: Apache-2.0
"""Reshapes that merge axes around reductions: one kernel, the same results."""

from __future__ import annotations

from math import prod

import pytest
import torch
from helpers.rows import after_row
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import DefinitionError
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.options import compile_options
from thunder_fuser.presegment import run_passes
from thunder_fuser.presegment.merging_reshapes import groups_of
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.runtime.eager.evaluate import evaluate

D = DataType
N, GROUPS, EACH, SIDE = 2, 4, 3, 5
CHANNELS = GROUPS * EACH


def group_norm() -> FusionDefinition:
    """SiLU of a group norm, from [N, GROUPS, EACH, SIDE, SIDE] to [N, CHANNELS, SIDE, SIDE]."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x = fd.define_tensor(shape=[-1] * 5, contiguity=True, dtype=D.BFloat16)
        weight = fd.define_tensor(shape=[-1], contiguity=True, dtype=D.BFloat16)
        wide = ops.cast(x, D.Float)
        variance, mean = ops.var_mean(wide, [2, 3, 4], 0, keepdim=True)
        unit = ops.mul(ops.sub(wide, mean), ops.rsqrt(ops.add(variance, 1e-5)))
        shape = [N, CHANNELS, SIDE, SIDE]
        scale = ops.cast(ops.broadcast_in_dim(weight, shape, [1]), D.Float)
        fd.add_output(ops.cast(ops.silu(ops.mul(ops.reshape(unit, shape), scale)), D.BFloat16))
        fd.add_output(mean)
    return fd


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_a_group_norm_is_one_kernel(target: str) -> None:
    x = torch.randn(N, GROUPS, EACH, SIDE, SIDE).bfloat16()
    weight = torch.randn(CHANNELS).bfloat16()
    fd = group_norm()
    plan = fd.plan([x, weight], target=target)
    assert [one.scheduler.name for one in plan.segments] == ["persistent"]
    assert plan.edge_bytes == plan.lower_bound
    got, mean = fd.execute([x, weight], target=target)
    assert got.shape == (N, CHANNELS, SIDE, SIDE) and got.is_contiguous()
    flat = x.double().reshape(N, CHANNELS, SIDE, SIDE)
    want = torch.nn.functional.silu(
        torch.nn.functional.group_norm(flat, GROUPS, weight.double(), eps=1e-5)
    )
    torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=2**-7)
    torch.testing.assert_close(mean.double(), x.double().mean((2, 3, 4), keepdim=True))


def row_loss() -> FusionDefinition:
    """log(sum(exp(x))) over the last axis of [2, 3, 40], with x cast before it is flattened."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x = fd.define_tensor(shape=[-1, -1, -1], contiguity=True, dtype=D.BFloat16)
        flat = ops.reshape(ops.cast(x, D.Float), [6, 40])
        most = ops.broadcast_in_dim(ops.max(flat, [1]), [6, 1], [0])
        below = ops.sub(flat, ops.broadcast_in_dim(most, [6, 40], [0, 1]))
        total = ops.broadcast_in_dim(ops.sum(ops.exp(below), [1]), [6, 1], [0])
        fd.add_output(ops.add(ops.log(total), most))
    return fd


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_statistics_that_are_broadcast_stay_with_their_rows(target: str) -> None:
    x = torch.randn(2, 3, 40).bfloat16()
    fd = row_loss()
    assert [one.scheduler.name for one in fd.plan([x], target=target).segments] == ["persistent"]
    (got,) = fd.execute([x], target=target)
    want = x.double().flatten(0, 1).logsumexp(1, keepdim=True)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_a_broadcast_of_what_is_not_merged_stays() -> None:
    with FusionDefinition() as fd:
        x, bias = fd.from_pytorch(torch.randn(2, 3, 4)), fd.from_pytorch(torch.randn(4))
        flat = fd.ops.reshape(x, [6, 4])
        fd.add_output(fd.ops.sum(fd.ops.add(flat, fd.ops.broadcast_in_dim(bias, [6, 4], [1])), [1]))
    args = [torch.randn(2, 3, 4), torch.randn(4)]
    known = specialise(fd.fusion, input_keys(fd.fusion, tuple(args)))
    fusion = run_passes(known, compile_options())
    (one,) = (r for r in fusion.exprs if r.op == "broadcast_in_dim")
    assert one.attr("shape") == (6, 4)


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_a_group_norm_of_channels_last_images(target: str) -> None:
    """Its result lies as the image; one kernel all the same."""
    last = torch.randn(N, CHANNELS, SIDE, SIDE).to(memory_format=torch.channels_last)
    x = last.view(N, GROUPS, EACH, SIDE, SIDE)
    shape, fd = list(last.shape), FusionDefinition()
    wide = fd.from_pytorch(x)
    variance, mean = fd.ops.var_mean(wide, [2, 3, 4], 0, keepdim=True)
    unit = fd.ops.mul(fd.ops.sub(wide, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
    y = fd.ops.silu(fd.ops.reshape(unit, shape))
    fd.add_output(y, stride_order=[3, 0, 2, 1])
    assert [one.scheduler.name for one in fd.plan([x], target=target).segments] == ["persistent"]
    (got,) = fd.execute([x], target=target)
    want = torch.nn.functional.silu(torch.nn.functional.group_norm(last, GROUPS))
    assert got.stride() == last.stride()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_one_value_in_two_orders_and_shapes(target: str) -> None:
    fd, x = FusionDefinition(), torch.randn(2, 3, 4)
    y = fd.ops.exp(fd.from_pytorch(x, static_sizes=True))
    fd.add_output(y, shape=[6, 4], stride_order=[1, 0, 2])
    fd.add_output(y, shape=[2, 12])
    fd.add_output(y)
    turned, flat, whole = fd.execute([x], target=target)
    for got in (turned, flat, whole):
        torch.testing.assert_close(got.reshape(2, 3, 4), x.exp())
    assert (turned.stride(), flat.stride(), whole.stride()) == ((1, 6), (12, 1), (12, 4, 1))


def test_a_shape_that_an_order_does_not_allow_is_refused() -> None:
    fd = FusionDefinition()
    x = fd.define_tensor(shape=[2, 3, 4], contiguity=True)
    fd.add_output(fd.ops.exp(x), shape=[6, 4], stride_order=[2, 0, 1])
    with pytest.raises(DefinitionError, match="lie together"):
        _ = fd.fusion


def test_the_groups_of_merged_axes() -> None:
    assert groups_of((8, 32, 8, 5), (8, 256, 5)) == ((8,), (32, 8), (5,))
    assert groups_of((2, 3, 4), (24,)) == ((2, 3, 4),)
    assert groups_of((2, 3, 4), (3, 8)) is None
    assert groups_of((6, 4), (6, 4)) == ((6,), (4,))
    assert groups_of((2, 3), (6, 1, 1)) is None


@st.composite
def graphs(draw: st.DrawFn) -> tuple[FusionDefinition, list[torch.Tensor]]:
    """Pointwise work and reductions over two inputs, merged and split on the way."""
    fine = draw(st.lists(st.integers(1, 3), min_size=3, max_size=4))
    at = draw(st.integers(0, len(fine) - 2))
    merged = [*fine[:at], fine[at] * fine[at + 1], *fine[at + 2 :]]
    fd = FusionDefinition()
    inputs = [torch.randn(fine), torch.randn(merged)]
    values = [fd.from_pytorch(one) for one in inputs]
    shapes = [fine, merged]
    for _ in range(draw(st.integers(2, 8))):
        which = draw(st.integers(0, len(values) - 1))
        value, shape = values[which], shapes[which]
        made: tuple[Tensor, list[int]]
        kind = draw(st.sampled_from(["exp", "reshape", "add", "norm", "sum"]))
        if kind == "reshape" and prod(shape) == prod(fine):
            other = fine if shape == merged else merged
            made = fd.ops.reshape(value, other), other
        elif kind == "add":
            alike = [v for v, s in zip(values, shapes, strict=True) if s == shape]
            made = fd.ops.add(value, draw(st.sampled_from(alike))), shape
        elif kind == "norm":
            dims = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
            total = fd.ops.sum(value, sorted(dims), keepdim=True)
            made = fd.ops.sub(value, total), shape
        elif kind == "sum":
            dim = draw(st.integers(0, len(shape) - 1))
            fd.add_output(fd.ops.sum(value, [dim]))
            continue
        else:
            made = fd.ops.tanh(value), shape
        values.append(made[0])
        shapes.append(made[1])
    for value, shape in zip(values[2:], shapes[2:], strict=True):
        if draw(st.booleans()):
            order = draw(st.none() | st.permutations(range(len(shape))))
            fd.add_output(value, stride_order=order)
    fd.add_output(fd.ops.tanh(values[-1]))
    return fd, inputs


@settings(deadline=None, derandomize=True, max_examples=60)
@given(graphs())
def test_it_changes_no_result(graph: tuple[FusionDefinition, list[torch.Tensor]]) -> None:
    fd, inputs = graph
    before = specialise(fd.fusion, input_keys(fd.fusion, tuple(inputs)))
    after = after_row("move_merging_reshapes", before)
    assert rebuild(str(after)) == after
    assert after_row("move_merging_reshapes", after) == after
    for made in (after, run_passes(before, compile_options())):
        for got, want in zip(evaluate(made, inputs), evaluate(before, inputs), strict=True):
            assert got.shape == want.shape
            torch.testing.assert_close(got, want)


@settings(deadline=None, derandomize=True, max_examples=8)
@given(graphs())
def test_kernels_agree(graph: tuple[FusionDefinition, list[torch.Tensor]]) -> None:
    fd, inputs = graph
    for got, want in zip(fd.execute(inputs), evaluate(fd.fusion, inputs), strict=True):
        assert got.shape == want.shape and got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_a_result_in_another_shape_that_torch_reads_too(target: str) -> None:
    """A kernel's result and torch's own, given as [6] and [3, 2], computed with as [2, 3]."""
    fd = FusionDefinition()
    x = fd.define_tensor(shape=[2, 3], contiguity=True)
    y = fd.ops.exp(x)
    ranked, _ = fd.ops.topk(y, 3, 1, True, True)
    fd.add_output(y, shape=[6])
    fd.add_output(ranked, shape=[3, 2])
    negative = fd.ops.neg(ranked)
    fd.add_output(negative, shape=[1, 6])
    fd.add_output(negative)
    argument = torch.randn(2, 3)
    first, second, third, fourth = fd.execute([argument], target=target)
    want = argument.exp()
    assert torch.equal(third.view(2, 3), fourth)
    torch.testing.assert_close(first, want.view(6))
    torch.testing.assert_close(second, want.sort(1, descending=True)[0].view(3, 2))
    torch.testing.assert_close(third, -second.view(1, 6))


@pytest.mark.parametrize("shape", [[7], [3, 2, 2]])
def test_a_shape_of_other_elements_is_refused(shape: list[int]) -> None:
    fd = FusionDefinition()
    x = fd.define_tensor(shape=[2, 3], contiguity=True)
    fd.add_output(fd.ops.exp(x), shape=shape)
    with pytest.raises(DefinitionError, match="as many elements"):
        _ = fd.fusion


def test_an_input_in_another_shape_is_refused() -> None:
    fd = FusionDefinition()
    fd.add_output(fd.define_tensor(shape=[2, 3], contiguity=True), shape=[6])
    with pytest.raises(DefinitionError, match="a computed value, row-major"):
        _ = fd.fusion
