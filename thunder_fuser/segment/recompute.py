# SPDX-License-Identifier: Apache-2.0
"""Edges that are cheaper to recompute than to move through memory.

    segment 0: T1 = cast(T0: bf16, Float); ...    segment 1 reads T1 (4 bytes an element)
->  segment 1: T1 = cast(T0, Float); ...          and reads T0 (2 bytes an element)
"""

from __future__ import annotations

from collections.abc import Callable

from thunder_fuser.analysis.part import Part, Parts
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import OpRecord, names_of


def recompute_cheap_edges(
    parts_of: Parts, groups: list[list[OpRecord]], accepts: Callable[[Part], bool]
) -> list[Part]:
    """The parts of the groups, each with own copies of cheap producers where that saves bytes.

    A copy may read what no group had to store before, so the part that makes it is asked again.
    """
    order = {expr: at for at, expr in enumerate(parts_of.fusion.exprs)}
    parts = _parts(parts_of, groups)
    for at in range(len(groups) if len(groups) > 1 else 0):
        group = _with_copies(parts_of, groups[at], accepts, order)
        grown = [*groups[:at], group, *groups[at + 1 :]]
        new = _parts(parts_of, grown)
        if all(part in parts or accepts(part) for part in new):
            groups, parts = grown, new
    return parts


def _parts(parts_of: Parts, groups: list[list[OpRecord]]) -> list[Part]:
    """The parts of the groups that something outside of them needs."""
    results = {output.name for output in parts_of.fusion.outputs}
    parts: list[Part] = []
    for at, group in enumerate(groups):
        others = {name for i, g in enumerate(groups) if i != at for name in _read_from_outside(g)}
        earlier = {name for g in groups[:at] for expr in g for name in expr.outputs}
        wanted = frozenset((others | results) - earlier)
        if any(name in wanted for expr in group for name in expr.outputs):
            parts.append(parts_of.of(group, wanted))
    return parts


def _read_from_outside(group: list[OpRecord]) -> set[str]:
    made = {name for expr in group for name in expr.outputs}
    return {name for expr in group for name in names_of(expr)} - made


def _with_copies(
    parts_of: Parts,
    group: list[OpRecord],
    accepts: Callable[[Part], bool],
    order: dict[OpRecord, int],
) -> list[OpRecord]:
    """The group, grown by the cheap chains behind its inputs where that reads fewer bytes."""
    fusion = parts_of.fusion
    for name in sorted(_read_from_outside(group) - {*fusion.inputs, *dict(fusion.drawn)}):
        chain, leaves = _cheap_chain(fusion, name)
        if not chain:
            continue
        have = _read_from_outside(group)
        new = sum(parts_of.bytes_of(leaf) for leaf in leaves if leaf not in have)
        # A scalar is passed by value, so it must be an argument or made where it is used.
        if new > parts_of.bytes_of(name) and not fusion.tensors[name].is_scalar:
            continue
        grown = sorted({*group, *chain}, key=order.__getitem__)
        if accepts(parts_of.of(grown, parts_of.used_outside(group))):
            group = grown
    return group


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
        elif expr not in chain:  # else a diamond's two sides, and theirs, would all be walked
            chain[expr] = None
            stack.extend(names_of(expr))
    return list(chain), list(leaves)
