# SPDX-License-Identifier: Apache-2.0
"""The base class of explain's results: they print, and they become plain data."""

from __future__ import annotations

import html
import os
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from thunder_fuser.explain.table import plural


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
    >>> shown_lines(str(Path.cwd() / "models" / "block.py:12-14")).replace("\\", "/")
    'models/block.py:12-14'
    """
    first = from_here(where).split(", ")
    more = f" and in {plural(len(first) - 2, 'more file')}" if len(first) > 2 else ""
    return ", ".join(first[:2]) + more


def from_here(text: str) -> str:
    """The text with short paths: from a folder of packages, the current one, or one of imports.

    /usr/lib/python3/site-packages/torch/nn/modules/linear.py:134  ->  torch/nn/modules/linear.py:134
    """
    imported = sorted(filter(os.path.isabs, sys.path), key=len, reverse=True)
    packages = [path for path in imported if path.endswith(("site-packages", "dist-packages"))]
    for folder in dict.fromkeys((*packages, str(Path.cwd()), *imported)):
        if folder != os.sep:
            text = text.replace(f"{folder}{os.sep}", "")
    return text


def shortened(text: str, most: int = 200) -> str:
    """The first line of a text, cut if it is long: further lines of an error are files and source.

    >>> shortened("one two\\nthree"), shortened("one two  three", 9)
    ('one two', 'one two ...')
    """
    line = " ".join(text.partition("\n")[0].split())
    return line if len(line) <= most else line[:most].rsplit(" ", 1)[0] + " ..."
