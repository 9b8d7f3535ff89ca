# SPDX-License-Identifier: Apache-2.0
"""Ranges of torch's profiler: a region's under its name, and a CPU kernel's inside, under its own.

    with torch.profiler.profile() as found:
        model(x)
    found.export_chrome_trace("trace.json")      thunderFusion0 > fused_gelu_f32_pointwise

A GPU's kernels are in a profile anyway, and have the names of their functions. While no profiler
runs, a range is one test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.profiler import record_function

Function = Callable[..., Any]

is_profiled = torch.autograd._profiler_enabled


def ranged(name: str, function: Function) -> Function:
    """The function, in a range of this name while a profiler runs."""

    def call(*arguments: Any) -> Any:
        if not is_profiled():
            return function(*arguments)
        with record_function(name):
            return function(*arguments)

    return call
