# SPDX-License-Identifier: Apache-2.0
"""Scalars against plain integer arithmetic, over every value their symbols can take."""

from __future__ import annotations

import doctest
import gc
import itertools
import pickle
from collections.abc import Callable, Mapping

import pytest
from helpers.without_torch import printed
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.ir import scalar
from thunder_fuser.ir.scalar import (
    Scalar,
    ceil_div,
    conjunction,
    const,
    divides,
    element,
    minimum,
    product,
    symbol,
)
from thunder_fuser.ir.size_symbols import sized

Env = Mapping[str, int]
Meaning = Callable[[Env], int]

SYMBOLS = {"i": (0, 9), "j": (-3, 4), "k": (1, 5)}
ENVS = [
    dict(zip(SYMBOLS, values, strict=True))
    for values in itertools.product(*(range(lo, hi + 1) for lo, hi in SYMBOLS.values()))
]
i, j, k = (symbol(name, *bounds) for name, bounds in SYMBOLS.items())


def value(x: Scalar, env: Env) -> int:
    """A Scalar's meaning, read off its nodes without using any rewrite."""
    if x.op in ("const", "sym"):
        return env[str(x.args[0])] if x.op == "sym" else x.value
    if x.op == "sum":
        terms, constant = x.terms
        return constant + sum(c * value(atom, env) for atom, c in terms)
    parts = [value(part, env) for part in x.parts]
    meaning: dict[str, Callable[..., int]] = {
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a // b,
        "mod": lambda a, b: a % b,
        "min": min,
        "lt": lambda a: int(a < 0),
        "and": lambda *predicates: int(all(predicates)),
    }
    return meaning[x.op](*parts)


def assert_same(x: Scalar, meaning: Meaning) -> None:
    """The same value everywhere, within the bounds that the Scalar claims."""
    for env in ENVS:
        expected = meaning(env)
        assert value(x, env) == expected, (x, env)
        assert x.lo <= expected <= x.hi, (x, env, x.lo, x.hi)


Pair = tuple[Scalar, Meaning]
SYMBOL_PAIRS = st.sampled_from(list(SYMBOLS)).map(
    lambda name: (symbol(name, *SYMBOLS[name]), lambda env: env[name])
)
CONSTANTS = st.integers(-12, 12).map(lambda n: (const(n), lambda env: n))
DIVISORS = st.one_of(
    st.integers(1, 12).map(lambda n: (const(n), lambda env: n)),
    st.just((k, lambda env: env["k"])),
)


def _binary(op: str, a: Pair, b: Pair) -> Pair:
    (x, f), (y, g) = a, b
    table: dict[str, tuple[Callable[[], Scalar], Meaning]] = {
        "+": (lambda: x + y, lambda env: f(env) + g(env)),
        "-": (lambda: x - y, lambda env: f(env) - g(env)),
        "*": (lambda: x * y, lambda env: f(env) * g(env)),
        "//": (lambda: x // y, lambda env: f(env) // g(env)),
        "%": (lambda: x % y, lambda env: f(env) % g(env)),
        "min": (lambda: minimum(x, y), lambda env: min(f(env), g(env))),
        "<": (lambda: x.lt(y), lambda env: int(f(env) < g(env))),
    }
    build, meaning = table[op]
    return build(), meaning


def _extend(pairs: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    plain = st.builds(_binary, st.sampled_from(["+", "-", "*", "min", "<"]), pairs, pairs)
    return plain | st.builds(_binary, st.sampled_from(["//", "%"]), pairs, DIVISORS)


EXPRESSIONS = st.recursive(SYMBOL_PAIRS | CONSTANTS, _extend, max_leaves=12)
# What indices look like: nested quotients and remainders of linear forms.
INDICES = st.recursive(
    SYMBOL_PAIRS,
    lambda pairs: st.one_of(
        st.builds(_binary, st.sampled_from(["//", "%"]), pairs, DIVISORS),
        st.builds(_binary, st.just("*"), pairs, CONSTANTS),
        st.builds(_binary, st.just("+"), pairs, pairs),
        st.builds(_binary, st.just("<"), pairs, CONSTANTS),
    ),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS | INDICES)
def test_any_expression_keeps_its_value_and_its_bounds(pair: Pair) -> None:
    assert_same(*pair)


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS | INDICES, st.sampled_from(ENVS), st.sets(st.sampled_from(list(SYMBOLS))))
def test_substitution_keeps_the_value(pair: Pair, env: Env, names: set[str]) -> None:
    x, meaning = pair
    partial = x.substitute({name: env[name] for name in names})
    assert not partial.symbols & names
    assert partial.symbols <= x.symbols
    whole = partial.substitute(env)
    assert whole.is_const
    assert whole.value == meaning(env)


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS | INDICES)
def test_substituting_symbols_by_themselves_changes_nothing(pair: Pair) -> None:
    x, _ = pair
    again = x.substitute({"i": i, "j": j, "k": k})
    assert_same(again, pair[1])


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS | INDICES)
def test_text_is_python_with_the_same_value(pair: Pair) -> None:
    x, meaning = pair
    code = compile(x.text, x.text, "eval")
    for env in ENVS[::7]:
        assert int(eval(code, {"min": min, "max": max}, dict(env))) == meaning(env), x.text


@settings(max_examples=60, deadline=None)
@given(st.lists(EXPRESSIONS.map(lambda p: _binary("<", p, (const(3), lambda env: 3))), max_size=4))
def test_conjunction_is_all(pairs: list[Pair]) -> None:
    both = conjunction([x for x, _ in pairs])
    assert_same(both, lambda env: int(all(meaning(env) for _, meaning in pairs)))


