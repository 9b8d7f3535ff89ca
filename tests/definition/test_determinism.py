# SPDX-License-Identifier: Apache-2.0
"""The same inputs give the same bits: each time, and with any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from helpers.cases import TARGETS, ints, rand

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.options import options

RUNS = 5
SHAPE = (1500, 193)
Results = list[torch.Tensor]


def softmax(fd: FusionDefinition, x: Tensor) -> Tensor:
    powers = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
    return fd.ops.truediv(powers, fd.ops.sum(powers, [1], keepdim=True))


def layer_norm(fd: FusionDefinition, x: Tensor) -> Tensor:
    variance, mean = fd.ops.var_mean(x, [1], 0, keepdim=True)
    return fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))


def dropout(fd: FusionDefinition, x: Tensor) -> Tensor:
    stream = {"rng_seed": 7, "rng_offset": 11}
    drawn = fd.ops.uniform(0.0, 1.0, shape=list(SHAPE), dtype=DataType.Float, **stream)
    mask = fd.ops.lt(drawn, 0.9)
    return fd.ops.where(mask, x, 0.0)


BUILDS: dict[str, Callable[[FusionDefinition, Tensor], Tensor]] = {
    "pointwise": lambda fd, x: fd.ops.tanh(fd.ops.mul(x, 3.0)),
    "softmax": softmax,
    "layer_norm": layer_norm,
    "row_sum": lambda fd, x: fd.ops.sum(x, [1]),
    "column_sum": lambda fd, x: fd.ops.sum(x, [0]),  # in two steps
    "sum": lambda fd, x: fd.ops.sum(x, [0, 1]),
    "prod": lambda fd, x: fd.ops.prod(x, [0]),
    "var": lambda fd, x: fd.ops.var(x, [0], 1),
    "cumsum": lambda fd, x: fd.ops.cumsum(x, 1),
    "transpose": lambda fd, x: fd.ops.permute(fd.ops.exp(x), [1, 0]),
    "dropout": dropout,
}


def runs(fd: FusionDefinition, inputs: list[torch.Tensor], target: str) -> Iterator[Results]:
    """The results of five calls, each with other threads or another order of them."""
    for number in range(RUNS):
        if target == "cpu":
            with threads(1 + number % 4):
                yield fd.execute(inputs, target=target)
        else:
            with options(emulate_reversed=number % 2 == 1):
                yield fd.execute(inputs, target=target)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def assert_all_equal(found: Iterator[Results]) -> None:
    first = next(found)
    for again in found:
        for a, b in zip(first, again, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BUILDS)
def test_the_same_bits(name: str, target: str) -> None:
    x = rand(*SHAPE)
    with FusionDefinition() as fd:
        fd.add_output(BUILDS[name](fd, fd.from_pytorch(x)))
    assert_all_equal(runs(fd, [x], target))


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_bits_where_indices_repeat(target: str) -> None:
    """Many rows are added to few: no order of threads decides about the sums."""
    x, at = rand(40, 64), ints(900, low=0, high=40)
    more = rand(900, 64)
    with FusionDefinition() as fd:
        a, b, c = fd.from_pytorch(x), fd.from_pytorch(at), fd.from_pytorch(more)
        fd.add_output(fd.ops.relu(fd.ops.index_add(a, b, c, 0)))
    assert_all_equal(runs(fd, [x, at, more], target))
