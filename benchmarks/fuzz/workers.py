# SPDX-License-Identifier: Apache-2.0
"""Seeds -> Outcomes, in processes of their own: one that crashes or stands still is a finding."""

from __future__ import annotations

import base64
import itertools
import json
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.fuzz import definitions
from benchmarks.fuzz.findings import Finding, Group, Outcome, Program, make, script_of
from benchmarks.fuzz.judge import Failure
from benchmarks.fuzz.shrink import shrink, simpler_programs

PROGRAMS = 300  # of one process, which is then replaced: kernels stay loaded
CRASH_TRIES = 12  # programs run to shrink one that crashes, each in a process
STARTING = 120.0  # seconds in which a process must be ready


@dataclass(frozen=True)
class Work:
    """What the processes do: seeds from `first` on, for so long."""

    target: str
    first: int
    seconds: float
    jobs: int
    limit: float
    count: int | None = None


def outcomes(work: Work) -> Iterator[Outcome]:
    """As they come, until the time is up or all seeds were run."""
    end = time.monotonic() + work.seconds
    made: queue.Queue[Outcome | BaseException | None] = queue.Queue()
    seeds = itertools.count(work.first) if work.count is None else iter(
        range(work.first, work.first + work.count)
    )  # fmt: skip
    handed = _Seeds(seeds, end)
    threads = [
        threading.Thread(target=_serve, args=(work, handed, made), daemon=True)
        for _ in range(work.jobs)
    ]
    for thread in threads:
        thread.start()
    running = len(threads)
    while running:
        one = made.get()
        if one is None:
            running -= 1
        elif isinstance(one, BaseException):
            raise one
        else:
            yield one


@dataclass
class _Seeds:
    """Hands out each seed once, to whichever thread asks, until the time is up.

    known: the groups found so far
    """

    left: Iterator[int]
    end: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    known: list[Group] = field(default_factory=list)

    def next(self) -> int | None:
        with self.lock:
            return next(self.left, None) if time.monotonic() < self.end else None


def _serve(work: Work, seeds: _Seeds, made: queue.Queue[Any]) -> None:
    """One process after the other, until there are no more seeds."""
    try:
        seed = seeds.next()
        while seed is not None:
            with _Process(work) as process:
                for _ in range(PROGRAMS):
                    outcome = process.run(seed, seeds.known)
                    seeds.known += [one.group for one in outcome.findings]
                    made.put(outcome)
                    seed = seeds.next()
                    if seed is None or not process.is_alive:
                        break
        made.put(None)
    except BaseException as error:
        made.put(error)


class _Process:
    """A worker, and what it says."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.process = subprocess.Popen(
            command(work.target), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=environment(),
        )  # fmt: skip
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.is_alive, self.told = True, 0

    def __enter__(self) -> _Process:
        self._answer(STARTING)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        """The next line; {} at the end of the process, None if there is none in this time."""
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            return None
        return json.loads(line) if line else {}

    def run(self, seed: int, known: list[Group]) -> Outcome:
        """What a seed came to, be it the end of the process.

        known: the groups that all processes have found, which grow.
        """
        start = time.perf_counter()
        try:
            assert self.process.stdin is not None
            order = {"seed": seed, "known": known[self.told :]}
            self.told = len(known)
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer below is the end of the process
        answer = self._answer(self.work.limit)
        while answer and "beat" in answer:
            answer = self._answer(self.work.limit)
        if answer:
            return _read_outcome(answer["outcome"])
        self.is_alive = False
        self.process.kill()
        code = self.process.wait()
        if answer is None:
            failure = Failure("hang", "call", 0, f"no answer for {self.work.limit:g} s")
        else:
            failure = Failure("crash", "call", 0, f"the process ended with {code}")
        found = [_ended(seed, self.work, failure)]
        return Outcome(seed, found, seconds=time.perf_counter() - start)


def _ended(seed: int, work: Work, failure: Failure) -> Finding:
    """A program that ended its process, shrunk if it crashes again."""
    program = make(seed, work.target)
    if failure.kind == "crash":
        is_definition = isinstance(program, definitions.DefinitionProgram)
        steps: Any = definitions.simpler if is_definition else simpler_programs
        program = shrink(program, steps, lambda one: _crashes(one, work), CRASH_TRIES)
    return Finding(failure.kind, program.traits, seed, failure.detail,
                   script_of(program, seed, failure))  # fmt: skip


def _crashes(program: Program, work: Work) -> bool:
    text = base64.b64encode(pickle.dumps(program)).decode()
    try:
        done = subprocess.run(
            [*command(work.target), text], capture_output=True, timeout=work.limit + 20,
            env=environment(), check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode < 0


def command(target: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "benchmarks.fuzz.worker", target]


def environment() -> dict[str, str]:
    """Nothing is stored: most kernels are met once."""
    return {**os.environ, "THUNDER_FUSER_CACHE": "off"}


def _read_outcome(facts: dict[str, Any]) -> Outcome:
    found = [Finding(**{**one, "ops": tuple(one["ops"])}) for one in facts.pop("findings")]
    return Outcome(findings=found, **facts)
