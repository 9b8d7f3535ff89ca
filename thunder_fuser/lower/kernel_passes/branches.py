# SPDX-License-Identifier: Apache-2.0
"""Kernel -> Kernel: a thread computes only the operand of a cat that it writes, in a branch.

for j:                                        if (i < 192)
    a = i < 192 ? ld(T0, ...) : 0                 for j: a = ld(T0, ...); st(T9, exp(a))
    b = i < 192 ? 0 : ld(T1, ...)         ->  else
    st(T9, i < 192 ? exp(a) : sin(b))             for j: b = ld(T1, ...); st(T9, sin(b))

The gradient of a fused QKV projection is the cat of three gradients of a hundred operations.
Without branches each thread computes all three and keeps one. The pass requires that neighbouring
threads take the same branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from thunder_fuser.ir.scalar import Scalar, conjunction
from thunder_fuser.lower import kernel as nodes

LEAST_SAVED = 16  # statements that both branches together must save
MOST_BRANCHES = 8  # in a kernel
LEAST_RUN = 64  # neighbouring threads that take one branch: then most warps do not diverge

Statements = tuple[nodes.Statement, ...]


def branch_at_choices(kernel: nodes.Kernel) -> nodes.Kernel:
    """Copies loops that choose values by a condition into both branches of an If."""
    for _ in range(MOST_BRANCHES):
        body = _branched(kernel.body, frozenset())
        if body is None:
            break
        kernel = replace(kernel, body=body)
    return kernel


def _branched(statements: Statements, around: frozenset[str]) -> Statements | None:
    """The statements with one more branch, the outermost that pays; None if none does.

    around: the names that enclosing blocks define.
    """
    defined = set(around)
    for at, s in enumerate(statements):
        if isinstance(s, nodes.For):
            is_lanes = not any(isinstance(i, nodes.For) for i in nodes.statements_in(s.body))
            branched = _best(statements, at, frozenset(defined), is_lanes)
            if branched is not None:
                return branched
        inner = {s.variable} if isinstance(s, nodes.For) else set[str]()
        for name in nodes.BODIES:
            body = _branched(getattr(s, name, ()), frozenset(defined | inner))
            if body is not None:
                changed: Any = {name: body}
                return (*statements[:at], replace(s, **changed), *statements[at + 1 :])
        defined |= _defines(s)
    return None


def _best(
    statements: Statements, at: int, defined: frozenset[str], is_lanes: bool
) -> Statements | None:
    """The statements with the loop at index `at` in branches. is_lanes: the loop is over lanes, so
    the loads before it and the stores after it go into the branches too."""
    loop = statements[at]
    assert isinstance(loop, nodes.For)
    for condition in _conditions(loop):
        ranges = [(at, at + 1)]
        if is_lanes:  # vectors are loaded before the loop over lanes, and stored behind it
            barriers = (i for i, s in enumerate(statements) if i >= at and _waits((s,)))
            end = next(barriers, len(statements))
            ranges.insert(0, (_start(statements, at, condition, defined), end))
        for first, end in ranges:
            inside = set[str]().union(*map(_defines, statements[first:end]))
            known = condition.symbols <= defined - inside
            if known and inside.isdisjoint(_names(statements[end:])):
                branch = _branch(condition, statements[first:end])
                if branch is not None:
                    return (*statements[:first], branch, *statements[end:])
    return None


def _start(
    statements: Statements, at: int, condition: Scalar, defined: frozenset[str]
) -> int:
    """The first of the definitions right before the loop that the condition does not need."""
    while at and isinstance(statements[at - 1], nodes.Let | nodes.Array | nodes.Words):
        defined -= _defines(statements[at - 1])
        if not condition.symbols <= defined:
            break
        at -= 1
    return at


def _waits(statements: Statements) -> bool:
    """True if there is a barrier, where threads wait for each other."""
    return any(nodes.called(s) in nodes.WAITS for s in nodes.statements_in(statements))


def _conditions(loop: nodes.For) -> list[Scalar]:
    """The conditions by which a loop chooses values, if they hold for runs of threads; the last
    one first."""
    lets = (s for s in nodes.statements_in(loop.body) if isinstance(s, nodes.Let))
    chosen = [s.value.condition for s in lets if isinstance(s.value, nodes.Choose)]
    return list(filter(_holds_for_runs, dict.fromkeys(reversed(chosen))))


def _holds_for_runs(condition: Scalar) -> bool:
    """False if the condition changes every few threads, as i % 16 < 8 does."""
    if condition.is_const:
        return False
    parts = [condition]
    while parts:
        part = parts.pop()
        if part.op == "mod" and not (part.parts[1].is_const and part.parts[1].value >= LEAST_RUN):
            return False
        parts += part.parts
    return True


def _branch(condition: Scalar, statements: Statements) -> nodes.If | None:
    """The If with both branches; None if they save too little or would contain a barrier."""
    if _waits(statements):
        return None
    read = _names(statements)
    bodies = [
        _live(_assumed(statements, condition, holds), read, set()) for holds in (True, False)
    ]
    before, after = _count(statements), sum(map(_count, bodies))
    if 2 * before - after < LEAST_SAVED:
        return None
    return nodes.If(condition, *bodies)


def _count(statements: Statements) -> int:
    return sum(isinstance(s, nodes.Let) for s in nodes.statements_in(statements))


def _defines(s: nodes.Statement) -> set[str]:
    return {s.name} if isinstance(s, nodes.Definition) else set()


# ------------------------------------------------------------------------------------ one branch


def _assumed(statements: Statements, condition: Scalar, holds: bool) -> Statements:
    """The statements, simplified by the knowledge that a condition holds or does not."""
    parts = set(condition.parts if condition.op == "and" else (condition,))

    def simpler(value: Any) -> Any:
        """A value or a statement without the conditions that are known."""
        if isinstance(value, nodes.Choose) and value.condition is condition:
            return value.then if holds else value.otherwise
        test = getattr(value, "condition", None)
        if holds and isinstance(test, Scalar):
            left = test.parts if test.op == "and" else (test,)
            return replace(value, condition=conjunction(p for p in left if p not in parts))
        return value

    def change(s: nodes.Statement) -> nodes.Statement:
        if isinstance(s, nodes.Let):
            return replace(s, value=simpler(s.value))
        known: nodes.Statement = simpler(s)
        return known

    return nodes.rewritten(statements, change)


def _live(statements: Sequence[nodes.Statement], read: set[str], needed: set[str]) -> Statements:
    """The statements without definitions that nothing reads any more.

    read: the names that were read before. Others are kept for an effect, as a checked index is.
    needed: the names that later statements read; adds those that these statements read.
    """
    kept: list[nodes.Statement] = []
    for s in reversed(statements):
        if isinstance(s, nodes.Let) and s.name in read and s.name not in needed:
            continue
        s = nodes.with_bodies(s, lambda body: _live(body, read, needed))
        needed.update(_names([s]))
        kept.append(s)
    return tuple(reversed(kept))


def _names(statements: Sequence[nodes.Statement]) -> set[str]:
    """The names that statements, and those in their bodies, read or write."""
    return {name for s in nodes.statements_in(statements) for name in nodes.names_in(s)}
