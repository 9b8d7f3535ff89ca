# SPDX-License-Identifier: Apache-2.0
"""Rows of several planes, as a channel's of images [N, C, H, W]: kept axes lie between them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from math import prod

import pytest
import torch
from helpers.cases import Runner, rand
from helpers.graphs import Graph
from helpers.kernels import scheduled
from helpers.pairs import pairs

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.options import options
from thunder_fuser.target import H200

D = DataType
Build = Callable[[torch.Tensor, str], Graph]
OVER = [0, 2, 3]
ORDERS = {"contiguous": [3, 2, 1, 0], "channels_last": [3, 0, 2, 1]}


def images(shape: tuple[int, ...], order: str, device: str = "meta") -> torch.Tensor:
    format = getattr(torch, order + "_format", torch.channels_last)
    x = torch.empty(shape) if device == "meta" else rand(*shape)
    return x.to(torch.bfloat16).to(memory_format=format).to(device)


def normalised(x: torch.Tensor, order: str) -> Graph:
    """Batch norm and relu, beside the statistics."""
    fd, count = FusionDefinition(), x.numel() // x.shape[1]
    wide = fd.ops.cast(fd.from_pytorch(x), D.Float)
    mean = fd.ops.truediv(fd.ops.sum(wide, dims=OVER, keepdim=True), float(count))
    off = fd.ops.sub(wide, mean)
    squares = fd.ops.sum(fd.ops.mul(off, off), dims=OVER, keepdim=True)
    var = fd.ops.truediv(squares, float(count))
    y = fd.ops.relu(fd.ops.mul(off, fd.ops.rsqrt(fd.ops.add(var, 1e-5))))
    fd.add_output(fd.ops.cast(y, D.BFloat16), stride_order=ORDERS[order])
    fd.add_output(fd.ops.squeeze(var, dims=OVER))
    return fd, [x]


def masked_sums(x: torch.Tensor, order: str) -> Graph:
    """Sums of a 16-bit value of two images, and a result that waits for them."""
    fd = FusionDefinition()
    a, b = fd.from_pytorch(x), fd.from_pytorch(x)
    kept = fd.ops.where(fd.ops.le(a, 0.0), 0.0, b)
    total = fd.ops.sum(fd.ops.cast(kept, D.Float), dims=OVER, keepdim=True)
    made = fd.ops.mul(fd.ops.mul(fd.ops.exp(kept), total), kept)
    fd.add_output(fd.ops.cast(made, D.BFloat16), stride_order=ORDERS[order])
    fd.add_output(fd.ops.squeeze(total, dims=OVER))
    return fd, [x, x]


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize(("side", "width"), [(56, 8), (28, 8), (14, 4), (10, 4), (6, 4)])
def test_vectors_are_of_one_plane(side: int, width: int, repeatable: bool) -> None:
    """The widest that divides a plane, with one place in memory for a vector."""
    with options(repeatable=repeatable):
        x = images((64, 256, side, side), "contiguous")
        made, source = scheduled(normalised(x, "contiguous"), H200)
    assert made.params.scheduler == "persistent" and made.params.vectorize == width
    assert f"ldv<{width}>(T0" in source.text and " ld(T0" not in source.text
    (load,) = re.findall(r"ldv<\d>\(T0.*", source.text)
    assert load.count("index_div(") <= 1 and load.count("index_mod(") <= 1
    assert f"stv<{width}>" in source.text


def with_statistics(x: torch.Tensor, order: str) -> Graph:
    """With vectors of channels as arguments: what lacks the walked axes is loaded once."""
    fd = FusionDefinition()
    values = [x, *(torch.empty(x.shape[1], device="meta") for _ in range(3))]
    value, *vectors = map(fd.from_pytorch, values)
    for vector in vectors:
        flags = [True, False, True, True]
        value = fd.ops.relu(fd.ops.sub(value, fd.ops.broadcast(vector, is_broadcast_dim=flags)))
    y = fd.ops.sub(value, fd.ops.sum(value, dims=OVER, keepdim=True))
    fd.add_output(fd.ops.cast(y, D.BFloat16), stride_order=ORDERS[order])
    return fd, values


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("side", [7, 9])
@pytest.mark.parametrize("graph", [normalised, with_statistics])
def test_no_vector_divides_an_odd_plane(graph: Build, side: int, repeatable: bool) -> None:
    """Threads side by side then read elements side by side, at one division an element."""
    with options(repeatable=repeatable):
        x = images((64, 256, side, side), "contiguous")
        made, source = scheduled(graph(x, "contiguous"), H200)
    assert made.params.vectorize == 1
    (image,) = re.findall(r"const bf16\* (?:__restrict__ )?(T\d+)", source.text)
    (load,) = re.findall(rf" ld\({image}, .*", source.text)
    assert load.count("index_div(") == load.count("index_mod(") == 1


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("shape", [(64, 64, 112, 112), (64, 256, 14, 14), (64, 512, 7, 7)])
@pytest.mark.parametrize("graph", [normalised, masked_sums])
def test_channels_last(graph: Build, shape: tuple[int, ...], repeatable: bool) -> None:
    """Vectors along the channels in each kernel that reads the image, work for each
    multiprocessor, and intermediates in the order of the image. What combines runs of a variance
    reads the first row of each."""
    with options(repeatable=repeatable):
        fd, inputs = graph(images(shape, "channels_last"), "channels_last")
        plan = fd.plan(inputs, target="h200")
        sources = fd.sources(inputs, target="h200")
    sizes = {name: view.sizes for name, view in plan.fusion.tensors.items()}
    read = [one.edge_bytes >= 2 * prod(shape) for one in plan.segments]
    assert sum(read) >= 2
    for one in itertools.compress(plan.segments, read):
        assert one.scheduler.name in ("reduction", "pointwise")
        assert one.params is not None and one.params.vectorize >= 4
    for name in {name for one in plan.segments for name in (*one.inputs, *one.outputs)}:
        if sizes[name] == shape:
            assert plan.strides[name][1] == 1
    for source, is_read in zip(sources, read, strict=True):
        if is_read:
            assert source.grid[0] * source.grid[1] > 0.9 * H200.sm_count


@pytest.mark.parametrize(
    ("graph", "side", "order", "repeatable"),
    pairs([normalised, masked_sums], [14, 7, 6, 5], [*ORDERS], [False, True]),
)
def test_values(graph: Build, side: int, order: str, repeatable: bool, run: Runner) -> None:
    x = images((5, 6, side, side), order, "cpu")
    fd, inputs = graph(x, order)
    wide = x.double()
    if graph is normalised:
        var, mean = torch.var_mean(wide, (0, 2, 3), correction=0, keepdim=True)
        right = ((wide - mean) / (var + 1e-5).sqrt()).relu(), var.flatten()
    else:
        kept = wide.relu()
        total = kept.sum((0, 2, 3), keepdim=True)
        right = kept.exp() * total * kept, total.flatten()
    with options(repeatable=repeatable):
        got = run.execute(fd, inputs)
    assert got[0].stride() == x.stride()
    for mine, wanted in zip(got, right, strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=2e-2, atol=1e-2)


def of_groups(x: torch.Tensor, order: str) -> Graph:
    """Sums over (n, h, w) of an image's channels as groups of channels, and of their squares."""
    n, c, h, w = x.shape
    fd = FusionDefinition()
    wide = fd.ops.reshape(fd.ops.cast(fd.from_pytorch(x), D.Float), [n, 2, c // 2, h, w])
    fd.add_output(fd.ops.sum(wide, dims=[0, 3, 4]))
    fd.add_output(fd.ops.sum(fd.ops.mul(wide, wide), dims=[0, 3, 4]))
    return fd, [x]


def of_joined_channels(x: torch.Tensor, order: str) -> Graph:
    """The reverse: an image of groups of channels, whose channels are summed."""
    n, c, h, w = x.shape
    fd = FusionDefinition()
    # With strides of its own the reshape stays a view: g and c / g are neighbours in memory.
    wide = fd.ops.cast(fd.from_pytorch(x.unflatten(1, (2, c // 2))), D.Float)
    squares = fd.ops.mul(wide, wide)
    fd.add_output(fd.ops.sum(fd.ops.reshape(squares, [n, c, h, w]), dims=[0, 2, 3]))
    return fd, [x.unflatten(1, (2, c // 2))]


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize(("order", "inner"), [("channels_last", False), ("contiguous", True)])
@pytest.mark.parametrize("graph", [of_groups, of_joined_channels])
def test_memory_order_through_a_reshape(
    graph: Build, order: str, inner: bool, repeatable: bool
) -> None:
    """Vectors lie along the channels of channels-last images, though these are two axes of the
    sum: along rows each element would be in a sector of its own."""
    with options(repeatable=repeatable):
        made, source = scheduled(graph(images((8, 320, 64, 64), order), order), H200)
    assert made.params.inner == inner and made.params.vectorize == 8
    assert "ldv<8>(T0" in source.text and " ld(T0" not in source.text


@pytest.mark.parametrize(
    ("graph", "shape", "order", "repeatable"),
    pairs(
        [of_groups, of_joined_channels], [(5, 6, 7, 3), (9, 16, 32, 32)], [*ORDERS], [False, True]
    ),
)
def test_values_through_a_reshape(
    graph: Build, shape: tuple[int, ...], order: str, repeatable: bool, run: Runner
) -> None:
    x = images(shape, order, "cpu")
    with options(repeatable=repeatable):
        got = run.execute(*graph(x, order))
    wide = x.double()
    right = [wide.sum((0, 2, 3)).view(2, -1), wide.square().sum((0, 2, 3))]
    if graph is of_joined_channels:
        right = right[1:]
    for mine, wanted in zip(got, right, strict=True):
        torch.testing.assert_close(mine.double(), wanted.view(mine.shape), rtol=1e-5, atol=1e-3)
