# SPDX-License-Identifier: Apache-2.0
"""A broken kernel is refused, and the error shows the line that breaks it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from helpers.graphs import Graph, softmax, turned
from helpers.kernels import scheduled

from thunder_fuser.errors import VerifyError
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.record import Literal
from thunder_fuser.ir.scalar import Scalar, const, symbol
from thunder_fuser.lower.kernel import (
    Accumulate,
    Array,
    Block,
    Call,
    CheckedIndex,
    Coordinate,
    For,
    If,
    Kernel,
    Lane,
    Let,
    Load,
    Math,
    Parameter,
    Set,
    Statement,
    Store,
    Variable,
)
from thunder_fuser.lower.kernel_passes.verify import verify_kernel
from thunder_fuser.lower.lower import lower
from thunder_fuser.target import CPU, H200, Target

F = DataType.Float
ZERO = Literal.of(0.0)
B, T, J = symbol("b", 0, 7), symbol("t", 0, 31), symbol("i", 0, 3)
PARAMETERS = (Parameter("T0", F, "input"), Parameter("T1", F, "output"))
BLOCK = Let("b", None, Coordinate(ParallelType.BIDX))
THREAD = Let("t", None, Coordinate(ParallelType.TIDX))
WAIT = Call("sync_threads")
REDUCE = Set("sum", Call("reduce_x", ("sum", "scratch"), ("sum", 32, 1)), F)


def kernel(*body: Statement) -> Kernel:
    return Kernel("k", PARAMETERS, body, (8, 1), (32, 1), 0, False, 256)


def loop(*body: Statement, extent: Scalar | int = 4) -> For:
    extent = extent if isinstance(extent, Scalar) else const(extent)
    return For("i", extent, ParallelType.SERIAL, body)


def load(position: Scalar, width: int = 1) -> Let:
    return Let("x", F, Load("T0", position, F, width), width)


def refused(*body: Statement) -> str:
    """What the verifier says of the first line that it marks, and that line."""
    with pytest.raises(VerifyError) as error:
        verify_kernel(kernel(*body))
    (first, *_) = (line for line in str(error.value).splitlines() if line.startswith("-->"))
    return first


def test_the_error_shows_the_kernel() -> None:
    store = Store("T1", J, "x", F)
    with pytest.raises(VerifyError, match="kernel k after a pass") as error:
        verify_kernel(kernel(loop(If(J.lt(2), (WAIT,), (store,)))), after="a pass")
    assert str(error.value).splitlines()[1:] == [
        "For(i, 4, ParallelType.SERIAL)",
        "    If(i - 2 < 0)",
        "        Call(sync_threads)",
        "    Else",
        "-->         Store(T1, i, x, DataType.Float)   # x is not defined here",
    ]


# ---- names


@pytest.mark.parametrize(
    "body",
    [
        [Store("T1", const(0), "x", F), load(const(0))],
        [loop(load(J)), Store("T1", const(0), "x", F)],
        [If(const(1), (load(const(0)),)), Store("T1", const(0), "x", F)],
        [If(const(1), (load(const(0)),), (Store("T1", const(0), "x", F),))],
        [Block("one", (load(const(0)),)), Store("T1", const(0), "x", F)],
    ],
    ids=["above", "loop", "if", "else", "block"],
)
def test_a_value_where_it_is_not_defined(body: list[Statement]) -> None:
    assert "x is not defined here" in refused(*body)


@pytest.mark.parametrize(
    "statement",
    [
        load(J),
        Let("x", F, Load("T0", const(0), F, condition=J.lt(2))),
        Let("y", F, Math("exp", (Lane("i"),), (F,), F)),
        Let("y", F, Math("exp", (Lane("T0", J),), (F,), F)),
        loop(extent=symbol("i", 1, 4)),
        If(J.lt(2), ()),
        Let("x", F, Load("i", const(0), F)),
        Call("sync", ("i",)),
        Accumulate("i", "sum", ZERO, F, F),
    ],
)
def test_every_part_of_a_statement_is_read(statement: Statement) -> None:
    assert "i is not defined here" in refused(statement)


def test_a_name_is_defined_once() -> None:
    assert "x is defined twice" in refused(load(const(0)), load(const(1)))
    two = [loop(load(J)), loop(load(J)), load(const(0))]
    assert verify_kernel(kernel(*two))


# ---- writes


@pytest.mark.parametrize(
    "statement",
    [Set("x", ZERO, F), Accumulate("x", "sum", ZERO, F, F), Store("T0", const(0), "x", F)],
)
def test_what_never_changes_is_not_written(statement: Statement) -> None:
    assert "is no variable, array or result" in refused(load(const(0)), statement)


# ---- barriers


@pytest.mark.parametrize("barrier", [WAIT, REDUCE, Call("gates_ready")])
@pytest.mark.parametrize("name", ["t", "u"])
def test_a_barrier_that_some_threads_do_not_reach(barrier: Statement, name: str) -> None:
    scratch = [Variable("sum", F, ZERO), Array("scratch", F, 1, shared_offset=0)]
    some = symbol(name, 0, 32).lt(16)
    body = [*scratch, THREAD, Let("u", None, T + 1)]
    told = "not all threads of a block reach this barrier"
    assert told in refused(*body, If(some, (barrier,)))
    assert told in refused(*body, If(some, (), (barrier,)))
    assert told in refused(*body, If(some, (loop(barrier),)))
    assert told in refused(*body, loop(barrier, extent=symbol(name, 0, 32)))
    assert verify_kernel(kernel(*body, barrier, loop(barrier)))


def test_what_is_read_before_a_wait() -> None:
    """A product's function reads its matrix before it waits for earlier kernels; nothing else is
    read or written before it, on any path."""
    ahead = (replace(PARAMETERS[0], ahead=True), PARAMETERS[1])
    product = Call("sum_of_products", ("T0",))
    store, some = Store("T1", B, ZERO, F), B.lt(4)

    def is_legal(*body: Statement) -> bool:
        try:
            return bool(verify_kernel(replace(kernel(BLOCK, *body), parameters=ahead)))
        except VerifyError as error:
            assert "is touched before the wait for earlier kernels" in str(error)
            return False

    assert is_legal(product, load(B), store) and is_legal(If(some, (product, store), (product,)))
    assert is_legal(If(some, (product, store), (product, load(B))))
    assert not is_legal(load(B), product) and not is_legal(store, product)
    assert not is_legal(If(some, (product,), (store, product)))
    assert not is_legal(If(some, (load(B),)), product)
    assert verify_kernel(kernel(BLOCK, load(B), store))


def test_an_index_that_threads_load_differs_between_them() -> None:
    index = Let("w", None, CheckedIndex("x", DataType.Int, 32, 1))
    wait = If(symbol("w", 0, 31).lt(9), (WAIT,))
    assert "not all threads" in refused(THREAD, load(T), index, wait)
    assert verify_kernel(kernel(BLOCK, load(B), index, wait))


def test_blocks_may_differ() -> None:
    assert verify_kernel(kernel(BLOCK, THREAD, If(B.lt(4), (WAIT,))))


# ---- bounds

ARRAY, VEC = Array("a", F, 4), Array("v", F, 0, 4)
TILE = Array("tile", F, 128, shared_offset=0)


@pytest.mark.parametrize(
    "body",
    [
        [ARRAY, Set(Lane("a", const(4)), ZERO, F)],
        [ARRAY, Set(Lane("a", const(-1)), ZERO, F)],
        [ARRAY, loop(Set(Lane("a", J), ZERO, F), extent=5)],
        [ARRAY, loop(Set(Lane("a", J * 2), ZERO, F))],
        [VEC, Set(Lane("v", None, const(4)), ZERO, F)],
        [load(const(0), 2), loop(Let("y", F, Lane("x", None, J)))],
        [TILE, THREAD, VEC, Store("tile", T * 4 + 1, "v", F, 4)],
        [TILE, THREAD, Let("y", F, Load("tile", T * 4, F, 8), 8)],
    ],
    ids=["behind", "before", "loop", "stride", "lane", "vector", "store", "load"],
)
def test_places_outside_an_array(body: list[Statement]) -> None:
    assert "elements, and" in refused(*body)


def test_the_bounds_of_a_loop_are_those_it_has() -> None:
    """Not those of its symbol, which may be wider or narrower."""
    wide = symbol("i", 0, 99)
    assert verify_kernel(kernel(ARRAY, loop(Set(Lane("a", wide), ZERO, F))))


def test_a_condition_narrows_what_is_defined_under_it() -> None:
    place = Let("p", None, T * 2)
    store = Set(Lane("a", symbol("p", 0, 3)), ZERO, F)
    assert "from 0 to 62" in refused(ARRAY, THREAD, place, store)
    assert verify_kernel(kernel(ARRAY, THREAD, If((T * 2).lt(4), (place, store))))


# ---- the kernels of graphs

GRAPHS: dict[str, Graph] = {
    "softmax": softmax(64, 4096, dtype=DataType.BFloat16),
    "odd": softmax(8, 1031, dtype=DataType.BFloat16),
    "long": softmax(64, 65536, dtype=DataType.BFloat16),
    "turned": turned(96, 160, dtype=DataType.BFloat16),
}


def made(name: str, target: Target) -> Kernel:
    return lower(scheduled(GRAPHS[name], target)[0], "k")


def without_one(body: tuple[Statement, ...]) -> Iterator[tuple[str, tuple[Statement, ...]]]:
    """The body without each of its definitions, and the name of that."""
    for at, one in enumerate(body):
        before, after = body[:at], body[at + 1 :]
        if isinstance(one, Let | Array | Variable):
            yield one.name, (*before, *after)
        if isinstance(one, For | If | Block):
            for name, inner in without_one(one.body):
                yield name, (*before, replace(one, body=inner), *after)


@pytest.mark.parametrize("target", [CPU, H200], ids=["cpu", "h200"])
@pytest.mark.parametrize("name", GRAPHS)
def test_no_definition_can_be_left_out(name: str, target: Target) -> None:
    whole, left_out = made(name, target), []
    for variable, body in without_one(whole.body):
        with pytest.raises(VerifyError, match=f"{variable} is not defined here"):
            verify_kernel(replace(whole, body=body))
        left_out.append(variable)
    assert len(left_out) > 3


@pytest.mark.parametrize("name", GRAPHS)
def test_no_barrier_may_be_where_only_some_threads_come(name: str) -> None:
    whole = made(name, H200)
    thread = Let("thread", None, Coordinate(ParallelType.TIDX))
    some = If(symbol("thread", 0, 31).lt(1), (WAIT,))
    assert verify_kernel(replace(whole, body=(thread, *whole.body, WAIT)))
    with pytest.raises(VerifyError, match="not all threads of a block reach this barrier: thread"):
        verify_kernel(replace(whole, body=(thread, *whole.body, some)))
