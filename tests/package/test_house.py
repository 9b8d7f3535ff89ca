# SPDX-License-Identifier: Apache-2.0
"""The rooms of the package: how long each may be, and that no two files import each other in turn.

CONTRIBUTING.md has the table of the rooms. The numbers only fall: a raise needs a decision in
docs/adr that says what was removed for it.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import grimp
import networkx as nx

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "thunder_fuser"
LONGEST = 500  # lines of a file


def budgets() -> dict[str, int]:
    """{room: the lines it may have}, as the table says."""
    rows = re.findall(r"^\| `(\S+)` \| .* \| (\d+) \|$", read("CONTRIBUTING.md"), re.MULTILINE)
    return {room: int(most) for room, most in rows}


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def lines() -> dict[Path, int]:
    return {
        path.relative_to(PACKAGE): len(path.read_text("utf-8").splitlines())
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def test_each_room_has_the_lines_that_the_table_gives_it() -> None:
    found: Counter[str] = Counter()
    for path, count in lines().items():
        found[path.parts[0] if len(path.parts) > 1 else "."] += count
    most = budgets()
    assert found.keys() == most.keys()
    assert {room: count for room, count in found.items() if count > most[room]} == {}


def test_files_are_short() -> None:
    assert {str(path): count for path, count in lines().items() if count > LONGEST} == {}


def test_tests_lie_in_folders() -> None:
    assert [path.name for path in (ROOT / "tests").glob("*.py")] == ["conftest.py"]


def test_no_circle_of_imports() -> None:
    """Imports for type checkers alone included."""
    graph = grimp.build_graph("thunder_fuser")
    imports = nx.DiGraph(
        (module, other)
        for module in graph.modules for other in graph.find_modules_directly_imported_by(module)
    )
    circles = [sorted(one) for one in nx.strongly_connected_components(imports) if len(one) > 1]
    assert circles == []
