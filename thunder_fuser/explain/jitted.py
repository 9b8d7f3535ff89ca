# SPDX-License-Identifier: Apache-2.0
"""A jitted function -> its traces, its fusions' callables and what the fuser refused.

    thunder.jit(f)                                       itself
    thunderfx(f)                                         one for each graph that Thunder runs
    ThunderCompiler(...)                                 the same
    torch.compile(f, backend=ThunderCompiler(...))       the same; also model.compile(backend=...)
    torch.compile(f, backend="thunder_fuser")            the same

explain and the demo read Thunder's data through this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import thunder
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.doors import graphs
from thunder_fuser.errors import InputError
from thunder_fuser.executors.fuser import fuser
from thunder_fuser.executors.regions.claim import Claims
from thunder_fuser.executors.regions.comments import counted
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.executors.run.region_callable import RegionCallable, callable_of
from thunder_fuser.options import OptionValue
from thunder_fuser.rematerialization.apply import Recomputation
from thunder_fuser.thunder_patches.patch import replaced
from thunder_fuser.trace.proxies import makes

Jitted = Callable[..., Any]
_LONGEST = 160
_OWN_GRAPHS = (  # Dynamo tells no backend of a call that runs graphs of another function
    ", or write backend=ThunderCompiler(executors=[fuser]) for graphs and a report of its own"
)


def jit(function: Callable[..., Any], **options: OptionValue) -> Jitted:
    """thunder.jit with the fuser; options: the fuser's, by their own names."""
    keywords = {f"fuser_{name}": value for name, value in options.items()}
    return thunder.jit(function, executors=[fuser], **keywords)  # type: ignore[no-any-return]


@contextmanager
def jitted_inside() -> Iterator[list[Jitted]]:
    """The functions jitted with the fuser inside of the block, in order; the list keeps them alive.

    Those of a module that imported `jit` itself before the block are missing.
    """
    jitted_here: list[Jitted] = []
    jit = thunder.jit

    @wraps(jit)
    def jit_and_keep(*args: Any, **kwargs: Any) -> Jitted:
        jitted: Jitted = jit(*args, **kwargs)
        if fuser in thunder.compile_data(jitted).executors_list:
            jitted_here.append(jitted)
        return jitted

    with replaced(thunder, "jit", jit_and_keep):
        yield jitted_here


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
    return [fusion for trace in traces for fusion in _callables(trace.bound_symbols)]


def _callables(bsyms: Iterable[BoundSymbol]) -> Iterator[RegionCallable]:
    """The callables of regions, also of regions that a transform put into a bound symbol."""
    for bsym in bsyms:
        region = callable_of(bsym)
        if region is None:
            yield from _callables(bsym.subsymbols)
        else:
            yield region


def claims_of(jitted: Jitted) -> Claims:
    """The ops that the fuser took and refused in the traces that ran last."""
    claims = fuser.claims_of(_first_trace(jitted))
    if claims is None:
        raise InputError(
            "explain", expected="a function jitted with this fuser", got="one jitted without it",
            do="call thunder.jit(function, executors=[fuser])",
        )
    return claims


def recomputation_of(jitted: Jitted) -> Recomputation | None:
    """What the function saves for its backward; None if it has no backward."""
    return fuser.recomputation_of(_first_trace(jitted))


def _first_trace(jitted: Jitted) -> TraceCtx:
    """The first trace of the compilation that ran last: the fuser's key for its results."""
    (graph,) = graphs_of(jitted)  # a function that was not called, or not jitted, raises here
    first: TraceCtx = thunder.compile_stats(graph).last_traces[0]
    return first


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
        fusion.name: f"\n      # {counted(leaf.sym.name for leaf in fusion.region.leaves)}"
        for fusion in fusions_of(jitted)
    }
    lines = []
    for line in str(final_traces(jitted)[0]).splitlines():
        text = line.strip()
        if line.startswith("  ") and text and not text.startswith(("#", "del ", '"')):
            name = text.partition("= ")[2].partition("(")[0]
            call = text.partition("  # ")[0]
            # As the return with all values saved for the backward is.
            call = call if len(call) <= _LONGEST else call[:_LONGEST] + " ..."
            lines.append(f"  {call}{ops.get(name, '')}")
    return "\n".join(lines)


# ------------------------------------------------- a user's function -> the results of thunder.jit

def graphs_of(jitted: Any) -> list[Jitted]:
    """The results of thunder.jit that were called, in the order in which they were compiled.

    Raises InputError for a function that is none of the above, or was not called.
    """
    of_dynamo = thunder.compile_stats(jitted) is None
    every = [graph for info in infos_of(jitted) for graph in info.thunder_compiled_fns]
    every = every if of_dynamo else [jitted]
    called = [graph for graph in every if thunder.compile_stats(graph).last_traces]
    if not called:
        got = "one that was not" + ", or that runs the graphs of an equal one" * of_dynamo
        do = "call it once with its arguments" + _OWN_GRAPHS * of_dynamo
        raise InputError("explain", expected="a function that was called", got=got, do=do)
    return called


def prefixed(graphs: Sequence[Jitted]) -> list[tuple[str, Jitted]]:
    """The graphs with prefixes for their names: "" for a single one, else graph0., graph1. ..."""
    return [(f"graph{at}." if len(graphs) > 1 else "", graph) for at, graph in enumerate(graphs)]


def name_of(jitted: Any) -> str:
    """The name of a function, or the class name of a module."""
    owner = "_model" if thunder.compile_stats(jitted) is not None else "_func"
    for name in (owner, "_orig_mod"):
        inner = getattr(jitted, name, None)
        if inner is not None:  # a compiled module may have no truth value
            return name_of(inner)
    return str(getattr(jitted, "__name__", type(jitted).__name__))


def infos_of(jitted: Any) -> list[Any]:
    """What Thunder notes on each graph of Dynamo; none for a result of thunder.jit.

    A ThunderCompiler is known by its attributes, since importing its class takes seconds.
    """
    if thunder.compile_stats(jitted) is not None:
        return []
    backend = getattr(jitted, "_backend", jitted)
    if context := _dynamo_context(getattr(jitted, "_compiled_call_impl", None) or jitted):
        backend = context.callback
        while hasattr(backend, "_torchdynamo_orig_backend"):
            backend = backend._torchdynamo_orig_backend
        if (infos := graphs.infos_of(backend)) is not None:
            return infos
        backend = getattr(backend, "compiler_fn", backend)
    if not hasattr(backend, "subgraph_infos"):
        raise InputError(
            "explain", got=type(jitted).__name__,
            expected="a result of thunder.jit or thunderfx, a ThunderCompiler, or what it compiled",
            do='with torch.compile, write backend="thunder_fuser"',
        )  # fmt: skip
    return list(backend.subgraph_infos)


def _dynamo_context(jitted: Any) -> Any:
    """The context that torch.compile made for a module or function; None if it made none."""
    code = getattr(jitted, "__code__", None)
    if not hasattr(jitted, "_torchdynamo_orig_callable") or code is None:
        return getattr(jitted, "dynamo_ctx", None)
    cells = dict(zip(code.co_freevars, jitted.__closure__ or (), strict=True))
    return cells["self"].cell_contents if "self" in cells else None
