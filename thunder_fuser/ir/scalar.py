# SPDX-License-Identifier: Apache-2.0
"""Integer expressions: extents, indices and predicates, simplified as they are built.

A `Scalar` is interned: equal expressions are one object, so `==` is identity and a hash is cheap
although expressions share parts. Every Scalar has inclusive bounds and is stored as a linear form
over atoms, which division and remainder use:

>>> i, v = symbol("i", 0, 99), symbol("v", 0, 7)
>>> (i * 8 + v) // 8, (i * 8 + v) % 8, (i * 8 + v) // 64
(i, v, i // 8)
>>> (i // 5) * 20 + (i % 5) * 4, (i // 5 % 3) * 20 + (i % 5) * 4, (i * 8 + v).lt(800)
(4*i, 4*(i % 15), 1)
>>> (i // 5 + v * 3) // 4
(i + 15*v) // 20

A number that comes from the sizes of a call (ir/size_symbols.py) is a constant too. It is not the
plain constant of the same value.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union

from thunder_fuser.base.threads import cached_property, make_lock
from thunder_fuser.ir.size_symbols import Sized, greatest_divisor, label_of

Terms = tuple[tuple["Scalar", int], ...]
ScalarLike = Union["Scalar", int]

_TABLE: weakref.WeakValueDictionary[tuple[object, ...], Scalar] = weakref.WeakValueDictionary()
_LOCK = make_lock()


class Scalar:
    """One interned integer expression.

    op is one of: const (args: value), sym (args: name), sum (args: terms, constant),
    mul, div, mod, min (args: two Scalars), and (args: predicates), lt (args: x, for x < 0),
    element (args: a tensor's name, size, condition, index: see `element`).
    """

    __slots__ = ("__dict__", "__weakref__", "args", "hi", "lo", "op")

    op: str
    args: tuple[object, ...]
    lo: float
    hi: float

    def __add__(self, other: ScalarLike) -> Scalar:
        return _sum([(self, 1), (wrap(other), 1)])

    def __sub__(self, other: ScalarLike) -> Scalar:
        return _sum([(self, 1), (wrap(other), -1)])

    def __mul__(self, other: ScalarLike) -> Scalar:
        return _mul(self, wrap(other))

    def __floordiv__(self, other: ScalarLike) -> Scalar:
        return _div(self, wrap(other))

    def __mod__(self, other: ScalarLike) -> Scalar:
        return _mod(self, wrap(other))

    def lt(self, other: ScalarLike) -> Scalar:
        """1 where self < other, else 0."""
        return _negative(self - other)

    @property
    def is_const(self) -> bool:
        return self.op == "const"

    @property
    def is_known(self) -> bool:
        """True for a number that a kernel's text may show: not one from the sizes of a call."""
        return self.op == "const" and type(self.args[0]) is not Sized

    @property
    def value(self) -> int:
        """The value of a constant; ValueError for anything else."""
        if self.op != "const":
            raise ValueError(f"{self} is not a constant")
        return self.args[0]  # type: ignore[return-value]

    @cached_property
    def terms(self) -> tuple[Terms, int]:
        """The linear form: ((atom, coefficient), ...) and the constant."""
        if self.op == "sum":
            return self.args  # type: ignore[return-value]
        return ((), self.value) if self.is_const else (((self, 1),), 0)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names of all symbols in the expression."""
        if self.op == "sym":
            return frozenset([str(self.args[0])])
        return frozenset().union(*(part.symbols for part in self.parts))

    @cached_property
    def elements(self) -> frozenset[Scalar]:
        """The outermost elements of tensors in the expression."""
        if self.op == "element":
            return frozenset([self])
        return frozenset().union(*(part.elements for part in self.parts))

    @property
    def parts(self) -> tuple[Scalar, ...]:
        """The Scalars directly below this one."""
        if self.op == "sum":
            return tuple(atom for atom, _ in self.terms[0])
        return tuple(arg for arg in self.args if isinstance(arg, Scalar))

    def substitute(self, values: Mapping[str, ScalarLike]) -> Scalar:
        """The same expression with symbols replaced, simplified again."""
        return _substitute(self, values, {})

    def with_elements(self, names: Mapping[Scalar, Scalar]) -> Scalar:
        """The same expression with elements replaced, simplified again."""
        return _substitute(self, {}, dict(names)) if self.elements else self

    @property
    def plain(self) -> Scalar:
        """The expression with numbers in place of the sizes of a call: 2 - i, not n - 1 - i."""
        if self.op == "const":
            return const(int(self.value))
        if self.op == "sum":
            terms, constant = self.terms
            return _sum([(atom.plain, int(c)) for atom, c in terms]) + int(constant)
        parts = [part.plain for part in self.parts]
        if self.op == "element":
            name, size = self.args[:2]
            return element(str(name), int(size), parts[0], parts[1:])  # type: ignore[call-overload]
        return _BUILD[self.op](*parts) if parts else self

    @cached_property
    def tree_size(self) -> int:
        """The number of nodes, counting a shared one at each occurrence."""
        return 1 + sum(part.tree_size for part in self.parts)

    @cached_property
    def sort_key(self) -> str:
        """The sort key of operands: the text, or a digest if the text is too long."""
        if self.tree_size <= _LONGEST_SORTED_TEXT:
            return self.text
        args = self.args if self.op != "sum" else [*itertools.chain(*self.terms[0]), self.terms[1]]
        keys = [arg.sort_key if isinstance(arg, Scalar) else arg for arg in args]
        return "~" + hashlib.blake2b(repr((self.op, keys)).encode(), digest_size=16).hexdigest()

    @cached_property
    def text(self) -> str:
        """The expression as Python."""
        if self.op in ("const", "sym"):
            return str(self.args[0])
        if self.op == "sum":
            return _sum_text(*self.terms)
        if self.op == "min":
            return f"min({self.parts[0]}, {self.parts[1]})"
        if self.op == "lt":
            return f"{self.parts[0]} < 0"
        if self.op == "element":
            return f"{self.args[0]}[{', '.join(part.text for part in self.parts[1:])}]"
        symbol_of = {"mul": " * ", "div": " // ", "mod": " % ", "and": " and "}
        return symbol_of[self.op].join(_wrapped(part) for part in self.parts)

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[object, ...]:  # a copy, also in another process, is interned
        return restored, (self.op, self.args, self.lo, self.hi)


# Because parts are shared, the text may be 2**depth times as long as the expression in memory.
_LONGEST_SORTED_TEXT = 200


def _substitute(x: Scalar, values: Mapping[str, ScalarLike], known: dict[Scalar, Scalar]) -> Scalar:
    """`known` maps expressions to results, so that shared parts are substituted once."""
    if x in known:
        return known[x]
    if not (x.symbols & values.keys() or x.elements & known.keys()):
        new = x
    elif x.op == "sym":
        new = wrap(values[str(x.args[0])])
    elif x.op == "sum":
        terms, constant = x.terms
        new = _sum([(_substitute(atom, values, known), c) for atom, c in terms]) + constant
    elif x.op == "element":
        condition, *index = (_substitute(part, values, known) for part in x.parts)
        new = element(str(x.args[0]), x.args[1], condition, index)  # type: ignore[arg-type]
    else:
        new = _BUILD[x.op](*(_substitute(part, values, known) for part in x.parts))
    known[x] = new
    return new


def _wrapped(part: Scalar) -> str:
    return part.text if part.op in ("const", "sym", "min", "element") else f"({part.text})"


def _sum_text(terms: Terms, constant: int) -> str:
    words = [_wrapped(a) if c == 1 and len(terms) > 1 else _term_text(a, c) for a, c in terms]
    if constant or not words:
        words.append(str(constant))
    return " + ".join(words).replace("+ -", "- ")


def _term_text(atom: Scalar, coefficient: int) -> str:
    if coefficient == 1:
        return _wrapped(atom) if atom.op in ("lt", "and") else atom.text
    return f"{coefficient}*{_wrapped(atom)}"


def _intern(
    op: str, args: tuple[object, ...], lo: float, hi: float, labels: tuple[object, ...] = ()
) -> Scalar:
    """labels: those of the numbers in args."""
    key = (op, args, lo, hi) if op == "sym" else (op, args, labels)
    with _LOCK:
        node = _TABLE.get(key)
        if node is None:
            node = object.__new__(Scalar)
            node.op, node.args, node.lo, node.hi = op, args, lo, hi
            _TABLE[key] = node
        return node


def restored(op: str, args: tuple[Any, ...], lo: float, hi: float) -> Scalar:
    numbers = [*(c for _, c in args[0]), args[1]] if op == "sum" else args
    labels = [label_of(n) for n in numbers if isinstance(n, int)]
    return _intern(op, args, lo, hi, tuple(labels))


def const(value: int) -> Scalar:
    """An integer constant."""
    plain = int(value)
    label = label_of(value)
    return _intern("const", (value if label else plain,), plain, plain, (label,))


def symbol(name: str, lo: float = -math.inf, hi: float = math.inf) -> Scalar:
    """A named integer between lo and hi, both inclusive."""
    return _intern("sym", (name,), _plain(lo), _plain(hi))


def _plain(bound: float) -> float:
    return int(bound) if type(bound) is Sized else bound


def element(name: str, size: int, condition: Scalar, index: Iterable[Scalar]) -> Scalar:
    """The element of an integer tensor at an index, under a condition. Bounds: 0 and size - 1.

    Its symbols are those of its index, so that a position depends on them.

    >>> x = element("T1", 50, const(1), [symbol("i", 0, 7)])
    >>> x * 64 + 3, (x * 64) // 64, sorted(x.symbols), x.lt(50)
    (64*T1[i] + 3, T1[i], ['i'], 1)
    """
    args = (name, size, condition, *index)
    return _intern("element", args, 0, int(size) - 1, (label_of(size),))


def wrap(value: ScalarLike) -> Scalar:
    """A Scalar as it is; an int as a constant."""
    return value if isinstance(value, Scalar) else const(value)


def product(values: Iterable[ScalarLike]) -> Scalar:
    """The product of all values; 1 for none."""
    return math.prod(map(wrap, values), start=const(1))


def ceil_div(a: ScalarLike, b: ScalarLike) -> Scalar:
    """a / b rounded up."""
    a, b = wrap(a), wrap(b)
    if a.is_const and b.is_const:
        return const(-(-a.value // b.value))
    return (a + b - 1) // b


def minimum(a: ScalarLike, b: ScalarLike) -> Scalar:
    """The smaller of two, simplified if the bounds decide."""
    a, b = wrap(a), wrap(b)
    if a is b or a.hi <= b.lo:
        return a
    if b.hi <= a.lo:
        return b
    return _intern("min", (a, b), min(a.lo, b.lo), min(a.hi, b.hi))


def conjunction(predicates: Iterable[Scalar]) -> Scalar:
    """True if all predicates are. True ones are dropped; a false one makes the result false.

    >>> i = symbol("i", 0, 9)
    >>> conjunction([i.lt(10), i.lt(5)]), conjunction([])
    (i - 5 < 0, 1)
    """
    seen: dict[Scalar, None] = {}
    for predicate in predicates:
        seen.update(dict.fromkeys(predicate.parts if predicate.op == "and" else (predicate,)))
    if const(0) in seen:
        return const(0)
    seen.pop(const(1), None)
    rest = sorted(seen, key=lambda p: p.sort_key)
    if len(rest) < 2:
        return rest[0] if rest else const(1)
    return _intern("and", tuple(rest), 0, 1)


def divides(divisor: int, value: Scalar) -> bool:
    """True if every value of the expression is a multiple of divisor.

    >>> divides(4, symbol("i") * 8 + 4), divides(4, symbol("i") * 2)
    (True, False)
    >>> divides(8, symbol("i") * 17 - symbol("i") % 8)
    True
    """
    for atom, factor in value.terms[0]:
        if atom.op == "mod" and atom.parts[1].is_const:
            whole, by = atom.parts[0], atom.parts[1].value
            if factor * by % divisor == 0:  # factor * (whole % by) differs by multiples of it
                value = value + (whole - atom) * factor
    return value % divisor is const(0)


def _sum(parts: list[tuple[Scalar, int]]) -> Scalar:
    """Adds coefficient * part over all parts, merging equal atoms."""
    atoms: dict[Scalar, int] = {}
    constant = 0
    for part, factor in parts:
        terms, c = part.terms
        constant += c * factor
        for atom, coefficient in terms:
            atoms[atom] = atoms.get(atom, 0) + coefficient * factor
    atoms = {a: c for a, c in atoms.items() if c}
    joined = _rejoin(atoms)
    if joined is not None:
        return joined + constant
    return _linear(atoms, constant)


def _linear(atoms: dict[Scalar, int], constant: int) -> Scalar:
    if not atoms:
        return const(constant)
    if constant == 0 and len(atoms) == 1 and next(iter(atoms.values())) == 1:
        return next(iter(atoms))
    terms = tuple(sorted(atoms.items(), key=lambda t: t[0].sort_key))
    numbers = [(atom, int(c)) for atom, c in terms]
    lo = int(constant) + sum((a.lo if c > 0 else a.hi) * c for a, c in numbers)
    hi = int(constant) + sum((a.hi if c > 0 else a.lo) * c for a, c in numbers)
    labels = [label_of(c) for _, c in terms]
    return _intern("sum", (terms, constant), lo, hi, (*labels, label_of(constant)))


def _rejoin(atoms: dict[Scalar, int]) -> Scalar | None:
    """(x // k) * (k * c) + (x % k) * c + rest -> x * c + rest; None if nothing matches.

    (x // k % n) * (k * c) + (x % k) * c + rest -> (x % (k * n)) * c + rest
    (x % (k * n) // k) * (k * c) + (x % k) * c + rest -> (x % (k * n)) * c + rest
    """
    for atom, c in atoms.items():
        if atom.op != "mod" or not atom.parts[1].is_const:
            continue
        (x, by), k = atom.parts, atom.parts[1].value
        (terms, _) = (quotient := x // by).terms
        if len(terms) != 1 or terms[0][1] != 1:
            continue
        for other, f in atoms.items():
            whole = _rejoined(x, by, quotient, other) if int(f) == int(c) * int(k) else None
            if whole is not None:
                rest = {a: g for a, g in atoms.items() if a not in (atom, other)}
                return _sum([(whole, c), *rest.items()])
    return None


def _rejoined(x: Scalar, by: Scalar, quotient: Scalar, other: Scalar) -> Scalar | None:
    """other * by + x % by, where other is x // by, or (x // by + more) % n; else None.

    Also where other is z // by and z % by is x % by: then the whole is z.
    """
    if other is quotient:
        return x
    if other.op == "div" and other.parts[1] is by and other.parts[0] % by is x % by:
        return other.parts[0]
    if other.op != "mod" or not other.parts[1].is_const:
        return None
    more, n = other.parts[0] - quotient, other.parts[1]
    return None if any(a is quotient for a, _ in more.terms[0]) else (x + more * by) % (by * n)


def _mul(a: Scalar, b: Scalar) -> Scalar:
    if a.is_const or b.is_const:
        factor, other = (a, b) if a.is_const else (b, a)
        return _sum([(other, factor.value)])
    (first, second) = sorted((a, b), key=lambda s: s.sort_key)
    corners = [0 if 0 in (x, y) else x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return _intern("mul", (first, second), min(corners), max(corners))


def _split_multiples(x: Scalar, factor: int) -> tuple[Scalar, Scalar]:
    """x -> (q, r) with x == factor * q + r, where r has the terms that are no plain multiples."""
    terms, constant = x.terms
    by = int(factor)
    q = _linear({a: c // factor for a, c in terms if int(c) % by == 0}, constant // factor)
    r = _linear({a: c for a, c in terms if int(c) % by}, constant % factor)
    return q, r


def _coarse(x: Scalar, modulus: int) -> tuple[int, Scalar, Scalar] | None:
    """x -> (g, big, small) with x == g * big + small, 1 < g | modulus, 0 <= small < g."""
    divisors = {greatest_divisor(abs(c), modulus) for _, c in x.terms[0]}
    for g in sorted(divisors - {1}, reverse=True):
        big, small = _split_multiples(x, g)
        if 0 <= small.lo and small.hi < g:
            return g, big, small
    return None


def _divided(x: Scalar, d: int) -> tuple[Scalar, Scalar]:
    """x -> (q, r) with x == d * q + r, and r >= 0, because C rounds a negative quotient up.

    11 - 3*i - j by 4:  (2, 3 - 3*i - j)  ->  (0, 11 - 3*i - j)
    """
    if d <= 0:
        raise ZeroDivisionError(f"{x} divided by {d}")
    quotient, rest = _split_multiples(x, d)
    if rest.lo >= 0 or math.isinf(rest.lo):
        return quotient, rest
    k = int(rest.lo // int(d))
    return quotient + k, rest - k * d


def _div(x: Scalar, y: Scalar) -> Scalar:
    if not y.is_const:
        return const(0) if 0 <= x.lo and x.hi < y.lo else _raw_div(x, y)
    d = y.value
    quotient, rest = _divided(x, d)
    if 0 <= rest.lo and rest.hi < d:
        return quotient
    coarse = _coarse(rest, d)
    if coarse is not None:
        return quotient + coarse[1] // (d // coarse[0])
    inner = [a for a, c in rest.terms[0] if a.op == "div" and c == 1 and a.parts[1].is_const]
    if len(inner) == 1:  # (x // k + more) // d -> (x + k * more) // (k * d)
        (x, by), more = inner[0].parts, rest - inner[0]
        return quotient + (x + more * by) // (by * d)
    return quotient + _raw_div(rest, y)


def _raw_div(x: Scalar, y: Scalar) -> Scalar:
    bounds = [_floor(a, b) for a in (x.lo, x.hi) for b in (max(y.lo, 1), y.hi)]
    return _intern("div", (x, y), min(bounds), max(bounds))


def _floor(a: float, b: float) -> float:
    if math.isinf(a):
        return a
    return (-1 if a < 0 else 0) if math.isinf(b) else a // b


def _mod(x: Scalar, y: Scalar) -> Scalar:
    if not y.is_const:
        return x if 0 <= x.lo and x.hi < y.lo else _intern("mod", (x, y), 0, y.hi - 1)
    d = y.value
    _, rest = _divided(x, d)
    if 0 <= rest.lo and rest.hi < d:
        return rest
    coarse = _coarse(rest, d)
    if coarse is not None:
        g, big, small = coarse
        return (big % (d // g)) * g + small
    if rest.op == "mod" and rest.parts[1].is_const and rest.parts[1].value % d == 0:
        return rest.parts[0] % d
    return _intern("mod", (rest, y), 0, int(d) - 1)


def _negative(x: Scalar) -> Scalar:
    """x < 0, divided by the common factor of all large terms: 8*i + v - 80 < 0 -> i - 10 < 0."""
    if x.hi < 0:
        return const(1)
    if x.lo >= 0:
        return const(0)
    for g in sorted({abs(c) for _, c in x.terms[0]} - {1}, reverse=True):
        big, small = _split_multiples(x, g)
        if 0 <= small.lo and small.hi < g:
            return _negative(big)
    return _intern("lt", (x,), 0, 1)


_BUILD: dict[str, Callable[..., Scalar]] = {
    "mul": _mul,
    "div": _div,
    "mod": _mod,
    "min": minimum,
    "lt": _negative,
    "and": lambda *parts: conjunction(parts),
}
