# SPDX-License-Identifier: Apache-2.0
"""Fusion -> units: one expression each, with private copies of its cheap producers.

    T1 = cast(T0: bf16, Float);  T2 = sum(T1, 0);  T3 = sum(T1, 1)
->  unit 0: T1 = cast(T0), T2 = sum(T1, 0)         both read T0, 2 bytes an element,
    unit 1: T1 = cast(T0), T3 = sum(T1, 1)         and neither waits for the other

A copy is the expression itself, in several units. So it keeps every annotation, schedulers see it
like any other, and two copies in one segment are one expression again. Chains of cheap expressions
are copied (casts to wider types, broadcasts, views, slices, unary arithmetic, masks of iotas,
random numbers), if they read at most one tensor, no larger than their result. Numbers are passed to
kernels by value, and are copied wherever they are read.

A unit is never split again. A Summary describes one unit or several merged ones:

    {T2 = sum(T1, 1)}  +  {T3 = sub(T1, T2)}
->  reads T1 once, stores only T3, one pattern of reductions, two passes over the data
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from thunder_fuser.analysis.cost import INLINED, is_cheap
from thunder_fuser.analysis.domain_map import Axes, Pattern
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.segment.fusion_info import FusionInfo

MAX_CHAIN = 8  # expressions; a longer chain is cut, and its middle may be stored

# ---- cheap chains


@dataclass(frozen=True, slots=True)
class CheapChain:
    """Cheap expressions that compute one value; the tensor that they read, if any (`leaf`), and how
    many elements of it."""

    exprs: frozenset[int]
    leaf: str | None
    elements: int


CheapChains = Mapping[str, CheapChain]


def _shared_chains(info: FusionInfo) -> CheapChains:
    """The chain that computes each cheap value with several readers."""
    chains: dict[str, CheapChain] = {}
    for at, expr in enumerate(info.exprs):
        is_copied = expr.row.kind in INLINED and is_cheap(expr.row)
        if is_copied and not (info.is_number(at) or info.is_made_once(at)):
            chain = _chain(info, at, chains)
            if chain is None and not chains.keys().isdisjoint(info.operands[at]):
                chain = _chain(info, at, {})
            if chain is not None:
                chains[expr.outputs[0]] = chain
    return {
        name: chain for name, chain in chains.items()
        if len(info.uses[name]) + (name in info.results) > 1
    }


def _chain(info: FusionInfo, at: int, chains: CheapChains) -> CheapChain | None:
    """An expression with the chains of its operands, if together they read one tensor that is no
    larger than the result."""
    operands = info.operands[at]
    if len(operands) > 1 and chains.keys().isdisjoint(operands):
        return None  # most expressions: they read several tensors
    read = [_chain_of(info, at, name, chains) for name in operands]
    exprs = frozenset([at]).union(*(chain.exprs for chain in read))
    leaves = {chain.leaf for chain in read if chain.leaf is not None}
    elements = max((chain.elements for chain in read), default=0)
    if len(exprs) > MAX_CHAIN or len(leaves) > 1:
        return None
    leaf = next(iter(leaves), None)
    (result,) = info.exprs[at].outputs
    if leaf is not None and elements * info.itemsize(leaf) > info.bytes[result]:
        return None  # the result has fewer bytes than what the chain would read
    return CheapChain(exprs, leaf, elements)


def _chain_of(info: FusionInfo, at: int, name: str, chains: CheapChains) -> CheapChain:
    """The chain of an operand, and what it reads; an operand without a chain is its own leaf."""
    count = info.elements_read(at, name, info.elements[info.exprs[at].outputs[0]])
    if name not in chains:
        return CheapChain(frozenset(), name, count)
    chain = chains[name]
    return CheapChain(chain.exprs, chain.leaf, min(chain.elements, count))


# ---- units, and several of them together


@dataclass(slots=True)
class Summary:
    """A segment while it grows, as the segmenter sees it.

    reads: {value from outside: [bytes, how many units here read it]}; stores: {value computed here:
    how many units outside read it, plus one for a result}; work: the sum of FusionInfo.work;
    depths: of the reductions computed here.
    """

    exprs: set[int]
    units: list[int]
    reads: dict[str, list[int]]
    stores: dict[str, int]
    patterns: frozenset[Pattern]
    depths: frozenset[int]
    work: float
    is_plain: bool  # no scans, torch calls, lookups, partial results, tensors without elements
    is_external: bool
    in_place: bool  # element x of every value computed here is only read for element x
    is_sound: bool  # in_place, or the schedulers have accepted the places that are read


def units_of(info: FusionInfo) -> list[Summary]:
    """The units of a fusion, in program order. A value that is only copied has no unit."""
    shared = _shared_chains(info)
    needed = {info.number[name] for name in info.results if name in info.number}
    units: list[Summary] = []
    for at in reversed(range(len(info.exprs))):
        if at in needed:
            units.append(_unit(info, at, shared))
            needed |= {info.number[name] for name in units[-1].reads if name in info.number}
    readers = Counter(name for unit in units for name in unit.reads)
    for number, unit in enumerate(reversed(units)):
        unit.units.append(number)
        unit.stores = {name: readers[name] + count for name, count in unit.stores.items()}
    return units[::-1]


def _unit(info: FusionInfo, at: int, shared: CheapChains) -> Summary:
    """One expression with its copies of shared chains; `stores` lacks the counts of readers."""
    expr = info.exprs[at]
    is_external = expr.row.kind in (OpKind.EXTERNAL, OpKind.COMMUNICATION)
    exprs, reads = {at}, dict[str, list[int]]()
    for name in info.operands[at]:
        chain = _chain_of(info, at, name, {} if is_external else shared)
        exprs |= chain.exprs
        if chain.leaf is not None:
            before, _ = reads.get(chain.leaf, (0, 1))
            more = chain.elements * info.itemsize(chain.leaf)
            reads[chain.leaf] = [min(before + more, info.bytes[chain.leaf]), 1]
    copied = {name for copy in exprs - {at} for name in info.exprs[copy].outputs}
    in_place = _are_read_in_place(info, copied, exprs)
    pattern = info.patterns[at]
    return Summary(
        exprs=exprs,
        units=[],
        reads={name: read for name, read in reads.items() if name not in copied},
        stores={name: int(name in info.results) for name in expr.outputs},
        patterns=frozenset([pattern] if pattern else []),
        depths=frozenset([info.depth[at]] if pattern else []),
        work=sum(info.work[at] for at in exprs),
        is_plain=all(map(info.is_plain, exprs)),
        is_external=is_external,
        in_place=in_place,
        is_sound=in_place,
    )


def _are_read_in_place(info: FusionInfo, names: Iterable[str], exprs: set[int]) -> bool:
    """True if these expressions read each value at the element that they compute."""
    for name in names:
        for at in info.uses[name]:
            if at in exprs and name not in info.keeps_place[at]:
                return False
    return True


def merged(info: FusionInfo, a: Summary, b: Summary) -> Summary:
    """The summary of both as one segment."""
    inner = a.stores.keys() & b.reads.keys() | b.stores.keys() & a.reads.keys()
    reads, stores = _edges(info, a, b, inner)
    exprs, both = a.exprs | b.exprs, a.exprs & b.exprs
    in_place = a.in_place and b.in_place and _are_read_in_place(info, inner, exprs)
    # No value is read at a new place, so the schedulers would say the same again.
    is_old = a.is_sound and b.is_sound and not inner and not both
    return Summary(
        exprs=exprs,
        units=a.units + b.units,
        reads=reads,
        stores=stores,
        patterns=a.patterns | b.patterns,
        depths=a.depths | b.depths,
        work=a.work + b.work - sum(info.work[at] for at in both),
        is_plain=a.is_plain and b.is_plain,
        is_external=a.is_external or b.is_external,
        in_place=in_place,
        is_sound=in_place or is_old,
    )


def _edges(
    info: FusionInfo, a: Summary, b: Summary, inner: set[str]
) -> tuple[dict[str, list[int]], dict[str, int]]:
    """What both together read and store. inner: the values that pass between them."""
    reads, stores = dict(a.reads), a.stores | b.stores
    for name, (size, count) in b.reads.items():
        if name in a.stores:
            stores[name] -= count
        else:
            ours, readers = reads.get(name, (0, 0))
            reads[name] = [min(ours + size, info.bytes[name]), readers + count]
    for name in b.stores:
        if name in a.reads:
            stores[name] -= reads.pop(name)[1]
    for name in inner:
        if not stores[name]:
            del stores[name]
    return reads, stores


def wasted(info: FusionInfo, unit: Summary) -> int:
    """The bytes of sectors that it does not use; see SectorWaste."""
    if not (unit.patterns and info.waste.is_mixed):
        return 0
    read = {name: size for name, (size, _) in unit.reads.items()}
    stored = {name: info.bytes[name] for name in unit.stores}
    return info.waste.price({**read, **stored}, unit.patterns)


def stored_axes(info: FusionInfo, unit: Summary) -> set[Axes]:
    """The axes of each value that it stores."""
    return {info.axes[name] for name in unit.stores}
