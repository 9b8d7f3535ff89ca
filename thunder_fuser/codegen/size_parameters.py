# SPDX-License-Identifier: Apache-2.0
"""The sizes that a kernel's text leaves open: its last arguments, which a launch passes.

    i0_o * 4096   4096 is a size (ir/size_symbols.py)  ->  i0_o * size0, and 4096 at the launch
    i0_o / 768                                          ->  index_div(i0_o, divisor1)

So calls of other sizes run the same text, which is what compiled kernels are found by.
"""

from __future__ import annotations

from thunder_fuser.ir.size_symbols import Sized


class Sizes:
    """Names of the sizes in a text, in the order in which they are met, and their values."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self._names: dict[tuple[str, object], str] = {}

    def number(self, value: int) -> str:
        """A number as it stands in a text."""
        if type(value) is not Sized:
            return str(value)
        return self._name("size", value.label, int(value))

    def divisor(self, value: int) -> str:
        """The argument that index_div and index_mod divide by a size with."""
        assert type(value) is Sized
        return self._name("divisor", value.label, division_by(int(value)))

    def _name(self, kind: str, label: object, value: int) -> str:
        name = self._names.setdefault((kind, label), f"{kind}{len(self.values)}")
        self.values[name] = value
        return name


def division_by(d: int) -> int:
    """A multiplier and, below it, a shift: x // d == (x * multiplier >> 32) >> shift, x < 2^31.

    With 2^s >= d: multiplier = ceil(2^(31+s) / d) is off by less than 1/2^(31+s) of x < 2^31, so
    the quotient by less than 1/d. As an int64.

    >>> by = division_by(768) % 2**64
    >>> [(x * (by >> 32) >> 32) >> by % 2**32 for x in (0, 767, 768, 2**31 - 1)]
    [0, 0, 1, 2796202]
    """
    s = (d - 1).bit_length()
    packed = -(-(1 << 31 + s) // d) << 32 | s - 1
    return packed - (1 << 64) if packed >= 1 << 63 else packed
