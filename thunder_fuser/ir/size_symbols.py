# SPDX-License-Identifier: Apache-2.0
"""Integers that come from the sizes of a call. They compute as ints and keep their origin.

Index arithmetic treats a `Sized` as a number, so simplification does not depend on the origin of a
number. A printer makes it an argument of the kernel instead of a literal in the source:

>>> rows, columns = sized("n0", 96), sized("n1", 768)
>>> 4 * columns, rows * columns // 8, rows * columns + 0 == 73728, columns // 768
(4*n1, n0*n1/8, True, 1)

0 and 1 are plain ints: the source shows axes that are empty or have size 1.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import gcd
from typing import Any

MOST_LANES = 16  # the elements of the widest vector


class Sized(int):
    """An int that is a number times a product of sizes. names: the sizes; base: their product.

    Two with equal values and names are the same kernel argument.
    """

    names: tuple[str, ...]
    base: int

    @property
    def label(self) -> tuple[tuple[str, ...], int, int]:
        """The identity of the number, which differs from a plain number's and another origin's.

        The base is part of it because interned expressions outlive a program: 2*n0 with n0 = 6 is
        not n0 = 12 of another program.
        """
        return self.names, self.base, int(self)

    def __mul__(self, other: int) -> int:
        if isinstance(other, Sized):
            names = tuple(sorted((*self.names, *other.names)))
            return _with_origin(int(self) * int(other), names, self.base * other.base)
        return self if other == 1 else _with_origin(int(self) * other, self.names, self.base)

    def __add__(self, other: int) -> int:
        if other == 0:
            return self
        if isinstance(other, Sized) and self.names == other.names:
            return _with_origin(int(self) + int(other), self.names, self.base)
        return _opaque(int(self) + int(other), self, "+", other)

    def __sub__(self, other: int) -> int:
        return self + -other

    def __rsub__(self, other: int) -> int:
        return -self + other

    def __floordiv__(self, other: int) -> int:
        value, rest = divmod(int(self), int(other))
        if rest:
            return _opaque(value, self, "//", other)
        if isinstance(other, Sized):
            left, taken = Counter(self.names), Counter(other.names)
            if taken - left:
                return _opaque(value, self, "//", other)
            names = tuple(sorted((left - taken).elements()))
            return _with_origin(value, names, self.base // other.base)
        return _with_origin(value, self.names, self.base)

    def __rfloordiv__(self, other: int) -> int:
        return _opaque(other // int(self), other, "//", self)

    def __mod__(self, other: int) -> int:
        return _opaque(int(self) % int(other), self, "%", other)

    def __rmod__(self, other: int) -> int:
        return _opaque(other % int(self), other, "%", self)

    def __neg__(self) -> int:
        return _with_origin(-int(self), self.names, self.base)

    def __abs__(self) -> int:
        return self if self > 0 else -self

    __rmul__ = __mul__
    __radd__ = __add__

    def __repr__(self) -> str:
        share = Fraction(int(self), self.base)
        words = list(self.names)
        if abs(share.numerator) != 1 or not words:
            words.insert(0, str(abs(share.numerator)))
        text = "-" * (share < 0) + "*".join(words)
        return text if share.denominator == 1 else f"{text}/{share.denominator}"

    __str__ = __repr__


def sized(name: str, value: int) -> int:
    """A size of the call; a plain int for 0 and 1."""
    return _with_origin(value, (name,), value)


def greatest_divisor(a: int, b: int) -> int:
    """The greatest common divisor of two numbers. It is `Sized` if it equals one that is.

    If only b is `Sized`, it must also divide MOST_LANES: the source shows few facts about a size.
    """
    if isinstance(b, Sized) and not isinstance(a, Sized):
        return gcd(a, int(b), MOST_LANES)
    divisor = gcd(int(a), int(b))
    return a if divisor == a else (b if divisor == b else divisor)


def _with_origin(value: int, names: tuple[str, ...], base: int) -> int:
    if value in (0, 1) or not names:
        return value
    number = int.__new__(Sized, value)
    number.names, number.base = names, base
    return number


def _opaque(value: int, a: int, sign: str, b: int) -> int:
    """A number that is no product of sizes. Its name is its formula."""
    return _with_origin(value, (f"({a} {sign} {b})",), value)


def label_of(number: Any) -> object:
    """The label of a Sized; None for any other number."""
    return number.label if type(number) is Sized else None
