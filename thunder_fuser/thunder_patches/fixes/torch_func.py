# SPDX-License-Identifier: Apache-2.0
"""Two kinds of graphs of Dynamo that Thunder splits, or reads, in a way that changes torch's state.

Thunder makes a call on trial to know whether it can trace it. Calls such as _grad_increment_nesting
open a level of torch.func, which stayed open. So torch runs a graph with a transform of torch.func.

    with no_grad(): v = normalize(w @ u, out=v); s = v.clone()
->  thunder_0: w @ u        inductor_1: set_grad_enabled(False), normalize        thunder_2: clone

Each part turns gradients off for itself, and what turns them on again may be in none that does so
when it runs: gradients stayed off in the process. Here each part leaves them as they were.

Imported behind thunder.dynamo, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from thunder.dynamo.compiler import ThunderCompiler
from torch.fx import GraphModule

from thunder_fuser.options import option

_OF_TORCH_FUNC = ("torch._C._functorch", "torch._functorch")
_of_thunder = ThunderCompiler.__call__


@wraps(_of_thunder)
def _compiled(self: Any, graph: GraphModule, inputs: Any) -> Any:
    parts = [part.graph for part in graph.modules() if isinstance(part, GraphModule)]
    calls = [node.target for part in parts for node in part.nodes]
    places = [str(getattr(call, "__module__", "")) for call in calls]
    if option("thunder_fixes") and any(at.startswith(_OF_TORCH_FUNC) for at in places):
        return graph
    split = _of_thunder(self, graph, inputs)
    if option("thunder_fixes") and torch._C._set_grad_enabled in calls:
        for part in split.children():
            part.forward = _leaving_gradients(part.forward)
    return split


def _leaving_gradients(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call; whether gradients are on is afterwards as it was before."""

    @wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            return call(*args, **kwargs)

    return run


ThunderCompiler.__call__ = _compiled
