# SPDX-License-Identifier: Apache-2.0
"""A compiled kernel and its recipe <-> the bytes of one file.

    magic | length of the header, 4 bytes | header, JSON | text, deflated | binary | SHA-256 of all

The header has the fields of the key as text, so that a miss can be explained. Reading an entry
runs no code: it is JSON, bytes and a digest. The digest detects damage and is no signature.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from thunder_fuser.store.library import problem_of

FORMAT = "1"
MAGIC = b"thunder_fuser kernel\n"
ENDING = ".kernel"
DIGEST_BYTES = 32
MOST_TEXT = 16 << 20  # a source that inflates to more is refused
_LENGTH = struct.Struct("<I")


class DamagedError(Exception):
    """Bytes that are no valid entry. The message says why."""


@dataclass(frozen=True)
class Recipe:
    """Everything that a binary depends on.

    kind: cubin, or library (machine code for this process). name: the function. arch: the
    device's, or this machine's with the features of its CPU. toolchain: the exact compiler.
    """

    kind: str
    name: str
    text: str
    arch: str
    flags: tuple[str, ...]
    toolchain: str

    @cached_property
    def fields(self) -> Mapping[str, str]:
        """The fields of the key, with a digest of the source."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "name": self.name,
            "arch": self.arch,
            "flags": " ".join(self.flags),
            "toolchain": self.toolchain,
            "text": sha256(self.text.encode()).hexdigest(),
        }

    @cached_property
    def key(self) -> str:
        """The digest of the fields, which is the name of the file."""
        return key_of(self.fields)


def key_of(fields: Mapping[str, str]) -> str:
    """A digest of the fields: 64 hexadecimal digits."""
    return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


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
        raise DamagedError("it does not begin as an entry does" if content else "it is empty")
    if sha256(body).digest() != digest:
        raise DamagedError("its digest differs")
    try:
        return _parse(body)
    except (ValueError, KeyError, TypeError, struct.error, zlib.error) as error:
        raise DamagedError(f"its header is of another format ({error})") from error


def _parse(body: bytes) -> Entry:
    start = len(MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack(body[len(MAGIC) : start])
    header = json.loads(body[start : start + length])
    fields = {str(name): str(value) for name, value in header["fields"].items()}
    middle = start + length + int(header["bytes"]["text"])
    end = middle + int(header["bytes"]["binary"])
    if end != len(body) or fields["format"] != FORMAT:
        raise ValueError(f"format {fields['format']}, {len(body)} bytes of {end}")
    text = _inflate(body[start + length : middle])
    if sha256(text).hexdigest() != fields["text"]:
        raise ValueError("the text is another one")
    if fields["kind"] == "library" and (problem := problem_of(body[middle:end], fields["name"])):
        raise DamagedError(f"it holds {problem}")
    return Entry(fields, text.decode(), body[middle:end])


def _inflate(content: bytes) -> bytes:
    inflater = zlib.decompressobj()
    text = inflater.decompress(content, MOST_TEXT)
    if not inflater.eof:
        raise ValueError("the text is cut or too long")
    return text
