# SPDX-License-Identifier: Apache-2.0
"""Contenders -> the spread of each one's times, taken in turns (a b c, a b c, ...) in one process.

So a clock that drifts meets them alike. Each contender has a call for each of several sets of
buffers, which together exceed the last cache: a set's turn comes when it is no longer cached.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch

Call = Callable[[], object]
Calls = Mapping[str, Sequence[Call]]

LAUNCHES = 20  # in a graph, at least
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 200
_CACHES = 3  # the buffers are this many times the last cache, but at most _MOST_SETS
_MOST_SETS = 64
_WARM_UPS = 2
_NO_L3 = 32 << 20


@dataclass(frozen=True, slots=True)
class Spread:
    """Microseconds of a call: the median; a fifth of the calls below p20, a fifth above p80.

    least: the shortest call, for machines so busy that most calls meet another process.
    """

    us: float
    least: float
    p20: float
    p80: float
    runs: int

    @staticmethod
    def of(times: Sequence[float]) -> Spread:
        """The spread of measured times.

        >>> Spread.of([5.0, 1.0, 3.0, 2.0, 4.0])
        Spread(us=3.0, least=1.0, p20=2.0, p80=4.0, runs=5)
        """
        ordered, last = sorted(times), len(times) - 1
        low, high = (ordered[round(last * share)] for share in (0.2, 0.8))
        return Spread(statistics.median(ordered), ordered[0], low, high, len(ordered))


def medians(
    calls: Mapping[str, Call], seconds: float, device: torch.device, *, graphs: bool = False,
    in_a_row: int = 1,
) -> dict[str, float]:  # fmt: skip
    """The median microseconds of each call, all on one set of buffers.

    in_a_row: calls of one contender before another's turn. If several, a turn begins when the
    device is idle: behind a graph, which Python launches at once, a call's Python would not count.
    """

    def turn(call: Call) -> None:
        for _ in range(in_a_row):
            call()

    sets = {name: [partial(turn, call) if in_a_row > 1 else call] for name, call in calls.items()}
    if device.type == "cuda":
        spreads, _ = cuda_times(sets, seconds, graphs=graphs, idle=in_a_row > 1)
    else:
        spreads = cpu_times(sets, seconds, keep=False)
    return {name: spread.us / in_a_row for name, spread in spreads.items()}


def sets_for(moved: int, device: torch.device) -> int:
    """How many sets of buffers exceed the last cache, if a call touches `moved` bytes."""
    return min(_MOST_SETS, -(-_CACHES * _cache_bytes(device) // max(1, moved)))


@cache
def _cache_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    try:
        found = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        found = 0
    return found if found > 0 else _NO_L3


def _rounds(seconds: float, one: float) -> int:
    return max(_LEAST_ROUNDS, min(_MOST_ROUNDS, int(seconds / max(one, 1e-9))))


# -------------------------------------------------------------------------------------------- CPU


def cpu_times(calls: Calls, seconds: float, *, keep: bool) -> dict[str, Spread]:
    """Wall time of each call. keep: the last results are held, as many as there are buffer sets,
    so that results rotate too; else each is freed, outside of the time, before the next call."""
    for sets in calls.values():
        for _ in range(_WARM_UPS):
            sets[0]()
    start = time.perf_counter()
    turns = {name: itertools.cycle(sets) for name, sets in calls.items()}
    held: dict[str, deque[object]] = {
        name: deque(maxlen=len(sets) if keep else 0) for name, sets in calls.items()
    }
    found: dict[str, list[float]] = {name: [] for name in calls}

    def round_() -> None:
        for name, turn in turns.items():
            call = next(turn)
            begin = time.perf_counter()
            result = call()
            found[name].append((time.perf_counter() - begin) * 1e6)
            held[name].append(result)
            del result

    # The first turn of each set makes the memory that the later ones reuse.
    for _ in range(max(map(len, calls.values())) if keep else 1):
        round_()
    one = (time.perf_counter() - start) / len(next(iter(found.values())))
    for times in found.values():
        times.clear()
    for _ in range(_rounds(seconds, one)):
        round_()
    return {name: Spread.of(times) for name, times in found.items()}


# ------------------------------------------------------------------------------------------- CUDA


def cuda_times(
    calls: Calls, seconds: float, *, graphs: bool, idle: bool = False
) -> tuple[dict[str, Spread], str]:
    """Device time of each call between two events, and the method.

    graphs: calls are captured, at least LAUNCHES of them, and replayed together, so that neither
    Python nor a launch is in the time. What cannot be captured is launched one by one, each after a
    write over the L2 cache, which also keeps the device busy until the launch has come. idle: it
    has ended before the call begins.
    """
    repeats = {name: -(-LAUNCHES // len(sets)) * len(sets) for name, sets in calls.items()}
    method = "graph"
    try:
        if not graphs:
            raise RuntimeError("random numbers")
        runs = {name: _captured(sets, repeats[name]) for name, sets in calls.items()}
    except RuntimeError as error:
        method = f"events ({str(error).splitlines()[0]})"
        runs = {name: _in_turns(sets) for name, sets in calls.items()}
        repeats = dict.fromkeys(calls, 1)
    flush = None if method == "graph" else _flush_buffer()
    start = time.perf_counter()
    _cuda_rounds(runs, 1, flush, idle)
    rounds = _rounds(seconds, time.perf_counter() - start)
    found = _cuda_rounds(runs, rounds, flush, idle)
    return {
        name: Spread.of([ms * 1e3 / repeats[name] for ms in times]) for name, times in found.items()
    }, method


def _flush_buffer() -> torch.Tensor:
    device = torch.device("cuda", torch.cuda.current_device())
    return torch.empty(_CACHES * _cache_bytes(device), dtype=torch.uint8, device=device)


def _in_turns(sets: Sequence[Call]) -> Call:
    turn = itertools.cycle(sets)
    for call in sets[:_WARM_UPS]:
        call()

    def run() -> object:
        return next(turn)()

    return run


def _captured(sets: Sequence[Call], launches: int) -> Call:
    """A CUDA graph of the calls. The last results are held, so that they rotate too."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    held: deque[object] = deque(maxlen=len(sets))
    with torch.cuda.stream(side):
        for call in sets[:_WARM_UPS]:
            call()
        torch.cuda.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for call in itertools.islice(itertools.cycle(sets), launches):
                held.append(call())
        finally:
            graph.capture_end()
    return graph.replay


def _cuda_rounds(
    runs: Mapping[str, Call], rounds: int, flush: torch.Tensor | None, idle: bool
) -> dict[str, list[float]]:
    """Milliseconds of each run, in turns."""
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in runs}
    torch.cuda.synchronize()
    for _ in range(rounds):
        for name, run in runs.items():
            if flush is not None:
                flush.zero_()
            if idle:
                torch.cuda.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: [start.elapsed_time(end) for start, end in pairs] for name, pairs in events.items()
    }


def wait(device: torch.device) -> None:
    """Until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
