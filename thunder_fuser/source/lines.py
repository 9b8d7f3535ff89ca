# SPDX-License-Identifier: Apache-2.0
"""A bound symbol -> the line of the user's program that it comes from, as "file:line".

    model.py:12   y = self.norm(x)       mul, sum, rsqrt, ... of the forward and of the backward

Thunder notes the innermost line that it reads while it traces a program. That line may lie inside
torch (the call of F.linear in nn.Linear) or inside Thunder. So with this executor it notes the
nearest line outside both (thunder_patches/hooks.py); in a graph of torch.compile, the line that
torch noted.

Thunder's gradient rules make bound symbols without a line. These inherit the tags of the bound
symbol that is differentiated, so `tag_line` gives that one a tag with its line.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from thunder.core.interpreter import unwrap
from thunder.core.symbol import BoundSymbol

from thunder_fuser.base.warn import place_of_the_call
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.proxies import makes

_LIBRARIES = frozenset({"torch", "thunder"})
_FX_FILE = "<eval_with_key>"
_FX_LINE = re.compile(r'File "(.+)", line (\d+)')

Place = tuple[str, int]

# {graph of torch.compile: {node: its stack}}
_NOTED: WeakKeyDictionary[torch.fx.GraphModule, dict[str, str]] = WeakKeyDictionary()


# ---------------------------------------------------------------------------- while Thunder traces


def place_of(frames: Sequence[Any]) -> Place | None:
    """The user's line that Thunder's interpreter reads; None if it is unknown."""
    inner = next(filter(None, map(_place, reversed(frames))), None)
    return inner or place_of_the_call()  # if all frames are torch's (nn.Sequential)


def _place(frame: Any) -> Place | None:
    """File and line of a frame of Thunder's interpreter, if it is outside torch and Thunder."""
    line = frame.positions and frame.positions.lineno
    file = frame.code.co_filename
    if line is None:
        return None
    if file.startswith(_FX_FILE):
        return _in_graph(frame, linecache.getline(file, line))
    module = str(unwrap(frame.globals).get("__name__", ""))
    return None if module.partition(".")[0] in _LIBRARIES else (file, line)


def _in_graph(frame: Any, text: str) -> Place | None:
    """The line that torch noted for a line of a graph's code: "t = torch.tanh(x); x = None"."""
    module = unwrap(next(iter(frame.localsplus), None))
    if not isinstance(module, torch.fx.GraphModule):
        return None
    if module not in _NOTED:
        _NOTED[module] = {node.name: node.stack_trace or "" for node in module.graph.nodes}
    places = _FX_LINE.findall(_NOTED[module].get(text.strip().partition(" ")[0], ""))
    return (places[-1][0], int(places[-1][1])) if places else None


# ------------------------------------------------------------------------------ after it has traced


@dataclass(frozen=True, slots=True)
class _Line:
    """A tag of a bound symbol."""

    text: str


def tag_line(bsym: BoundSymbol) -> None:
    """Tags the bound symbol with its line, for the results of its gradient rule."""
    line = _noted_line(bsym)
    if line and not any(isinstance(tag, _Line) for tag in bsym.tags):
        bsym.tags.add(_Line(line))


def line_of(bsym: BoundSymbol) -> str:
    """file:line; empty if unknown."""
    tagged = (tag.text for tag in bsym.tags if isinstance(tag, _Line))
    return _noted_line(bsym) or next(tagged, "")


def lines_of(ops: Sequence[Op]) -> dict[str, str]:
    """{value: the line it comes from}, for the results of all ops and of their primitives.

    An op that a pass added (a cast, a sum of gradients) has the line of its operand.
    """
    lines: dict[str, str] = {}
    for op in ops:
        read = (lines[name] for name in op.read_names if name in lines)
        line = line_of(op.bsym) or next(read, "")
        if line:
            lines.update((out.name, line) for leaf in op.leaves for out in makes(leaf))
            lines.update((name, line) for name in op.made_names)
    return lines


def span_of(lines: Sequence[str]) -> str:
    """One text for the lines of several ops.

    >>> span_of(["a.py:3", "a.py:1", "a.py:3"]), span_of(["a.py:3", "b.py:1"]), span_of([])
    ('a.py:1-3', 'a.py:3, b.py:1', '')
    """
    by_file: dict[str, list[int]] = {}
    for line in filter(None, lines):
        file, _, number = line.rpartition(":")
        by_file.setdefault(file, []).append(int(number))
    spans = ((file, min(numbers), max(numbers)) for file, numbers in by_file.items())
    return ", ".join(
        f"{file}:{first}" if first == last else f"{file}:{first}-{last}"
        for file, first, last in spans
    )


def _noted_line(bsym: BoundSymbol) -> str:
    positions = bsym.source_positions
    if bsym.source_filename is None or positions is None or positions.lineno is None:
        return ""
    return _text(bsym.source_filename, positions.lineno)


@lru_cache(maxsize=4096)
def _text(file: str, line: int) -> str:
    """file:line. Equal lines are one string, which a model's layers share."""
    return f"{file}:{line}"