@settings(max_examples=100, deadline=None)
@given(INDICES, st.integers(1, 12))
def test_divides_is_never_wrong(pair: Pair, divisor: int) -> None:
    x, meaning = pair
    if divides(divisor, x):
        assert all(meaning(env) % divisor == 0 for env in ENVS)


v, t = symbol("v", 0, 7), symbol("t", 0, 127)
n = symbol("n", 0)

RULES = [
    # sums
    (i + j - i, "j"),
    (i * 2 + i * 3, "5*i"),
    (const(2) + 3, "5"),
    (i - i, "0"),
    (j + i + 1, "i + j + 1"),
    (i - 3, "i - 3"),
    # products
    (i * 0, "0"),
    (i * 1, "i"),
    ((i + 2) * 4, "4*i + 8"),
    (j * i, "i * j"),
    # quotients
    (i // 1, "i"),
    (v // 8, "0"),
    ((i * 8 + v) // 8, "i"),
    ((i * 8 + v) // 64, "i // 8"),
    ((i * 8 + v + 16) // 8, "i + 2"),
    ((i * 6) // 4, "(3*i) // 2"),
    ((i // 3) // 2, "i // 6"),
    ((n * 128 + t) // 4, "32*n + (t // 4)"),
    (v // symbol("d", 8, 9), "0"),
    (const(-7) // 2, "-4"),
    # remainders
    (i % 1, "0"),
    (v % 8, "v"),
    ((i * 8 + v) % 8, "v"),
    ((n * 128 + t) % 128, "t"),
    ((n * 8 + v) % 64, "8*(n % 8) + v"),
    ((n % 16) % 4, "n % 4"),
    ((n % 4) % 16, "n % 4"),
    (const(-7) % 4, "1"),
    # rejoin
    ((n // 5) * 5 + n % 5, "n"),
    ((n // 5) * 20 + (n % 5) * 4, "4*n"),
    ((n // 5) * 5 + n % 5 + v, "n + v"),
    ((n // 5) * 5 + n % 6, "(n % 6) + 5*(n // 5)"),
    ((n % 15 // 5) * 5 + n % 5, "n % 15"),
    ((n % 15 // 5) * 20 + (n % 5) * 4 + (n // 15) * 60, "4*n"),
    ((n % 12 // 5) * 5 + n % 5, "5*((n % 12) // 5) + (n % 5)"),
    # less than
    (v.lt(8), "1"),
    (v.lt(0), "0"),
    ((i * 8 + v).lt(80), "1"),
    ((n * 8 + v).lt(800), "n - 100 < 0"),
    ((n * 8 + v).lt(801), "8*n + v - 801 < 0"),
    # selections
    (minimum(v, 7), "v"),
    (minimum(v, 5), "min(v, 5)"),
    (minimum(n, n), "n"),
    # the rest
    (ceil_div(n * 4, 4), "n"),
    (ceil_div(n, 4), "(n + 3) // 4"),
    (product([2, n, 3]), "6*n"),
    (product([]), "1"),
]


@pytest.mark.parametrize(("x", "text"), RULES, ids=range(len(RULES)))
def test_rule(x: Scalar, text: str) -> None:
    assert x.text == text


def test_equal_expressions_are_one_object() -> None:
    assert (i * 4 + v) is (v + 4 * 1 * 1 - 4 + i * 4)
    assert symbol("i", 0, 9) is i
    assert symbol("i", 0, 8) is not i
    assert const(True) is const(1)


@given(EXPRESSIONS | INDICES)
def test_a_copy_is_the_same_object(pair: Pair) -> None:
    assert pickle.loads(pickle.dumps(pair[0])) is pair[0]


@pytest.mark.parametrize("x", [
    const(sized("n0", 12)), symbol("i", 0, 5) * sized("n0", 12) + sized("n1", 7) + symbol("j"),
    element("T1", sized("n0", 50), symbol("i", 0, 9).lt(3), [symbol("i", 0, 9)]),
], ids=["constant", "sum", "element"])  # fmt: skip
def test_a_copy_keeps_the_sizes_of_a_call(x: Scalar) -> None:
    assert pickle.loads(pickle.dumps(x)) is x


def test_unused_expressions_are_forgotten() -> None:
    before = len(scalar._TABLE)
    made = [symbol(f"only here {at}") * 3 + 1 for at in range(100)]
    assert len(scalar._TABLE) >= before + 100
    del made
    gc.collect()
    assert len(scalar._TABLE) <= before + 10


def test_value_of_an_expression_that_is_no_constant() -> None:
    with pytest.raises(ValueError, match="i is not a constant"):
        i.value


@pytest.mark.parametrize("bad", [0, -2])
def test_division_by_what_is_not_positive(bad: int) -> None:
    with pytest.raises(ZeroDivisionError):
        i // bad
    with pytest.raises(ZeroDivisionError):
        i % bad


def test_shared_parts_are_walked_once() -> None:
    """x doubled 200 times is a graph of 200 nodes and a tree of 2**200."""
    code = (
        "from thunder_fuser.ir.scalar import symbol, minimum\n"
        "x = symbol('x', 0, 1)\n"
        "for at in range(200): x = minimum(x * x, x + 1)\n"
        "assert x.symbols == {'x'}\n"
        "assert x.substitute({'x': 0}).value == 0\n"
    )
    printed(code)  # a walk of the tree would never end


def test_the_examples_of_the_module() -> None:
    assert doctest.testmod(scalar).failed == 0
