# SPDX-License-Identifier: Apache-2.0
"""Selects the device functions that a kernel's text calls, as text to put in front of it.

Each fragment is a small file that starts with the names it provides and the fragments it needs:

    // provides: maximum minimum
    // needs: device

`common/` serves both dialects. A name in both `cuda/` and `cpu/` is one function with two bodies.
THUNDER_FUSER_EMULATOR switches off the functions of `cuda/` that need the hardware; the emulator
has its own. No header is included, so NVRTC reads only some hundred lines.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from thunder_fuser.codegen.prelude import libm

_COMMENT = re.compile(r"//[^\n]*")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Fragment:
    """One file of the prelude."""

    name: str
    provides: tuple[str, ...]
    needs: tuple[str, ...]
    text: str


def select(kernel_text: str, dialect: Literal["cuda", "cpu"]) -> str:
    """The fragments whose names occur in the kernel, each after those it needs.

    >>> print(select("x = maximum(a, b);", "cpu"))
    #define DEVICE inline __attribute__((always_inline))
    DEVICE float float_max(float a, float b) { return (a > b) | (a != a) ? a : b; }
    DEVICE float float_min(float a, float b) { return (a < b) | (a != a) ? a : b; }
    // A NaN on either side is the result.
    template <typename T> DEVICE T maximum(T a, T b) { return (a > b) | (a != a) ? a : b; }
    template <typename T> DEVICE T minimum(T a, T b) { return (a < b) | (a != a) ? a : b; }
    DEVICE float maximum(float a, float b) { return float_max(a, b); }
    DEVICE float minimum(float a, float b) { return float_min(a, b); }
    <BLANKLINE>
    """
    body = "".join(fragment(dialect, name).text for name in _closure(kernel_text, dialect))
    if dialect == "cuda":  # the C math functions are built in
        return body
    math = libm.declarations(identifiers(body + kernel_text), vectors=True)
    lanes = fragment("cpu", "lanes").text if "same_lanes" in math else ""
    return lanes + math + body


def identifiers(text: str) -> set[str]:
    """Every identifier of a C text, comments left out."""
    return set(_IDENTIFIER.findall(_COMMENT.sub("", text)))


def fragment(dialect: str, name: str) -> Fragment:
    """A fragment by its name."""
    return _fragments(dialect)[name]


def _closure(kernel_text: str, dialect: str) -> list[str]:
    """Names of the fragments to put in front, in an order that depends only on their names."""
    used = identifiers(kernel_text)
    order: dict[str, None] = {}

    def add(name: str) -> None:
        for needed in fragment(dialect, name).needs:
            add(needed)
        order.setdefault(name)

    for name, candidate in _fragments(dialect).items():
        if not used.isdisjoint(candidate.provides):
            add(name)
    return list(order)


@cache
def _fragments(dialect: str) -> dict[str, Fragment]:
    """All fragments of a dialect by name, sorted."""
    root = files(__name__)
    fragments = [
        _parse(entry.name.removesuffix(".h"), entry.read_text(encoding="utf-8"))
        for folder in ("common", dialect)
        for entry in root.joinpath(folder).iterdir()
        if entry.name.endswith(".h")
    ]
    return {part.name: part for part in sorted(fragments, key=lambda part: part.name)}


def _parse(name: str, text: str) -> Fragment:
    provides, needs, body = text.split("\n", 2)
    return Fragment(
        name,
        tuple(provides.removeprefix("// provides:").split()),
        tuple(needs.removeprefix("// needs:").split()),
        body,
    )
