# SPDX-License-Identifier: Apache-2.0
"""A warm call runs no compiler: it enters no module of ir, presegment, segment, schedule, lower or
codegen, through FusionDefinition and through thunder.jit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import thunder
import torch

import thunder_fuser
from thunder_fuser import FusionCache, FusionDefinition, fuser

PACKAGE = Path(thunder_fuser.__file__).parent
COMPILER = ("ir", "presegment", "segment", "schedule", "lower", "codegen")


def modules_entered(call: Callable[[], Any]) -> set[str]:
    """The modules of thunder_fuser that a call enters a Python function of, as "schedule/axes"."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    paths = [Path(file) for file in files]
    ours = [path.relative_to(PACKAGE) for path in paths if path.is_relative_to(PACKAGE)]
    return {path.with_suffix("").as_posix() for path in ours}


def compiler_modules(call: Callable[[], Any]) -> set[str]:
    return {name for name in modules_entered(call) if name.split("/")[0] in COMPILER}


def assert_warm(call: Callable[[], Any]) -> None:
    """The first call compiles, all floors of the compiler take part, and the second enters none."""
    first = {name.split("/")[0] for name in compiler_modules(call)}
    assert first == set(COMPILER)
    assert compiler_modules(call) == set()


def region() -> FusionDefinition:
    FusionCache.reset()
    with FusionDefinition() as fd:
        x = fd.from_pytorch(torch.empty(6, 8))
        fd.add_output(fd.ops.exp(fd.ops.mul(x, 1.25)))
    return fd


def test_a_definitions_function() -> None:
    run, x = region().entry.prepare().callable(), torch.randn(6, 8)
    assert_warm(lambda: run(x))
    other = torch.randn(6, 8)
    assert compiler_modules(lambda: run(other)) == set()
    torch.testing.assert_close(run(other)[0], torch.exp(other * 1.25))


def test_the_function_itself_enters_no_module_of_ours() -> None:
    """Its own text is straight-line Python, which belongs to no file."""
    run, x = region().entry.prepare().callable(), torch.randn(6, 8)
    run(x)
    assert modules_entered(lambda: run(x)) == set()


def test_another_size_is_planned_again() -> None:
    """So that the tests above do not pass because nothing is recorded."""
    run = region().entry.prepare().callable()
    run(torch.randn(6, 8))
    entered = compiler_modules(lambda: run(torch.randn(7, 8)))
    assert {name.split("/")[0] for name in entered} >= {"schedule", "lower", "codegen"}


def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.exp(x * weight) + x


def test_a_region_of_thunder_jit() -> None:
    FusionCache.reset()
    jitted = thunder.jit(
        function, executors=[fuser], fuser_strict=True, fuser_compile_ahead=False
    )  # else other threads compile
    x, weight = torch.randn(6, 8), torch.randn(8)
    assert_warm(lambda: jitted(x, weight))
    torch.testing.assert_close(jitted(x, weight), function(x, weight))


def test_a_region_of_thunder_jit_with_gradients() -> None:
    """Backward too; autograd runs it on this thread, for the tensors are on the CPU."""
    FusionCache.reset()
    jitted = thunder.jit(function, executors=[fuser], fuser_strict=True)
    x, weight = torch.randn(6, 8, requires_grad=True), torch.randn(8)
    assert_warm(lambda: jitted(x, weight).sum().backward())
