# SPDX-License-Identifier: Apache-2.0
"""A graph of Dynamo with a transform of torch.func -> the graph itself, which torch runs.

Thunder makes a call on trial to know whether it can trace it. Calls such as _grad_increment_nesting
open a level of torch.func, which stayed open. Imported behind thunder.dynamo, which takes seconds.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from thunder.dynamo.compiler import ThunderCompiler
from torch.fx import GraphModule

from thunder_fuser.options import option

_OF_TORCH_FUNC = ("torch._C._functorch", "torch._functorch")
_of_thunder = ThunderCompiler.__call__


@wraps(_of_thunder)
def _compiled(self: Any, graph: GraphModule, inputs: Any) -> Any:
    parts = [part.graph for part in graph.modules() if isinstance(part, GraphModule)]
    places = [getattr(node.target, "__module__", "") for part in parts for node in part.nodes]
    if option("thunder_fixes") and any(str(at).startswith(_OF_TORCH_FUNC) for at in places):
        return graph
    return _of_thunder(self, graph, inputs)


ThunderCompiler.__call__ = _compiled
