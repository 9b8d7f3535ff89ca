# SPDX-License-Identifier: Apache-2.0
"""Edges that are cheaper to recompute than to move through memory.

    segment 0: T1 = cast(T0: bf16, Float); ...    segment 1 reads T1 (4 bytes an element)
->  segment 1: T1 = cast(T0, Float); ...          and reads T0 (2 bytes an element)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from thunder_fuser.analysis.part import Part
from thunder_fuser.ir.fusion import Fusion, OpRecord, names_of


def recompute_cheap_edges(
    fusion: Fusion,
    groups: list[list[OpRecord]],
    strides: Mapping[str, tuple[int, ...]],
    accepts: Callable[[Part], bool],
) -> list[Part]:
    """The parts of the groups, each with own copies of cheap producers where that saves bytes."""
    order = {expr: at for at, expr in enumerate(fusion.exprs)}
    if len(groups) > 1:
        for at, group in enumerate(groups):
            groups[at] = _with_copies(fusion, group, strides, accepts, order)
    results = {output.name for output in fusion.outputs}
    parts: list[Part] = []
    for at, group in enumerate(groups):
        others = {name for i, g in enumerate(groups) if i != at for name in _read_from_outside(g)}
        earlier = {name for g in groups[:at] for expr in g for name in expr.outputs}
        wanted = frozenset((others | results) - earlier)
        if any(name in wanted for expr in group for name in expr.outputs):
            parts.append(Part.of(fusion, group, strides, wanted))
    return parts


def _read_from_outside(group: list[OpRecord]) -> set[str]:
    made = {name for expr in group for name in expr.outputs}
    return {name for expr in group for name in names_of(expr)} - made


def _with_copies(
    fusion: Fusion,
    group: list[OpRecord],
    strides: Mapping[str, tuple[int, ...]],
    accepts: Callable[[Part], bool],
    order: dict[OpRecord, int],
) -> list[OpRecord]:
    """The group, grown by the cheap chains behind its inputs where that reads fewer bytes."""
    for name in sorted(_read_from_outside(group) - set(fusion.inputs)):
        chain, leaves = _cheap_chain(fusion, name)
        if not chain:
            continue
        have = _read_from_outside(group)
        new = sum(_bytes(fusion, leaf, strides) for leaf in leaves if leaf not in have)
        # A scalar is passed by value, so it must be an argument or made where it is used.
        if new > _bytes(fusion, name, strides) and not fusion.tensors[name].is_scalar:
            continue
        grown = sorted({*group, *chain}, key=order.__getitem__)
        wanted = frozenset(n for e in group for n in e.outputs)
        if accepts(Part.of(fusion, grown, strides, wanted & _outward(fusion, group))):
            group = grown
    return group


def _outward(fusion: Fusion, group: list[OpRecord]) -> frozenset[str]:
    results = {output.name for output in fusion.outputs}
    inside = set(group)
    made = [name for expr in group for name in expr.outputs]
    return frozenset(
        n for n in made if n in results or any(use not in inside for use in fusion.uses[n])
    )


def _cheap_chain(fusion: Fusion, name: str) -> tuple[list[OpRecord], list[str]]:
    """The cheap expressions behind a value, and what they start from: inputs and dear results."""
    chain: dict[OpRecord, None] = {}
    leaves: dict[str, None] = {}
    stack = [name]
    while stack:
        at = stack.pop()
        expr = fusion.producer.get(at)
        cheap = expr is not None and (expr.row.is_cheap or fusion.tensors[at].is_scalar)
        if expr is None or not cheap or expr.op == "segment_set":
            leaves[at] = None
        else:
            chain[expr] = None
            stack.extend(names_of(expr))
    return list(chain), list(leaves)


def _bytes(fusion: Fusion, name: str, strides: Mapping[str, tuple[int, ...]]) -> int:
    return Part((), (), (), fusion.tensors, strides).bytes_of(name)
