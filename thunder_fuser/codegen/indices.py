# SPDX-License-Identifier: Apache-2.0
"""Indices and conditions -> C, with sizes as arguments.

8*i + n1*j  ->  i * 8 + j * size0        i - 4 < 0  ->  i < 4
"""

from __future__ import annotations

from thunder_fuser.codegen.size_parameters import Sizes
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.ir.size_symbols import Sized


class Indices:
    """Prints the indices of one kernel, and collects the sizes they name.

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
        if scalar.op in ("min", "max"):
            sign = "<" if scalar.op == "min" else ">"
            return f"({a} {sign} {b} ? {a} : {b})"
        sign = {"mul": "*", "div": "/", "mod": "%"}[scalar.op]
        return f"{a} {sign} {b}"

    def _division(self, op: str, x: str, d: int) -> str:
        """By a size with a multiplication; of wide indices by the number itself, in the text."""
        if type(d) is not Sized or self._wide:
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

    def _factor(self, part: Scalar) -> str:
        text = self.index(part)
        return text if part.op in ("const", "sym", "min", "max") or _is_call(text) else f"({text})"

    def condition(self, scalar: Scalar) -> str:
        """A predicate in C, sums moved so that both sides read naturally."""
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


def _is_call(text: str) -> bool:
    """True for f(...) and nothing behind it.

    >>> _is_call("index_div(a, b)"), _is_call("index_div(a, b) * 4"), _is_call("(a) + (b)")
    (True, False, False)
    """
    if not text.startswith("index_"):
        return False
    depth = [0]
    for c in text:
        depth.append(depth[-1] + (c == "(") - (c == ")"))
    return text.endswith(")") and depth[1:].index(0, text.index("(")) == len(text) - 1
