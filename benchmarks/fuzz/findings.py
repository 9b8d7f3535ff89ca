# SPDX-License-Identifier: Apache-2.0
"""A seed -> its findings: programs that fail, shrunk, each with the group it counts in."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.fuzz import definitions
from benchmarks.fuzz.generate import program_of
from benchmarks.fuzz.judge import Failure, Verdict, judge
from benchmarks.fuzz.shrink import about, shrink, simpler_programs

TRIES = 60  # programs that are run to shrink one
FAILURES = 3  # of one program that are shrunk
DEFINITIONS = 4  # every so many-th seed is a definition

Group = tuple[str, tuple[str, ...]]  # the kind of a failure, and what else tells its cause


@dataclass(frozen=True)
class Finding:
    """A shrunk program. Those of one kind with the same ops, or message, are one group."""

    kind: str
    ops: tuple[str, ...]
    seed: int
    detail: str
    script: str

    @property
    def group(self) -> Group:
        return self.kind, self.ops


@dataclass
class Outcome:
    """What became of a seed: findings, or why it was set aside, or neither."""

    seed: int
    findings: list[Finding] = field(default_factory=list)
    aside: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


Program = Any  # a Program or a DefinitionProgram: text, ops and equality


def make(seed: int, target: str) -> Program:
    """What a seed stands for."""
    if seed % DEFINITIONS == DEFINITIONS - 1:
        return definitions.program_of(seed, target)
    return program_of(seed, target)


def verdict_of(program: Program) -> Verdict:
    """What the fuser does wrong in it."""
    if isinstance(program, definitions.DefinitionProgram):
        return definitions.judge(program)
    return judge(program)


class Finder:
    """Runs seeds, and remembers the groups it has seen, so that known ones are not shrunk again."""

    def __init__(self, target: str, beat: Callable[[], None] = lambda: None) -> None:
        self.target, self.beat = target, beat
        self.known: set[Group] = set()

    def run(self, seed: int) -> Outcome:
        start = time.perf_counter()
        program = make(seed, self.target)
        verdict = verdict_of(program)
        found: list[Finding] = []
        for failure in _distinct(verdict.failures)[:FAILURES]:
            finding = self._finding(seed, program, failure)
            if finding.group not in [one.group for one in found]:
                found.append(finding)
                self.known.add(finding.group)
        return Outcome(seed, found, verdict.aside, time.perf_counter() - start)

    def _finding(self, seed: int, program: Program, failure: Failure) -> Finding:
        small = self._sliced(program, failure)
        group = self._known_group(small, failure)
        if group is None:
            steps = definitions.simpler if _is_definition(small) else simpler_programs
            small = shrink(small, steps, lambda one: self._fails(one, failure.kind), TRIES)
        last = next(
            (one for one in self._verdict(small).failures if one.kind == failure.kind), failure
        )
        group = group or (failure.kind, _traits(small, last))
        return Finding(*group, seed, last.detail, script_of(small, seed, last))

    def _sliced(self, program: Program, failure: Failure) -> Program:
        if _is_definition(program):
            return program
        small = about(program, failure.where)
        return small if small == program or self._fails(small, failure.kind) else program

    def _known_group(self, program: Program, failure: Failure) -> Any:
        """A group met before that has nothing which this program has not."""
        traits = {*_traits(program, failure), *program.ops}
        fits = [
            group for group in self.known if group[0] == failure.kind and set(group[1]) <= traits
        ]
        return min(fits, default=None)

    def _fails(self, program: Program, kind: str) -> bool:
        return any(one.kind == kind for one in self._verdict(program).failures)

    def _verdict(self, program: Program) -> Verdict:
        """A step that is no program at all, say with an operand that is gone, fails in no way."""
        self.beat()
        try:
            return verdict_of(program)
        except Exception:
            return Verdict()


def script_of(program: Program, seed: int, failure: Failure) -> str:
    """The program as a file, with what it showed."""
    told = " ".join(failure.detail.split())[:200]
    return f"# seed {seed}: {failure.kind}: {told}\n{program}"


def _traits(program: Program, failure: Failure) -> tuple[str, ...]:
    """What a failure is grouped by, beside its kind: by default the ops.

    Errors of one text are one group, without names and numbers in it; untyped ones of one function;
    confused attributes of one change.
    """
    if failure.kind == "cache":
        return (program.change,)
    if failure.kind.startswith("internal"):
        return (failure.detail.rpartition("[")[2].rstrip("]"),)
    if "raises" in failure.kind:
        return (re.sub(r"\w*\d[\w.]*", "#", failure.detail)[:90],)
    if "does not share" in failure.kind:
        return ("a view of an argument",)
    return tuple(program.traits)


def _is_definition(program: Program) -> bool:
    return isinstance(program, definitions.DefinitionProgram)


def _distinct(failures: tuple[Failure, ...]) -> list[Failure]:
    """The first of each kind and place."""
    return list({(one.kind, one.where): one for one in reversed(failures)}.values())[::-1]
