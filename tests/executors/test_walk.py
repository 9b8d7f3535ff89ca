# SPDX-License-Identifier: Apache-2.0
"""How far one argument travels: the files that a trace enters on its way to the bound symbols."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import grimp
import networkx as nx
import thunder
import torch
from helpers.models import MODELS, arguments
from thunder.core.trace import TraceCtx

from thunder_fuser.executors.fuser import ThunderFuser
from thunder_fuser.executors.pipeline import REGION_PASSES, TRACE_PASSES
from thunder_fuser.executors.regions.claim import Claims
from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.ir.rules.build import define
from thunder_fuser.rematerialization.apply import rematerialize
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.trace.dataflow import DataFlow
from thunder_fuser.trace.prepared import Prepared

PACKAGE = Path(__file__).parents[2] / "thunder_fuser"
MOST = 12  # files, beside those of the passes
# What the trace is on its way, and the lists in it of everything that it computes.
FORMS = (TraceCtx, Prepared, DataFlow, Claims, Plan)
LISTS = ("bound_symbols", "ops", "items")

# The policy's pass stands between the two tables: it also returns what the backward recomputes.
PASSES = {each.run.__module__ for each in (*TRACE_PASSES, *REGION_PASSES)} | {
    rematerialize.__module__
}


class Walk:
    """Notes the files of which a function was given the trace, in any form, or all of its ops."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.lists: dict[int, Any] = {}  # by identity; kept alive, so that no other list gets it

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and PACKAGE in Path(frame.f_code.co_filename).parents:
            code = frame.f_code
            count = code.co_argcount + code.co_kwonlyargcount
            if any(self.is_trace(frame.f_locals.get(name)) for name in code.co_varnames[:count]):
                self.modules.add(frame.f_globals["__name__"])

    def is_trace(self, value: Any) -> bool:
        if not isinstance(value, FORMS):
            return id(value) in self.lists
        for name in LISTS:
            parts = getattr(value, name, None)
            if parts is not None:
                self.lists[id(parts)] = parts
        return True


@contextmanager
def profiled(walk: Walk) -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(walk)
    try:
        yield
    finally:
        sys.setprofile(before)


class Watched(ThunderFuser):
    """A fuser that notes the walk of each trace it is given."""

    def __init__(self) -> None:
        def evaluated(definition: Any, name: str, args: Any) -> Any:
            fusion = define(definition)
            return lambda *args: evaluate(fusion, args)

        super().__init__("watched", evaluated)
        self.walk = Walk()

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        with profiled(self.walk):
            return super().fusion_pass(trace)


def imports() -> nx.DiGraph[str]:
    """(a module, one that it imports)"""
    graph = grimp.build_graph("thunder_fuser")
    return nx.DiGraph(
        (module, other)
        for module in graph.modules for other in graph.find_modules_directly_imported_by(module)
    )  # fmt: skip


def of_passes() -> set[str]:
    """The modules of the passes, and those that nothing but these import, directly or not."""
    graph, found = imports(), set(PASSES)
    while more := {
        module for module in graph
        if module not in found and graph.in_degree(module) and found.issuperset(
            graph.predecessors(module)
        )
    }:  # fmt: skip
        found |= more
    return found


def test_a_trace_enters_few_files_beside_the_passes() -> None:
    fuser = Watched()
    torch.manual_seed(1)
    function, _ = MODELS["gpt2"]
    thunder.jit(function, executors=[fuser])(*arguments("gpt2", torch.float32))
    entered = fuser.walk.modules
    assert {"thunder_fuser.executors.pipeline", "thunder_fuser.executors.run.bind"} <= entered
    assert PASSES <= entered, "the walk does not see all passes"
    assert len(entered - of_passes()) <= MOST, sorted(entered - of_passes())


def test_no_pass_imports_another() -> None:
    graph = imports()
    assert [pair for pair in graph.edges if PASSES.issuperset(pair)] == []
