# SPDX-License-Identifier: Apache-2.0
"""Checks the bytes of a shared library before the process loads it.

Loading a truncated library kills the process (SIGBUS). So all parts that the headers of a compiled
file name must lie inside the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

SHARED = 3  # e_type ET_DYN
LOADED, DYNAMIC = 1, 2  # p_type
NO_BITS, SYMBOLS = 8, 11  # sh_type
UNDEFINED = 0  # st_shndx

Rows = list[tuple[int, ...]]


def problem_of(content: bytes, function: str) -> str:
    """Why the bytes are no complete library with this function; empty if they are."""
    try:
        return _problem(content, function.encode())
    except (struct.error, IndexError, KeyError, OverflowError, ValueError):
        return f"a file of {len(content)} bytes that is no library, or only its beginning"


def _problem(content: bytes, function: bytes) -> str:
    if content[:5] != b"\x7fELF\x02":
        raise ValueError("not ELF of 64 bits")
    order = {1: "<", 2: ">"}[content[5]]
    header = struct.unpack_from(order + "16xH14xQQ6xHHHH", content)
    kind, parts_at, sections_at, _, part_count, _, section_count = header
    parts = _rows(content, order + "I4xQ16xQ16x", parts_at, part_count)  # type, start, size
    # type, start, size, link
    sections = _rows(content, order + "4xI16xQQI20x", sections_at, section_count)
    if kind != SHARED or not {LOADED, DYNAMIC} <= {part[0] for part in parts}:
        return "an ELF file that is no shared library"
    ends = [start + size for _, start, size in parts]
    ends += [start + size for kind, start, size, _ in sections if kind != NO_BITS]
    if max(ends) > len(content):
        return f"a library that was cut: {len(content)} bytes of {max(ends)}"
    if function not in _exported(content, order + "IBBH16x", sections):
        return f"a library without the function {function.decode()}"
    return ""


def _rows(content: bytes, row: str, start: int, count: int) -> Rows:
    """The rows of a table; struct.error if one is outside the file."""
    width = struct.calcsize(row)
    return [struct.unpack_from(row, content, start + at * width) for at in range(count)]


def _exported(content: bytes, row: str, sections: Rows) -> Iterator[bytes]:
    """The names that the library exports."""
    for kind, start, size, link in sections:
        if kind == SYMBOLS:
            names = sections[link][1]
            for name, _, _, where in _rows(content, row, start, size // struct.calcsize(row)):
                if where != UNDEFINED:
                    yield content[names + name : content.index(b"\0", names + name)]
