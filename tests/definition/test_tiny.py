# SPDX-License-Identifier: Apache-2.0
"""Ten cases through the whole path, in a few seconds: the first thing to run after any change."""

from __future__ import annotations

import pytest
import torch
from helpers.cases import Runner, rand

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.kinds import Value

X, ROW = rand(6, 40), rand(40, seed=1)
HALF = X.to(torch.bfloat16)


def _softmax(fd: FusionDefinition, x: Value) -> Value:
    powers = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
    return fd.ops.truediv(powers, fd.ops.sum(powers, [1], keepdim=True))


def test_pointwise(run: Runner) -> None:
    def fusion(fd: FusionDefinition) -> None:
        x, row = fd.from_pytorch(X), fd.from_pytorch(ROW)
        fd.add_output(fd.ops.relu(fd.ops.add(x, row)))

    run(fusion, [X, ROW], [(X + ROW).relu()])


@pytest.mark.parametrize("axis", [0, 1])
def test_reduction(run: Runner, axis: int) -> None:
    def fusion(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.sum(fd.ops.exp(fd.from_pytorch(X)), [axis]))

    run(fusion, [X], [X.exp().sum(axis)])


def test_softmax_of_halves(run: Runner) -> None:
    def fusion(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.cast(_softmax(fd, fd.from_pytorch(HALF)), DataType.BFloat16))

    run(fusion, [HALF], [HALF.float().softmax(1).bfloat16()])


def test_two_kernels(run: Runner) -> None:
    def fusion(fd: FusionDefinition) -> None:
        x = fd.from_pytorch(X)
        soft = _softmax(fd, x)
        fd.add_output(fd.ops.sum(soft, [0]))
        fd.add_output(fd.ops.permute(soft, [1, 0]))

    soft = X.softmax(1)
    run(fusion, [X], [soft.sum(0), soft.t()])
