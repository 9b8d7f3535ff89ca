# SPDX-License-Identifier: Apache-2.0
"""Marks regions and CPU kernels by name in torch's profiler.

    with torch.profiler.profile() as found:
        model(x)
    found.export_chrome_trace("trace.json")      thunderFusion0 > fused_gelu_f32_pointwise

A profile has GPU kernels in any case, under the names of their functions. While no profiler runs, a
range costs one test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.profiler import record_function

Ranged = Callable[..., Any]

is_profiled = torch.autograd._profiler_enabled


def ranged(name: str, function: Ranged) -> Ranged:
    """The function; while a profiler runs, its calls appear as ranges of this name."""

    def call(*arguments: Any) -> Any:
        if not is_profiled():
            return function(*arguments)
        with record_function(name):
            return function(*arguments)

    return call
