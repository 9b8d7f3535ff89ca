# SPDX-License-Identifier: Apache-2.0
"""What definitions take: layouts, broadcasts, empty tensors, scalars, misaligned memory."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers.cases import Runner, ints, rand

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType

D = DataType


# ---- layouts


@pytest.mark.parametrize(
    "x",
    [
        rand(6, 10),
        rand(10, 6).t(),
        rand(12, 10)[::2],
        rand(6, 20)[:, ::2],
        rand(12, 20)[::2, ::2],
        rand(6, 11)[:, :10],
        rand(6, 1).expand(6, 10),
        rand(10).expand(6, 10),
        rand().expand(6, 10),
    ],
    ids=["dense", "transposed", "rows", "columns", "both", "padded", "column", "row", "point"],
)
def test_layouts(run: Runner, x: torch.Tensor) -> None:
    """Beside a dense tensor: pointwise, and reductions of both axes."""
    y = rand(6, 10, seed=1)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        t2 = fd.ops.add(fd.ops.sin(t0), t1)
        fd.add_output(t2)
        fd.add_output(fd.ops.sum(t2, [1]))
        fd.add_output(fd.ops.sum(t0, [0]))

    z = x.sin() + y
    # A result is row-major, whatever its operands are.
    run(fusion, [x, y], [z, z.sum(1), x.sum(0)], tolerance=1e-5)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_stride_ordered_input(run: Runner, order: tuple[int, ...]) -> None:
    """define_tensor(stride_order=) with a symbolic shape; with reductions over every axis."""
    memory = tuple(sorted(range(3), key=lambda axis: -order[axis]))
    back = tuple(memory.index(axis) for axis in range(3))
    x = rand(*((3, 5, 7)[axis] for axis in memory)).permute(back)
    assert x.shape == (3, 5, 7)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.define_tensor(shape=[-1, -1, -1], contiguity=True, stride_order=order)
        fd.add_output(fd.ops.neg(t))
        for axis in range(3):
            fd.add_output(fd.ops.sum(t, [axis]))

    run(fusion, [x], [-x, x.sum(0), x.sum(1), x.sum(2)], tolerance=1e-5)


def test_channels_last(run: Runner) -> None:
    x = rand(2, 8, 4, 5).to(memory_format=torch.channels_last)
    bias = rand(8)

    def fusion(fd: FusionDefinition) -> None:
        t, b = fd.from_pytorch(x), fd.from_pytorch(bias)
        wide = fd.ops.broadcast_in_dim(b, [2, 8, 4, 5], [1])
        y = fd.ops.relu(fd.ops.add(t, wide))
        fd.add_output(y, stride_order=[3, 0, 2, 1])
        fd.add_output(fd.ops.sum(y, [0, 2, 3]))

    y = (x + bias[:, None, None]).relu()
    run(fusion, [x, bias], [y, y.sum((0, 2, 3))], strides=[x.stride(), (1,)], tolerance=1e-5)


def test_define_contiguous_and_not(run: Runner) -> None:
    """The same definition takes dense and strided memory: kernels follow the argument."""

    def fusion(fd: FusionDefinition) -> None:
        t0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=D.Float)
        t1 = fd.define_tensor(shape=[-1, -1], contiguity=[False, True], dtype=D.Float)
        fd.add_output(fd.ops.add(t0, t1))

    for x, y in ((rand(4, 8), rand(4, 9)[:, :8]), (rand(5, 3), rand(10, 3)[::2])):
        run(fusion, [x, y], [x + y])


def test_define_broadcast(run: Runner) -> None:
    x, y = rand(4, 1, 6), rand(1, 5, 6)

    def fusion(fd: FusionDefinition) -> None:
        t0 = fd.define_tensor(shape=[-1, 1, -1], contiguity=[True, None, True])
        t1 = fd.define_tensor(shape=[1, -1, -1], contiguity=[None, True, True])
        fd.add_output(fd.ops.add(t0, t1))

    run(fusion, [x, y], [x + y])


def test_symbolic_axes_of_size_one_broadcast_nothing(run: Runner) -> None:
    """Called with size 1 everywhere, then with other sizes: one definition."""

    def fusion(fd: FusionDefinition) -> None:
        t0 = fd.define_tensor(shape=[-1, -1, -1], contiguity=True)
        t1 = fd.define_tensor(shape=[-1, -1, -1], contiguity=True)
        fd.add_output(fd.ops.add(t0, t1))
        fd.add_output(fd.ops.sum(t0, [1]))

    for shape in ((1, 1, 1), (1, 5, 1), (3, 1, 2), (2, 3, 5)):
        x, y = rand(*shape), rand(*shape, seed=1)
        run(fusion, [x, y], [x + y, x.sum(1)])


@pytest.mark.parametrize("rank", range(9))
def test_ranks(run: Runner, rank: int) -> None:
    x = rand(*(2 + at % 2 for at in range(rank)))
    shape = [-1] * rank

    def fusion(fd: FusionDefinition) -> None:
        t = fd.define_tensor(shape=shape, contiguity=True)
        fd.add_output(fd.ops.add(t, fd.ops.exp(t)))
        fd.add_output(fd.ops.sum(t))

    run(fusion, [x], [x + x.exp(), x.sum()], tolerance=1e-5)


@pytest.mark.parametrize(
    "shape", [(1,), (127,), (1031,), (1, 257), (3, 129), (31, 1), (2, 1, 333)], ids=str
)
def test_odd_sizes(run: Runner, shape: tuple[int, ...]) -> None:
    """Nothing divides: guards in every loop; halves and bytes too."""
    x, h, n = rand(*shape), rand(*shape, dtype=torch.float16), ints(*shape, dtype=torch.int8)

    def fusion(fd: FusionDefinition) -> None:
        t, th, tn = (fd.from_pytorch(v) for v in (x, h, n))
        fd.add_output(fd.ops.mul(fd.ops.mul(t, th), tn))
        fd.add_output(fd.ops.add(tn, 1))
        fd.add_output(fd.ops.max(th, [-1]))

    run(fusion, [x, h, n], [x * h * n, n + 1, h.amax(-1)])


# ---- broadcasts


def test_implicit_broadcast(run: Runner) -> None:
    x, y = rand(3), rand(2, 3, 4).permute(0, 2, 1)

    def fusion(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.add(fd.from_pytorch(x), fd.from_pytorch(y)))

    run(fusion, [x, y], [x + y])


def test_explicit_broadcast(run: Runner) -> None:
    x, y = rand(3), rand(2, 3, 4)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        fd.add_output(fd.ops.add(fd.ops.broadcast(t0, [True, False, True]), t1))
        fd.add_output(fd.ops.add(fd.ops.broadcast_in_dim(t0, [2, 3, 4], [1]), t1))

    wanted = x[None, :, None] + y
    run(fusion, [x, y], [wanted, wanted])


def test_broadcast_mixing(run: Runner) -> None:
    x, y = rand(3, 1), rand(3)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        t1b = fd.ops.broadcast_in_dim(t1, [3, 3], [0])
        fd.add_output(fd.ops.add(t0, t1b))
        fd.add_output(fd.ops.add(t0, t1))

    run(fusion, [x, y], [x + y[:, None].expand(3, 3), x + y])


def test_outer_sum_of_all_broadcasts(run: Runner) -> None:
    x, y, z = rand(5, 1, 1), rand(1, 6, 1), rand(1, 1, 7)

    def fusion(fd: FusionDefinition) -> None:
        t = [fd.from_pytorch(v) for v in (x, y, z)]
        total = fd.ops.add(fd.ops.add(t[0], t[1]), t[2])
        fd.add_output(total)
        fd.add_output(fd.ops.sum(total, [1]))

    run(fusion, [x, y, z], [x + y + z, (x + y + z).sum(1)], tolerance=1e-5)


def test_expanded_input(run: Runner) -> None:
    """An axis of stride 0 and size 4 counts 4 times in a sum."""
    x, y = rand(3, 1, 5).expand(3, 4, 5), rand(3, 4, 5)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        fd.add_output(fd.ops.mul(t0, t1))
        fd.add_output(fd.ops.sum(t0, [1]))
        fd.add_output(fd.ops.sum(t0, [0, 1]))
        fd.add_output(fd.ops.max(fd.ops.add(t0, t1), [1]))

    run(fusion, [x, y], [x * y, x.sum(1), x.sum((0, 1)), (x + y).amax(1)], tolerance=1e-5)


def test_expanded_reduction(run: Runner) -> None:
    x = rand(1, 4)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        wide = fd.ops.expand(t, [5, 4])
        for dims in ([0], [1], [0, 1]):
            fd.add_output(fd.ops.sum(wide, dims))
        fd.add_output(fd.ops.prod(fd.ops.expand(t, [2, -1]), [0]))

    wide = x.expand(5, 4)
    run(fusion, [x], [wide.sum(0), wide.sum(1), wide.sum(), x[0] * x[0]], tolerance=1e-5)


# ---- empty tensors


def test_empty_pointwise(run: Runner) -> None:
    x = rand(0, 4)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.exp(t))
        fd.add_output(fd.ops.sum(t, [0]))
        fd.add_output(fd.ops.sum(t, [1]))
        fd.add_output(fd.ops.prod(t, [0], keepdim=True))

    run(fusion, [x], [x, torch.zeros(4), torch.zeros(0), torch.ones(1, 4)])


def test_empty_beside_a_full_one(run: Runner) -> None:
    """The full part still runs."""
    x, y = rand(0), rand(5)

    def fusion(fd: FusionDefinition) -> None:
        t0 = fd.define_tensor(shape=[0], contiguity=[None], dtype=D.Float)
        t1 = fd.from_pytorch(y)
        fd.add_output(fd.ops.add(fd.ops.sum(t0, [0]), t1))
        fd.add_output(fd.ops.cat([t0, t1], 0))
        fd.add_output(fd.ops.exp(t1))

    run(fusion, [x, y], [y, y, y.exp()])


def test_mean_of_nothing(run: Runner) -> None:
    x = rand(3, 0)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        for value in fd.ops.var_mean(t, [1], 0):
            fd.add_output(value)

    nothing = torch.full((3,), float("nan"))
    run(fusion, [x], [nothing, nothing])


def test_expand_to_zero(run: Runner) -> None:
    x = rand(1, 5)

    def fusion(fd: FusionDefinition) -> None:
        wide = fd.ops.expand(fd.from_pytorch(x), [0, 5])
        fd.add_output(fd.ops.exp(wide))
        fd.add_output(fd.ops.sum(wide, [0]))

    run(fusion, [x], [rand(0, 5), torch.zeros(5)])


# ---- scalars


def test_scalar_inputs(run: Runner) -> None:
    x = rand(3, 5)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        real, whole, flag = (fd.define_scalar(dtype=d) for d in (D.Double, D.Int, D.Bool))
        fd.add_output(fd.ops.add(fd.ops.mul(t, real), whole))
        fd.add_output(fd.ops.where(flag, t, 0.0))
        fd.add_output(fd.ops.mul(t, fd.ops.add(real, whole)))

    for real, whole, flag in ((0.5, 3, True), (-1e30, -(2**40), False), (float("inf"), 0, True)):
        wanted = [x * real + whole, x if flag else torch.zeros_like(x), x * (real + whole)]
        run(fusion, [x, real, whole, flag], wanted)


def test_python_numbers_of_another_kind(run: Runner) -> None:
    """A whole number for a Double, a bool for an Int: as Python converts them."""
    x = rand(4)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.mul(t, fd.define_scalar(dtype=D.Double)))
        fd.add_output(fd.ops.mul(t, fd.define_scalar(dtype=D.Int)))

    run(fusion, [x, 2, True], [x * 2, x])


def test_scalar_only_inputs(run: Runner) -> None:
    def fusion(fd: FusionDefinition) -> None:
        s0, s1 = fd.define_scalar(dtype=D.Double), fd.define_scalar(dtype=D.Double)
        total = fd.ops.add(s0, s1)
        fd.add_output(fd.ops.full([2, 2], total, D.Float))

    run(fusion, [2.0, 3.0], [torch.full((2, 2), 5.0)])


def test_no_inputs(run: Runner) -> None:
    def fusion(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.mul(fd.ops.iota(5, 0, 1, D.Int), 2))

    run(fusion, [], [torch.arange(5) * 2])


def test_cpu_scalar_tensor(run: Runner) -> None:
    """A tensor of rank 0 goes to the kernel by value, and keeps its place in promotion."""
    x, s, h = rand(4), torch.tensor(2.5), torch.tensor(0.5, dtype=torch.bfloat16)

    def fusion(fd: FusionDefinition) -> None:
        t, ts, th = (fd.from_pytorch(v) for v in (x, s, h))
        fd.add_output(fd.ops.mul(t, ts))
        fd.add_output(fd.ops.add(t, th))
        fd.add_output(fd.ops.add(ts, th))

    run(fusion, [x, s, h], [x * s, x + h, s + h])


def test_lists_and_tuples_of_inputs(run: Runner) -> None:
    x, y = rand(4), rand(4, seed=1)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sub(fd.from_pytorch(x), fd.from_pytorch(y)))
    for inputs in ([x, y], (x, y)):
        assert torch.equal(fd.execute(inputs, target=run.target)[0], x - y)


def test_misaligned_input(run: Runner) -> None:
    """No wide loads from an odd address; the aligned kernel stays for aligned calls."""
    memory, y = rand(4097), rand(4096, seed=1)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = (fd.define_tensor(shape=[-1], contiguity=[True]) for _ in range(2))
        fd.add_output(fd.ops.add(t0, t1))
        fd.add_output(fd.ops.sum(t0))

    for x in (memory[:-1], memory[1:]):
        run(fusion, [x, y], [x + y, x.sum()], tolerance=1e-3)


def test_one_tensor_as_two_inputs(run: Runner) -> None:
    x = rand(4, 6)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(x)
        fd.add_output(fd.ops.mul(t0, t1))

    run(fusion, [x, x], [x * x])


def test_unused_input(run: Runner) -> None:
    x, y = rand(4), rand(2, 2)

    def fusion(fd: FusionDefinition) -> None:
        t0 = fd.from_pytorch(x)
        fd.from_pytorch(y)
        fd.define_scalar(dtype=D.Int)
        fd.add_output(fd.ops.neg(t0))

    run(fusion, [x, y, 3], [-x])


def test_two_sizes_use_two_programs(run: Runner) -> None:
    with FusionDefinition() as fd:
        t = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(t, [1]))
    for shape in ((3, 40), (5, 7), (3, 40)):
        x = rand(*shape)
        torch.testing.assert_close(run.execute(fd, [x])[0], x.sum(1))
