# SPDX-License-Identifier: Apache-2.0
"""Layouts that nvFuser's own tests list, beside those of test_inputs.py and test_outputs.py."""

from __future__ import annotations

import pytest
import thunder
import torch
import torch.nn.functional as F
from helpers.cases import Runner, ints, rand

from thunder_fuser import DataType, FusionDefinition, fuser
from thunder_fuser.errors import InputError
from thunder_fuser.executors.run.region_callable import callable_of


def test_contiguity_with_stride_order(run: Runner) -> None:
    """Broadcast axes have no contiguity; it is listed in memory order."""
    x, y = rand(2, 3, 4).permute(2, 0, 1), rand(4, 2, 3)

    def build(fd: FusionDefinition) -> None:
        a = fd.define_tensor([-1, -1, -1], [True, True, True], stride_order=[0, 2, 1])
        b = fd.define_tensor([4, 2, 3], [True, True, True])
        fd.add_output(fd.ops.add(a, b))

    run(build, [x, y], [x + y])


def test_broadcast_and_stride_order(run: Runner) -> None:
    """A row broadcast over columns, asked for in column order."""
    x = rand(5)

    def build(fd: FusionDefinition) -> None:
        a = fd.define_tensor([-1], True)
        made = fd.ops.broadcast_in_dim(a, [5, 7], [0])
        fd.add_output(fd.ops.stride_order(fd.ops.neg(made), [0, 1]))
        fd.add_output(made, stride_order=[0, 1])

    expected = x[:, None].expand(5, 7)
    run(build, [x], [-expected, expected], strides=[(1, 5), (1, 5)])


def test_size_one_axis_in_another_order(run: Runner) -> None:
    """A tensor [1, n] in column order, reshaped to what else has one axis more."""
    x, y = torch.empty_strided((1, 6), (1, 1)).copy_(rand(1, 6)), rand(2, 1, 6)

    def build(fd: FusionDefinition) -> None:
        a = fd.define_tensor([1, -1], [True, None], stride_order=[0, 1])
        b = fd.define_tensor([-1, 1, -1], [True, None, True])
        fd.add_output(fd.ops.add(fd.ops.broadcast(a, [True, False, False]), b))

    run(build, [x, y], [x[None] + y], strides=[(6, 6, 1)])


def test_rows_selected_of_a_column_ordered_table(run: Runner) -> None:
    table, places = rand(8, 5).t().contiguous().t(), ints(4, low=0, high=8)

    def build(fd: FusionDefinition) -> None:
        a, index = fd.from_pytorch(table), fd.from_pytorch(places)
        fd.add_output(fd.ops.relu(fd.ops.index_select(a, index, 0)), stride_order=[0, 1])

    run(build, [table, places], [torch.relu(table[places])], strides=[(1, 4)])


@pytest.mark.parametrize("strides", [(2, 1), (1, 1), (0, 1), (0, 0), (3, 2), (100, 7)])
def test_overlapping_and_gaping_inputs(run: Runner, strides: tuple[int, int]) -> None:
    """Windows over memory, elements seen twice, expanded axes, gaps."""
    x = rand(1000).as_strided((6, 4), strides)

    def build(fd: FusionDefinition) -> None:
        a = fd.from_pytorch(x)
        fd.add_output(fd.ops.mul(a, 2.0))
        fd.add_output(fd.ops.sum(a, [1]))

    run(build, [x], [x * 2.0, x.sum(1)])


def test_sizes_of_a_broadcast_operand(run: Runner) -> None:
    """size of both operands where one is broadcast; expanded to 1 and to the other's size."""
    x, y = rand(1, 4), rand(3, 4)

    def build(fd: FusionDefinition) -> None:
        a, b = fd.from_pytorch(x), fd.from_pytorch(y)
        sizes = fd.ops.shape(fd.ops.add(a, b))
        fd.add_output(fd.ops.broadcast_in_dim(a, sizes, [0, 1]))
        fd.add_output(fd.ops.expand(a, [1, 4]))

    run(build, [x, y], [x.expand(3, 4), x])


def test_contiguity_that_was_promised() -> None:
    with FusionDefinition() as fd:
        a = fd.define_tensor([-1, -1], [True, True])
        fd.add_output(fd.ops.neg(a))
    with pytest.raises(InputError, match=r"argument T0: axis 0: expected stride 4.* got stride 5"):
        fd.execute([torch.zeros(3, 5)[:, :4]])
    with pytest.raises(InputError, match="argument T0: axis 1: expected stride 1"):
        fd.execute([torch.zeros(4, 3).t()])


def test_contiguity_that_was_not() -> None:
    x = rand(3, 5)[:, :4]
    with FusionDefinition() as fd:
        a = fd.define_tensor([-1, -1], False)
        fd.add_output(fd.ops.neg(a))
    for given in (x, rand(4, 3).t(), rand(3, 4)):
        assert torch.equal(fd.execute([given])[0], -given)


# ---- Thunder


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 1, 5)])
def test_channels_last_through_thunder(shape: tuple[int, ...]) -> None:
    """Nothing is copied on the way in, and each layout has its own program."""
    x = rand(*shape)
    function = thunder.jit(lambda x: F.gelu(x) * 2.0, executors=[fuser], fuser_strict=True)
    turned = torch.empty_strided(shape, x.contiguous(memory_format=torch.channels_last).stride())
    for given in (x, turned.copy_(x)):
        torch.testing.assert_close(function(given), F.gelu(given) * 2.0)
    (call,) = filter(None, map(callable_of, fuser.last_fused_trace.bound_symbols))
    made = {d[0].attr("stride_order") for d in call.definitions}
    assert len(made) == 2


def test_stride_order_and_turned_arguments_through_thunder() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.t() * w).contiguous(memory_format=torch.contiguous_format) + 1.0

    x, w = rand(5, 3), rand(3, 5)
    made = thunder.jit(function, executors=[fuser], fuser_strict=True)
    for given in (x, x.t().contiguous().t()):
        torch.testing.assert_close(made(given, w), function(given, w))


def test_dtype_beside_layout() -> None:
    """A 16-bit tensor in column order keeps the order asked for."""
    x = rand(4, 6, dtype=torch.bfloat16)
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        fd.add_output(fd.ops.cast(fd.ops.neg(a), DataType.BFloat16), stride_order=[0, 1])
    (result,) = fd.execute([x])
    assert result.stride() == (1, 4) and torch.equal(result, -x)
