# SPDX-License-Identifier: Apache-2.0
"""Which values of the forward the backward may keep, recompute, or choose between.

    time()            fewest bytes kept without estimated slowdown (the default)
    memory()          fewest bytes kept
    budget(0.5)       fastest with as many bytes as lie halfway from memory() to time()
    none()            what Thunder's gradient rules read is kept
    save_only("t5")   nothing else is kept, as far as it can be recomputed
    any callable      (value, bytes, cost, tags) -> KEEP, RECOMPUTE or FREE

A policy is frozen: it prints as the call that made it, compares and hashes by that, and so may be
part of keys. What is never recomputed, whatever a policy says, is listed in apply.py.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from thunder_fuser.errors import OptionError
from thunder_fuser.rematerialization.cost import Cost


class Choice(Enum):
    """What a policy says of a value."""

    KEEP = "keep"
    RECOMPUTE = "recompute"
    FREE = "free choice"


KEEP, RECOMPUTE, FREE = Choice.KEEP, Choice.RECOMPUTE, Choice.FREE

Tags = frozenset[str]
Choose = Callable[[str, int, Cost, Tags], Choice]

# Tags of a value. The forward writes it for others in any case / later regions of the forward
# continue from it (a residual stream) / it continues from so many others that it is a checkpoint /
# reading what it is made of moves over a quarter more bytes than reading it / torch reads it in the
# backward, so that it must be written again / a view of what it is made of / random numbers, by
# their seed.
STORED, STREAM, CHECKPOINT, WIDER, WRITTEN, VIEW, RANDOM = (
    "stored", "stream", "checkpoint", "wider", "written", "view", "random",
)  # fmt: skip


@runtime_checkable
class Policy(Protocol):
    """A choice for each value; what counts more, bytes or time; how long chains may be.

    stages: how often in a row a stream may be recomputed from its values before; see STREAM.
    """

    @property
    def stages(self) -> int: ...
    @property
    def share(self) -> float:
        """Of the bytes between the fewest and those of `time`; 1: time counts first."""
        ...

    def __call__(self, value: str, bytes: int, cost: Cost, tags: Tags) -> Choice: ...


STAGES = 3  # of four values of a stream, one is kept


@dataclass(frozen=True, slots=True, repr=False)
class _Named:
    @property
    def stages(self) -> int:
        return 0

    @property
    def share(self) -> float:
        return 1.0

    def __repr__(self) -> str:
        return f"{type(self).__name__.removesuffix('_').lower()}()"


@dataclass(frozen=True, slots=True, repr=False)
class None_(_Named):
    def __call__(self, value: str, bytes: int, cost: Cost, tags: Tags) -> Choice:
        return KEEP


@dataclass(frozen=True, slots=True, repr=False)
class Time(_Named):
    """Keeps what would have to be written again, or be read from more bytes than it has."""

    def __call__(self, value: str, bytes: int, cost: Cost, tags: Tags) -> Choice:
        return KEEP if tags & {CHECKPOINT, WRITTEN, WIDER} else FREE


@dataclass(frozen=True, slots=True, repr=False)
class Memory(_Named):
    def __call__(self, value: str, bytes: int, cost: Cost, tags: Tags) -> Choice:
        return KEEP if CHECKPOINT in tags else FREE

    @property
    def stages(self) -> int:
        return STAGES

    @property
    def share(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True, repr=False)
class Budget(Memory):
    between: float

    @property
    def share(self) -> float:
        return self.between

    def __repr__(self) -> str:
        return f"budget({self.between:g})"


@dataclass(frozen=True, slots=True, repr=False)
class SaveOnly(_Named):
    names: frozenset[str]
    predicate: Callable[[str], bool] | None = None

    def __call__(self, value: str, bytes: int, cost: Cost, tags: Tags) -> Choice:
        named = value in self.names or (self.predicate is not None and self.predicate(value))
        return KEEP if named else RECOMPUTE

    def __repr__(self) -> str:
        said = [repr(name) for name in sorted(self.names)]
        if self.predicate is not None:
            said.append(_name(self.predicate))
        return f"save_only({', '.join(said)})"


@dataclass(frozen=True, slots=True, repr=False)
class Custom(_Named):
    function: Choose

    def __call__(self, value: str, bytes: int, cost: Cost, tags: Tags) -> Choice:
        said = self.function(value, bytes, cost, tags)
        if not isinstance(said, Choice):
            raise OptionError(
                f"policy {_name(self.function)} of {value}",
                expected="KEEP, RECOMPUTE or FREE of thunder_fuser.rematerialization.policy",
                got=repr(said),
            )
        return said

    def __repr__(self) -> str:
        return _name(self.function)


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


def none() -> Policy:
    """Keeps every value that the gradient rules read."""
    return None_()


def time() -> Policy:
    """The fewest bytes that cost no estimated time."""
    return Time()


def memory() -> Policy:
    """The fewest bytes."""
    return Memory()


def budget(between: float) -> Policy:
    """0: as memory(); 1: as time(); between, the fastest that keeps no more than that share."""
    if isinstance(between, bool) or not isinstance(between, (int, float)) or not 0 <= between <= 1:
        raise OptionError("budget", expected="a number from 0 to 1", got=repr(between))
    return time() if between == 1 else Budget(float(between))


def save_only(*which: str | Callable[[str], bool]) -> Policy:
    """Keeps the values of these names (of the trace), and those whose name a predicate takes."""
    predicates = [one for one in which if callable(one)]
    if len(predicates) > 1 or not all(callable(one) or isinstance(one, str) for one in which):
        raise OptionError(
            "save_only", expected="names, and a predicate of names at most", got=repr(which)
        )
    return SaveOnly(
        frozenset(one for one in which if isinstance(one, str)), *predicates
    )


_MAKERS = {"none": none, "time": time, "memory": memory, "budget": budget, "save_only": save_only}


def policy_of(given: object) -> Policy:
    """A policy, the text of one ("memory", "budget(0.5)"), or a callable; OptionError else."""
    if isinstance(given, Policy):
        return given
    if isinstance(given, str):
        return _read(given)
    if callable(given):
        return Custom(given)
    raise _refused(given)


def _read(text: str) -> Policy:
    """"budget(0.5)"  ->  budget(0.5)"""
    name, brace, rest = text.strip().partition("(")
    maker = _MAKERS.get(name)
    if maker is None or (brace and not rest.endswith(")")):
        raise _refused(text)
    try:
        arguments = ast.literal_eval(f"({rest[:-1]},)") if rest[:-1].strip() else ()
        return maker(*arguments)  # type: ignore[operator]
    except (SyntaxError, ValueError, TypeError) as error:
        raise _refused(text) from error


def _refused(given: object) -> OptionError:
    return OptionError(
        "option rematerialization",
        expected="none, time, memory, budget(x), save_only(names) or a callable",
        got=repr(given),
    )
