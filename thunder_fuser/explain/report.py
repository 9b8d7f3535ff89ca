# SPDX-License-Identifier: Apache-2.0
"""A jitted function -> a table of its fusions, and every op that was not fused with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from thunder_fuser.executors.callables import RegionCallable
from thunder_fuser.executors.traces import Jitted, claims_of, counted, fusions_of
from thunder_fuser.explain.kernels import Compiled, compiled
from thunder_fuser.explain.table import kib, table

Why = tuple[str, str, str]
Times = Callable[[RegionCallable, Compiled], tuple[float, float]]

_HEAD = ("fusion", "pass", "ops", "segments", "kernels", "schedulers", "KiB in", "KiB out")


def why(jitted: Jitted) -> list[Why]:
    """(symbol, reason, source line) of every op of the newest compilation that was not fused."""
    return [(one.name, str(one.reason), one.where) for one in claims_of(jitted).unfused]


def why_text(jitted: Jitted) -> str:
    """The same as a table, equal rows counted."""
    counts = Counter(why(jitted))
    rows = [(f"{n}x {name}", reason, line) for (name, reason, line), n in counts.items()]
    return table(("not fused", "why", "where"), rows)


def report(jitted: Jitted) -> str:
    """What became of a jitted function: its fusions, then what stayed with torch and why."""
    return f"{fusion_table(fusions_of(jitted))}\n\n{why_text(jitted)}\n"


def fusion_table(fusions: Iterable[RegionCallable], times: Times | None = None) -> str:
    """A line for each fusion; with `times`, also (fused, op by op) in microseconds."""
    head = (*_HEAD, "us", "us op by op") if times else _HEAD
    rows = []
    for one in fusions:
        programs = compiled(one)
        row: tuple[str, ...] = (one.name, "backward" if one.region.is_backward else "forward")
        if not programs:  # views were enough: its results lie in its arguments' memory
            row += (str(len(one.region.leaves)), "0", "0", "views", "0.0", "0.0")
            rows.append(row + ("",) * (len(head) - len(row)))
        else:
            rows.append(row + _of_program(one, programs[-1], times))
    return table(head, rows)


def _of_program(one: RegionCallable, program: Compiled, times: Times | None) -> tuple[str, ...]:
    row = (
        str(len(program.fusion.exprs)), str(len(program.segments)), str(len(program.kernels)),
        counted(segment.scheduler.name for segment in program.segments),
        kib(program.bytes_in), kib(program.bytes_out),
    )  # fmt: skip
    measured = times(one, program) if times else ()
    return (*row, *(f"{1e6 * seconds:.0f}" for seconds in measured))
