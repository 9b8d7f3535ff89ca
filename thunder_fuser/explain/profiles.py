# SPDX-License-Identifier: Apache-2.0
"""A jitted function and arguments -> the time of each of its fusions and kernels, measured.

    print(profile(jitted, x))

The function runs as usual, forward and backward, with a clock around each program and each kernel:
CUDA events on a GPU, the wall clock on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import torch

from thunder_fuser.errors import InputError
from thunder_fuser.explain.programs import Compiled, compiled, named_fusions
from thunder_fuser.explain.reports import Report, report
from thunder_fuser.explain.shown import Shown, kib, shown_lines, table
from thunder_fuser.thunder_patches.fixes.autograd import leaves_of


@dataclass(frozen=True, slots=True)
class Timed:
    """A fusion: its calls in one run of the function, the microseconds of a call (us: median;
    estimated_us: from its bytes), and the bytes that it reads and writes."""

    name: str
    direction: str
    calls: int
    us: float
    estimated_us: float
    bytes: int
    where: str


@dataclass(frozen=True, slots=True, repr=False)
class Profile(Shown):
    """Times of a function. us: a whole run, forward and backward (median of `rounds`).

    report: the report on the function, with `measured_us` of its kernels.
    """

    name: str
    us: float
    rounds: int
    fusions: tuple[Timed, ...]
    report: Report

    @property
    def rest_us(self) -> float:
        """The time of a run outside of fusions: torch's ops, and the Python between all calls."""
        return max(self.us - sum(fusion.us * fusion.calls for fusion in self.fusions), 0.0)

    def __repr__(self) -> str:
        return f"<profile of {self.name}: {self.us:.0f} us, {len(self.fusions)} fusions>"

    def __str__(self) -> str:
        head = ("fusion", "pass", "calls", "us", "us estimated", "KiB", "where")
        rows = [
            (row.name, row.direction, str(row.calls), f"{row.us:.1f}", f"{row.estimated_us:.1f}",
             kib(row.bytes), shown_lines(row.where))
            for row in self.fusions
        ]  # fmt: skip
        times = f"{self.name}: {self.us:.1f} us a run, {self.rest_us:.1f} us of them not in fusions"
        return f"{times} (median of {self.rounds} runs).\n\n{table(head, rows)}\n"


def profile(jitted: Any, *args: Any, rounds: int = 10, **kwargs: Any) -> Profile:
    """Runs a jitted function, and its backward if results require gradients.

    jitted: a result of thunder.jit or thunderfx, or a function that torch.compile compiles with a
    ThunderCompiler; args, kwargs: its arguments; rounds: the number of runs, after two that
    compile. The gradients of parameters stay unchanged.

    Raises InputError for a function that is not jitted with the fuser, or cannot be called.
    """
    counts = isinstance(rounds, int) and rounds >= 1
    if not callable(jitted) or hasattr(jitted, "subgraph_infos") or not counts:
        got = f"{type(jitted).__name__}, {rounds!r} rounds"
        raise InputError("profile", expected="a jitted function, 1 round or more", got=got)
    for _ in range(2):
        _run(jitted, args, kwargs)
    clock = Clock(_on_cuda(jitted))
    fusions = [(named, compiled(named.fusion)) for named in named_fusions(jitted)]
    with ExitStack() as stack:
        for named, programs in fusions:
            for known in named.fusion.tables:
                stack.enter_context(watched(known, dict.fromkeys(known, named.name), clock))
            stack.enter_context(_watching_kernels(programs, clock))
        for _ in range(rounds):
            clock.timed("", _run)(jitted, args, kwargs)
    newest = {named.name: programs[-1] for named, programs in fusions if programs}
    return _profile(report(jitted), clock.microseconds(), rounds, newest)


# ------------------------------------------------------------------------------------- a clock


