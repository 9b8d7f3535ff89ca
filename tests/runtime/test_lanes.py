# SPDX-License-Identifier: Apache-2.0
"""A math function has the same bits at the end of a row as in its middle, and in any loop."""

from __future__ import annotations

import math
import platform
from pathlib import Path

import pytest
import torch
from helpers.kernel_texts import run_expressions

from thunder_fuser.codegen.prelude.libm import vector_functions
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime import cpu

UNARY = (
    "exp", "log", "sin", "cos", "tan", "tanh", "erf", "erfc", "log1p", "expm1", "exp2", "log2",
    "asinh", "atan", "sinh", "cosh", "sigmoid", "asin",
)  # fmt: skip
BINARY = ("pow", "atan2")


def values(x: torch.Tensor, dtype: DataType) -> list[torch.Tensor]:
    """Every function of x."""
    with FusionDefinition() as fd:
        read = fd.define_tensor([-1], [True], dtype=dtype)
        for name in UNARY:
            fd.add_output(getattr(fd.ops, name)(read))
        for name in BINARY:
            fd.add_output(getattr(fd.ops, name)(read, read))
    return fd.execute([x])  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_the_end_of_a_row(dtype: torch.dtype) -> None:
    x = torch.rand(77, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
    kind = {torch.float32: DataType.Float, torch.float64: DataType.Double}[dtype]
    whole = values(x, kind)
    for length in (1, 2, 3, 5, 9, 31):
        for start in (0, 40):
            part = values(x[start : start + length].clone(), kind)
            for name, one, other in zip((*UNARY, *BINARY), part, whole, strict=True):
                assert torch.equal(one, other[start : start + length]), (name, length)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("name", ("exp", "exp2"))
def test_exponentials_that_are_zero(name: str, dtype: torch.dtype) -> None:
    """They are not asked of libmvec, which takes long for them. Others round as they should."""
    ends = [-size for size in (math.inf, 1e30, 1077.0, 1076.0, 1075.5, 1074.0, 747.0, 746.0, 745.5)]
    ends += [-745.0, -151.5, -151.0, -150.5, -149.0, -104.5, -104.0, -103.5, -103.0, -88.0, -0.0]
    x = torch.tensor([*ends, math.nan, 1.0, 89.0, math.inf], dtype=dtype)
    with FusionDefinition() as fd:
        fd.add_output(getattr(fd.ops, name)(fd.from_pytorch(x)))
    (got,) = fd.execute([x])
    exact = torch.tensor([_power(name, value) for value in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(got, exact.to(dtype), rtol=4e-7, atol=0, equal_nan=True)


def _power(name: str, exponent: float) -> float:
    try:
        return math.exp(exponent) if name == "exp" else 2.0**exponent
    except OverflowError:
        return math.inf


@pytest.mark.parametrize("machine", ("x86-64", "sandybridge", "haswell", "native"))
def test_machines_of_fewer_lanes(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """4, 8 and as many lanes as there are; loops of an AVX machine call other versions."""
    if machine != "native" and not _runs(machine):
        pytest.skip(f"this machine does not run programs for {machine}")
    flags = [f"-march={machine}" if one.startswith("-march") else one for one in cpu.FLAGS]
    monkeypatch.setattr(cpu, "FLAGS", flags)
    x = torch.rand(77, generator=torch.Generator().manual_seed(4)) * 8 - 4
    whole = powers(x)
    for made, expected in zip(whole, (x.double().exp(), x.double().exp() ** x), strict=True):
        torch.testing.assert_close(made.double(), expected, rtol=1e-6, atol=0)
    for start, length in ((0, 1), (3, 2), (16, 3), (40, 9)):
        for made, part in zip(whole, powers(x[start : start + length]), strict=True):
            assert torch.equal(part, made[start : start + length])


def powers(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e^x, and its power of x."""
    made = {"once": ("float", "expf(x)"), "twice": ("float", "powf(expf(x), x)")}
    found = run_expressions("cpu", {"x": ("float", x)}, made)
    return found["once"], found["twice"]


def _runs(machine: str) -> bool:
    if platform.machine() != "x86_64":
        return False
    needed = {"x86-64": "sse2", "sandybridge": "avx", "haswell": "avx2"}[machine]
    return needed in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()


def test_libmvec_is_there() -> None:
    """Where it is not, all of the above is libm's, and proves nothing."""
    if not vector_functions():
        pytest.skip("no libmvec on this machine")
    assert {"expf", "tanhf", "exp", "powf"} <= vector_functions()
