# SPDX-License-Identifier: Apache-2.0
"""Rows -> text in columns: numbers to the right, words to the left."""

from __future__ import annotations

from collections.abc import Sequence

_NUMBER = set("0123456789.e+-")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows under their heads, each line indented by two.

    >>> print(table(("name", "n"), [("a", "1"), ("bc", "20")]))
      name   n
      a      1
      bc    20
    """
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = [all(_is_number(row[at]) for row in rows) for at in range(len(head))]
    return "\n".join("  " + _line(line, widths, right) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if number else cell.ljust(width)
        for cell, width, number in zip(cells, widths, right, strict=True)
    )
    return "  ".join(padded).rstrip()


def _is_number(cell: str) -> bool:
    return not cell or set(cell) <= _NUMBER


def kib(count: int) -> str:
    """Bytes in KiB, one decimal.

    >>> kib(1536)
    '1.5'
    """
    return f"{count / 1024:.1f}"
