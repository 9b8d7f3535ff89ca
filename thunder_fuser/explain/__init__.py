# SPDX-License-Identifier: Apache-2.0
"""A jitted function -> reports on it: fusions, kernels, memory, times, and reasons.

    from thunder_fuser.explain import report
    print(report(jitted))

Each function here takes a result of thunder.jit or of thunder.dynamo.thunderfx, a ThunderCompiler,
or a function that torch.compile compiles with one. It returns a frozen object that prints as
tables, shows itself in a notebook, and becomes plain data by `to_dict()`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thunder_fuser.explain.memory import plot, timeline
    from thunder_fuser.explain.profiles import profile
    from thunder_fuser.explain.programs import dump, kernels
    from thunder_fuser.explain.reports import report, why
    from thunder_fuser.explain.saved_values import saved

__all__ = ["dump", "kernels", "plot", "profile", "report", "saved", "timeline", "why"]

# Imported at their first use: the command line needs none of them.
_MODULES = {
    "dump": "programs",
    "kernels": "programs",
    "plot": "memory",
    "profile": "profiles",
    "report": "reports",
    "saved": "saved_values",
    "timeline": "memory",
    "why": "reports",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
