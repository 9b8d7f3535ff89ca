# SPDX-License-Identifier: Apache-2.0
"""A seed -> its findings: programs that fail, shrunk, each with the group it counts in."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from benchmarks.fuzz import definitions
from benchmarks.fuzz.generate import program_of
from benchmarks.fuzz.judge import Failure, Truth, Verdict, judge, of_thunder
from benchmarks.fuzz.shrink import about, shrink, simpler_programs

TRIES = 60  # programs that are run to shrink one
SHRINKING = 30.0  # seconds, for all failures of a seed
POISONED = 86  # the status of a process in which CUDA runs nothing any more
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


def run_in_torch(program: Program) -> None:
    """Torch's part of it alone, with the runs in wider types that results are held against."""
    truth = Truth(program.meaning if _is_definition(program) else program)
    for call in range(truth.program.calls):
        truth.bounds(call)


def run_in_thunder(program: Program) -> None:
    """Without the fuser; of a definition nothing."""
    if not _is_definition(program):
        of_thunder(Truth(program))


def steps_of(program: Program) -> Callable[[Any], Any]:
    """What makes it simpler."""
    return definitions.simpler if _is_definition(program) else simpler_programs


def poison_ends(target: str) -> None:
    """Ends the process if CUDA has an error that stays: nothing that runs later would tell."""
    if target != "cuda" or not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        os._exit(POISONED)


class Finder:
    """Runs seeds, and remembers the groups it has seen, so that known ones are not shrunk again.

    told: gets the findings as they are, before they are shrunk
    """

    def __init__(self, target: str, told: Callable[[list[Any]], None] = lambda _: None) -> None:
        self.target, self.told = target, told
        self.known: set[Group] = set()
        self.stop = 0.0

    def run(self, seed: int) -> Outcome:
        start = time.perf_counter()
        program = make(seed, self.target)
        verdict = self._run(program)
        failures = _distinct(verdict.failures)[:FAILURES]
        if failures:
            self.told([asdict(_as_it_is(seed, program, one)) for one in failures])
        self.stop = time.monotonic() + SHRINKING
        found: list[Finding] = []
        for failure in failures:
            finding = self._finding(seed, program, failure)
            if finding.group not in [one.group for one in found]:
                found.append(finding)
                self.known.add(finding.group)
        return Outcome(seed, found, verdict.aside, time.perf_counter() - start)

    def _finding(self, seed: int, program: Program, failure: Failure) -> Finding:
        small = self._sliced(program, failure)
        group = self._known_group(small, failure)
        if group is None:
            small = shrink(small, steps_of(small), lambda one: self._fails(one, failure.kind),
                           TRIES, self.stop - time.monotonic())  # fmt: skip
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

    def _known_group(self, program: Program, failure: Failure) -> Group | None:
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
        try:
            return self._run(program)
        except Exception:
            return Verdict()

    def _run(self, program: Program) -> Verdict:
        try:
            return verdict_of(program)
        finally:
            poison_ends(self.target)


def _as_it_is(seed: int, program: Program, failure: Failure) -> Finding:
    group = failure.kind, _traits(program, failure)
    return Finding(*group, seed, failure.detail, script_of(program, seed, failure))


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
