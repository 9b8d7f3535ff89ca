# SPDX-License-Identifier: Apache-2.0
"""The cut against brute force on small graphs, and against one undivided network on large ones."""

from __future__ import annotations

import random
from itertools import product

import networkx
import pytest

from thunder_fuser.rematerialization.cut import Cut, CutGraph, Node, minimum_cut


def graph(seed: int, most: int) -> CutGraph:
    """Ops with one to three results; operands are earlier values, or none (a source)."""
    rng = random.Random(seed)
    nodes: list[Node] = []
    values = 0
    while values < most:
        results = min(rng.choice((1, 1, 1, 2, 3)), most - values)
        operands = rng.sample(range(values), min(values, rng.randint(0, 3)))
        # Few prices, so that many cuts are equal; None: never recomputed.
        price = rng.choice((None, 0, 1, 2, 5)) if operands else rng.choice((None, None, 0))
        outputs = tuple(range(values, values + results))
        nodes.append(Node(tuple(operands), outputs, price))
        values += results
    keeping = {value: rng.choice((0, 1, 2, 3, 4, 8)) for value in range(values)}
    needed = frozenset(rng.sample(range(values), rng.randint(1, max(1, values // 2))))
    return CutGraph(tuple(nodes), keeping, needed)


def price_of(g: CutGraph, kept: frozenset[int], again: frozenset[int]) -> int:
    return sum(g.keeping[v] for v in kept) + sum(g.nodes[at].price or 0 for at in again)


def is_enough(g: CutGraph, kept: frozenset[int], again: frozenset[int]) -> bool:
    """True if all needed values are there later, and so are the operands of what is recomputed."""
    if any(g.nodes[at].price is None for at in again):
        return False
    there = kept | {v for at in again for v in g.nodes[at].outputs}
    operands = {v for at in again for v in g.nodes[at].inputs}
    return g.needed <= there and operands <= there


def cheapest(g: CutGraph) -> int:
    """Over all sets of operations recomputed; what is then missing is kept."""
    able = [at for at, node in enumerate(g.nodes) if node.price is not None]
    best = None
    for chosen in product((False, True), repeat=len(able)):
        again = frozenset(at for at, is_in in zip(able, chosen, strict=True) if is_in)
        made = {v for at in again for v in g.nodes[at].outputs}
        wanted = g.needed | {v for at in again for v in g.nodes[at].inputs}
        price = price_of(g, frozenset(wanted - made), again)
        best = price if best is None else min(best, price)
    assert best is not None
    return best


@pytest.mark.parametrize("values", range(1, 13))
def test_as_brute_force(values: int) -> None:
    for seed in range(100):
        g = graph(1000 * values + seed, values)
        cut = minimum_cut(g)
        assert is_enough(g, cut.kept, cut.again)
        assert price_of(g, cut.kept, cut.again) == cheapest(g), seed


def undivided(g: CutGraph) -> int:
    """The price of the same cut, in one network of the whole graph."""
    net = networkx.DiGraph()
    net.add_nodes_from(("source", "sink"))
    for at, node in enumerate(g.nodes):
        if node.price is None:
            net.add_edge("source", ("op", at))
        else:
            net.add_edge("source", ("op", at), capacity=node.price)
        for value in node.inputs:
            net.add_edge(("value", value), ("op", at))
        for value in node.outputs:
            net.add_edge(("op", at), ("value", value), capacity=g.keeping[value])
    for value in g.needed:
        net.add_edge(("value", value), "sink")
    return int(networkx.minimum_cut_value(net, "source", "sink"))


def test_components_cost_what_the_whole_does() -> None:
    rng = random.Random(7)
    for seed in range(500):
        g = graph(seed, rng.randint(20, 120))
        cut = minimum_cut(g)
        assert is_enough(g, cut.kept, cut.again)
        assert price_of(g, cut.kept, cut.again) == undivided(g), seed


def test_prices_of_any_size() -> None:
    """Exact beyond floats: two prices that differ in the last of a hundred bits."""
    big = 1 << 100
    chain = (Node((), (0,), None), Node((0,), (1,), 0))
    assert minimum_cut(CutGraph(chain, {0: big + 1, 1: big}, frozenset({1}))).kept == {1}
    assert minimum_cut(CutGraph(chain, {0: big, 1: big + 1}, frozenset({1}))).kept == {0}


def test_of_equal_cuts_the_one_that_makes_least_again() -> None:
    chain = (Node((), (0,), None), Node((0,), (1,), 0), Node((1,), (2,), 0))
    assert minimum_cut(CutGraph(chain, {0: 4, 1: 4, 2: 4}, frozenset({2}))).again == frozenset()
    assert minimum_cut(CutGraph(chain, {0: 3, 1: 4, 2: 4}, frozenset({2}))).again == {1, 2}
    assert minimum_cut(CutGraph(chain, {0: 4, 1: 3, 2: 4}, frozenset({2}))).kept == {1}


def test_nothing_is_needed() -> None:
    nothing = Cut(frozenset(), frozenset())
    assert minimum_cut(CutGraph((Node((), (0,), None),), {0: 4}, frozenset())) == nothing


def test_work_grows_as_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers cost as much each, however many: edges of each network, not seconds, are counted."""
    edges: list[int] = []
    original = networkx.minimum_cut

    def counted(network: networkx.DiGraph, *ends: str) -> object:
        edges.append(network.number_of_edges())
        return original(network, *ends)

    monkeypatch.setattr(networkx, "minimum_cut", counted)

    def work(layers: int) -> list[int]:
        nodes, values = [], 0
        for _ in range(layers):  # a matrix product, then a chain that is all needed
            nodes.append(Node((values - 1,) if values else (), (values,), None))
            for _ in range(9):
                values += 1
                nodes.append(Node((values - 1,), (values,), 1))
            values += 1
        edges.clear()
        keeping = dict.fromkeys(range(values), 3)
        minimum_cut(CutGraph(tuple(nodes), keeping, frozenset(keeping)))
        return [*edges]

    assert work(200) == 2 * work(100)
