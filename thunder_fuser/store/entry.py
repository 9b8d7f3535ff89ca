# SPDX-License-Identifier: Apache-2.0
"""A compiled kernel and its recipe <-> the bytes of one file.

    magic | length of the header, 4 bytes | header, JSON | text, deflated | binary | SHA-256 of all

The header has the fields of the key as text, so that a miss can be explained. To read an entry runs
no code: it is JSON, bytes and a digest. The digest detects damage, but is no signature.

The kernel's name is not part of the key. Sources that differ only in the name share the first one's
binary, in which the function has the first one's name.

Loading a truncated library kills the process (SIGBUS). So a library is only accepted if all parts
that its ELF headers name lie inside the file.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from thunder_fuser.base.threads import cached_property

FORMAT = "2"
MAGIC = b"thunder_fuser kernel\n"
ENDING = ".kernel"
DIGEST_BYTES = 32
MOST_TEXT = 16 << 20  # a source that inflates to more is refused
RUN_HERE = ("library", "plan")  # kinds that are code of the user's process, or lead to it
_LENGTH = struct.Struct("<I")


class DamagedError(Exception):
    """Bytes that are no valid entry. The message says why."""


class Binary(NamedTuple):
    """Compiled code, and the kernel's name in it."""

    name: str
    code: bytes


@dataclass(frozen=True)
class Recipe:
    """Everything on which a binary depends.

    kind: cubin, library (machine code for this process), or plan (cache/computed.py). name: the
    function. arch: the device's, or this machine's with its CPU's features. toolchain: the exact
    compiler.
    """

    kind: str
    name: str
    text: str
    arch: str
    flags: tuple[str, ...]
    toolchain: str

    @cached_property
    def fields(self) -> Mapping[str, str]:
        """The fields of the key, with a digest of the source, and the name."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "name": self.name,
            "arch": self.arch,
            "flags": " ".join(self.flags),
            "toolchain": self.toolchain,
            "text": _digest(self.text, self.name),
        }

    @cached_property
    def key(self) -> str:
        """The digest of the fields, which is the name of the file."""
        return key_of(self.fields)


def key_of(fields: Mapping[str, str]) -> str:
    """A digest of the fields without the name: 64 hexadecimal digits."""
    known = {field: value for field, value in fields.items() if field != "name"}
    return sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _digest(text: str, name: str) -> str:
    """The digest of a source. It is equal if sources differ only in the function's name."""
    anonymous = re.sub(rf"\b{re.escape(name)}\b", "@", text)  # which no source contains
    return sha256(anonymous.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """The content of a file."""

    fields: Mapping[str, str]
    text: str
    binary: bytes


def encode(recipe: Recipe, binary: bytes) -> bytes:
    """The bytes of an entry."""
    text = zlib.compress(recipe.text.encode(), 1)
    sizes = {"text": len(text), "binary": len(binary)}
    header = json.dumps({"fields": recipe.fields, "bytes": sizes}).encode()
    body = b"".join([MAGIC, _LENGTH.pack(len(header)), header, text, binary])
    return body + sha256(body).digest()


def decode(content: bytes) -> Entry:
    """The entry; DamagedError if any bit has changed."""
    body, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
    if not body.startswith(MAGIC):
        raise DamagedError("it is no file of the store" if content else "it is empty")
    if sha256(body).digest() != digest:
        raise DamagedError("its bytes differ from its checksum")
    try:
        return _parse(body)
    except (ValueError, KeyError, TypeError, struct.error, zlib.error) as error:
        raise DamagedError(f"another version wrote it ({error})") from error


def decode_named(name: str, content: bytes) -> Entry:
    """The entry of a file; DamagedError also if the file's name does not fit its content."""
    entry = decode(content)
    if key_of(entry.fields) + ENDING != name:
        raise DamagedError("it holds another kernel than its name says")
    return entry


def _parse(body: bytes) -> Entry:
    start = len(MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack(body[len(MAGIC) : start])
    header = json.loads(body[start : start + length])
    fields = {str(name): str(value) for name, value in header["fields"].items()}
    middle = start + length + int(header["bytes"]["text"])
    end = middle + int(header["bytes"]["binary"])
    if end != len(body) or fields["format"] != FORMAT:
        raise ValueError(f"format {fields['format']}, {len(body)} bytes of {end}")
    text = _inflate(body[start + length : middle]).decode()
    if _digest(text, fields["name"]) != fields["text"]:
        raise ValueError("the text is another one")
    if fields["kind"] == "library" and (problem := problem_of(body[middle:end], fields["name"])):
        raise DamagedError(f"it holds {problem}")
    return Entry(fields, text, body[middle:end])


def _inflate(content: bytes) -> bytes:
    inflater = zlib.decompressobj()
    text = inflater.decompress(content, MOST_TEXT)
    if not inflater.eof:
        raise ValueError("the text is cut or too long")
    return text


# ---- shared libraries

SHARED = 3  # e_type ET_DYN
LOADED, DYNAMIC = 1, 2  # p_type
NO_BITS, SYMBOLS = 8, 11  # sh_type
UNDEFINED = 0  # st_shndx

IntRows = list[tuple[int, ...]]


def problem_of(content: bytes, function: str) -> str:
    """Why the bytes are not a complete library with this function; empty if they are."""
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


def _rows(content: bytes, row: str, start: int, count: int) -> IntRows:
    """The rows of a table; struct.error if one is outside the file."""
    width = struct.calcsize(row)
    return [struct.unpack_from(row, content, start + at * width) for at in range(count)]


def _exported(content: bytes, row: str, sections: IntRows) -> Iterator[bytes]:
    """The names that the library exports."""
    for kind, start, size, link in sections:
        if kind == SYMBOLS:
            names = sections[link][1]
            for name, _, _, where in _rows(content, row, start, size // struct.calcsize(row)):
                if where != UNDEFINED:
                    yield content[names + name : content.index(b"\0", names + name)]
