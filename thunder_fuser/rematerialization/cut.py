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

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import networkx

from thunder_fuser.union_find import UnionFind

V = TypeVar("V", bound=Hashable)  # names a value


@dataclass(frozen=True, slots=True)
class Node(Generic[V]):
    """An operation. price: of recomputing its outputs; None: never recomputed."""

    inputs: tuple[V, ...]
    outputs: tuple[V, ...]
    price: int | None


@dataclass(frozen=True, slots=True)
class Graph(Generic[V]):
    """Operations in an order in which they can run, the price of keeping each of their results, and
    those that are needed later. Values that no operation makes are at hand now and later."""

    nodes: tuple[Node[V], ...]
    keeping: Mapping[V, int]
    needed: frozenset[V]


@dataclass(frozen=True, slots=True)
class Cut(Generic[V]):
    """Values kept, and operations recomputed: their places in the graph."""

    kept: frozenset[V]
    again: frozenset[int]


def minimum_cut(graph: Graph[V]) -> Cut[V]:
    """The cheapest way to have all needed values later."""
    maker = {value: at for at, node in enumerate(graph.nodes) for value in node.outputs}
    kept: set[V] = set()
    again: set[int] = set()
    for part in _components(graph, maker, _reached(graph, maker)):
        part_kept, part_again = _solve(graph, maker, part)
        kept |= part_kept
        again |= part_again
    return Cut(frozenset(kept), frozenset(again))


def _reached(graph: Graph[V], maker: dict[V, int]) -> dict[V, None]:
    """Values that may have to be there later: the needed ones, and operands of what makes them."""
    stack = [value for value in maker if value in graph.needed]
    seen = dict.fromkeys(stack)
    while stack:
        node = graph.nodes[maker[stack.pop()]]
        for value in node.inputs if node.price is not None else ():
            if value in maker and value not in seen:
                seen[value] = None
                stack.append(value)
    return seen


def _components(graph: Graph[V], maker: dict[V, int], values: dict[V, None]) -> Iterable[list[V]]:
    """The values, in groups that no operation which may be recomputed connects."""
    joined = UnionFind[V]()
    for value in values:
        node = graph.nodes[maker[value]]
        # Operands of an op that is never recomputed are another component's.
        for other in (*node.outputs, *(node.inputs if node.price is not None else ())):
            if other in values:
                joined.join(value, other)
    groups: dict[V, list[V]] = {}
    for value in values:
        groups.setdefault(joined.find(value), []).append(value)
    return groups.values()


def _solve(graph: Graph[V], maker: dict[V, int], values: list[V]) -> tuple[set[V], set[int]]:
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
