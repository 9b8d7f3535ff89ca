# SPDX-License-Identifier: Apache-2.0
"""The rooms of the package: how long each may be.

CONTRIBUTING.md has the table of the rooms. A capability that needs more lines raises the number of
its room there, on purpose and in its own commit.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
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
