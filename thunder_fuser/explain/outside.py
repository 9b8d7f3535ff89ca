# SPDX-License-Identifier: Apache-2.0
"""A function of thunderfx or torch.compile -> what Dynamo and Thunder left out of their graphs.

    if y.sum() > 0:        a graph break: Python runs the line, between two graphs
    torch.linalg.inv(y)    a split: Inductor runs the call, between two parts of a graph
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import torch
from torch._dynamo import output_graph

from thunder_fuser.explain.jitted import infos_of

GRAPH_BREAK = "graph break"
SPLIT = "left to Inductor"
_TORCH = Path(torch.__file__).parent
_LINE = re.compile(r'File "(.+)", line (\d+)')
_OF_JUMPS = "generic_jump"  # Dynamo's name of a branch
_WHY_SPLIT = {
    "MISSING_OP_SUPPORT": "Thunder has no function for it",
    "UNSUPPORTED_NODE": "thunderfx leaves it out",
}


@dataclass(frozen=True, slots=True)
class NotFused:
    """Equal ops that torch runs.

    state: not claimed, views, fell back, left out, not called yet; of a function of Dynamo also
    graph break, for a line that Python runs, and left to Inductor.
    """

    name: str
    count: int
    state: str
    reason: str
    where: str


def outside_of(jitted: Any) -> list[NotFused]:
    """The graph breaks and splits of a function; none for a result of thunder.jit."""
    infos = infos_of(jitted)
    splits = Counter(split for info in infos for split in _splits(info))
    counted = (replace(split, count=count) for split, count in splits.items())
    return [*dict.fromkeys(_breaks(jitted, infos)), *counted]


def _breaks(jitted: Any, infos: list[Any]) -> Iterator[NotFused]:
    """A break before the first operation makes no graph, so Dynamo's list is read too."""
    graphs = (info.original_graph_module for info in infos)
    of_graphs = [getattr(graph, "compile_subgraph_reason", None) for graph in graphs]
    code = _code_of(jitted) if infos else None
    for reason in (*output_graph.graph_break_reasons, *of_graphs):
        if reason is None or not reason.graph_break or not reason.user_stack:
            continue
        if reason in of_graphs or (code and _is_of(reason.user_stack[0], code)):
            where = _line(reason.user_stack)
            yield NotFused("line of Python", 1, GRAPH_BREAK, _words(reason.reason), where)


def _code_of(jitted: Any) -> Any:
    """The code of the user's function, or of a module's forward; None if it is unknown."""
    for name in ("_func", "_orig_mod", "_torchdynamo_orig_callable"):
        inner = getattr(jitted, name, None)
        if inner is not None:  # a compiled module may have no truth value
            return _code_of(inner)
    function = type(jitted).forward if isinstance(jitted, torch.nn.Module) else jitted
    return getattr(function, "__code__", None)


def _is_of(frame: FrameSummary, code: Any) -> bool:
    """True for a line of this code. After a break Dynamo runs its rest under another name."""
    lines = [line for *_, line in code.co_lines() if line]
    is_inside = frame.lineno is not None and min(lines) <= frame.lineno <= max(lines)
    return frame.filename == code.co_filename and is_inside


def _line(stack: list[FrameSummary]) -> str:
    """The innermost line that is not torch's."""
    of_user = [frame for frame in stack if _TORCH not in Path(frame.filename).parents]
    frame = (of_user or stack)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _words(reason: str) -> str:
    """Dynamo's explanation in one line.

    >>> _words("Graph break\\n  Explanation: No `print`.\\n  Hint: Leave it out.")
    'No `print`.'
    >>> _words("generic_jump TensorVariable()")
    "a branch on a tensor's value (generic_jump TensorVariable())"
    """
    if reason.startswith(_OF_JUMPS):
        return f"a branch on a tensor's value ({reason})"
    explained = reason.partition("Explanation: ")[2] or reason
    return explained.partition("\n")[0].strip()


def _splits(info: Any) -> Iterator[NotFused]:
    nodes = {node.name: node for node in info.original_graph_module.graph.nodes}
    for split in info.split_reasons:
        name = str(split.info).partition("name: ")[2].partition(" ")[0]
        node = nodes.get(name)
        if node is None:
            yield NotFused(name, 1, SPLIT, str(split.info), "")
            continue
        places = _LINE.findall(node.stack_trace or "")
        where = "{}:{}".format(*places[-1]) if places else ""
        reason = _WHY_SPLIT.get(split.reason_type.name, "Thunder refuses its arguments")
        target = getattr(node.target, "__name__", str(node.target))
        yield NotFused(target, 1, SPLIT, reason, where)
