# SPDX-License-Identifier: Apache-2.0
"""A jitted function -> its traces, its fusions' callables and what the fuser refused.

explain and the demo read Thunder's data through this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import thunder
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.errors import InputError
from thunder_fuser.executors.callables import RegionCallable, callable_of
from thunder_fuser.executors.comments import counted
from thunder_fuser.executors.fuser import fuser
from thunder_fuser.executors.graphs import Jitted, graphs_of
from thunder_fuser.executors.regions import Claims, Region
from thunder_fuser.options import Value
from thunder_fuser.rematerialization.apply import Recomputation
from thunder_fuser.trace.proxies import makes

_LONGEST = 160


def jit(function: Callable[..., Any], **given: Value) -> Jitted:
    """thunder.jit with the fuser; `given` are its options, by their own names."""
    keywords = {f"fuser_{name}": value for name, value in given.items()}
    return thunder.jit(function, executors=[fuser], **keywords)  # type: ignore[no-any-return]


@contextmanager
def jitted_inside() -> Iterator[list[Jitted]]:
    """The functions jitted with the fuser inside of the block, in order; the list keeps them alive.

    Those of a module that imported `jit` itself before the block are missing.
    """
    found: list[Jitted] = []
    jit = thunder.jit

    @wraps(jit)
    def jit_and_keep(*args: Any, **kwargs: Any) -> Jitted:
        jitted: Jitted = jit(*args, **kwargs)
        if fuser in thunder.compile_data(jitted).executors_list:
            found.append(jitted)
        return jitted

    thunder.jit = jit_and_keep
    try:
        yield found
    finally:
        thunder.jit = jit


def final_traces(jitted: Jitted) -> list[TraceCtx]:
    """The traces that ran last: forward, then backward if there is one.

    After a hit of its cache, Thunder's last_traces are those of the hit, but last_backward_traces
    are still those of the newest compilation.
    """
    (graph,) = graphs_of(jitted)
    stats = thunder.compile_stats(graph)
    both = (stats.last_traces, stats.last_backward_traces)
    for entry in stats.interpreter_cache:
        if entry.computation_traces is stats.last_traces:
            both = (entry.computation_traces, entry.backward_traces)
    return [traces[-1] for traces in both if traces]


def fusions_of(jitted: Jitted) -> list[RegionCallable]:
    """The fusions of a jitted function, in the order they run."""
    traces = final_traces(jitted)
    return [one for trace in traces for one in _callables(trace.bound_symbols)]


def _callables(bsyms: Iterable[BoundSymbol]) -> Iterator[RegionCallable]:
    """The callables of regions, also of regions that a transform put into a bound symbol."""
    for bsym in bsyms:
        found = callable_of(bsym)
        if found is None:
            yield from _callables(bsym.subsymbols)
        else:
            yield found


def claims_of(jitted: Jitted) -> Claims:
    """The ops that the fuser took and refused in the traces that ran last."""
    claims = fuser.claims_of(_first_trace(jitted))
    if claims is None:
        raise InputError(
            "explain", expected="a function jitted with this fuser", got="one jitted without it",
            do="call thunder.jit(function, executors=[fuser])",
        )
    return claims


def recomputation_in(jitted: Jitted) -> Recomputation | None:
    """What the function saves for its backward; None if it has no backward."""
    return fuser.recomputation_of(_first_trace(jitted))


def _first_trace(jitted: Jitted) -> TraceCtx:
    """The first trace of the compilation that ran last: the fuser's key for its results."""
    (graph,) = graphs_of(jitted)  # a function that was not called, or not jitted, raises here
    first: TraceCtx = thunder.compile_stats(graph).last_traces[0]
    return first


def recomputation_of(jitted: Jitted) -> Recomputation:
    """As `recomputation_in`, but raises InputError if there is no backward."""
    found = recomputation_in(jitted)
    if found is None:
        raise no_backward()
    return found


def no_backward() -> InputError:
    return InputError(
        "explain", expected="a function jitted with this fuser, with gradients",
        got="one whose last compilation had no backward",
        do="call it with tensors that require gradients",
    )  # fmt: skip


def op_texts(region: Region) -> list[tuple[str, str]]:
    """(the line of a trace, the name of its first result) of each primitive."""
    return [(_op_text(leaf), makes(leaf)[0].name) for leaf in region.leaves]


def _op_text(leaf: BoundSymbol) -> str:
    """t3 = mul(t1, 2.0)  # t3: "cpu f32[4, 8]" """
    lines = (line for line in leaf.python(indent=0, print_depth=1) if not line.startswith("#"))
    return " ".join(lines).replace("prims.", "", 1)


def trace_text(jitted: Jitted) -> str:
    """The forward trace as it runs, one line a call; a fusion's line ends with its ops."""
    ops = {
        one.name: f"\n      # {counted(leaf.sym.name for leaf in one.region.leaves)}"
        for one in fusions_of(jitted)
    }
    lines = []
    for line in str(final_traces(jitted)[0]).splitlines():
        text = line.strip()
        if line.startswith("  ") and text and not text.startswith(("#", "del ", '"')):
            name = text.partition("= ")[2].partition("(")[0]
            lines.append(f"  {_short(text.partition('  # ')[0])}{ops.get(name, '')}")
    return "\n".join(lines)


def _short(line: str) -> str:
    """A line, cut if it is long, as the return with all values saved for the backward is."""
    return line if len(line) <= _LONGEST else line[:_LONGEST] + " ..."
