# SPDX-License-Identifier: Apache-2.0
"""Seeds -> Outcomes, in processes of their own: one that ends or stands still is a finding.

This process runs no program, not even to print it: torch itself dies of some. It waits for nothing
without a limit, and ends all processes, with their children, when the time is up.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fuzz.findings import POISONED, Finding, Group, Outcome

PROGRAMS = 300  # of one process, which is then replaced: kernels stay loaded
STARTING = 120.0  # seconds in which a process must be ready
EXAMINING = 100.0  # seconds for a program that ended its process
ENDING = 40.0  # seconds for the seeds begun, after the time is up


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
    made: queue.Queue[Outcome | BaseException | None] = queue.Queue()
    seeds = _Seeds(work)
    for _ in range(work.jobs):
        threading.Thread(target=_serve, args=(work, seeds, made), daemon=True).start()
    running = work.jobs
    try:
        while running:
            one = made.get(timeout=max(0.0, seeds.end + ENDING + 10 - time.monotonic()))
            if isinstance(one, BaseException):
                raise one
            running -= one is None
            if one is not None:
                yield one
    except queue.Empty:
        yield Outcome(-1, aside="the fuzzer itself: a thread did not end")
    finally:
        seeds.end_all()


class _Seeds:
    """Hands out each seed once, to whichever thread asks, until the time is up.

    known: the groups found so far
    """

    def __init__(self, work: Work) -> None:
        self.next_ones = itertools.count(work.first) if work.count is None else iter(
            range(work.first, work.first + work.count)
        )  # fmt: skip
        self.end = time.monotonic() + work.seconds
        self.lock = threading.Lock()
        self.known: list[Group] = []
        self.processes: list[subprocess.Popen[str]] = []

    def next(self) -> int | None:
        with self.lock:
            return next(self.next_ones, None) if time.monotonic() < self.end else None

    def left(self, wanted: float) -> float:
        """So many seconds, or fewer: up to the moment when what has begun must end."""
        return max(0.1, min(wanted, self.end + ENDING - time.monotonic()))

    def begin(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """In a group of its own, so that it can be ended with its children."""
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=environment(), start_new_session=True,
        )  # fmt: skip
        with self.lock:
            self.processes.append(process)
        return process

    def end_all(self) -> None:
        with self.lock:
            for process in self.processes:
                end(process)


def end(process: subprocess.Popen[str]) -> int:
    """Kills it with its children, if it has not ended; its status."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _serve(work: Work, seeds: _Seeds, made: queue.Queue[Any]) -> None:
    """One process after the other, until there are no more seeds."""
    try:
        seed = seeds.next()
        while seed is not None:
            with _Process(work, seeds) as process:
                for _ in range(PROGRAMS):
                    outcome = process.run(seed)
                    seeds.known += [one.group for one in outcome.findings]
                    made.put(outcome)
                    seed = seeds.next()
                    if seed is None or not process.is_alive:
                        break
        made.put(None)
    except BaseException as error:
        made.put(error)


class _Lines:
    """What a process says, as JSON, one fact a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.queue: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.queue.put(line)
        self.queue.put("")

    def next(self, end: float) -> dict[str, Any] | None:
        """The next line; {} at the end of the process, None if there is none by then."""
        try:
            line = self.queue.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            return None
        return json.loads(line) if line else {}


class _Process:
    """A worker that serves seeds."""

    def __init__(self, work: Work, seeds: _Seeds) -> None:
        self.work, self.seeds, self.told = work, seeds, 0
        self.process = seeds.begin(command(work.target))
        self.lines = _Lines(self.process)
        self.is_alive = bool(self.lines.next(time.monotonic() + seeds.left(STARTING)))

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)

    def run(self, seed: int) -> Outcome:
        """What a seed came to, be it the end of the process. Shrinking is within the limit."""
        if not self.is_alive:
            return Outcome(seed, aside="the fuzzer itself: a process did not start")
        start = time.monotonic()
        self._order(seed)
        limit, found = self.seeds.left(self.work.limit), list[Finding]()
        answer = self.lines.next(start + limit)
        while answer and "found" in answer:
            found = list(map(_finding, answer["found"]))
            answer = self.lines.next(start + limit)
        if answer:
            return _read_outcome(answer["outcome"])
        self.is_alive = False
        code = end(self.process)
        if found:  # it stood still, or ended, in shrinking
            return Outcome(seed, found, seconds=time.monotonic() - start)
        if answer is None and limit < self.work.limit:
            return Outcome(seed, aside="not ended when the time was up")
        kind = "hang" if answer is None else "crash"
        told = f"no answer for {limit:g} s" if answer is None else _told(code)
        outcome = self._examined(seed, kind, told)
        outcome.seconds = time.monotonic() - start
        return outcome

    def _order(self, seed: int) -> None:
        known = self.seeds.known[self.told :]
        self.told += len(known)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then the answer is the end of the process
            self.process.stdin.write(json.dumps({"seed": seed, "known": known}) + "\n")
            self.process.stdin.flush()

    def _examined(self, seed: int, kind: str, told: str) -> Outcome:
        """What another process finds out about the program that ended this one."""
        seconds = self.seeds.left(EXAMINING)
        process = self.seeds.begin([*command(self.work.target), kind, str(seed), f"{seconds:.0f}"])
        lines, stop = _Lines(process), time.monotonic() + seconds
        last: dict[str, Any] = {"ops": [], "script": f"# seed {seed}: {kind}: {told}\n"}
        while answer := lines.next(stop):
            last.update(answer)
        end(process)
        if "aside" in last:
            return Outcome(seed, aside=last["aside"])
        detail = told + last.get("but", "")
        return Outcome(seed, [Finding(kind, tuple(last["ops"]), seed, detail, last["script"])])


def _told(code: int) -> str:
    return "a CUDA error, after which nothing runs" if code == POISONED else f"it ended with {code}"


def command(target: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "benchmarks.fuzz.worker", target]


def environment() -> dict[str, str]:
    """Nothing is stored: most kernels are met once.

    Thunder's import asks for a GPU; asked through NVML, forks of the process can still use it
    (see also __init__.py).
    """
    return {**os.environ, "THUNDER_FUSER_CACHE": "off", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def shown(target: str, seed: int) -> str:
    """The program of a seed, as text."""
    done = subprocess.run(
        [*command(target), "show", str(seed)], capture_output=True, text=True, check=False,
        env=environment(),
    )  # fmt: skip
    return done.stdout or f"torch dies of drawing seed {seed}: {_told(done.returncode)}"


def _finding(facts: dict[str, Any]) -> Finding:
    return Finding(**{**facts, "ops": tuple(facts["ops"])})


def _read_outcome(facts: dict[str, Any]) -> Outcome:
    found = list(map(_finding, facts.pop("findings")))
    return Outcome(findings=found, **facts)
