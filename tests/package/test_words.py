# SPDX-License-Identifier: Apache-2.0
"""Names say what they hold: words that fit any value are none, a type has a name of its own, and so
have the values of a tuple.

The set and the numbers below only fall: lower them as soon as the code allows it.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.package.test_house import PACKAGE

WORDS = {"one", "found", "made", "given", "own", "told"}

# The types of which two files define one, with different meanings.
TWICE = {
    "Call", "Definition", "Kernel", "Kind", "Op", "Operand", "Scalar", "Sizes", "Store", "Value",
}  # fmt: skip

# {room: the functions that may still return three or more values of several types without names}
UNNAMED = {".": 2, "executors": 1, "host": 1, "ir": 5, "trace": 1}


def is_vague(name: str) -> bool:
    """one, _found, found_or_made, TheGiven are; is_done and shown are not."""
    return name.strip("_").lower().rpartition("_")[2] in WORDS


def files() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE), ast.parse(path.read_text("utf-8"))


def room_of(path: Path) -> str:
    return path.parts[0] if len(path.parts) > 1 else "."


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    rest = [argument for argument in (arguments.vararg, arguments.kwarg) if argument]
    return [argument.arg for argument in (*named, *rest)]


def defined(body: list[ast.stmt]) -> Iterator[str]:
    """The names that a module or a class defines, with the parameters of public functions."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement.name
            yield from parameters(statement) if not statement.name.startswith("_") else ()
        elif isinstance(statement, ast.ClassDef):
            yield statement.name
            yield from defined(statement.body)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            nodes = (node for target in targets for node in ast.walk(target))
            yield from (node.id for node in nodes if isinstance(node, ast.Name))


def bound(module: ast.Module) -> Iterator[str]:
    """The variables that are assigned anywhere, and the parameters."""
    for node in ast.walk(module):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def types(module: ast.Module) -> Iterator[str]:
    """The classes and aliases of types of a module, without the underscores of private ones."""
    for statement in module.body:
        if isinstance(statement, ast.ClassDef):
            yield statement.name.strip("_")
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id.strip("_")
            if name[:1].isupper() and not name.isupper():
                yield name


def test_public_names_say_what_they_hold() -> None:
    names = [(str(path), name) for path, module in files() for name in defined(module.body)]
    assert [(path, name) for path, name in names if is_vague(name)] == []


def test_local_names_say_what_they_hold() -> None:
    names = [(str(path), name) for path, module in files() for name in bound(module)]
    assert [(path, name) for path, name in names if name in WORDS] == []


def test_a_type_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, module in files():
        for name in set(types(module)):
            places[name].append(str(path))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in TWICE} == {}


def unnamed(function: ast.FunctionDef) -> bool:
    """-> tuple[str, float, int], or a list of these; not tuple[int, int, int]"""
    for node in ast.walk(function.returns) if function.returns else ():
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "tuple":
            kinds = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
            if len(kinds) > 2 and len(set(map(ast.unparse, kinds))) > 1:
                return True
    return False


def test_returned_values_of_several_types_have_names() -> None:
    counts: Counter[str] = Counter()
    for path, module in files():
        functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
        counts[room_of(path)] += sum(map(unnamed, functions))
    assert {room: n for room, n in counts.items() if n > UNNAMED.get(room, 0)} == {}
