# SPDX-License-Identifier: Apache-2.0
"""A kernel is built by functions over one state, whose calls go one way
(docs/adr/0034-one-state-of-a-kernel.md)."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from tests.package.test_house import PACKAGE

# From low to high: the modules that build a kernel.
BUILDERS = (
    "state", "guards", "buffers", "accumulators", "values", "nests", "groups", "lower",
)  # fmt: skip

# Functions that call one another because statements lie in statements.
WALKS = [{f"verify._Verifier.{name}" for name in ("block", "branches", "inside_of", "loop")}]


def modules(room: Path) -> dict[str, ast.Module]:
    return {path.stem: ast.parse(path.read_text("utf-8")) for path in room.rglob("*.py")}


def functions(module: ast.Module) -> dict[str, ast.FunctionDef]:
    """{f or Class.f: its definition}; a function in a function is a part of it."""
    here = {s.name: s for s in module.body if isinstance(s, ast.FunctionDef)}
    for owner in (s for s in module.body if isinstance(s, ast.ClassDef)):
        methods = (s for s in owner.body if isinstance(s, ast.FunctionDef))
        here |= {f"{owner.name}.{s.name}": s for s in methods}
    return here


def imported(module: ast.Module) -> dict[str, tuple[str, str]]:
    """{name: (last word of the module that it comes from, its name there)}"""
    lines = (s for s in module.body if isinstance(s, ast.ImportFrom) and s.module)
    return {
        alias.asname or alias.name: (str(s.module).rpartition(".")[2], alias.name)
        for s in lines for alias in s.names
    }  # fmt: skip


@cache
def calls(room: Path) -> nx.DiGraph:
    """Who mentions whom. Without types, x.f is every method f of the room."""
    parsed, graph = modules(room), nx.DiGraph()
    defined = {name: functions(module) for name, module in parsed.items()}
    graph.add_nodes_from(f"{name}.{f}" for name, here in defined.items() for f in here)
    methods: dict[str, list[str]] = {}
    for function in graph:
        if function.count(".") == 2:
            methods.setdefault(function.rpartition(".")[2], []).append(function)
    for name, here in defined.items():
        known = imported(parsed[name])
        for function, definition in here.items():
            nodes = list(ast.walk(definition))
            variables = {n.id for n in nodes if isinstance(n, ast.Name) and is_stored(n)}
            for node in nodes:
                plain, others = "", list[str]()
                if isinstance(node, ast.Name) and node.id not in variables:
                    plain = ".".join(known.get(node.id, (name, node.id)))
                elif isinstance(node, ast.Attribute):
                    owner = node.value.id if isinstance(node.value, ast.Name) else ""
                    plain = f"{known[owner][1]}.{node.attr}" if owner in known else ""
                    others = methods.get(node.attr, [])
                callees = [plain] if plain in graph else others
                graph.add_edges_from((f"{name}.{function}", callee) for callee in callees)
    return graph


def is_stored(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store)


def rings(room: Path) -> list[set[str]]:
    """Functions that call one another in turn. One that calls itself walks a tree."""
    return [ring for ring in nx.strongly_connected_components(calls(room)) if len(ring) > 1]


def test_no_functions_call_one_another() -> None:
    assert rings(PACKAGE / "lower") == WALKS


def test_what_a_ring_is(tmp_path: Path) -> None:
    """Through objects that hold one another, and through a stored function, too."""
    (tmp_path / "low.py").write_text(
        "class Values:\n"
        "    def load(self): self.nests.position()\n"
        "def walk(tree): [walk(t) for t in tree]\n"
    )
    (tmp_path / "high.py").write_text(
        "from room.low import Values, walk\n"
        "class Nests:\n"
        "    def position(self): walk(self.values.load())\n"
    )
    assert rings(tmp_path) == [{"low.Values.load", "high.Nests.position"}]


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builder_calls_lower_ones_only(name: str) -> None:
    graph, place = calls(PACKAGE / "lower"), BUILDERS.index(name)
    mine = [function for function in graph if function.startswith(f"{name}.")]
    called = {other.partition(".")[0] for function in mine for other in graph.successors(function)}
    assert mine and called.isdisjoint(BUILDERS[place + 1 :])


@pytest.mark.parametrize("name", BUILDERS)
def test_only_the_state_changes(name: str) -> None:
    """Classes are frozen but in state.py; fields of the state and of scopes are all that is set."""
    module = modules(PACKAGE / "lower")[name]
    classes = [node for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
    thawed = [c.name for c in classes if "frozen=True" not in ast.unparse(c.decorator_list[-1:])]
    assert name == "state" or thawed == []
    attributes = (node for node in ast.walk(module) if isinstance(node, ast.Attribute))
    owners = {ast.unparse(node.value) for node in attributes if is_stored(node)}
    allowed = {"state"} | ({"self"} if name == "state" else {"scope", "inner", "buffer"})
    assert owners <= allowed
