# SPDX-License-Identifier: Apache-2.0
"""Decides by index expressions which accesses can be one wide access.

offset 8*i + v, v in [0, 8), address aligned to 16 bytes    ->  8 elements at once
offset 100*i + v                                            ->  4 at once (100 = 4 * 25)
"""

from __future__ import annotations

from thunder_fuser.ir.scalar import Scalar, divides

MAX_BYTES = 16


def is_vector(
    position: Scalar, condition: Scalar, lane: Scalar, width: int, *, itemsize: int, alignment: int
) -> bool:
    """True if elements position(lane=0..width-1) are adjacent, at an aligned address.

    alignment: bytes known to divide the tensor's address.
    """
    if width == 1 or lane.is_const or lane.symbols & condition.symbols:
        return False
    base = position - lane
    if base.symbols & lane.symbols:
        return False
    need = min(MAX_BYTES, width * itemsize)
    return alignment % need == 0 and divides(width, base)


def is_linear(position: Scalar, name: str) -> bool:
    """True if the symbol occurs only as a plain term or not at all."""
    return all(a.op == "sym" or name not in a.symbols for a, _ in position.terms[0])


def coefficient(position: Scalar, name: str) -> int:
    """The factor of a symbol that occurs as a plain term; 0 if it does not."""
    return next((c for a, c in position.terms[0] if a.op == "sym" and a.args[0] == name), 0)
