# SPDX-License-Identifier: Apache-2.0
"""Searches the fastest schedule around a scheduler's own, by measurements on the device.

1. The store may have the choice for this kernel on this device.
2. Candidates are legal (autotune/rules.py) neighbours in the scheduler's parameter space
   (autotune/spaces.py). A few at a time are compiled, checked against the scheduler's own kernel,
   and timed in turns with it. The search goes on around the best one.
3. The best ones and the scheduler's own are timed again, in turns. The scheduler's own wins if the
   difference is within noise, so no kernel gets slower.

A search takes at most `seconds`, all searches of a process the option autotune_total. On a device
one kernel is measured at a time, among all threads and all processes that share a store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any

import torch

from thunder_fuser.autotune.choice import Tuning, keep, recipe_of, stored
from thunder_fuser.autotune.rules import check
from thunder_fuser.autotune.spaces import neighbours
from thunder_fuser.autotune.trial import Bench, Trial
from thunder_fuser.base.logs import log
from thunder_fuser.base.threads import Recent, SingleFlight, make_lock, run_jobs
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.errors import LaunchError, ScheduleError
from thunder_fuser.host.programs.launchers import launcher_for
from thunder_fuser.options import option
from thunder_fuser.runtime.binaries import unstored
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.store.entry import Binary, Recipe
from thunder_fuser.store.store import current_store

TOGETHER = 4  # candidates that are compiled and timed together
QUICK_ROUNDS = 2, 3  # at least and at most
LAST_ROUNDS = 7, 41
SEARCH_SHARE = 0.7  # of the time; the rest is for the last rounds
FINALISTS = 3
NOISE = 0.02  # a schedule that gains less is not chosen,
TICK = 5e-7  # nor one that gains fewer seconds: events on a GPU are half a microsecond apart
WON_ROUNDS = 0.7  # the share of rounds in which a chosen one was the faster
MOST_KEPT = 4096  # choices in memory

BuiltKernels = tuple[tuple[Recipe, Binary], ...]
Emit = Callable[[ScheduledFusion], KernelSource | None]


class Tuner:
    """Chooses between the schedules of kernels, for at most `seconds` each."""

    def __init__(self, emit: Emit, device: torch.device, seconds: float) -> None:
        self.emit, self.device, self.seconds = emit, device, seconds

    def choice(self, default: ScheduledFusion) -> Tuning | None:
        """The choice for a kernel: the store's, or else a new one. None if the kernel is not tuned:
        on the emulator, during a graph's capture, or when the process's time is spent."""
        source = self.emit(default)
        if source is None or not can_measure(default, self.device):
            return None
        recipe = recipe_of(default, source)
        try:
            key = recipe.key, self.seconds
            return _CHOICES.get(key, lambda: self._stored_or_searched(default, source, recipe))
        except _NotTunedError as reason:
            message = f"{source.name}: not autotuned, {reason}"
            log("kernels", lambda: message)
            return None

    def _stored_or_searched(
        self, default: ScheduledFusion, source: KernelSource, recipe: Recipe
    ) -> Tuning:
        store = current_store()
        known = stored(store, recipe, self.seconds)
        if known is not None:
            return known
        if option("assert_cache_hit"):
            raise _NotTunedError("the option assert_cache_hit forbids it")
        with ExitStack() as stack:
            if store is not None:
                stack.enter_context(store.turn(recipe))
                known = stored(store, recipe, self.seconds)  # another process may have made it
                if known is not None:
                    return known
                # The lock of the device, among the processes that share the store.
                on_device = Recipe("device", "", "", recipe.arch, recipe.flags, "")
                stack.enter_context(store.turn(on_device))
            stack.enter_context(_MEASURING)
            choice, binaries = self._searched(default)
            if store is not None:
                for wanted, binary in binaries:
                    store.put(wanted, binary.code)
                keep(store, recipe, choice)
        message = f"{source.name}: autotuned in {choice.spent:.2f} s: {choice}"
        log("kernels", lambda: message)
        return choice

    def _searched(self, default: ScheduledFusion) -> tuple[Tuning, BuiltKernels]:
        """The choice, and the binaries of its kernel. Those of other candidates are dropped."""
        with _spending() as left:
            if left <= 0:
                raise _NotTunedError("the time in option autotune_total is spent")
            try:
                return Search(self, default, min(self.seconds, left)).choice()
            except torch.OutOfMemoryError:
                raise _NotTunedError("its arguments do not fit the device again") from None


class Search:
    """The search for one kernel."""

    def __init__(self, tuner: Tuner, default: ScheduledFusion, seconds: float) -> None:
        self.tuner, self.default = tuner, default
        self.start = time.monotonic()
        self.end, self.until = (self.start + seconds * share for share in (1.0, SEARCH_SHARE))
        self.bench = Bench(default.part, tuner.device)
        self.trials: list[Trial] = []
        self.wrong: list[str] = []
        self.to_compile = 0.0  # the seconds that the first kernel took

    def choice(self) -> tuple[Tuning, BuiltKernels]:
        """The fastest schedule that was found, and its binaries."""
        mine = self._compiled(self.default)
        assert isinstance(mine, Trial)
        self.to_compile = time.monotonic() - self.start
        self.bench.is_right(mine)
        self.trials.append(mine)
        self._climb(mine)
        best = self._best(mine)
        is_default = best is mine
        choice = Tuning(
            "" if is_default else str(best.scheduled), str(best.scheduled.params), best.median,
            mine.median, len(self.trials), tuple(self.wrong), time.monotonic() - self.start,
            self.tuner.seconds,
        )  # fmt: skip
        return choice, best.binaries

    # ---- candidates

    def _climb(self, mine: Trial) -> None:
        """Tries the neighbours of the best schedule so far, until the time is up."""
        tried = [self.default]
        center, candidates = mine, self._legal(self.default)
        while (left := self.until - time.monotonic()) > 0:
            count = max(1, min(TOGETHER, int(left / self.to_compile)))
            batch = list(islice((other for other in candidates if other not in tried), count))
            if not batch:
                return
            tried += batch
            right = self._right(batch)
            self.bench.rounds([mine, *right], *QUICK_ROUNDS, self.until)
            self.trials += right
            best = min(self.trials, key=lambda trial: trial.median)
            if best.median < (1 - NOISE) * center.median:
                center, candidates = best, self._legal(best.scheduled)

    def _legal(self, around: ScheduledFusion) -> Iterator[ScheduledFusion]:
        for schedule in neighbours(around):
            try:
                check(schedule, self.default)
            except ScheduleError:
                continue
            yield schedule

    def _right(self, batch: list[ScheduledFusion]) -> list[Trial]:
        """The candidates that compile, and have the results of the scheduler's own kernel."""
        outcomes = run_jobs([partial(self._compiled, other) for other in batch], threads=TOGETHER)
        trials = [trial for trial in outcomes if isinstance(trial, Trial)]
        right = []
        for trial in trials:
            with suppress(LaunchError):  # for example, the device has no room for such a cluster
                if self.bench.is_right(trial):
                    right.append(trial)
                else:
                    self.wrong.append(str(trial.scheduled.params))
        return right

    def _compiled(self, scheduled: ScheduledFusion) -> Trial | Exception:
        """The trial, or the error, for example because of too much shared memory."""
        part, target = self.default.part, self.default.target
        try:
            source = self.tuner.emit(scheduled)
            with unstored() as binaries:
                launcher = launcher_for(part, source, target, self.tuner.device)
            return Trial(scheduled, launcher, tuple(binaries))
        except Exception as error:  # whatever it is, the scheduler's own kernel remains
            if scheduled is self.default:
                raise
            message = f"{scheduled.params}: not tried, {type(error).__name__}: {error}"
            log("kernels", lambda: message)
            return error

    # ---- the last rounds

    def _best(self, mine: Trial) -> Trial:
        """The winner of rounds in turns; the scheduler's own unless another is clearly faster."""
        others = sorted((t for t in self.trials if t is not mine), key=lambda t: t.median)
        last = [mine, *others[:FINALISTS]]
        for trial in last:
            trial.times.clear()
        self.bench.rounds(last, *LAST_ROUNDS, self.end)
        best = min(last, key=lambda trial: trial.median)
        return best if _is_clear(best, mine) else mine


