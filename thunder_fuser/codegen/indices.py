# SPDX-License-Identifier: Apache-2.0
"""Indices and conditions -> C, with sizes as arguments.

8*i + n1*j  ->  i * 8 + j * size0        i - 4 < 0  ->  i < 4

Sizes (ir/size_symbols.py) are the kernel's last arguments, which a launch passes. So calls with
other sizes have the same text, and find the same compiled kernel by it:

    i0_o * 4096   4096 is a size   ->  i0_o * size0, and 4096 at the launch
    i0_o / 768                     ->  index_div(i0_o, divisor1)
"""

from __future__ import annotations

from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.ir.size_symbols import Sized


class Indices:
    """Prints the indices of one kernel, and collects the sizes in them.

    wide: whether indices have 64 bits.
    """

    def __init__(self, wide: bool) -> None:
        self._wide = wide
        self.sizes = Sizes()

    def index(self, scalar: Scalar) -> str:
        """An index expression in C. Values are never negative where they are used."""
        if scalar.op == "const":
            return self.sizes.number(scalar.value)
        if scalar.op == "sym":
            return scalar.text
        if scalar.op == "sum":
            return self._sum(scalar)
        if scalar.op in ("div", "mod") and scalar.parts[1].is_const:
            return self._division(scalar.op, self._factor(scalar.parts[0]), scalar.parts[1].value)
        a, b = (self._factor(part) for part in scalar.parts)
        if scalar.op == "min":
            return f"({a} < {b} ? {a} : {b})"
        sign = {"mul": "*", "div": "/", "mod": "%"}[scalar.op]
        return f"{a} {sign} {b}"

    def _division(self, op: str, x: str, d: int) -> str:
        """Division by a size: a multiplication. Wide indices are divided by a constant instead."""
        if not isinstance(d, Sized) or self._wide:
            return f"{x} {'/' if op == 'div' else '%'} {int(d)}"
        if op == "div":
            return f"index_div({x}, {self.sizes.divisor(d)})"
        return f"index_mod({x}, {self.sizes.number(d)}, {self.sizes.divisor(d)})"

    def _sum(self, scalar: Scalar) -> str:
        terms, constant = scalar.terms
        words = [self._term(a, c) for a, c in terms]
        if constant:
            words.append(self._signed(constant))
        return " + ".join(words).replace("+ -", "- ")

    def _term(self, atom: Scalar, factor: int) -> str:
        text = self._factor(atom)
        return text if factor == 1 else f"{text} * {self._signed(factor)}"

    def _signed(self, number: int) -> str:
        return f"-{self.sizes.number(-number)}" if number < 0 else self.sizes.number(number)

    def _is_call(self, part: Scalar) -> bool:
        """True if a division is printed as a call of index_div or index_mod."""
        divides = part.op in ("div", "mod") and part.parts[1].is_const
        return divides and not part.parts[1].is_known and not self._wide

    def _factor(self, part: Scalar) -> str:
        text = self.index(part)
        return text if part.op in ("const", "sym", "min") or self._is_call(part) else f"({text})"

    def condition(self, scalar: Scalar) -> str:
        """A predicate in C, with negative terms moved to the other side."""
        if scalar.op == "and":
            return " && ".join(self._conjunct(part) for part in scalar.parts)
        if scalar.op == "const":
            return "true" if scalar.value else "false"
        below = scalar.parts[0]
        if below.op == "min":  # min(a, b) < 0
            return " || ".join(self.condition(part.lt(0)) for part in below.parts)
        terms, constant = below.terms
        left = [(a, c) for a, c in terms if c > 0]
        right = [(a, -c) for a, c in terms if c < 0]
        return f"{self._side(left, max(constant, 0))} < {self._side(right, max(-constant, 0))}"

    def _conjunct(self, scalar: Scalar) -> str:
        text = self.condition(scalar)
        return f"({text})" if "||" in text else text

    def _side(self, terms: list[tuple[Scalar, int]], constant: int) -> str:
        total = const(constant)
        for atom, factor in terms:
            total = total + atom * factor
        return self.index(total)


class Sizes:
    """Names of the sizes in a text, in their order of use, and their values."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self._names: dict[tuple[str, object], str] = {}

    def number(self, value: int) -> str:
        """A number in the text: the name of a size's argument, or a constant."""
        if type(value) is not Sized:
            return str(value)
        return self._name("size", value.label, int(value))

    def divisor(self, value: int) -> str:
        """The name of the argument with which index_div and index_mod divide by a size."""
        assert type(value) is Sized
        return self._name("divisor", value.label, division_by(int(value)))

    def _name(self, kind: str, label: object, value: int) -> str:
        name = self._names.setdefault((kind, label), f"{kind}{len(self.values)}")
        self.values[name] = value
        return name


def division_by(d: int) -> int:
    """A multiplier in the upper 32 bits of an int64, and a shift in the lower ones.

    x // d == (x * multiplier >> 32) >> shift for x < 2^31. With 2^s >= d, the multiplier
    ceil(2^(31+s) / d) makes the quotient too large by less than x / 2^(31+s), which is less than
    1/d.

    >>> by = division_by(768) % 2**64
    >>> [(x * (by >> 32) >> 32) >> by % 2**32 for x in (0, 767, 768, 2**31 - 1)]
    [0, 0, 1, 2796202]
    """
    s = (d - 1).bit_length()
    packed = -(-(1 << 31 + s) // d) << 32 | s - 1
    return packed - (1 << 64) if packed >= 1 << 63 else packed
