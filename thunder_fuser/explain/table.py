# SPDX-License-Identifier: Apache-2.0
"""Rows -> text in columns: numbers to the right, words to the left."""

from __future__ import annotations

from collections.abc import Sequence

_NUMBER = set("0123456789.e+-")
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


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
