# SPDX-License-Identifier: Apache-2.0
"""A graph that Dynamo hands to the backend `thunder_fuser` -> the graph, compiled.

    torch.compile(f, backend="thunder_fuser", options={"fuser_fuel": 3})
    ->  ThunderCompiler(executors=[fuser], fuser_fuel=3), a new one for each graph

So nothing keeps the graphs of a function that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thunder.dynamo import ThunderCompiler
from torch.fx import GraphModule

from thunder_fuser.executors.fuser import fuser
from thunder_fuser.source.torch_words import refuse_words


def compile_graph(
    graph: GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """options: keywords of thunder.jit. Raises OptionError for a mode, which is Inductor's."""
    refuse_words("torch.compile(backend='thunder_fuser')", {} if mode is None else {"mode": mode})
    keywords = {"executors": [fuser], **(options or {})}
    return ThunderCompiler(**keywords)(graph, inputs)  # type: ignore[no-any-return]
