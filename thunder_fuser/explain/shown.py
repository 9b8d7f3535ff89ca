# SPDX-License-Identifier: Apache-2.0
"""How explain's results print: their base class, tables, source lines, sizes."""

from __future__ import annotations

import html
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import Any

_NUMBER = set("0123456789.e+-")
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


class Shown:
    """A frozen dataclass that prints: a notebook shows its text, `to_dict` gives its fields."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """Its fields as plain JSON types."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]


def plain(value: Any) -> Any:
    """A value as plain JSON types.

    >>> plain((1, {"a": Path("b")}))
    [1, {'a': 'b'}]
    """
    if isinstance(value, Shown):
        return value.to_dict()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def shown_lines(where: str) -> str:
    """The source lines in the first two files, with short paths.

    >>> shown_lines("/a.py:1, /b.py:2, /c.py:3"), shown_lines("/a.py:1, /b.py:2, /c.py:3, /d.py:4")
    ('/a.py:1, /b.py:2 and in 1 more file', '/a.py:1, /b.py:2 and in 2 more files')
    >>> shown_lines(str(Path.cwd() / "models" / "block.py:12-14")).replace("\\\\", "/")
    'models/block.py:12-14'
    """
    first = from_here(where).split(", ")
    more = f" and in {plural(len(first) - 2, 'more file')}" if len(first) > 2 else ""
    return ", ".join(first[:2]) + more


def from_here(text: str) -> str:
    """The text with short paths: from a folder of packages, the current one, or one of imports.

    /venv/lib/python3/site-packages/torch/nn/functional.py:12  ->  torch/nn/functional.py:12
    """
    imported = sorted(filter(os.path.isabs, sys.path), key=len, reverse=True)
    packages = [path for path in imported if path.endswith(("site-packages", "dist-packages"))]
    for folder in dict.fromkeys((*packages, str(Path.cwd()), *imported)):
        if folder != os.sep:  # where a path begins
            text = re.sub(rf"(?<![\w.\-/\\]){re.escape(folder + os.sep)}", "", text)
    return text


def shortened(text: str, most: int = 200) -> str:
    """The first line of a text, cut if it is long: further lines of an error are files and source.

    >>> shortened("one two\\nthree"), shortened("one two  three", 9)
    ('one two', 'one two ...')
    """
    line = " ".join(text.partition("\n")[0].split())
    return line if len(line) <= most else line[:most].rsplit(" ", 1)[0] + " ..."


# --------------------------------------------------------------------------------- tables, sizes


def table(head: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int] = ()) -> str:
    """The rows under their heads, each line indented by two. A column's longest cells are broken
    into lines of its number in `widths`.

    >>> print(table(("name", "n"), [("a", "1"), ("bc", "20")]))
      name   n
      a      1
      bc    20
    >>> print(table(("name", "meaning"), [("a", "more words than one")], (10, 12)))
      name  meaning
      a     more words
            than one
    """
    lines = [line for row in (head, *rows) for line in _lines(row, widths)]
    longest = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = [all(set(row[at]) <= _NUMBER for row in rows) for at in range(len(head))]
    return "\n".join("  " + _line(line, longest, right) for line in lines)


def _lines(row: Sequence[str], widths: Sequence[int]) -> list[Sequence[str]]:
    if not widths:
        return [row]
    cells = (wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True))
    return list(zip_longest(*cells, fillvalue=""))


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if number else cell.ljust(width)
        for cell, width, number in zip(cells, widths, right, strict=True)
    )
    return "  ".join(padded).rstrip()


def kib(count: int) -> str:
    """Bytes in KiB, one decimal.

    >>> kib(1536)
    '1.5'
    """
    return f"{count / 1024:.1f}"


def size_text(count: int) -> str:
    """Bytes in the largest unit of which there is one.

    >>> size_text(100), size_text(1536), size_text(3 << 30)
    ('100 bytes', '1.5 KiB', '3.0 GiB')
    """
    size, unit = size_unit(count)
    return plural(count, "byte") if size == 1 else f"{count / size:.1f} {unit}"


def size_unit(count: int) -> tuple[int, str]:
    """(bytes, name) of the largest unit of which there is one.

    >>> size_unit(1536)
    (1024, 'KiB')
    """
    return next((size, unit) for size, unit in _UNITS if count >= size or size == 1)


def plural(count: int, word: str) -> str:
    """A number of things.

    >>> plural(1, "kernel"), plural(2, "kernel")
    ('1 kernel', '2 kernels')
    """
    return f"{count} {word}{'s' * (count != 1)}"
