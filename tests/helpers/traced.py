# SPDX-License-Identifier: Apache-2.0
"""A function of Thunder's symbols, compiled without thunder.jit's interpreter of Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import thunder
from thunder.extend import Executor


def traced(
    function: Callable[..., Any], args: Sequence[Any], executors: Sequence[Executor] = ()
) -> Any:
    """function(*args), which calls symbols and no function of torch, by these executors."""

    def called(*args: Any) -> Any:  # a trace takes the name of its function: no <lambda>
        return function(*args)

    trace = thunder.trace()(called, *args)
    every = [*executors, *thunder.get_always_executors()]
    compiled = thunder.common.transform_for_execution(trace, every)[-1].python_callable()
    return compiled(*args)
