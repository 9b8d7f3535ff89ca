# SPDX-License-Identifier: Apache-2.0
"""What definitions return: stride orders, aliases, inputs, the same value twice."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers.cases import Runner, rand

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.strides import contiguous_strides

D = DataType


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_stride_ordered_output(run: Runner, order: tuple[int, ...]) -> None:
    """A pointwise result and a softmax, each in any order of memory."""
    x = rand(3, 5, 8)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.add(t, 1.0), stride_order=order)
        powers = fd.ops.exp(t)
        total = fd.ops.sum(powers, [1], keepdim=True)
        fd.add_output(fd.ops.truediv(powers, total), stride_order=order)

    strides = contiguous_strides((3, 5, 8), order)
    run(fusion, [x], [x + 1, x.softmax(1)], strides=[strides, strides])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_stride_order_with_reduction(run: Runner, order: tuple[int, ...]) -> None:
    x = rand(3, 5, 8, 4)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        for axis in (0, 2, 3):
            fd.add_output(fd.ops.sum(t, [axis]), stride_order=order)

    wanted = [x.sum(axis) for axis in (0, 2, 3)]
    strides = [contiguous_strides(w.shape, order) for w in wanted]
    run(fusion, [x], wanted, strides=strides, tolerance=1e-5)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_stride_order_with_broadcast(run: Runner, order: tuple[int, ...]) -> None:
    x, y = rand(5), rand(3, 5, 1)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        wide = fd.ops.broadcast(t0, [True, False, True])
        fd.add_output(fd.ops.add(wide, t1), stride_order=order)
        fd.add_output(fd.ops.set(wide), stride_order=order)
        fd.add_output(fd.ops.sum(t1, [0], keepdim=True), stride_order=order)

    wanted = [x[:, None] + y, x[None, :, None], y.sum(0, keepdim=True)]
    strides = [contiguous_strides(w.shape, order) for w in wanted]
    run(fusion, [x, y], wanted, strides=strides)


def test_stride_order_op(run: Runner) -> None:
    """fd.ops.stride_order sets the layout of a value; add_output's own wins."""
    x = rand(3, 4, 5)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.ops.stride_order(fd.ops.neg(fd.from_pytorch(x)), [0, 2, 1])
        fd.add_output(t)
        fd.add_output(fd.ops.exp(t))

    strides = [contiguous_strides((3, 4, 5), (0, 2, 1)), (20, 5, 1)]
    run(fusion, [x], [-x, (-x).exp()], strides=strides)


def test_two_orders_of_one_value(run: Runner) -> None:
    x = rand(3, 5)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.ops.neg(fd.from_pytorch(x))
        fd.add_output(t, stride_order=[1, 0])
        fd.add_output(t, stride_order=[0, 1])

    run(fusion, [x], [-x, -x], strides=[(5, 1), (1, 3)])


def test_the_same_output_twice(run: Runner) -> None:
    x = rand(3, 5)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.ops.neg(fd.from_pytorch(x))
        fd.add_output(t)
        fd.add_output(t)

    run(fusion, [x], [-x, -x])


def test_returning_an_input(run: Runner) -> None:
    x = rand(3, 5)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        fd.add_output(t)
        fd.add_output(fd.ops.neg(t))

    run(fusion, [x], [x, -x])


def test_returning_an_input_in_another_order(run: Runner) -> None:
    x = rand(3, 5)

    def fusion(fd: FusionDefinition) -> None:
        fd.add_output(fd.from_pytorch(x), stride_order=[0, 1])

    run(fusion, [x], [x], strides=[(1, 3)])


def test_returning_only_scalars(run: Runner) -> None:
    def fusion(fd: FusionDefinition) -> None:
        s0, s1 = fd.define_scalar(dtype=D.Double), fd.define_scalar(dtype=D.Int)
        fd.add_output(fd.ops.cast(fd.ops.mul(s0, s1), D.Float))

    run(fusion, [2.5, 3], [torch.tensor(7.5)])


def test_views_of_inputs_are_copies(run: Runner) -> None:
    """A permuted or sliced input comes back in memory of its own; test_shared_results.py has
    reshapes."""
    x = rand(4, 6)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.permute(t, [1, 0]))
        fd.add_output(fd.ops.slice(t, [1, 0], [3, 6]))
        fd.add_output(fd.ops.set(t))

    results = run(fusion, [x], [x.t(), x[1:3], x])
    assert x.data_ptr() not in [r.data_ptr() for r in results]


# ---- aliases: written into the input, not returned


def test_output_into_an_input(run: Runner) -> None:
    x, original = rand(4, 6), rand(4, 6)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        s1 = fd.ops.add(t, 1.0)
        fd.add_output(s1, t)
        fd.add_output(fd.ops.mul(s1, 2.0))

    run(fusion, [x], [(original + 1) * 2])
    torch.testing.assert_close(x, original + 1)


