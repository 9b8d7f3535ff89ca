# SPDX-License-Identifier: Apache-2.0
"""Ten small cases through the whole path in some seconds: the first thing to run after a change."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from opinfo import normal

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType

both_targets = pytest.mark.parametrize("target", ["cpu", "emulator"])


def check(
    fd: FusionDefinition,
    inputs: Sequence[torch.Tensor | float],
    target: str,
    *expected: torch.Tensor,
    tolerance: float = 1e-5,
) -> None:
    results = fd.execute(list(inputs), target=target)
    assert len(results) == len(expected)
    for result, value in zip(results, expected, strict=True):
        torch.testing.assert_close(result, value, rtol=tolerance, atol=tolerance)


@both_targets
def test_add(target: str) -> None:
    x, y = normal(7, 33), normal(7, 33, seed=1)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.from_pytorch(x), fd.from_pytorch(y)))
    check(fd, [x, y], target, x + y)


@both_targets
def test_broadcast_and_a_number(target: str) -> None:
    x, bias = normal(6, 16), normal(16)
    with FusionDefinition() as fd:
        a, b = fd.from_pytorch(x), fd.from_pytorch(bias)
        scale = fd.define_scalar(dtype=DataType.Double)
        fd.add_output(fd.ops.tanh(fd.ops.mul(fd.ops.add(a, b), scale)))
    check(fd, [x, bias, 0.5], target, torch.tanh((x + bias) * 0.5))


@both_targets
def test_a_permuted_input_and_an_ordered_output(target: str) -> None:
    x, y = normal(9, 5).t(), normal(5, 9)
    with FusionDefinition() as fd:
        sum_ = fd.ops.add(fd.from_pytorch(x), fd.from_pytorch(y))
        fd.add_output(sum_, stride_order=[0, 1])
    (result,) = fd.execute([x, y], target=target)
    assert result.stride() == (1, 5)
    torch.testing.assert_close(result, x + y)


@both_targets
def test_softmax_of_bf16(target: str) -> None:
    x = normal(5, 300, dtype=torch.bfloat16)
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        e = fd.ops.exp(fd.ops.sub(a, fd.ops.max(a, [1], True)))
        y = fd.ops.truediv(e, fd.ops.sum(e, [1], True))
        fd.add_output(fd.ops.cast(y, DataType.BFloat16))
    check(fd, [x], target, x.float().softmax(1).bfloat16(), tolerance=1e-2)


@both_targets
def test_layer_norm(target: str) -> None:
    x, weight = normal(4, 96), normal(96)
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        variance, mean = fd.ops.var_mean(a, [1], 0, True)
        scale = fd.ops.rsqrt(fd.ops.add(variance, 1e-5))
        y = fd.ops.mul(fd.ops.sub(a, mean), scale)
        fd.add_output(fd.ops.mul(y, fd.from_pytorch(weight)))
    check(fd, [x, weight], target, torch.nn.functional.layer_norm(x, (96,), weight))


@both_targets
def test_a_sum_over_rows(target: str) -> None:
    x = normal(50, 7, dtype=torch.float16)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.from_pytorch(x), [0]))
    check(fd, [x], target, x.float().sum(0), tolerance=1e-4)


@both_targets
def test_an_aliased_input(target: str) -> None:
    x = normal(12)
    expected = x * 2
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        fd.add_output(fd.ops.mul(a, 2.0), a)
    check(fd, [x], target)
    assert torch.equal(x, expected)


@both_targets
def test_one_definition_serves_all_sizes(target: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.sum(fd.ops.exp(x), [1]))
    for shape in ((2, 3), (5, 64), (1, 7), (0, 4)):
        values = normal(*shape)
        check(fd, [values], target, values.exp().sum(1))


@both_targets
def test_a_matmul_between_pointwise_ops(target: str) -> None:
    x, y = normal(4, 6), normal(6, 3)
    with FusionDefinition() as fd:
        product = fd.ops.matmul(fd.ops.relu(fd.from_pytorch(x)), fd.from_pytorch(y))
        fd.add_output(fd.ops.sigmoid(product))
    check(fd, [x, y], target, torch.sigmoid(torch.relu(x) @ y))


@both_targets
def test_rotary_halves(target: str) -> None:
    x = normal(3, 8)
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        left, right = fd.ops.slice(a, [0, 0], [3, 4]), fd.ops.slice(a, [0, 4], [3, 8])
        fd.add_output(fd.ops.cat([fd.ops.neg(right), left], 1))
    check(fd, [x], target, torch.cat([-x[:, 4:], x[:, :4]], 1))
