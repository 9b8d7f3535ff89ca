# SPDX-License-Identifier: Apache-2.0
"""Which values of the forward the backward may keep, recompute, or choose between.

    time()            fewest bytes kept without estimated slowdown (the default)
    memory()          fewest bytes kept
    budget(0.5)       fastest with as many bytes as lie halfway from memory() to time()
    none()            what Thunder's gradient rules read is kept
    save_only("t5")   nothing else is kept, as far as it can be recomputed
    any callable      (value, bytes, cost, tags) -> KEEP, RECOMPUTE or FREE

What is never recomputed, whatever a policy says, is listed in apply.py.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from thunder_fuser.errors import OptionError


class Choice(Enum):
    """A policy's answer for one value."""

    KEEP = "keep"
    RECOMPUTE = "recompute"
    FREE = "free choice"


KEEP, RECOMPUTE, FREE = Choice.KEEP, Choice.RECOMPUTE, Choice.FREE

Tags = frozenset[str]  # of a value:
STORED = "stored"  # the forward writes it for others in any case
STREAM = "stream"  # later regions of the forward read it (a residual stream)
CHECKPOINT = "checkpoint"  # a value of a stream, kept to bound the chain of recomputed ones
WIDER = "wider"  # recomputing it reads over a quarter more bytes than it has
WRITTEN = "written"  # torch reads it in the backward: if it is recomputed, it is written again
VIEW = "view"  # a view of the operand that it is computed from
RANDOM = "random"  # random numbers, which follow from a seed


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of recomputing a value. moved: bytes written and read; operations: arithmetic for
    all elements, in the units of ir/op_table.py (an addition is 1, an exponential 8), and as often
    as the backward's kernels compute each."""

    moved: int = 0
    operations: int = 0


PolicyFunction = Callable[[str, int, Cost, Tags], Choice]


@dataclass(frozen=True, slots=True, repr=False)
class Policy:
    """A choice for each value. It prints as `text`, the call that makes it, and is part of keys.

    stages: how many values of a stream in a row may be recomputed; see Note [Bounded chains].
    share: the budget, as a share of the bytes from the fewest to those of `time`; 1: no budget.
    """

    text: str
    choose: PolicyFunction
    stages: int = 0
    share: float = 1.0

    def __repr__(self) -> str:
        return self.text

    def __call__(self, value: str, bytes: int, cost: Cost, tags: Tags) -> Choice:
        choice = self.choose(value, bytes, cost, tags)
        if not isinstance(choice, Choice):
            raise OptionError(
                f"policy {self.text} of {value}",
                expected="KEEP, RECOMPUTE or FREE of thunder_fuser.rematerialization.policy",
                got=repr(choice),
            )
        return choice


def none() -> Policy:
    """Keeps every value that the gradient rules read."""
    return Policy("none()", _keep)


def time() -> Policy:
    """The fewest bytes that cost no estimated time."""
    return Policy("time()", _keep_what_takes_time)


def memory() -> Policy:
    """The fewest bytes."""
    return Policy("memory()", _keep_checkpoints, _STAGES, share=0.0)


def budget(between: float) -> Policy:
    """0: as memory(); 1: as time(); between: the fastest cut that keeps at most that share."""
    if isinstance(between, bool) or not isinstance(between, (int, float)) or not 0 <= between <= 1:
        raise OptionError("budget", expected="a number from 0 to 1", got=repr(between))
    if between == 1:
        return time()
    return Policy(f"budget({between:g})", _keep_checkpoints, _STAGES, float(between))


def save_only(*which: str | Callable[[str], bool]) -> Policy:
    """Keeps the values with these names (of the trace), and those a predicate of names takes."""
    names = sorted({name for name in which if isinstance(name, str)})
    predicates = [item for item in which if callable(item)]
    if len(predicates) > 1 or not all(callable(item) or isinstance(item, str) for item in which):
        raise OptionError(
            "save_only", expected="names, and a predicate of names at most", got=repr(which)
        )
    listed = ", ".join([*map(repr, names), *map(_name, predicates)])
    return Policy(f"save_only({listed})", _Only(frozenset(names), *predicates))


_STAGES = 3  # of four values of a stream, one is kept


def _keep(value: str, bytes: int, cost: Cost, tags: Tags) -> Choice:
    return KEEP


def _keep_what_takes_time(value: str, bytes: int, cost: Cost, tags: Tags) -> Choice:
    """Keeps a value if recomputing it would write it again, or read more bytes than it has."""
    return KEEP if tags & {CHECKPOINT, WRITTEN, WIDER} else FREE


def _keep_checkpoints(value: str, bytes: int, cost: Cost, tags: Tags) -> Choice:
    return KEEP if CHECKPOINT in tags else FREE


@dataclass(frozen=True, slots=True)
class _Only:
    names: frozenset[str]
    predicate: Callable[[str], bool] = lambda _: False

    def __call__(self, value: str, bytes: int, cost: Cost, tags: Tags) -> Choice:
        return KEEP if value in self.names or self.predicate(value) else RECOMPUTE


_MAKERS = {"none": none, "time": time, "memory": memory, "budget": budget, "save_only": save_only}


def policy_of(policy: object) -> Policy:
    """A policy from a policy, a text ("memory", "budget(0.5)") or a callable; else OptionError."""
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, str):
        return _read(policy)
    if callable(policy):
        return Policy(_name(policy), policy)
    raise _refused(policy)


def _read(text: str) -> Policy:
    """"budget(0.5)"  ->  budget(0.5)"""
    name, brace, rest = text.strip().partition("(")
    maker = _MAKERS.get(name)
    if maker is None or (brace and not rest.endswith(")")):
        raise _refused(text)
    try:
        arguments = ast.literal_eval(f"({rest[:-1]},)") if rest[:-1].strip() else ()
        return maker(*arguments)  # type: ignore[operator]
    except OptionError as error:
        raise _refused(text, f"in {name}(...) {error.facts['expected']}") from None
    except (SyntaxError, ValueError, TypeError) as error:
        raise _refused(text) from error


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


def _refused(
    policy: object,
    expected: str = "none, time, memory, budget(0.5), save_only('t5', 't9') or a callable",
) -> OptionError:
    return OptionError("option rematerialization", expected=expected, got=repr(policy))
