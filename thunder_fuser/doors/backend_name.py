# SPDX-License-Identifier: Apache-2.0
"""The backend `thunder_fuser` of torch.compile; Thunder is imported with the first graph.

    torch.compile(model, backend="thunder_fuser", options={"fuser_strict": True})

torch finds it without an import of this package, by an entry point, where the package was
installed. Elsewhere, as in a clone on PYTHONPATH, it is registered here.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from torch._dynamo.backends.registry import register_backend

NAME = "thunder_fuser"


def backend(graph: Any, inputs: Any, **keywords: Any) -> Any:
    """A graph of Dynamo -> the graph with its parts compiled. keywords: mode and options."""
    return import_module("thunder_fuser.doors.backend").compile_graph(graph, inputs, **keywords)


def has_entry_point() -> bool:
    """Whether the installed package tells torch of the backend."""
    try:
        return NAME in distribution(NAME).entry_points.names
    except PackageNotFoundError:
        return False


if not has_entry_point():
    register_backend(backend, name=NAME)
