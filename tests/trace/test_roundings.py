# SPDX-License-Identifier: Apache-2.0
"""Chains of 16-bit operations keep float32 inside of a region, but not before a whole part: there
the rounding moves a result by 1."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from thunder import last_traces

from thunder_fuser.executors.pipeline import TRACE_PASSES
from thunder_fuser.explain.jitted import jit
from thunder_fuser.trace.prepared import Pass, Prepared
from thunder_fuser.trace.rewrites.casts import drop_roundings

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
EMULATE = pytest.mark.parametrize("emulate", [False, True], ids=["cpu", "emulator"])
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])

STEPS: dict[str, Function] = {
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "trunc": lambda x, y: torch.trunc(x * y),
    "floor": lambda x, y: torch.floor(x + y),
    "ceil": lambda x, y: torch.ceil(x * y),
    "round": lambda x, y: torch.round(x / y),
    "quantised": lambda x, y: torch.clamp(torch.round(x * y), -128, 127) / y,
}


def arguments(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(13)
    x, y = (torch.randn(4096, generator=generator) for _ in range(2))
    y = torch.where(y.abs() < 0.1, 1.0, y)
    x[:4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    return (5 * x).to(dtype), y.to(dtype)


@EMULATE
@HALVES
@pytest.mark.parametrize("name", STEPS)
def test_whole_parts_are_those_of_eager(name: str, dtype: torch.dtype, emulate: bool) -> None:
    x, y = arguments(dtype)
    function = STEPS[name]
    found, expected = jit(function, strict=True, emulate=emulate)(x, y), function(x, y)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def casts(function: Function, dtype: torch.dtype) -> int:
    """How often the function's region rounds."""
    jitted = jit(function, strict=True)
    jitted(*arguments(dtype))
    (region,) = (bsym for bsym in last_traces(jitted)[-1].bound_symbols if bsym.sym.is_fusion)
    names = [(leaf.sym.name, leaf.output.dtype) for leaf in region.subsymbols]
    return sum(name == "convert_element_type" and of.bytes == 2 for name, of in names)


@HALVES
def test_only_the_rounding_before_the_step_stays(dtype: torch.dtype) -> None:
    assert casts(lambda x, y: (x * y).exp() + 1.0, dtype) == 1
    assert casts(lambda x, y: torch.floor((x * y).exp()) + 1.0, dtype) == 2


def test_the_dataflow_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers for the plan before the pass, and once for all who ask."""
    seen: list[bool] = []

    def noted(prepared: Prepared) -> Prepared:
        before = {*prepared.flow.crossing}
        after = drop_roundings(prepared)
        seen.append(prepared.flow.crossing == before)
        return after

    passes = tuple(Pass(noted) if each.run is drop_roundings else each for each in TRACE_PASSES)
    monkeypatch.setattr("thunder_fuser.executors.fuser.TRACE_PASSES", passes)
    jit(STEPS["quantised"], strict=True)(*arguments(torch.bfloat16))
    assert seen == [True]


def test_values_of_float32_are_not_rounded() -> None:
    x, y = arguments(torch.float32)
    function = STEPS["div trunc"]
    torch.testing.assert_close(jit(function, strict=True)(x, y), function(x, y), equal_nan=True)
