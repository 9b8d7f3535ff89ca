# SPDX-License-Identifier: Apache-2.0
"""One rank of `python -m benchmarks overlap`: checks and measures the points, tells the first rank.

Started by `run`, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from benchmarks.overlap.model import measured_rates
from benchmarks.overlap.points import SMALL, points, shapes
from benchmarks.overlap.ways import Operands, Problem, Way, pieces, ways
from thunder_fuser.communication.products.bandwidths import bandwidths
from thunder_fuser.communication.products.cost import H200, Decision, decide
from thunder_fuser.communication.transport.buffers import CACHE
from thunder_fuser.communication.transport.exchange import Exchange
from thunder_fuser.communication.transport.rank_consistency import from_all, from_first
from thunder_fuser.communication.transport.symmetric import SymmetricExchange
from thunder_fuser.communication.transport.transports import release, why_not

_SETS = 3  # of operands: the next call has other numbers than the last
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 40
_WARM_UPS = 3
_TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
_MOST_BYTES = 32 << 30  # of shared memory: no way evicts that of another between two rounds
_AHEAD = 2_000_000  # cycles of the device, in which the host can say all that is to be done


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--step", action="store_true")
    given = parser.parse_args()
    # If it stands still, its threads say where; the caller shows that.
    faulthandler.dump_traceback_later(given.seconds, exit=True)
    rank = int(os.environ["RANK"])
    device = torch.device(given.device)
    if device.type == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    backend = "gloo" if given.small else "nccl"
    dist.init_process_group(
        backend, timeout=timedelta(seconds=60),
        device_id=device if backend == "nccl" else None,
    )  # fmt: skip
    group = dist.group.WORLD
    assert group is not None
    CACHE.most_bytes = _MOST_BYTES
    _measure(given, group, device)
    dist.barrier()
    faulthandler.cancel_dump_traceback_later()


def _measure(given: argparse.Namespace, group: ProcessGroup, device: torch.device) -> None:
    start = time.monotonic()
    rates = H200 if given.small else bandwidths(group, device)
    figures: dict[str, Any] = {
        "ranks": group.size(), "bandwidths": asdict(rates), "points": [],
        "no pipelines": why_not(group, device),
    }  # fmt: skip
    _tell(given.out, group, figures, f"rates after {time.monotonic() - start:.1f} s: {rates}")
    if given.step:
        left = given.seconds - (time.monotonic() - start)
        steps = import_module("benchmarks.overlap.steps")  # and thunder, which points do not need
        steps.measure(
            group, device, rates, small=given.small, seconds=left, figures=figures,
            tell=partial(_tell, given.out, group, figures),
        )
    else:
        _points(given, group, device, figures, start)
    figures["buffers"] = str(CACHE)
    _tell(given.out, group, figures, "done")


def _points(
    given: argparse.Namespace, group: ProcessGroup, device: torch.device, figures: dict[str, Any],
    start: float,
) -> None:  # fmt: skip
    rates = measured_rates(figures)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    large = given.check or not given.small
    chosen = (*(SMALL * given.small), *(shapes(group.size()) * large))
    todo = [point for point in points(chosen) if not point.m % group.size()]
    for number, point in enumerate(todo):
        # The children end well before their time is up: the last fifth is for what takes longer.
        left = 0.8 * given.seconds - (time.monotonic() - start)
        problem = Problem(point, group, device, dtype)
        m, k, n = point.m, point.k, point.n
        decision = decide(
            point.kind, m, k, n, dtype=str(dtype)[6:], world=group.size(), rates=rates
        )
        found = _point(
            problem, decision, left / (len(todo) - number), small=given.small,
            timed=not (given.small or given.check),
        )  # fmt: skip
        figures["points"].append({**asdict(point), "decision": str(decision), **found})
        _tell(given.out, group, figures, f"{decision}\n  {found}")
        release(group, device)


def _tell(out: Path, group: ProcessGroup, figures: Mapping[str, Any], text: str) -> None:
    """To the log; the figures so far to the caller."""
    print(text, flush=True)
    if group.rank() == 0:
        draft = out.with_suffix(".part")
        draft.write_text(json.dumps(figures), encoding="utf-8")
        draft.replace(out)


def _point(
    problem: Problem, decision: Decision, seconds: float, *, small: bool, timed: bool
) -> dict[str, Any]:
    """Errors of each way, and its times unless the point is only checked."""
    calls = ways(problem, decision, is_small=small)
    sets = [problem.operands(seed, problem.group.rank()) for seed in range(_SETS)]
    expected = [problem.expected(seed) for seed in range(_SETS)]
    found: dict[str, Any] = {"errors": {}, "ms": {}, "host_us": {}, "failed": {}}
    for name, call in list(calls.items()):
        _poison(problem, expected[0])
        error, problems = _checked(call, sets, expected, problem)
        if any(problems):
            found["failed"][name] = next(filter(None, problems))
            del calls[name]
        else:
            found["errors"][name] = error
    del expected
    if timed:
        every = {**pieces(problem), **calls}
        found["ms"], found["host_us"] = _times(every, sets, problem, seconds)
    exchanges = [one for _, one in CACHE.entries() if isinstance(one, SymmetricExchange)]
    found["flags"] = "kernels" if any(one.by_kernels for one in exchanges) else "stream"
    errors = from_all(found["errors"], problem.group)
    found["errors"] = {name: max(one[name] for one in errors) for name in found["errors"]}
    limit = _TOLERANCE[problem.dtype]
    found["wrong"] = [name for name, error in found["errors"].items() if not error <= limit]
    return found


def _checked(
    call: Way, sets: Sequence[Operands], expected: Sequence[torch.Tensor], problem: Problem
) -> tuple[float, list[str]]:
    """The largest error, and what each rank says is wrong: a way that fails leaves the others."""
    results, why = [], ""
    try:
        results = [call(one) for one in sets]
    except Exception as error:  # whatever a compiler raises
        why = f"{type(error).__name__}: {error}"[:2000]
    _finish(problem)
    worst = max(map(_error, results, expected)) if not why else math.inf
    return worst, from_all(why, problem.group)


def _error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest error over the largest element; infinite for NaN."""
    wanted = expected.float()
    error = float((result.float() - wanted).abs().max() / wanted.abs().max())
    return math.inf if math.isnan(error) else error


