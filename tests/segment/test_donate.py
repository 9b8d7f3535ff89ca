# SPDX-License-Identifier: Apache-2.0
"""A result is written over a donated argument where nothing else could read what it overwrites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import TARGETS, rand

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.compiler import plan_segments
from thunder_fuser.host.dispatch import input_keys
from thunder_fuser.options import compile_options
from thunder_fuser.segment.donate import with_donations
from thunder_fuser.target import CPU

Case = Callable[[FusionDefinition, Any], Any]


def definition(build: Case, *tensors: torch.Tensor, donated: bool = True) -> FusionDefinition:
    """`build` of the tensors, of which the first is donated."""
    with FusionDefinition() as fd:
        values = [
            fd.define_tensor(
                sizes=one.shape, strides=one.stride(), static_sizes=True,
                donated=donated and at == 0,
                dtype=DataType.BFloat16 if one.dtype is torch.bfloat16 else DataType.Float,
            )
            for at, one in enumerate(tensors)
        ]  # fmt: skip
        build(fd, *values)
    return fd


def overwrites(build: Case, *tensors: torch.Tensor) -> list[tuple[str, str]]:
    fd = definition(build, *tensors)
    keys = input_keys(fd.fusion, tensors)
    plan = plan_segments(fd.fusion, keys, CPU, compile_options())
    assert with_donations(plan) == plan
    return [pair for one in plan.segments for pair in one.part.overwrites]


def pointwise(fd: FusionDefinition, x: Any, bias: Any) -> None:
    fd.add_output(fd.ops.tanh(fd.ops.add(x, bias)))


@pytest.mark.parametrize("shape", [(33, 70), (1, 1), (5, 1), (4096,), (3, 0), (2, 3, 64)], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_written_in_place(target: str, shape: tuple[int, ...]) -> None:
    x, bias = rand(*shape), rand(*shape, seed=1)
    expected, place = torch.tanh(x + bias), x.data_ptr()
    (found,) = definition(pointwise, x, bias).execute([x, bias], target=target)
    torch.testing.assert_close(found, expected)
    assert found.data_ptr() == place and (found is x or 0 in shape)


@pytest.mark.parametrize("target", TARGETS)
def test_misaligned_rows_and_other_orders(target: str) -> None:
    """The result lies where the argument does, so it is as little aligned."""
    for x in (rand(8, 65)[1:].flatten()[3:451].view(7, 64), rand(64, 7).t()):
        expected = torch.tanh(x * 2)
        fd = definition(lambda fd, x: fd.add_output(fd.ops.tanh(fd.ops.mul(x, 2.0))), x)
        (found,) = fd.execute([x], target=target)
        torch.testing.assert_close(found, expected)


def test_its_kernel_does_not_promise_two_addresses() -> None:
    x, bias = rand(6, 8), rand(6, 8, seed=1)
    for target in TARGETS:
        text = definition(pointwise, x, bias).sources([x, bias], target=target)[0].text
        declared = text[text.rindex('extern "C"') :].partition("{")[0]
        pointers = [line.strip() for line in declared.splitlines() if "*" in line]
        assert pointers == ["const float* T0,", "const float* __restrict__ T1,", "float* T3,"]


def test_without_the_word_nothing_is_overwritten() -> None:
    x, bias = rand(6, 8), rand(6, 8, seed=1)
    before = x.clone()
    (found,) = definition(pointwise, x, bias, donated=False).execute([x, bias], target="cpu")
    assert torch.equal(x, before) and found.data_ptr() != x.data_ptr()


def test_one_result_an_argument() -> None:
    def two(fd: FusionDefinition, x: Any) -> None:
        fd.add_output(fd.ops.mul(x, 2.0))
        fd.add_output(fd.ops.add(x, 1.0))

    # Either result is read for the other's element: whichever is written first is in the way.
    assert overwrites(two, rand(4, 6)) == []


def test_two_arguments_two_results() -> None:
    def each(fd: FusionDefinition, x: Any, y: Any) -> None:
        fd.add_output(fd.ops.mul(x, 2.0))
        fd.add_output(fd.ops.mul(y, 3.0))

    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1], donated=True) for _ in range(2))
        each(fd, x, y)
    values = [rand(9), rand(9, seed=1)]
    expected, places = [values[0] * 2, values[1] * 3], [one.data_ptr() for one in values]
    found = fd.execute(values, target="cpu")
    assert list(map(torch.equal, found, expected)) == [True, True]
    assert [one.data_ptr() for one in found] == places


def transposed(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.add(x, fd.ops.permute(x, [1, 0])))


def flipped(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.add(x, fd.ops.flip(x, [0])))


def reduced(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.sub(x, fd.ops.sum(x, [1], keepdim=True)))


def returned(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.mul(x, 2.0))
    fd.add_output(x)


def narrower(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.cast(x, DataType.BFloat16))


def other_order(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.mul(x, 2.0), stride_order=[0, 1])


def other_shape(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.mul(x, 2.0), shape=[36])


def read_later(fd: FusionDefinition, x: Any) -> None:
    first = fd.ops.segment_set(fd.ops.mul(x, 2.0))
    fd.add_output(first)
    fd.add_output(fd.ops.add(fd.ops.sum(first, [0]), fd.ops.sum(x, [0])))


def written_by_hand(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.mul(x, 2.0))
    fd.add_output(fd.ops.mul(x, 3.0), alias_input=x)


REFUSED = (
    transposed, flipped, reduced, returned, narrower, other_order, other_shape, read_later,
    written_by_hand,
)  # fmt: skip


@pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__)
def test_what_is_read_elsewhere_stays(build: Case) -> None:
    x = rand(6, 6)
    assert overwrites(build, x) == []
    if build is not written_by_hand:
        before = x.clone()
        for target in TARGETS:
            definition(build, x).execute([x], target=target)
            assert torch.equal(x, before)


def test_an_expanded_argument_stays() -> None:
    x = rand(1, 6).expand(6, 6)
    assert overwrites(lambda fd, x: fd.add_output(fd.ops.mul(x, 2.0)), x) == []


def test_of_two_the_one_that_fits() -> None:
    """An argument that a broadcast repeats is smaller than the result; the other one is not."""
    x, y = rand(6), rand(4, 6)
    with FusionDefinition() as fd:
        a = fd.define_tensor(shape=[-1], donated=True)
        b = fd.define_tensor(shape=[-1, -1], donated=True)
        fd.add_output(fd.ops.mul(fd.ops.broadcast(a, [True, False]), b))
    expected = x * y
    (found,) = fd.execute([x, y], target="cpu")
    assert torch.equal(found, expected) and found.data_ptr() == y.data_ptr()
