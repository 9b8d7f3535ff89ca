# SPDX-License-Identifier: Apache-2.0
"""A trace as texts: what each pass changes of it, and the log's lines on its fusions.

    == read
      t3 float32[4, 8] = mul(x, 2.0)
    == partition
    - t3 float32[4, 8] = mul(x, 2.0)
    + t3 float32[4, 8] = mul(x, 2.0)  # region 0
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from thunder.core.compile_data import get_compile_data
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.base.dump import begun, may_fill, new_plan
from thunder_fuser.base.logs import is_logged, log
from thunder_fuser.executors.regions.comments import counted
from thunder_fuser.executors.regions.plan import NO_MEMORY, Plan, RegionMemory
from thunder_fuser.executors.regions.region import Item, Region
from thunder_fuser.executors.run.region_callable import RegionCallable, callable_of
from thunder_fuser.host.call.recompiles import note
from thunder_fuser.source.lines import span_of
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import makes


class PlanText:
    """The text of one compilation, in DUMP/plan_0.txt or the next free number.

    It grows with each pass, so it is there if a pass raises.
    """

    def __init__(self, dump: str) -> None:
        self._root, self._path = dump, begun(dump, new_plan)
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
        if self._path is None:
            return
        with may_fill(self._root), self._path.open("a", encoding="utf-8") as file:
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
    return text.partition(" at 0x")[0]


# ----------------------------------------------------------------------- the log's lines on a trace


def note_fusions(bsyms: Iterable[BoundSymbol], lines: Mapping[str, str]) -> None:
    """Logs each fusion of a trace. lines: {value: the user's line}."""
    for bsym in bsyms if is_logged("fusions") else ():
        call = callable_of(bsym)
        if call is not None and bsym.sym.is_fusion:
            log("fusions", partial(_fusion_text, call, lines))


def note_arguments(arguments: Iterable[Proxy]) -> None:
    """Logs the arguments of a trace that differ from the last trace of the same function."""
    data = get_compile_data()
    if data is not None and is_logged("recompiles"):
        call = {proxy.name: _guarded(proxy) for proxy in arguments}
        name = getattr(data.fn, "__name__", type(data.fn).__name__)
        note(data, f"{name}, traced again by Thunder", call)


def _fusion_text(call: RegionCallable, lines: Mapping[str, str]) -> str:
    region = call.region
    names = (out.name for leaf in region.leaves for out in makes(leaf))
    where = span_of([lines[name] for name in names if name in lines])
    inputs = (
        typed(proxy) if isinstance(proxy, TensorProxy) else f"{proxy.name} (a number)"
        for proxy in region.inputs
    )
    facts = [
        f"{call.name}: {'backward' if region.is_backward else 'forward'}",
        f"ops {counted(leaf.sym.name for leaf in region.leaves)}",
        f"inputs {', '.join(inputs)}",
    ]
    return "; ".join([*facts, f"from {where}"] if where else facts)


def _guarded(proxy: Proxy) -> dict[str, Any]:
    """The facts on an argument that Thunder checks before it runs a trace again."""
    if not isinstance(proxy, TensorProxy):
        return {"value": getattr(proxy, "value", None)}
    return {
        "sizes": tuple(proxy.shape),
        "dtype": proxy.dtype,
        "device": proxy.device,
        "requires_grad": proxy.requires_grad,
    }
