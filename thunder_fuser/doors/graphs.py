# SPDX-License-Identifier: Apache-2.0
"""torch.compile(f, backend="thunder_fuser") -> the graphs that the backend compiled for this call.

Dynamo keeps a compiled graph as long as its function. Here are weak references, so nothing keeps
the graphs of a function that is gone.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any
from weakref import finalize, ref

import torch
from torch.fx import GraphModule

_BACKEND = "thunder_fuser.doors.backend_name"
_CALL = torch._TorchCompileWrapper.__call__.__code__
# {id of the object that torch.compile makes of a backend's name: its graphs}
_graphs: dict[int, list[ref[GraphModule]]] = {}


def note(graph: GraphModule, infos: list[Any]) -> None:
    """Notes a graph for the call of torch.compile that runs now. infos: Thunder's on its parts."""
    for frame, _ in traceback.walk_stack(sys._getframe()):
        if frame.f_code is _CALL:
            wrapper = frame.f_locals["self"]
            if id(wrapper) not in _graphs:
                finalize(wrapper, _graphs.pop, id(wrapper), None)
            graph.subgraph_infos = infos
            _graphs.setdefault(id(wrapper), []).append(ref(graph))
            return


def infos_of(wrapper: Any) -> list[Any] | None:
    """Thunder's infos on the graphs of a call of torch.compile; None with another backend."""
    if getattr(getattr(wrapper, "compiler_fn", None), "__module__", "") != _BACKEND:
        return None
    graphs = (graph() for graph in _graphs.get(id(wrapper), ()))
    return [info for graph in graphs if graph is not None for info in graph.subgraph_infos]