def _is_clear(best: Trial, mine: Trial) -> bool:
    pairs = list(zip(best.times, mine.times, strict=True))
    won = sum(ours < theirs for ours, theirs in pairs)
    gain = mine.median - best.median
    return gain > max(NOISE * mine.median, TICK) and won >= WON_ROUNDS * len(pairs)


def can_measure(default: ScheduledFusion, device: torch.device) -> bool:
    """True if kernels run on this device, and may be timed there now."""
    if default.target.emulated or device.type not in ("cpu", "cuda"):
        return False
    has_complex = any(default.part.tensors[n].by_value and default.part.tensors[n].dtype.is_complex
                      for n in default.part.inputs)  # fmt: skip
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return not has_complex and not capturing


# ---- what threads and processes share


class _NotTunedError(Exception):
    """The reason why a kernel is not tuned. It never leaves this module."""



@contextmanager
def _spending() -> Iterator[float]:
    """Yields the seconds that the process may still spend. Adds those of the block to the count."""
    start = time.monotonic()
    try:
        yield float(option("autotune_total")) - _SPENT[0]  # type: ignore[arg-type]
    finally:
        _SPENT[0] += time.monotonic() - start


def forget() -> None:
    """Clears the choices in memory, and the count of spent time. The store stays."""
    _CHOICES.values.clear()
    _SPENT[0] = 0.0


_CHOICES: SingleFlight[Tuning] = SingleFlight(Recent(lambda: MOST_KEPT))
_MEASURING: Any = make_lock()
_SPENT = [0.0]  # guarded by _MEASURING
