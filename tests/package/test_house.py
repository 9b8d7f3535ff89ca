# SPDX-License-Identifier: Apache-2.0
"""The rooms of the package: how long each may be, and that no two files import each other in turn.

CONTRIBUTING.md has the table of the rooms. The numbers only fall: a raise needs a decision in
docs/adr that says what was removed for it.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import grimp
import networkx as nx
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "thunder_fuser"
LONGEST = 500  # lines of a file
FULLEST = 14  # files of a folder


def budgets() -> dict[str, int]:
    """{room: the lines it may have}, as the table says."""
    return {room: most for room, (_, most) in rows_of(read("CONTRIBUTING.md")).items()}


def rows_of(text: str) -> dict[str, tuple[str, int]]:
    """{room: what its row says, and the lines it may have}."""
    rows = re.findall(r"^\| `(\S+)` \| (.*) \| (\d+) \|$", text, re.MULTILINE)
    return {room: (words, int(most)) for room, words, most in rows}


def raised(now: str, before: str) -> list[str]:
    """The rooms of a table that have more lines than before, or are new, and name no decision.

    | `ir` | what a fusion is | 5 |   ->   | `ir` | what a fusion is | 6 |                  raised
    | `ir` | what a fusion is | 5 |   ->   | `ir` | what a fusion is (adr/0030-x.md) | 6 |   not
    """
    old = rows_of(before)
    return [
        room
        for room, (words, most) in rows_of(now).items()
        if most > old.get(room, ("", 0))[1] and not re.search(r"adr/\d{4}-", words)
    ]


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def committed(revision: str) -> str | None:
    """The table at a commit; None without a repository, or if it has no such commit."""
    shown = subprocess.run(
        ["git", "show", f"{revision}:CONTRIBUTING.md"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return shown.stdout if shown.returncode == 0 else None


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


@pytest.mark.parametrize("revision", ["HEAD", "HEAD^"])
def test_no_number_rises_without_a_decision(revision: str) -> None:
    before = committed(revision)
    if before is None:
        pytest.skip(f"no commit {revision} here")
    assert raised(read("CONTRIBUTING.md"), before) == []


def test_what_a_raise_is() -> None:
    def row(words: str, most: int, room: str = "ir") -> str:
        return f"| `{room}` | {words} | {most} |"

    assert raised(row("axes", 6), row("axes", 5)) == ["ir"]
    assert raised(row("axes", 5), row("axes", 5)) == []
    assert raised(row("axes ([why](docs/adr/0030-x.md))", 6), row("axes", 5)) == []
    assert raised(row("axes", 5), row("axes", 5, "lower")) == ["ir"]


def test_folders_hold_few_files() -> None:
    folders = Counter(path.parent.as_posix() for path in lines())
    assert {folder: files for folder, files in folders.items() if files > FULLEST} == {}


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
