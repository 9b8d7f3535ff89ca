# SPDX-License-Identifier: Apache-2.0
"""Kernel -> Kernel: threads branch to the operand of a cat that they write, not compute them all.

for j:                                        if (i < 192)
    a = i < 192 ? ld(T0, ...) : 0                 for j: a = ld(T0, ...); st(T9, exp(a))
    b = i < 192 ? 0 : ld(T1, ...)         ->  else
    st(T9, i < 192 ? exp(a) : sin(b))             for j: b = ld(T1, ...); st(T9, sin(b))

The gradient of a fused QKV projection is the cat of three gradients of a hundred operations: each
thread computed them all and kept one. Neighbouring threads must take the same branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from thunder_fuser.ir.scalar import Scalar, conjunction
from thunder_fuser.lower import kernel as nodes

LEAST_SAVED = 16  # statements that the branches need not compute, together
MOST_BRANCHES = 8  # in a kernel
LEAST_RUN = 64  # threads side by side, of which most warps take one branch

Statements = tuple[nodes.Statement, ...]


def branch_at_choices(kernel: nodes.Kernel) -> nodes.Kernel:
    """Puts loops whose values are chosen by a condition into the branches of that condition."""
    for _ in range(MOST_BRANCHES):
        body = _branched(kernel.body, frozenset())
        if body is None:
            break
        kernel = replace(kernel, body=body)
    return kernel


def _branched(statements: Statements, around: frozenset[str]) -> Statements | None:
    """The statements with one more branch, the outermost that pays; None if none does.

    around: the names that the blocks around define.
    """
    defined = set(around)
    for at, s in enumerate(statements):
        if isinstance(s, nodes.For):
            is_lanes = not any(isinstance(one, nodes.For) for one in nodes.statements_in(s.body))
            found = _best(statements, at, frozenset(defined), is_lanes)
            if found is not None:
                return found
        if isinstance(s, nodes.For | nodes.Block):
            inner = {s.variable} if isinstance(s, nodes.For) else set[str]()
            body = _branched(s.body, frozenset(defined | inner))
            if body is not None:
                return (*statements[:at], replace(s, body=body), *statements[at + 1 :])
        elif isinstance(s, nodes.If):
            for name in ("body", "otherwise"):
                body = _branched(getattr(s, name), frozenset(defined))
                if body is not None:
                    changed: Any = {name: body}
                    return (*statements[:at], replace(s, **changed), *statements[at + 1 :])
        defined |= _defines(s)
    return None


def _best(
    statements: Statements, at: int, defined: frozenset[str], is_lanes: bool
) -> Statements | None:
    """The statements with the loop at a place in branches; with loads before it, if of lanes."""
    loop = statements[at]
    assert isinstance(loop, nodes.For)
    for condition in _conditions(loop):
        ranges = [(at, at + 1)]
        if is_lanes:  # the vectors that lanes read are loaded before them, and stored behind
            ranges.insert(0, (_start(statements, at, condition, defined), _end(statements, at)))
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
    """The first of the definitions before a loop, behind those that a condition needs."""
    while at and isinstance(statements[at - 1], nodes.Let | nodes.Array | nodes.Words):
        defined -= _defines(statements[at - 1])
        if not condition.symbols <= defined:
            break
        at -= 1
    return at


def _end(statements: Statements, at: int) -> int:
    """Behind the loop at a place and what stores its lanes: where threads wait, or at the end."""
    waits = (i for i in range(at, len(statements)) if _waits(statements[i : i + 1]))
    return next(waits, len(statements))


def _waits(statements: Statements) -> bool:
    """True where threads wait for each other."""
    return any(nodes.called(s) in nodes.WAITS for s in nodes.statements_in(statements))


def _conditions(loop: nodes.For) -> list[Scalar]:
    """Those by which values are chosen in a loop, and that hold for runs of threads; last first."""
    lets = (s for s in nodes.statements_in(loop.body) if isinstance(s, nodes.Let))
    found = [s.value.condition for s in lets if isinstance(s.value, nodes.Choose)]
    return [one for one in dict.fromkeys(reversed(found)) if _holds_for_runs(one)]


def _holds_for_runs(condition: Scalar) -> bool:
    """False where it changes every few threads, as i % 16 < 8 does."""
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
    """Both branches, if they save enough and threads do not wait for each other in them."""
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
    """The statements where a condition is known."""
    parts = set(condition.parts if condition.op == "and" else (condition,))

    def simpler(value: Any) -> Any:
        """A value, or a statement, without conditions that hold."""
        if isinstance(value, nodes.Choose) and value.condition is condition:
            return value.then if holds else value.otherwise
        own = getattr(value, "condition", None)
        if holds and isinstance(own, Scalar):
            left = own.parts if own.op == "and" else (own,)
            return replace(value, condition=conjunction(p for p in left if p not in parts))
        return value

    def change(s: nodes.Statement) -> nodes.Statement:
        if isinstance(s, nodes.Let):
            return replace(s, value=simpler(s.value))
        known: nodes.Statement = simpler(s)
        return known

    return nodes.rewritten(statements, change)


def _live(statements: Sequence[nodes.Statement], read: set[str], needed: set[str]) -> Statements:
    """The statements without those that define what nothing reads any more.

    read: the names that something read. Others are made for an effect, as a checked index is.
    needed: those that what follows reads; those that these statements read are added.
    """
    kept: list[nodes.Statement] = []
    for s in reversed(statements):
        if isinstance(s, nodes.Let) and s.name in read and s.name not in needed:
            continue
        if isinstance(s, nodes.For | nodes.Block):
            s = replace(s, body=_live(s.body, read, needed))
        elif isinstance(s, nodes.If):
            bodies = (_live(one, read, needed) for one in (s.body, s.otherwise))
            s = nodes.If(s.condition, *bodies)
        needed.update(_names([s]))
        kept.append(s)
    return tuple(reversed(kept))


def _names(statements: Sequence[nodes.Statement]) -> set[str]:
    """The names that statements, and those in their bodies, read or write."""
    return {name for s in nodes.statements_in(statements) for name in nodes.names_in(s)}
