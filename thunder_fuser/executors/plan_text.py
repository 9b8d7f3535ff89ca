# SPDX-License-Identifier: Apache-2.0
"""What each pass does to a trace, as a text: the trace as it is read, then the lines that change.

    == read
      t3 float32[4, 8] = mul(x, 2.0)
    == partition
    - t3 float32[4, 8] = mul(x, 2.0)
    + t3 float32[4, 8] = mul(x, 2.0)  # region 0
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.base.dump import new_file
from thunder_fuser.executors.regions.plan import NO_MEMORY, Plan, RegionMemory
from thunder_fuser.executors.regions.region import Item, Region
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import makes


class PlanText:
    """The text of one compilation, in DUMP/plan_0.txt or the next free number.

    It grows with each pass, so it is there if a pass raises.
    """

    def __init__(self, dump: str) -> None:
        self._path = new_file(Path(dump), "plan_{}.txt")
        self._before: Prepared | Plan | None = None

    def add(self, name: str, plan: Prepared | Plan) -> None:
        """Adds the lines that a pass has changed, if any; all lines of the first plan of a type."""
        before, after, self._before = self._before, lines_of(plan), plan
        if type(before) is not type(plan):
            self._append(name, (f"  {line}" for line in after))
        elif before is not None:
            lines = difflib.ndiff(lines_of(before), after)
            if changed := [line for line in lines if line[0] in "+-"]:
                self._append(name, changed)

    def _append(self, name: str, lines: Iterable[str]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in (f"== {name}", *lines))


def lines_of(plan: Prepared | Plan) -> list[str]:
    """A line for each op of a trace, or for each region and each call of torch."""
    if isinstance(plan, Prepared):
        return [*map(op_text, plan.ops)]
    return [item_text(item, plan.memory.of(item)) for item in plan.items]


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


def item_text(item: Item, memory: RegionMemory = NO_MEMORY) -> str:
    """A bound symbol, or a region with what it does to memory."""
    if not isinstance(item, Region):
        return bsym_text(item)
    leaves = ", ".join(leaf.sym.name for leaf in item.leaves)
    notes = ["backward"] if item.is_backward else []
    facts = {
        "donated": memory.donated,
        "donated if freed": memory.donated_if_freed,
        "row-major": memory.row_major,
        "hidden": [f"{name}{[*order] if order else ''}" for name, order in memory.hidden.items()],
        "writes": [
            f"{write.target} by {write.value} as {', '.join(sorted(write.names))}"
            for write in memory.writes
        ],
    }
    notes += [f"{name}: {', '.join(values)}" for name, values in facts.items() if values]
    kind = "views" if item.makes_views else "region"
    outputs = ", ".join(map(typed, item.outputs))
    inputs = ", ".join(proxy.name for proxy in item.inputs)
    return _noted(f"{outputs} = {kind}({inputs}) [{leaves}]", notes)


def bsym_text(bsym: BoundSymbol) -> str:
    """results = name(arguments)"""
    results = ", ".join(map(typed, makes(bsym)))
    arguments = [*map(_value, bsym.args), *(f"{k}={_value(v)}" for k, v in bsym.kwargs.items())]
    name = _plain(bsym.sym.name)
    return f"{results} = {name}({', '.join(arguments)})" if results else (
        f"{name}({', '.join(arguments)})"
    )  # fmt: skip


def _noted(line: str, notes: Sequence[str]) -> str:
    return f"{line}  # {'; '.join(notes)}" if notes else line


def typed(proxy: Proxy) -> str:
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