@contextmanager
def _watching_kernels(programs: Sequence[Compiled], clock: Clock) -> Iterator[None]:
    """Watches the kernels of the newest program, unless an equal region with it came before."""
    with ExitStack() as stack:
        for program in programs[-1:]:
            scope = program.program.run.__globals__
            names = {
                key: _kernel_name(program, number)
                for number, segment in enumerate(program.segments) if segment.scheduler.makes_kernel
                for key in (f"kernel_{number}_in_c", f"kernel_{number}") if key in scope
            }  # fmt: skip
            if not any(name in clock.found for name in names.values()):
                stack.enter_context(watched(scope, names, clock))
        yield


def _kernel_name(program: Compiled, number: int) -> str:
    return f"kernel {number} of {id(program.program)}"


# ------------------------------------------------------------------------------------ one run


def _run(jitted: Any, args: Any, kwargs: Any) -> None:
    results = _tensors(jitted(*args, **kwargs))
    asked = [result for result in results if result.requires_grad]
    leaves = leaves_of(*(result.grad_fn for result in asked if result.grad_fn is not None))
    if leaves:
        gradients = [torch.ones_like(result) for result in asked]
        torch.autograd.grad(asked, leaves, gradients, allow_unused=True)


def _tensors(result: Any) -> list[torch.Tensor]:
    flat, _ = torch.utils._pytree.tree_flatten(result)
    return [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]


def _on_cuda(jitted: Any) -> bool:
    """Whether any fusion's program runs on a GPU."""
    programs = (program for _, _, fusion in named_fusions(jitted) for program in compiled(fusion))
    return any(not program.target.is_cpu and not program.target.emulated for program in programs)


# --------------------------------------------------------------------------------- the result


def _profile(
    before: Report, times: dict[str, list[float]], rounds: int, programs: Mapping[str, Compiled]
) -> Profile:
    whole = median(times[""])
    rows, measured = [], []
    for fusion in before.fusions:
        calls, program = times.get(fusion.name), programs.get(fusion.name)
        if calls and program:
            kernels = fusion.kernels
            rows.append(Timed(
                fusion.name, fusion.direction, round(len(calls) / rounds), median(calls),
                sum(kernel.estimated_us for kernel in kernels),
                program.bytes_in + program.bytes_out, fusion.where,
            ))  # fmt: skip
            fusion = replace(fusion, measured_us=_of_kernels(program, times))
        measured.append(fusion)
    with_times = replace(before, fusions=tuple(measured))
    return Profile(before.name, whole, rounds, tuple(rows), with_times)


def _of_kernels(program: Compiled, times: dict[str, list[float]]) -> tuple[float | None, ...]:
    numbers = (n for n, segment in enumerate(program.segments) if segment.scheduler.makes_kernel)
    measured = (times.get(_kernel_name(program, number)) for number in numbers)
    return tuple(median(calls) if calls else None for calls in measured)


# ---- a clock


class Clock:
    """The start and end of each call, by the name given to its function."""

    def __init__(self, on_cuda: bool) -> None:
        self._on_cuda = on_cuda
        self.found: dict[str, list[tuple[Any, Any]]] = {}

    def _now(self) -> Any:
        if not self._on_cuda:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with a record of each call's start and end."""
        calls = self.found.setdefault(name, [])

        def call(*args: Any, **kwargs: Any) -> Any:
            start = self._now()
            result = function(*args, **kwargs)
            calls.append((start, self._now()))
            return result

        return call

    def microseconds(self) -> dict[str, list[float]]:
        """{name: the duration of each call}. Waits for the device."""
        if self._on_cuda:
            torch.cuda.synchronize()
        return {
            name: [
                1e3 * start.elapsed_time(end) if self._on_cuda else 1e6 * (end - start)
                for start, end in calls
            ]
            for name, calls in self.found.items()
        }


@contextmanager
def watched(scope: dict[str, Any], names: dict[str, Any], clock: Clock) -> Iterator[None]:
    """Times the functions under some keys of a scope until the block ends. names: {key: the name
    for the clock}."""
    before = {key: scope[key] for key in names}
    around = {key: clock.timed(name, scope[key]) for key, name in names.items()}
    scope.update(around)
    try:
        yield
    finally:
        for key, function in before.items():
            if scope.get(key) is around[key]:
                scope[key] = function
