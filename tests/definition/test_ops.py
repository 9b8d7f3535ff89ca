# SPDX-License-Identifier: Apache-2.0
"""Every op through the whole path, on each target, against torch op by op and against float64."""

from __future__ import annotations

import pytest
import torch
from helpers.opinfo import Sample, assert_near, samples
from helpers.opinfo_complex import complex_samples
from helpers.opinfo_scans import scan_samples
from helpers.opinfo_torch import torch_samples

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.rules.build import define
from thunder_fuser.runtime.eager.evaluate import evaluate

TARGETS = ("cpu", "emulator")
SAMPLES = [*samples(), *scan_samples(), *complex_samples(), *torch_samples()]


def fusion_of(sample: Sample) -> Fusion:
    fd = FusionDefinition()
    sample.build(fd)
    return define(fd.definition)


def test_every_row_has_a_sample() -> None:
    """But for communication, which gloo_communication.py runs in several processes, packed numbers,
    which test_quantized.py compares bit by bit, and index_store, which is no value of its own."""
    alone = {name for name, row in OPS.items() if row.kind is not OpKind.COMMUNICATION}
    alone -= {"index_store"}
    assert {sample.row for sample in SAMPLES} == alone


@pytest.mark.parametrize("sample", SAMPLES, ids=repr)
def test_a_sample_is_sound(sample: Sample) -> None:
    """Its text rebuilds it, and torch itself stays within the tolerance asked of kernels."""
    fusion = fusion_of(sample)
    assert rebuild(str(fusion)) == fusion
    results = evaluate(fusion, sample.inputs)
    if sample.reference:
        assert_all_near(sample, results, evaluate(fusion, sample.inputs, torch.float64))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sample", SAMPLES, ids=repr)
def test_op(sample: Sample, target: str) -> None:
    fd = FusionDefinition()
    sample.build(fd)
    results = fd.execute(list(sample.inputs), target=target)
    fusion = fusion_of(sample)
    expected = evaluate(fusion, sample.inputs)
    assert [r.stride() for r in results] == [e.stride() for e in expected]
    # Two ways of rounding may each be off by the tolerance, to either side.
    assert_all_near(sample, results, expected, factor=2)
    if sample.reference:
        assert_all_near(sample, results, evaluate(fusion, sample.inputs, torch.float64))


def assert_all_near(
    sample: Sample,
    results: list[torch.Tensor],
    expected: list[torch.Tensor],
    factor: float = 1,
) -> None:
    assert len(results) == len(expected)
    for result, value in zip(results, expected, strict=True):
        rounded = value.to(result.dtype)
        assert_near(result, rounded, sample.ulps * factor, sample.floor * factor)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "columns"), [(4, 3000), (3000, 4)])
def test_variance_far_from_zero(rows: int, columns: int, target: str) -> None:
    """1e4 + noise: sums of squares would lose every digit of the variance."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, columns, generator=generator) + 1e4
    dim = int(columns > rows)
    fd = FusionDefinition()
    t = fd.define_tensor(shape=[-1, -1], contiguity=True)
    for value in fd.ops.var_mean(t, [dim], 1):
        fd.add_output(value)
    variance, mean = fd.execute([x], target=target)
    exact = x.double().var(dim)
    torch.testing.assert_close(variance.double(), exact, rtol=1e-5, atol=0)
    torch.testing.assert_close(mean.double(), x.double().mean(dim), rtol=2e-7, atol=0)
