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
again. All prices are integers, so the cut is exact. Of equal cuts it takes the one nearest to the
sink, which makes the least again.

The network falls into components where nothing may be recomputed (matrix products, checkpoints).
Each is solved by itself, so that a model's layers cost as much each, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

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
    place = {value: 2 + at for at, value in enumerate(values)}
    op_place = {op: 2 + len(values) + at for at, op in enumerate(ops)}
    unlimited = 1 + sum(graph.keeping[value] for value in values)
    flow = Flow(2 + len(values) + len(ops))
    for op in ops:
        node = graph.nodes[op]
        at = op_place[op]
        flow.connect(SOURCE, at, unlimited if node.price is None else min(node.price, unlimited))
        for value in node.inputs if node.price is not None else ():
            if value in place:
                flow.connect(place[value], at, unlimited)
        for value in node.outputs:
            if value in place:
                flow.connect(at, place[value], graph.keeping[value])
    for value in values:
        if value in graph.needed:
            flow.connect(place[value], SINK, unlimited)
    flow.maximise()
    later = flow.reaching_sink()
    again = {op for op in ops if later[op_place[op]]}
    kept = {v for v in values if later[place[v]] and not later[op_place[maker[v]]]}
    return kept, again


SOURCE, SINK = 0, 1


class Flow:
    """A network with integer capacities, and its maximum flow by Dinic's algorithm.

    Edge 2k and its reverse 2k + 1 are neighbours in the lists.
    """

    def __init__(self, nodes: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(nodes)]
        self.head: list[int] = []
        self.room: list[int] = []

    def connect(self, tail: int, head: int, capacity: int) -> None:
        """Adds an edge; one without capacity is left out."""
        if capacity <= 0:
            return
        for start, end, room in ((tail, head, capacity), (head, tail, 0)):
            self.edges[start].append(len(self.head))
            self.head.append(end)
            self.room.append(room)

    def maximise(self) -> int:
        """Pushes all that goes from the source to the sink; says how much."""
        total = 0
        while (level := self._levels()) is not None:
            at = [0] * len(self.edges)
            while pushed := self._push(level, at):
                total += pushed
        return total

    def reaching_sink(self) -> list[bool]:
        """The nodes from which more could flow to the sink, were there more: its side of the cut.

        It is the smallest such side of all minimum cuts.
        """
        found = [False] * len(self.edges)
        found[SINK] = True
        stack = [SINK]
        while stack:
            for edge in self.edges[stack.pop()]:
                tail = self.head[edge]
                if not found[tail] and self.room[edge ^ 1]:
                    found[tail] = True
                    stack.append(tail)
        return found

    def _levels(self) -> list[int] | None:
        """Each node's distance from the source by edges with room; None if the sink has none."""
        level = [-1] * len(self.edges)
        level[SOURCE] = 0
        queue = [SOURCE]
        for node in queue:
            for edge in self.edges[node]:
                head = self.head[edge]
                if level[head] < 0 and self.room[edge]:
                    level[head] = level[node] + 1
                    queue.append(head)
        return level if level[SINK] >= 0 else None

    def _push(self, level: Sequence[int], at: list[int]) -> int:
        """One path along rising levels, filled; 0 if there is none. `at`: edges not known dead."""
        path: list[int] = []
        node = SOURCE
        while node != SINK:
            edge = self._next(node, level, at)
            if edge is not None:
                path.append(edge)
                node = self.head[edge]
            elif path:
                node = self.head[path.pop() ^ 1]
                at[node] += 1
            else:
                return 0
        pushed = min(self.room[edge] for edge in path)
        for edge in path:
            self.room[edge] -= pushed
            self.room[edge ^ 1] += pushed
        return pushed

    def _next(self, node: int, level: Sequence[int], at: list[int]) -> int | None:
        edges = self.edges[node]
        while at[node] < len(edges):
            edge = edges[at[node]]
            if self.room[edge] and level[self.head[edge]] == level[node] + 1:
                return edge
            at[node] += 1
        return None
