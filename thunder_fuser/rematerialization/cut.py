# SPDX-License-Identifier: Apache-2.0
"""A graph of operations and values -> what to keep for later and what to recompute: a minimum cut.

    a -> [exp] -> b -> [mul] -> c      c is needed later; a is at hand; b and c weigh 4 and 2
->  keep c (2), or recompute it (the price of exp and of mul): the cheaper one

Note [The network]: each operation and each value is a node. A node on the source's side happens
now; a node on the sink's side happens, or is there, later.

    source -> op      price of recomputing the op; unlimited if it may not be recomputed
    op -> value       price of keeping the value, its result
    value -> op       unlimited: a recomputed op needs its operands later
    value -> sink     unlimited, for values that are needed later

An op on the sink's side is recomputed. A value on the sink's side is kept if its op is on the
source's side. All prices are integers, so the cut is exact. Of equal cuts networkx takes the one
nearest to the sink, which recomputes the least.

Ops that may not be recomputed (matrix products, checkpoints) divide the network into components.
Each is solved by itself, so that each layer of a model takes the same time, however many there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import networkx

V = TypeVar("V", bound=Hashable)  # names a value


@dataclass(frozen=True, slots=True)
class Node(Generic[V]):
    """An operation. price: of recomputing its outputs; None if it is never recomputed."""

    inputs: tuple[V, ...]
    outputs: tuple[V, ...]
    price: int | None


@dataclass(frozen=True, slots=True)
class CutGraph(Generic[V]):
    """Operations in an order in which they can run, the price of keeping each of their results, and
    the results needed later. A value that no operation makes is at hand now and later."""

    nodes: tuple[Node[V], ...]
    keeping: Mapping[V, int]
    needed: frozenset[V]


@dataclass(frozen=True, slots=True)
class Cut(Generic[V]):
    """Values kept, and operations recomputed: their places in the graph."""

    kept: frozenset[V]
    again: frozenset[int]


def minimum_cut(graph: CutGraph[V]) -> Cut[V]:
    """The cheapest way to have all needed values later."""
    network = _network(graph)
    kept: set[V] = set()
    again: set[int] = set()
    for part in networkx.weakly_connected_components(network):
        ops = {node.at for node in part if isinstance(node, _OpNode)}
        makes = {value: at for at in ops for value in graph.nodes[at].outputs}
        if all(graph.nodes[at].price is None for at in ops):
            kept |= graph.needed & makes.keys()
            continue
        whole = networkx.DiGraph(network.edges(part, data=True))
        for at in ops:
            price = graph.nodes[at].price
            whole.add_edge("source", _OpNode(at), **({} if price is None else {"capacity": price}))
        whole.add_edges_from((value, "sink") for value in graph.needed & makes.keys())
        _, (_, later) = networkx.minimum_cut(whole, "source", "sink")
        again |= {at for at in ops if _OpNode(at) in later}
        kept |= {value for value, at in makes.items() if value in later and at not in again}
    return Cut(frozenset(kept), frozenset(again))


class _OpNode(NamedTuple):
    """A node of the network: the operation at a place in the graph."""

    at: int


def _network(graph: CutGraph[V]) -> networkx.DiGraph:
    """The network without source and sink: the ops behind the needed values, and their operands.

    An edge without a capacity is unlimited. The operands of an op that is never recomputed belong
    to another component.
    """
    maker = {value: at for at, node in enumerate(graph.nodes) for value in node.outputs}
    network = networkx.DiGraph()
    stack = [at for at, node in enumerate(graph.nodes) if graph.needed.intersection(node.outputs)]
    while stack:
        at = stack.pop()
        if _OpNode(at) in network:
            continue
        node = graph.nodes[at]
        network.add_node(_OpNode(at))
        for value in node.outputs:
            network.add_edge(_OpNode(at), value, capacity=graph.keeping[value])
        if node.price is not None:
            computed = [value for value in node.inputs if value in maker]
            network.add_edges_from((value, _OpNode(at)) for value in computed)
            stack += [maker[value] for value in computed]
    return network