def _poison(problem: Problem, like: torch.Tensor) -> None:
    """NaN in the memory that ranks share, and in the memory that results will get."""
    _finish(problem)
    for _, entry in CACHE.entries():
        if isinstance(entry, Exchange):
            entry.local.fill_(torch.nan)
    held = [torch.full_like(like, torch.nan, dtype=problem.dtype) for _ in range(_SETS + 1)]
    del held
    _finish(problem)


def _finish(problem: Problem) -> None:
    """All devices have done what they were told."""
    for _, entry in CACHE.entries():
        if isinstance(entry, Exchange):
            entry.finish(30.0)
    if problem.device.type == "cuda":
        torch.cuda.synchronize()
    from_all("finished", problem.group)


def _times(
    calls: Mapping[str, Way], sets: Sequence[Operands], problem: Problem, seconds: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Medians over rounds, ways in turn: ms of the slowest rank, and microseconds of the host."""
    for turn in range(_WARM_UPS):
        for call in calls.values():
            call(sets[turn % _SETS])
        _finish(problem)
    begin = time.monotonic()
    _round(calls, sets[0])
    one = max(time.monotonic() - begin, 1e-4)
    rounds = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, int(seconds / one)))
    rounds = from_first(rounds, problem.group)
    here = [_round(calls, sets[turn % _SETS]) for turn in range(rounds)]
    ranks = from_all(here, problem.group)
    medians: list[dict[str, float]] = []
    for part in (0, 1):
        slowest = [
            {name: max(rank[at][name][part] for rank in ranks) for name in calls}
            for at in range(rounds)
        ]
        medians.append({name: statistics.median(one[name] for one in slowest) for name in calls})
    return medians[0], medians[1]


def _round(calls: Mapping[str, Way], operands: Operands) -> dict[str, tuple[float, float]]:
    """{way: ms of this device, microseconds of the host}. All ranks begin at a barrier."""
    started = torch.ones(1, device="cuda")
    found = {}
    for name, call in calls.items():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_AHEAD)
        dist.all_reduce(started)
        start.record()
        begin = time.perf_counter()
        result = call(operands)
        host = (time.perf_counter() - begin) * 1e6
        end.record()
        torch.cuda.synchronize()
        found[name] = start.elapsed_time(end), host
        del result
    return found


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of gloo and NCCL may still run
