# SPDX-License-Identifier: Apache-2.0
"""A graph of operations and values -> what to keep for later and what to recompute: a minimum cut.

    a -> [exp] -> b -> [mul] -> c      c is needed later; a is at hand; b and c weigh 4 and 2
->  keep c (2), or make it again (the price of exp and of mul): whatever weighs less

Note [The network]: a node for each operation and for each value, on the side of the source if it
happens now and on that of the sink if it is there later.

    source -> op      price of making op's results again; unlimited if it may not be
    op -> value       price of keeping the value, its result
    value -> op       unlimited: what is recomputed needs its operands later
    value -> sink     unlimited, for values that are needed later

A value on the sink's side of an op on the source's side is kept; an op on the sink's side is made
again. All prices are integers, so the cut is exact. Of equal cuts networkx takes the one nearest to
the sink, which recomputes the least.

The network falls into components where nothing may be recomputed (matrix products, checkpoints).
Each is solved by itself, so that a model's layers cost as much each, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import networkx

from thunder_fuser.union_find import UnionFind


@dataclass(frozen=True, slots=True)
class Node:
    """An operation: results and operands are numbers of values; None: never recomputed."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    price: int | None


@dataclass(frozen=True, slots=True)
class Graph:
    """Operations in an order in which they can run; `keeping[v]` is the price of keeping value v.

    Values that no operation makes are at hand now and later.
    """

    nodes: tuple[Node, ...]
    keeping: tuple[int, ...]
    needed: frozenset[int]


@dataclass(frozen=True, slots=True)
class Cut:
    """Values kept, operations (their places in the graph) recomputed, and what both cost."""

    kept: frozenset[int]
    again: frozenset[int]
    price: int


def minimum_cut(graph: Graph) -> Cut:
    """The cheapest way to have all needed values later."""
    maker = {value: at for at, node in enumerate(graph.nodes) for value in node.outputs}
    reached = _reached(graph, maker)
    kept: set[int] = set()
    again: set[int] = set()
    for part in _components(graph, maker, reached):
        k, a = _solve(graph, maker, part)
        kept |= k
        again |= a
    price = sum(graph.keeping[value] for value in kept)
    price += sum(graph.nodes[at].price or 0 for at in again)
    return Cut(frozenset(kept), frozenset(again), price)


def _reached(graph: Graph, maker: dict[int, int]) -> list[int]:
    """Values that may have to be there later: the needed ones, and operands of what makes them."""
    stack = sorted(value for value in graph.needed if value in maker)
    seen = set(stack)
    while stack:
        node = graph.nodes[maker[stack.pop()]]
        if node.price is None:
            continue
        for value in node.inputs:
            if value in maker and value not in seen:
                seen.add(value)
                stack.append(value)
    return sorted(seen)


def _components(graph: Graph, maker: dict[int, int], values: list[int]) -> Iterator[list[int]]:
    """The values, in groups that no operation which may be recomputed connects."""
    known, joined = set(values), UnionFind[int]()
    for value in values:
        node = graph.nodes[maker[value]]
        # Operands of an op that is never recomputed are another component's.
        near = chain(node.outputs, node.inputs if node.price is not None else ())
        for other in near:
            if other in known:
                joined.join(value, other)
    groups: dict[int, list[int]] = {}
    for value in values:
        groups.setdefault(joined.find(value), []).append(value)
    yield from groups.values()


def _solve(graph: Graph, maker: dict[int, int], values: list[int]) -> tuple[set[int], set[int]]:
    """(values kept, operations recomputed) of one component."""
    ops = sorted({maker[value] for value in values})
    if all(graph.nodes[at].price is None for at in ops):
        return {value for value in values if value in graph.needed}, set()
    network = networkx.DiGraph()  # an edge without a capacity is unlimited
    for op in ops:
        node = graph.nodes[op]
        if node.price is None:
            network.add_edge("source", ("op", op))
        else:
            network.add_edge("source", ("op", op), capacity=node.price)
            network.add_edges_from((value, ("op", op)) for value in node.inputs if value in maker)
        for value in node.outputs:
            network.add_edge(("op", op), value, capacity=graph.keeping[value])
    network.add_edges_from((value, "sink") for value in values if value in graph.needed)
    _, (_, later) = networkx.minimum_cut(network, "source", "sink")
    again = {op for op in ops if ("op", op) in later}
    return {value for value in values if value in later and maker[value] not in again}, again
