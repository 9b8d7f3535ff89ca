# SPDX-License-Identifier: Apache-2.0
"""Which exps are two instructions: those of 16-bit results, and those that fade in a sum."""

from __future__ import annotations

import pytest
import torch
from helpers.cases import rand
from helpers.graphs import Graph, meta, rows, softmax

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.lower.context import short_exps

D = DataType
SHAPE = (8, 1031)


def log_sum_exp(variant: str = "plain", dtype: DataType = D.Float) -> Graph:
    """max(x) + log(sum(exp(x - max(x)))), and ways to write it that are not that."""
    fd, x = rows(*SHAPE, dtype=dtype)
    wide = fd.ops.cast(x, D.Float)
    most = fd.ops.max(wide, [1], keepdim=True)
    powers = _powers(fd, wide, most, variant)
    total = fd.ops.sum(powers, [0] if variant == "other axis" else [1])
    fd.add_output(fd.ops.log(total))
    if variant == "kept":
        fd.add_output(powers)
    return fd, [meta(*SHAPE, dtype=dtype)]


def _powers(fd: FusionDefinition, x: Tensor, most: Tensor, variant: str) -> Tensor:
    if variant == "negated":
        return fd.ops.exp(fd.ops.neg(fd.ops.sub(most, x)))
    if variant == "least":
        return fd.ops.exp(fd.ops.sub(x, fd.ops.min(x, [1], keepdim=True)))
    if variant == "of a multiple":
        return fd.ops.exp(fd.ops.sub(fd.ops.mul(x, 2.0), most))
    return fd.ops.exp(fd.ops.sub(x, most))


def found(graph: Graph) -> int:
    fd, inputs = graph
    return sum(len(short_exps(s.part)) for s in fd.plan(inputs, target="h200").segments)


@pytest.mark.parametrize("variant", ["plain", "negated"])
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16])
def test_they_fade_in_a_sum(variant: str, dtype: DataType) -> None:
    assert found(log_sum_exp(variant, dtype)) == 1


@pytest.mark.parametrize("variant", ["other axis", "kept", "least", "of a multiple"])
def test_they_do_not(variant: str) -> None:
    assert found(log_sum_exp(variant)) == 0


def test_results_of_16_bits() -> None:
    assert found(softmax(*SHAPE, dtype=D.BFloat16)) == 1
    assert found(softmax(*SHAPE)) == 0


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_the_sum_is_as_exact_as_with_exp(spread: float) -> None:
    """Within the few units that a sum of 1031 floats loses anyway."""
    x = rand(*SHAPE) * spread
    fd, _ = log_sum_exp("plain")
    (got,) = fd.execute([x], target="emulator")
    wide = x.double()
    exact = (wide - wide.amax(1, keepdim=True)).exp().sum(1).log()
    assert (got.double() - exact).abs().max() < 1e-6
    assert torch.isfinite(got).all()
