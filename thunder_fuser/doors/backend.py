# SPDX-License-Identifier: Apache-2.0
"""A graph that Dynamo hands to the backend `thunder_fuser` -> the graph, compiled.

    torch.compile(f, backend="thunder_fuser", options={"fuser_fuel": 3})
    ->  ThunderCompiler(executors=[fuser], fuser_fuel=3), a new one for each graph

So nothing keeps the graphs of a function that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import thunder
from thunder.dynamo import ThunderCompiler
from thunder.extend import resolve_executors
from torch.fx import GraphModule

from thunder_fuser.doors.graphs import note
from thunder_fuser.errors import OptionError
from thunder_fuser.executors.fuser import fuser
from thunder_fuser.source.jit_options import refuse_words

_DOOR = "torch.compile(backend='thunder_fuser')"
_KNOWN = signature(thunder.jit).parameters


def compile_graph(
    graph: GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """options: keywords of thunder.jit. Raises OptionError for others, and for Inductor's modes."""
    keywords = {"executors": [fuser], **(options or {})}
    refuse_words(_DOOR, {} if mode in (None, "default") else {"mode": mode}, ", in options={...}")
    for name in keywords:
        if name not in _KNOWN and not name.startswith(("fuser_", "thunderfx_")):
            raise OptionError(
                f"{_DOOR}: options", expected="keywords of thunder.jit", got=name,
                do="leave it out: options of Inductor have no meaning here",
            )  # fmt: skip
    if fuser not in resolve_executors(keywords["executors"]):
        got = str(keywords["executors"])
        raise OptionError(f"{_DOOR}: executors", expected="a list with the fuser", got=got)
    compiler = ThunderCompiler(**keywords)
    compiled: GraphModule = compiler(graph, inputs)
    note(compiled, compiler.subgraph_infos)
    return compiled
