# SPDX-License-Identifier: Apache-2.0
"""What each pass does to a trace, as a text: the trace as it is read, then the lines that change.

    == read
      t3 f32[4, 8] = mul(x, 2.0)
    == partition
    - t3 f32[4, 8] = mul(x, 2.0)
    + t3 f32[4, 8] = mul(x, 2.0)  # region 0
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors import fuser as fuser_module
from thunder_fuser.executors.regions import Item, Region
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import makes

_REGION_PASSES = (
    "without_dead_views", "with_row_major", "with_donations", "with_writes", "with_restored",
    "with_unseen", "with_channels_last", "with_overlap",
)  # fmt: skip


class PlanText:
    """The texts of one compilation so far."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._lines: list[str] = []

    def add(self, name: str, lines: Sequence[str]) -> None:
        """Adds what has changed since the lines before; nothing is written for no change."""
        if not self.parts:
            self.parts += [f"== {name}", *(f"  {line}" for line in lines)]
        elif list(lines) != self._lines:
            self.parts += [f"== {name}", *_changes(self._lines, lines)]
        self._lines = [*lines]

    def start(self, name: str, lines: Sequence[str]) -> None:
        """Adds all lines: those of another kind than before."""
        self.parts += [f"== {name}", *(f"  {line}" for line in lines)]
        self._lines = [*lines]

    def __str__(self) -> str:
        return "\n".join(self.parts) + "\n"


@contextmanager
def recorded_plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PlanText]]:
    """The texts of the compilations within, in order."""
    plans: list[PlanText] = []

    def run_trace_passes(passes: Any, prepared: Prepared) -> Prepared:
        plans.append(PlanText())
        plans[-1].add("read", [*map(op_text, prepared.ops)])
        for trace_pass in passes:
            prepared = run((trace_pass,), prepared)
            plans[-1].add(trace_pass.__name__, [*map(op_text, prepared.ops)])
        return prepared

    def with_recomputation(prepared: Prepared, policy: Any) -> Any:
        after, recomputation = rematerialize(prepared, policy)
        plans[-1].add("rematerialize", [*map(op_text, after.ops)])
        return after, recomputation

    run, rematerialize = fuser_module.run, fuser_module.rematerialize
    with monkeypatch.context() as patch:
        patch.setattr(fuser_module, "run", run_trace_passes)
        patch.setattr(fuser_module, "rematerialize", with_recomputation)
        for name in _REGION_PASSES:
            patch.setattr(fuser_module, name, _recorded(getattr(fuser_module, name), name, plans))
        yield plans


def _recorded(
    region_pass: Callable[..., Any], name: str, plans: list[PlanText]
) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if name == _REGION_PASSES[0]:
            plans[-1].start("claim", [*map(item_text, args[0])])
        items = region_pass(*args)
        plans[-1].add(name, [*map(item_text, items)])
        return items

    return call


def _changes(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    for line in difflib.ndiff(before, after):
        if line[0] in "+-":
            yield line


# ------------------------------------------------------------------------------------ one line


def op_text(op: Op) -> str:
    """An op of a prepared trace."""
    notes = []
    if op.refusal is not None:
        notes.append(f"torch: {op.refusal}")
    if op.region is not None:
        notes.append(f"region {op.region}")
    if op.is_backward:
        notes.append("backward")
    return _noted(bsym_text(op.bsym), notes)


def item_text(item: Item) -> str:
    """A bound symbol, or a region with all that passes have noted on it."""
    if not isinstance(item, Region):
        return bsym_text(item)
    leaves = ", ".join(leaf.sym.name for leaf in item.leaves)
    notes = ["backward"] if item.is_backward else []
    facts = {
        "donated": item.donated,
        "donated if freed": item.donated_if_freed,
        "row-major": item.row_major,
        "unseen": [f"{name}{[*order] if order else ''}" for name, order in item.unseen.items()],
        "writes": [
            f"{write.target} by {write.value} as {', '.join(sorted(write.names))}"
            for write in item.writes
        ],
    }
    notes += [f"{name}: {', '.join(values)}" for name, values in facts.items() if values]
    kind = "views" if item.makes_views else "region"
    outputs = ", ".join(map(_typed, item.outputs))
    inputs = ", ".join(proxy.name for proxy in item.inputs)
    return _noted(f"{outputs} = {kind}({inputs}) [{leaves}]", notes)


def bsym_text(bsym: BoundSymbol) -> str:
    """results = name(arguments)"""
    results = ", ".join(map(_typed, makes(bsym)))
    arguments = [*map(_value, bsym.args), *(f"{k}={_value(v)}" for k, v in bsym.kwargs.items())]
    name = _plain(bsym.sym.name)
    return f"{results} = {name}({', '.join(arguments)})" if results else (
        f"{name}({', '.join(arguments)})"
    )  # fmt: skip


def _noted(line: str, notes: Sequence[str]) -> str:
    return f"{line}  # {'; '.join(notes)}" if notes else line


def _typed(proxy: Proxy) -> str:
    if not isinstance(proxy, TensorProxy):
        return proxy.name
    dtype = str(proxy.dtype).removeprefix("thunder.dtypes.")
    return f"{proxy.name} {dtype}{[*proxy._shape]}"


def _value(value: Any) -> str:
    if isinstance(value, Proxy):
        return value.name
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_value, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_value(v)}' for key, v in value.items())}}}"
    if isinstance(value, (bool, int, float, complex, str, type(None))):
        return repr(value)
    return getattr(value, "__name__", None) or _plain(str(value))


def _plain(text: str) -> str:
    """Without the address in memory that some names end with."""
    head, _, _ = text.partition(" at 0x")
    return head
