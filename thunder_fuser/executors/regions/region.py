# SPDX-License-Identifier: Apache-2.0
"""A region: a piece of a trace that becomes one fusion.

    t1 = mul(x, 2); t2 = exp(t1); t3 = neg(t1), of which t2 is read  ->  [t2] = Region(x): mul, exp
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol, BoundSymbolTag

from thunder_fuser.executors.support.dtypes import is_known_number
from thunder_fuser.source.lines import line_of
from thunder_fuser.trace.op import Kinds, Op
from thunder_fuser.trace.proxies import MOVES, VIEWS, makes, parts, reads

ViewsByName = Mapping[str, BoundSymbol]
NO_VIEWS: ViewsByName = {}


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of a trace that becomes one fusion. regions/plan.py has what it does to memory.

    leaves: its live primitives. inputs, outputs: in the order of their first appearance. where:
    file:line of the first of its ops that has one. number: that of the partition, its key in the
    memory plan; -1 for one that no partition made.
    """

    leaves: tuple[BoundSymbol, ...]
    inputs: tuple[Proxy, ...]
    outputs: tuple[Proxy, ...]
    is_backward: bool
    where: str = ""
    number: int = -1

    @staticmethod
    def whole(ops: Sequence[Op]) -> Region:
        """A region of all these ops, without inputs and outputs yet."""
        leaves = tuple(leaf for op in ops for leaf in op.leaves)
        where = next(filter(None, (line_of(op.bsym) for op in ops)), "")
        number = -1 if ops[0].region is None else ops[0].region
        return Region(leaves, (), (), ops[0].is_backward, where, number)

    def narrowed(self, outputs: Iterable[str], views: ViewsByName = NO_VIEWS) -> Region:
        """The part of the region that these results depend on.

        views: {name: view outside of the region that it may repeat}.
        """
        wanted = frozenset(outputs)
        live = _with_views(_live(self.leaves, wanted), views)
        inputs, results = boundary(live, wanted)
        return replace(self, leaves=live, inputs=inputs, outputs=results)

    @property
    def makes_views(self) -> bool:
        """True if it needs no kernel, whatever the strides of its inputs."""
        return all(leaf.sym.id in VIEWS for leaf in self.leaves)

    @property
    def moves_only(self) -> bool:
        """True if it needs no kernel where the strides of its inputs allow."""
        return all(leaf.sym.id in MOVES for leaf in self.leaves)


Item: TypeAlias = BoundSymbol | Region


def read_by(item: Item) -> Sequence[Proxy]:
    """The operands of a bound symbol or a region."""
    return item.inputs if isinstance(item, Region) else reads(item)


def made_by(item: Item) -> Sequence[Proxy]:
    """The results of a bound symbol or a region."""
    return item.outputs if isinstance(item, Region) else makes(item)


def is_backward(item: Item) -> bool:
    """True for a bound symbol or a region of the backward."""
    if isinstance(item, Region):
        return item.is_backward
    return BoundSymbolTag.BACKWARD in item.tags


def only(bsym: BoundSymbol, kinds: Kinds) -> bool:
    """True if the bound symbol consists of primitives of these kinds."""
    return all(part.sym.id in kinds for part in parts(bsym))


def _live(leaves: Sequence[BoundSymbol], wanted: frozenset[str]) -> tuple[BoundSymbol, ...]:
    """The primitives that a wanted result depends on."""
    needed = set(wanted)
    kept = []
    for leaf in reversed(leaves):
        if needed.intersection(out.name for out in makes(leaf)):
            kept.append(leaf)
            needed.update(proxy.name for proxy in reads(leaf))
    return tuple(reversed(kept))


def _with_views(leaves: Sequence[BoundSymbol], views: ViewsByName) -> tuple[BoundSymbol, ...]:
    """The primitives, preceded by the outside views that they read, directly or through views."""
    results = {out.name for leaf in leaves for out in makes(leaf)}
    front: dict[str, BoundSymbol] = {}
    wanted = [proxy.name for leaf in leaves for proxy in reads(leaf)]
    while wanted:
        name = wanted.pop()
        if name in views and name not in results:
            front.pop(name, None)  # read once more: it must come still earlier
            front[name] = views[name]
            wanted.append(reads(views[name])[0].name)
    return (*reversed(front.values()), *leaves) if front else tuple(leaves)


def boundary(
    leaves: Sequence[BoundSymbol], wanted: frozenset[str]
) -> tuple[tuple[Proxy, ...], tuple[Proxy, ...]]:
    """(inputs, outputs) in the order in which they first appear."""
    inside: set[str] = set()
    inputs: dict[str, Proxy] = {}
    outputs: dict[str, Proxy] = {}
    for leaf in leaves:
        for proxy in reads(leaf):
            if proxy.name not in inside and not is_known_number(proxy):
                inputs.setdefault(proxy.name, proxy)
        for proxy in makes(leaf):
            inside.add(proxy.name)
            if proxy.name in wanted:
                outputs.setdefault(proxy.name, proxy)
    return tuple(inputs.values()), tuple(outputs.values())
