# SPDX-License-Identifier: Apache-2.0
"""Checks the bytes of a shared library before the process loads it.

Loading a truncated library kills the process (SIGBUS). So all parts that the headers of a compiled
file name must lie inside the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

SHARED = 3  # e_type ET_DYN
LOADED, DYNAMIC = 1, 2  # p_type
NO_BITS, SYMBOLS = 8, 11  # sh_type
UNDEFINED = 0  # st_shndx


class _Header(NamedTuple):
    order: str  # "<" or ">": the byte order of the file
    type: int
    parts: tuple[int, int, int]  # program headers: position, size of one, count
    sections: tuple[int, int, int]


class _Section(NamedTuple):
    type: int
    start: int
    size: int
    link: int


def problem_of(content: bytes, function: str) -> str:
    """Why the bytes are no complete library with this function; empty if they are."""
    try:
        header = _header(content)
        return _problem(content, header, function.encode())
    except (struct.error, IndexError, OverflowError, ValueError):
        return f"a file of {len(content)} bytes that is no library, or only its beginning"


def _header(content: bytes) -> _Header:
    if content[:5] != b"\x7fELF\x02":
        raise ValueError("not ELF of 64 bits")
    order = {1: "<", 2: ">"}[content[5]] if content[5] in (1, 2) else "="
    kind, _, _, _, part_at, section_at = struct.unpack_from(f"{order}HHIQQQ", content, 16)
    part, parts, section, sections = struct.unpack_from(f"{order}HHHH", content, 54)
    return _Header(order, kind, (part_at, part, parts), (section_at, section, sections))


def _problem(content: bytes, header: _Header, function: bytes) -> str:
    sections = [_Section(*row) for row in _rows(content, header, header.sections, "4xI16xQQI")]
    parts = list(_rows(content, header, header.parts, "I4xQ16xQ"))  # type, start, size
    kinds = {part[0] for part in parts}
    if header.type != SHARED or not {LOADED, DYNAMIC} <= kinds:
        return "an ELF file that is no shared library"
    ends = [start + size for _, start, size in parts]
    ends += [one.start + one.size for one in sections if one.type != NO_BITS]
    if max(ends) > len(content):
        return f"a library that was cut: {len(content)} bytes of {max(ends)}"
    if function not in _defined(content, header, sections):
        return f"a library without the function {function.decode()}"
    return ""


def _rows(
    content: bytes, header: _Header, table: tuple[int, int, int], wanted: str
) -> Iterator[tuple[int, ...]]:
    """The wanted fields of each row of a table; struct.error if a row is outside the file."""
    start, width, count = table
    for at in range(count):
        yield struct.unpack_from(header.order + wanted, content, start + at * width)
    struct.unpack_from(f"{width * count}x", content, start)  # the whole table


def _defined(content: bytes, header: _Header, sections: list[_Section]) -> Iterator[bytes]:
    """The names that the library exports."""
    row = struct.Struct(header.order + "IBBH16x")
    for table in sections:
        if table.type == SYMBOLS:
            names = sections[table.link].start
            for at in range(table.start, table.start + table.size, row.size):
                name, _, _, where = row.unpack_from(content, at)
                if where != UNDEFINED:
                    yield content[names + name : content.index(b"\0", names + name)]
