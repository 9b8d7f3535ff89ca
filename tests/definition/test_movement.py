# SPDX-License-Identifier: Apache-2.0
"""Ops that move elements, factories and dynamic shapes, on each target, against torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.cases import Runner, rand

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.torch_types import from_torch_dtype

D = DataType


# ---- factories


def test_iota(run: Runner) -> None:
    def fusion(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.iota(10, 0, 2, D.Int))
        fd.add_output(fd.ops.iota(100, 2, 1, D.Int32))
        fd.add_output(fd.ops.iota(fd.define_scalar(7), 0.5, 0.25, D.Float))
        fd.add_output(fd.ops.iota(0, 0, 1, D.Int))
        fd.add_output(fd.ops.iota(5000, 0, 1, D.Half))

    wanted = [torch.arange(0, 20, 2), torch.arange(2, 102, dtype=torch.int32)]
    wanted += [0.5 + 0.25 * torch.arange(7.0), torch.arange(0), torch.arange(5000.0).half()]
    run(fusion, [], wanted)


def test_iota_with_arguments(run: Runner) -> None:
    def fusion(fd: FusionDefinition) -> None:
        length, start, step = (fd.define_scalar(dtype=D.Int) for _ in range(3))
        fd.add_output(fd.ops.iota(length, start, step, D.Int))

    for length, start, step in ((5, 1, 3), (8, -4, -1), (0, 0, 1)):
        run(fusion, [length, start, step], [start + step * torch.arange(length)])


@pytest.mark.parametrize("diagonal", [-2, 0, 1, 9])
def test_triu(run: Runner, diagonal: int) -> None:
    x = rand(3, 5, 7)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.triu(t, diagonal))
        fd.add_output(fd.ops.triu(t, fd.define_scalar(diagonal)))

    run(fusion, [x], [x.triu(diagonal)] * 2)


def test_dynamic_full(run: Runner) -> None:
    def fusion(fd: FusionDefinition) -> None:
        rows, columns = fd.define_vector(2)
        value = fd.define_scalar(dtype=D.Double)
        fd.add_output(fd.ops.full([rows, columns, 2], value, D.Float))
        fd.add_output(fd.ops.full([columns], 7, D.Int))

    for rows, columns in ((2, 3), (4, 1), (0, 5)):
        full = torch.full((rows, columns, 2), 1.5)
        run(fusion, [rows, columns, 1.5], [full, torch.full((columns,), 7)])


# ---- dynamic shapes


def test_broadcast_to_the_size_of_another(run: Runner) -> None:
    x, y = rand(5), rand(3, 5)

    def fusion(fd: FusionDefinition) -> None:
        t0 = fd.define_tensor(shape=[-1], contiguity=[True])
        t1 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        by_size = fd.ops.broadcast_in_dim(t0, [fd.ops.size(t1, 0), fd.ops.size(t1, 1)], [1])
        by_shape = fd.ops.broadcast_in_dim(t0, fd.ops.shape(t1), [1])
        fd.add_output(fd.ops.add(by_size, t1))
        fd.add_output(fd.ops.mul(by_shape, t1))

    run(fusion, [x, y], [x + y, x * y])


def test_broadcast_to_sizes_given(run: Runner) -> None:
    x, y = rand(5), rand(3, 5)

    def fusion(fd: FusionDefinition) -> None:
        t0 = fd.define_tensor(shape=[-1], contiguity=[True])
        t1 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        shape = fd.define_vector([fd.define_scalar(dtype=D.Int), fd.define_scalar(dtype=D.Int)])
        fd.add_output(fd.ops.add(fd.ops.broadcast_in_dim(t0, shape, [1]), t1))

    run(fusion, [x, y, 3, 5], [x + y])
    run(fusion, [rand(2), rand(7, 2), 7, 2], [rand(2) + rand(7, 2)])


def test_reshape_to_sizes_given(run: Runner) -> None:
    x = rand(4, 6)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        a, b = fd.define_vector(2)
        wide = fd.ops.reshape(t, [a, b])
        fd.add_output(fd.ops.neg(wide))
        fd.add_output(fd.ops.sum(wide, [1]))
        fd.add_output(fd.ops.reshape(t, [fd.ops.mul(fd.ops.size(t, 0), fd.ops.size(t, 1))]))

    for a, b in ((3, 8), (24, 1), (4, 6)):
        wide = x.reshape(a, b)
        run(fusion, [x, a, b], [-wide, wide.sum(1), x.reshape(24)])


def test_size_and_shape_as_values(run: Runner) -> None:
    x = rand(4, 6)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        total = fd.ops.sum(t, [1])
        fd.add_output(fd.ops.truediv(total, fd.ops.size(t, 1)))
        rows, columns = fd.ops.shape(t)
        fd.add_output(fd.ops.mul(t, fd.ops.mul(rows, columns)))

    run(fusion, [x], [x.mean(1), x * 24])
    run(fusion, [rand(3, 2)], [rand(3, 2).mean(1), rand(3, 2) * 6])


def test_size_as_a_result(run: Runner) -> None:
    x = rand(4, 6)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        fd.add_output(fd.ops.size(t, 1))

    run(fusion, [x], [torch.tensor(6)])


def test_computed_sizes(run: Runner) -> None:
    """Sums, products and quotients of arguments and sizes."""
    x = rand(4, 6)

    def fusion(fd: FusionDefinition) -> None:
        n = fd.define_scalar(dtype=D.Int)
        t = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        rows = fd.ops.div(fd.ops.size(t, 0), n)
        fd.add_output(fd.ops.reshape(t, [rows, fd.ops.mul(fd.ops.size(t, 1), n)]))
        fd.add_output(fd.ops.full([fd.ops.add(fd.ops.mul(n, 2), -1), rows], 1.0, D.Float))

    run(fusion, [2, x], [x.reshape(2, 12), torch.ones(3, 2)])
    run(fusion, [4, x], [x.reshape(1, 24), torch.ones(7, 1)])


# ---- reshape, permute, squeeze, expand


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((4, 6), (24,)),
        ((24,), (4, 6)),
        ((4, 6), (6, 4)),
        ((4, 6), (2, 2, 3, 2)),
        ((2, 3, 4), (3, 2, 4)),
        ((1, 6), (6,)),
        ((6,), (1, 6, 1)),
        ((2, 1, 3), (3, 2)),
        ((0, 3), (3, 0)),
        ((), (1, 1)),
        ((1,), ()),
    ],
    ids=str,
)
def test_reshape(run: Runner, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    x, y = rand(*before), rand(*after, seed=1)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        wide = fd.ops.reshape(fd.ops.neg(t0), list(after))
        fd.add_output(fd.ops.add(wide, t1))
        fd.add_output(wide)

    run(fusion, [x, y], [(-x).reshape(after) + y, (-x).reshape(after)])


def test_reshape_of_a_strided_input(run: Runner) -> None:
    x = rand(6, 4).t()

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.reshape(t, [2, 12]))
        fd.add_output(fd.ops.sum(fd.ops.reshape(t, [2, 2, -1]), [1]))

    run(fusion, [x], [x.reshape(2, 12), x.reshape(2, 2, 6).sum(1)])


def test_normalise_after_a_reshape(run: Runner) -> None:
    """Group norm: the rows that are reduced come from two axes of the input."""
    x = rand(2, 6, 5)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.ops.reshape(fd.from_pytorch(x), [2, 3, 10])
        variance, mean = fd.ops.var_mean(t, [2], 0, keepdim=True)
        norm = fd.ops.mul(fd.ops.sub(t, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
        fd.add_output(fd.ops.reshape(norm, [2, 6, 5]))

    run(fusion, [x], [torch.nn.functional.group_norm(x, 3)])


def test_reduction_then_reshape(run: Runner) -> None:
    x = rand(4, 6, 5)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        total = fd.ops.sum(t, [2])
        fd.add_output(fd.ops.exp(fd.ops.reshape(total, [24])))
        fd.add_output(fd.ops.permute(total, [1, 0]))

    run(fusion, [x], [x.sum(2).reshape(24).exp(), x.sum(2).t()], tolerance=1e-4)


@pytest.mark.parametrize("dims", [(1, 0, 2), (2, 1, 0), (2, 0, 1), (0, 2, 1), (-1, 0, 1)], ids=str)
def test_permute(run: Runner, dims: tuple[int, ...]) -> None:
    x = rand(3, 5, 7)
    y = rand(*x.permute(dims).shape, seed=1)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        turned = fd.ops.permute(t0, list(dims))
        fd.add_output(fd.ops.add(turned, t1))
        fd.add_output(fd.ops.sum(turned, [1]))
        fd.add_output(fd.ops.mul(t0, 2.0))

    turned = x.permute(dims)
    run(fusion, [x, y], [turned + y, turned.sum(1), x * 2], tolerance=1e-5)


def test_squeeze_and_broadcast(run: Runner) -> None:
    x, y = rand(3, 1, 5, 1), rand(3, 5)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        flat = fd.ops.squeeze(t0, [1, -1])
        fd.add_output(fd.ops.add(flat, t1))
        back = fd.ops.broadcast(fd.ops.sum(flat, [1]), [False, True])
        fd.add_output(fd.ops.mul(back, t1))

    flat = x.squeeze(3).squeeze(1)
    run(fusion, [x, y], [flat + y, flat.sum(1, keepdim=True) * y], tolerance=1e-5)


def test_squeeze_of_an_expanded_axis_is_no_squeeze(run: Runner) -> None:
    """A symbolic axis that turns out to be 1 may be squeezed."""
    x = rand(3, 1)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        fd.add_output(fd.ops.exp(fd.ops.squeeze(t, [1])))

    run(fusion, [x], [x[:, 0].exp()])


def test_expand(run: Runner) -> None:
    x, y = rand(3, 1, 5), rand(3, 4, 5)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        fd.add_output(fd.ops.add(fd.ops.expand(t0, [3, 4, -1]), t1))
        fd.add_output(fd.ops.expand(t0, [3, 4, 5]))
        fd.add_output(fd.ops.expand(t0, fd.ops.shape(t1)))
        fd.add_output(fd.ops.expand(t0, [3, 1, 5]))

    wide = x.expand(3, 4, 5)
    run(fusion, [x, y], [x + y, wide, wide, x])


# ---- slice, pad, cat


def test_slice(run: Runner) -> None:
    x = rand(8, 10)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        for start, end in (
            ([2, 3], [6, 9]),
            ([0, 0], [8, 10]),
            ([3, 0], [4, 10]),
            ([0, 5], [8, 99]),
        ):
            fd.add_output(fd.ops.neg(fd.ops.slice(t, start, end)))
        part = fd.ops.slice(t, [0, 1], [8, 10], [1, 1])
        fd.add_output(fd.ops.sum(part, [1]))
        fd.add_output(fd.ops.slice(fd.ops.exp(t), [4, 4], [4, 6]))

    wanted = [-x[2:6, 3:9], -x, -x[3:4], -x[:, 5:], x[:, 1:].sum(1), x[4:4, 4:6].exp()]
    run(fusion, [x], wanted, tolerance=1e-5)


def test_rotate_half(run: Runner) -> None:
    """RoPE: slices, a negation, a cat and two products, in one kernel."""
    x, cos, sin = rand(2, 3, 8), rand(3, 8, seed=1), rand(3, 8, seed=2)

    def fusion(fd: FusionDefinition) -> None:
        t, c, s = (fd.from_pytorch(v) for v in (x, cos, sin))
        left = fd.ops.slice(t, [0, 0, 0], [2, 3, 4])
        right = fd.ops.slice(t, [0, 0, 4], [2, 3, 8])
        turned = fd.ops.cat([fd.ops.neg(right), left], -1)
        fd.add_output(fd.ops.add(fd.ops.mul(t, c), fd.ops.mul(turned, s)))

    turned = torch.cat([-x[..., 4:], x[..., :4]], -1)
    run(fusion, [x, cos, sin], [x * cos + turned * sin])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rotate_the_first_columns(run: Runner, dtype: torch.dtype) -> None:
    """Rotary embeddings of a quarter of each head, rounded where torch rounds."""
    t, cos, sin = rand(3, 40, 64, dtype=dtype), rand(40, 16, dtype=dtype), rand(40, 16, dtype=dtype)
    t[0, :5, 3], t[1, 7, 40], t[2, 9, 9] = math.nan, math.inf, -math.inf
    kind = from_torch_dtype(dtype)

    def build(fd: FusionDefinition) -> None:
        x, c, s = (fd.from_pytorch(one) for one in (t, cos, sin))
        c, s = (fd.ops.broadcast(one, [True, False, False]) for one in (c, s))
        low, high = (fd.ops.slice(x, [0, 0, n], [3, 40, n + 8]) for n in (0, 8))
        turned = fd.ops.cat([fd.ops.cast(fd.ops.neg(high), kind), low], 2)
        first = fd.ops.slice(x, [0, 0, 0], [3, 40, 16])
        sum_ = fd.ops.add(fd.ops.mul(first, c), fd.ops.mul(turned, s))
        rest = fd.ops.slice(x, [0, 0, 16], [3, 40, 64])
        fd.add_output(fd.ops.cat([fd.ops.cast(sum_, kind), rest], 2))

    turned = torch.cat([-t[..., 8:16], t[..., :8]], -1)
    first = (t[..., :16].float() * cos.float() + turned.float() * sin.float()).to(dtype)
    run(build, [t, cos, sin], [torch.cat([first, t[..., 16:]], -1)], tolerance=0.0)


@pytest.mark.parametrize("value", [0, 1.5, float("-inf")])
def test_pad(run: Runner, value: float) -> None:
    x = rand(4, 6)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        for widths in ([1, 2], [0, 0, 2, 1], [3, 1, 1, 0], [-1, -2], [-1, 2, 1, -1]):
            fd.add_output(fd.ops.pad(fd.ops.neg(t), widths, value))
        fd.add_output(fd.ops.max(fd.ops.pad(t, [1, 1], value), [1]))

    pad = torch.nn.functional.pad
    widths = ([1, 2], [0, 0, 2, 1], [3, 1, 1, 0], [-1, -2], [-1, 2, 1, -1])
    wanted = [pad(-x, w, value=value) for w in widths]
    run(fusion, [x], [*wanted, pad(x, [1, 1], value=value).amax(1)])


def test_pad_of_expanded_and_empty(run: Runner) -> None:
    x, y = rand(1, 3), rand(0, 3)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        fd.add_output(fd.ops.pad(t0, [0, 0, 1, 1]))
        fd.add_output(fd.ops.pad(fd.ops.expand(t0, [2, 3]), [1, 1], 2.0))
        fd.add_output(fd.ops.pad(t1, [0, 0, 2, 1], 3.0))

    pad = torch.nn.functional.pad
    wanted = [pad(x, [0, 0, 1, 1]), pad(x.expand(2, 3), [1, 1], value=2.0), torch.full((3, 3), 3.0)]
    run(fusion, [x, y], wanted)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat(run: Runner, dim: int) -> None:
    x, y = rand(4, 4), rand(4, 4, seed=1)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        fd.add_output(fd.ops.cat([t0, fd.ops.exp(t1), t0], dim))
        fd.add_output(fd.ops.sum(fd.ops.cat([t0, t1], dim), [1]))

    wanted = [torch.cat([x, y.exp(), x], dim), torch.cat([x, y], dim).sum(1)]
    run(fusion, [x, y], wanted, tolerance=1e-5)


def test_cat_of_other_sizes_and_types(run: Runner) -> None:
    x, y, z = rand(2, 3), rand(2, 1, dtype=torch.float16), rand(2, 0)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1, t2 = (fd.from_pytorch(v) for v in (x, y, z))
        fd.add_output(fd.ops.cat([t0, t1, t2], 1))
        fd.add_output(fd.ops.cat([t2, t2], 1))
        fd.add_output(fd.ops.cat([t1], 1))

    run(fusion, [x, y, z], [torch.cat([x, y, z], 1), z, y])


def test_pad_before_cat(run: Runner) -> None:
    x, y = rand(2, 3), rand(2, 5)

    def fusion(fd: FusionDefinition) -> None:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        padded = fd.ops.pad(t0, [1, 1])
        fd.add_output(fd.ops.mul(fd.ops.cat([padded, t1], 1), 2.0))

    run(fusion, [x, y], [torch.cat([torch.nn.functional.pad(x, [1, 1]), y], 1) * 2])


def test_slices_of_one_tensor_added(run: Runner) -> None:
    """A value read at several places: shifted copies of an expensive one, and a reduction of it."""
    x = rand(3, 12)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.ops.exp(fd.from_pytorch(x))
        left, right = fd.ops.slice(t, [0, 0], [3, 11]), fd.ops.slice(t, [0, 1], [3, 12])
        fd.add_output(fd.ops.sub(right, left))
        fd.add_output(fd.ops.truediv(left, fd.ops.sum(t, [1], keepdim=True)))

    e = x.exp()
    run(fusion, [x], [e[:, 1:] - e[:, :-1], e[:, :-1] / e.sum(1, keepdim=True)])


def test_softmax_of_a_transposed_slice(run: Runner) -> None:
    x = rand(6, 5, 4)

    def fusion(fd: FusionDefinition) -> None:
        t = fd.ops.slice(fd.ops.permute(fd.from_pytorch(x), [2, 0, 1]), [0, 1, 0], [4, 5, 5])
        powers = fd.ops.exp(t)
        fd.add_output(fd.ops.truediv(powers, fd.ops.sum(powers, [1], keepdim=True)))

    run(fusion, [x], [x.permute(2, 0, 1)[:, 1:5].softmax(1)])


@pytest.mark.parametrize("shape", [(64, 32), (33, 24), (5, 18), (4, 15)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_halves_of_pairs(run: Runner, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """Of every row, and of a tensor that begins within a vector; each half alone, and both."""
    x, memory = rand(*shape, dtype=dtype), rand(shape[0] * shape[1] + 1, dtype=dtype, seed=1)
    y = memory[1:].view(shape)
    rows, columns = shape

    def halves(fd: FusionDefinition, t: Any) -> list[Any]:
        ends = [rows, columns // 2 * 2]
        return [fd.ops.slice(t, [0, at], ends, [1, 2]) for at in (0, 1)]

    def build(fd: FusionDefinition) -> None:
        for one in (x, y):
            even, odd = halves(fd, fd.from_pytorch(one))
            turned = fd.ops.sub(fd.ops.mul(even, 2.0), odd)
            for value in (turned, fd.ops.neg(odd)):
                fd.add_output(fd.ops.cast(value, from_torch_dtype(dtype)))

    expected = []
    for one in (x, y):
        even, odd = (one[:, at : columns // 2 * 2 : 2].float() for at in (0, 1))
        expected += [(even * 2 - odd).to(dtype), (-odd).to(dtype)]
    run(build, [x, y], expected)


def test_halves_of_pairs_share_a_vector() -> None:
    x = rand(64, 64, dtype=torch.bfloat16)
    fd = FusionDefinition()
    t = fd.from_pytorch(x)
    even, odd = (fd.ops.slice(t, [0, at], [64, 64], [1, 2]) for at in (0, 1))
    fd.add_output(fd.ops.cast(fd.ops.sub(even, odd), DataType.BFloat16))
    (source,) = fd.sources([x], target="h200")
    assert source.text.count("= ldv<") == 1
