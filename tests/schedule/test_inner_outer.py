# SPDX-License-Identifier: Apache-2.0
"""Backward of norms: sums along rows and over rows in one kernel that reads its inputs once."""

from __future__ import annotations

import pytest
import torch
from conftest import Golden
from helpers.kernels import kernel_text, scheduled

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.runtime.torch_types import to_torch_dtype
from thunder_fuser.target import CPU, H200

D = DataType
Graph = tuple[FusionDefinition, list[torch.Tensor]]


def norm_backward(
    rows: int, columns: int, dtype: DataType = D.Float, device: str = "cpu"
) -> Graph:
    """(x, dy, weight, mean, rstd) -> (dx, dweight, dbias) of a layer norm."""
    fd = FusionDefinition()
    x, dy = (fd.define_tensor([-1, -1], True, dtype) for _ in range(2))
    weight = fd.define_tensor([-1], True, dtype)
    mean, rstd = (fd.define_tensor([-1, 1], [True, None], D.Float) for _ in range(2))
    unit = fd.ops.mul(fd.ops.sub(x, mean), rstd)
    scaled = fd.ops.mul(dy, weight)
    along = fd.ops.sum(fd.ops.mul(scaled, unit), [1], keepdim=True)
    plain = fd.ops.sum(scaled, [1], keepdim=True)
    inner = fd.ops.sub(scaled, fd.ops.mul(fd.ops.mul(along, 1 / columns), unit))
    dx = fd.ops.mul(fd.ops.sub(inner, fd.ops.mul(plain, 1 / columns)), rstd)
    for result in (dx, fd.ops.sum(fd.ops.mul(dy, unit), [0]), fd.ops.sum(dy, [0])):
        fd.add_output(fd.ops.cast(result, dtype))
    kind = to_torch_dtype(dtype)
    values = [torch.empty(rows, columns, device=device, dtype=kind) for _ in range(2)]
    values += [torch.empty(columns, device=device, dtype=kind)]
    values += [torch.empty(rows, 1, device=device) for _ in range(2)]
    if device != "meta":
        for value in values:
            value.normal_()
        values[4].abs_()
    return fd, values


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
def test_text(target: object, golden: Golden) -> None:
    made, source = scheduled(norm_backward(8192, 4096, D.BFloat16, "meta"), target)  # type: ignore[arg-type]
    golden(str(made), ext="py")
    golden(kernel_text(source), ext="cu" if target is H200 else "cpp")


def test_inputs_are_read_once() -> None:
    """One kernel reads x and dy; the second only adds partial results."""
    fd, values = norm_backward(8192, 4096, D.BFloat16, "meta")
    first, second = fd.plan(values, target="h200").segments
    assert (first.scheduler.name, second.scheduler.name) == ("inner_outer", "reduction")
    assert set(fd.fusion.inputs[:2]) <= set(first.part.inputs)
    assert not set(fd.fusion.inputs) & set(second.part.inputs)


def test_sums_that_do_not_fit_get_a_kernel_of_their_own() -> None:
    fd, values = norm_backward(512, 1 << 16, D.Float, "meta")
    plan = fd.plan(values, target="h200")
    assert "inner_outer" not in [s.scheduler.name for s in plan.segments]
    assert any("do not fit on chip" in str(r) for refusal in plan.refusals for r in refusal.reasons)


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [
        (2048, 64, D.Float),  # four rows a block at once
        (2051, 96, D.BFloat16),  # the last run is shorter, and its last rows missing
        (1031, 77, D.Float),  # no vectors
        (700, 1000, D.Half),
        (300, 2304, D.Float),
        (140, 6160, D.BFloat16),  # on a GPU two blocks share a row, and ask for the next one ahead
    ],
)
def test_results(rows: int, columns: int, dtype: DataType, target: str) -> None:
    fd, values = norm_backward(rows, columns, dtype)
    assert "inner_outer" in [s.scheduler.name for s in fd.plan(values, target=target).segments]
    wanted = evaluate(fd.fusion, values, torch.float64)
    tolerance = {D.Float: 1e-6, D.Half: 1e-3, D.BFloat16: 8e-3}[dtype]
    for got, want in zip(fd.execute(values, target=target), wanted, strict=True):
        off = (got.double() - want).abs().max() / want.abs().max()
        assert off < tolerance