def test_returning_aliased_outputs(run: Runner) -> None:
    """The value may be returned too; readers of the input see what it was before."""
    x, original = rand(4), rand(4)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        s1 = fd.ops.add(t, 1.0)
        fd.add_output(s1)
        fd.add_output(s1, alias_input=t)
        fd.add_output(fd.ops.sum(t))

    run(fusion, [x], [original + 1, original.sum()])
    torch.testing.assert_close(x, original + 1)


@pytest.mark.parametrize("turned", [False, True])
def test_results_are_the_written_input(run: Runner, turned: bool) -> None:
    """A value that is written into an input, and the input: one memory, as nvFuser returns it."""
    x = rand(6, 4).t() if turned else rand(4, 6)
    original = x.clone()

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        positive = fd.ops.relu(t)
        fd.add_output(positive)
        fd.add_output(positive, t)
        fd.add_output(t)
        fd.add_output(fd.ops.neg(positive))
        fd.add_output(t, stride_order=[0, 1])

    new = original.relu()
    strides = [x.stride(), x.stride(), (6, 1), (1, 4)]
    results = run(fusion, [x], [new, new, -new, new], strides=strides)
    assert [r.data_ptr() == x.data_ptr() for r in results] == [True, True, False, turned]


def test_results_of_a_swap(run: Runner) -> None:
    """Each input is returned as written, from what the other was before."""
    x, y = rand(4), rand(4, seed=1)
    expected = [y.clone(), x.clone()]

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        fd.add_output(t1, alias_input=t0)
        fd.add_output(t0, alias_input=t1)
        fd.add_output(t0)
        fd.add_output(t1)

    results = run(fusion, [x, y], expected)
    assert [r.data_ptr() for r in results] == [x.data_ptr(), y.data_ptr()]


def test_update_of_a_strided_input(run: Runner) -> None:
    memory = rand(6, 10)
    x, before = memory[::2, 1:9:2], memory.clone()

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.neg(t), t)

    run(fusion, [x], [])
    wanted = before.clone()
    wanted[::2, 1:9:2] *= -1
    torch.testing.assert_close(memory, wanted)


def test_update_of_a_transposed_input_beside_a_result(run: Runner) -> None:
    x, y = rand(6, 4).t(), rand(4, 6, seed=1)
    original = x.clone()

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        total = fd.ops.add(t0, t1)
        fd.add_output(total, t0)
        fd.add_output(fd.ops.sum(total, [0]))

    run(fusion, [x, y], [(original + y).sum(0)])
    torch.testing.assert_close(x, original + y)


def test_swap(run: Runner) -> None:
    """Both updates read the values from before either."""
    x, y = rand(4), rand(4, seed=1)
    old_x, old_y = x.clone(), y.clone()

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        fd.add_output(t1, alias_input=t0)
        fd.add_output(t0, alias_input=t1)

    run(fusion, [x, y], [])
    torch.testing.assert_close(x, old_y)
    torch.testing.assert_close(y, old_x)


def test_swap_through_sets(run: Runner) -> None:
    x, y = rand(4), rand(4, seed=1)
    old_x, old_y = x.clone(), y.clone()

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        fd.add_output(fd.ops.set(t1), alias_input=t0)
        fd.add_output(fd.ops.set(t0), alias_input=t1)

    run(fusion, [x, y], [])
    torch.testing.assert_close(x, old_y)
    torch.testing.assert_close(y, old_x)


def test_running_statistics(run: Runner) -> None:
    """Batch norm's update: a result aliased to an input that the result also reads."""
    x, mean = rand(8, 3), rand(3, seed=2)
    old = mean.clone()

    def fusion(fd: FusionDefinition) -> None:
        t, m = fd.from_pytorch(x), fd.from_pytorch(mean)
        batch = fd.ops.truediv(fd.ops.sum(t, [0]), 8.0)
        fd.add_output(fd.ops.add(fd.ops.mul(m, 0.9), fd.ops.mul(batch, 0.1)), m)
        fd.add_output(fd.ops.sub(t, batch))

    run(fusion, [x, mean], [x - x.mean(0)])
    torch.testing.assert_close(mean, old * 0.9 + x.mean(0) * 0.1)


def test_no_result_shares_memory_with_an_input(run: Runner) -> None:
    """A sum over no axis, a cast to the same type, a set: all that could be folded away."""
    x = rand(3, 1)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.cast(t, D.Float))
        fd.add_output(fd.ops.sum(t, [1], keepdim=True))
        fd.add_output(fd.ops.sum(t, [1]))
        fd.add_output(fd.ops.squeeze(t, [1]))

    results = run(fusion, [x], [x, x, x[:, 0], x[:, 0]])
    assert len({r.data_ptr() for r in results} | {x.data_ptr()}) == 5
