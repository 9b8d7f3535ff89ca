# SPDX-License-Identifier: Apache-2.0
"""Cheap producers belong to their readers: each reader gets a private copy of the chain behind it.

    T1 = cast(T0: bf16, Float);  T2 = sum(T1, 0);  T3 = sum(T1, 1)
->  unit 0: T1 = cast(T0), T2 = sum(T1, 0)         both read T0, 2 bytes an element,
    unit 1: T1 = cast(T0), T3 = sum(T1, 1)         and none waits for the other

A copy is the expression itself, held by several units: so it keeps every annotation, schedulers
see it like any other, and copies that end in one segment are one expression again. What is copied
are chains of cheap expressions over at most one tensor (casts up, broadcasts, views, slices, unary
arithmetic, masks of iotas, random numbers) that is not larger than their result. Numbers, which
kernels take by value, are copied wherever they are read.
"""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.segment.facts import Facts

MAX_CHAIN = 8  # expressions; a longer chain is cut, and its middle may be stored

_COPIED = (OpKind.POINTWISE, OpKind.MOVEMENT, OpKind.FACTORY, OpKind.RANDOM)


@dataclass(frozen=True, slots=True)
class Unit:
    """What the segmenter never takes apart: an expression with its private copies, by number.

    reads: (value, bytes of it) that neither the expression nor a copy makes.
    """

    expr: int
    copies: tuple[int, ...]
    reads: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Cheap expressions that end in one value; the tensor they read, if any, and elements of it."""

    exprs: tuple[int, ...]
    leaf: str | None
    elements: int


def privatize(facts: Facts) -> tuple[Unit, ...]:
    """The units of a fusion, in program order; what only copies read has no unit."""
    shared = _shared_chains(facts)
    needed = {facts.number[name] for name in facts.results if name in facts.number}
    units = []
    for at in reversed(range(len(facts.exprs))):
        if at in needed:
            unit = make_unit(facts, at, shared)
            units.append(unit)
            needed |= {facts.number[name] for name, _ in unit.reads if name in facts.number}
    return tuple(reversed(units))


def make_unit(facts: Facts, at: int, shared: dict[int, Chain]) -> Unit:
    """One expression with the copies it takes of shared chains."""
    copies: set[int] = set()
    reads: dict[str, int] = {}
    is_external = facts.exprs[at].row.kind is OpKind.EXTERNAL
    for name in facts.operands[at]:
        chain = shared.get(facts.number.get(name, -1))
        shown = _shown(facts, at, name)
        if chain is None or is_external:
            reads[name] = min(facts.bytes[name], shown * facts.itemsize(name))
            continue
        copies.update(chain.exprs)
        if chain.leaf is not None:
            more = min(chain.elements, shown) * facts.itemsize(chain.leaf)
            reads[chain.leaf] = min(reads.get(chain.leaf, 0) + more, facts.bytes[chain.leaf])
    if not copies:
        return Unit(at, (), tuple(reads.items()))
    made = {name for copy in copies for name in facts.exprs[copy].outputs}
    left = tuple((name, size) for name, size in reads.items() if name not in made)
    return Unit(at, tuple(sorted(copies)), left)


def _shown(facts: Facts, at: int, name: str) -> int:
    """Elements of an operand that a whole result needs."""
    return facts.shown(at, name, facts.elements[facts.exprs[at].outputs[0]])


def _shared_chains(facts: Facts) -> dict[int, Chain]:
    """The chain behind each cheap value that several expressions read."""
    chains: dict[int, Chain] = {}
    for at in range(len(facts.exprs)):
        if not facts.is_number(at):
            chain = _chain(facts, at, chains)
            if chain is not None:
                chains[at] = chain
    return {at: chain for at, chain in chains.items() if _is_shared(facts, at)}


def _is_shared(facts: Facts, at: int) -> bool:
    (name,) = facts.exprs[at].outputs
    return len(facts.uses[name]) + (name in facts.results) > 1


def _chain(facts: Facts, at: int, chains: dict[int, Chain]) -> Chain | None:
    """The cheap expressions that end here, if they read one tensor no larger than their result."""
    expr = facts.exprs[at]
    if expr.row.kind not in _COPIED or not expr.row.is_cheap or expr.op == "segment_set":
        return None
    operands = facts.operands[at]
    alone: list[Chain | None] = [None] * len(operands)
    behind = [chains.get(facts.number.get(name, -1)) for name in operands]
    if behind == alone and len(operands) > 1:
        return None
    found = _joined(facts, at, behind)
    return found if found or behind == alone else _joined(facts, at, alone)


def _joined(facts: Facts, at: int, behind: list[Chain | None]) -> Chain | None:
    """The chain of an expression behind whose operands these chains are taken along."""
    exprs, leaves, elements = {at}, set(), 0
    for name, chain in zip(facts.operands[at], behind, strict=True):
        shown = _shown(facts, at, name)
        if chain is None:
            leaves.add(name)
            elements = max(elements, shown)
        else:
            exprs.update(chain.exprs)
            leaves.update([chain.leaf] if chain.leaf else [])
            elements = max(elements, min(shown, chain.elements))
    if len(exprs) > MAX_CHAIN or len(leaves) > 1:
        return None
    leaf = next(iter(leaves), None)
    (made,) = facts.exprs[at].outputs
    if leaf is not None and elements * facts.itemsize(leaf) > facts.bytes[made]:
        return None  # narrower as it is than what it is made of
    return Chain(tuple(sorted(exprs)), leaf, elements)
