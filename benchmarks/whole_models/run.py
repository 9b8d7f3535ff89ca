# SPDX-License-Identifier: Apache-2.0
"""Whole models, in training and inference, beside eager torch and torch.compile.

A training step is forward, loss and backward, without the optimizer; inference is the forward
without gradients. Models of thunder.jit have a second row, by thunder_fuser.jit, and with --graphs
a third, in CUDA graphs, beside torch.compile's mode reduce-overhead. Weights are random, from
configurations: nothing is downloaded. Models of litgpt and of transformers need the extra
`frameworks`.
Fails for a model that cannot run or waits for the device, and if the error of its loss or gradients
against float64 is over 1.2 times eager's.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

import thunder_fuser
from benchmarks.clock import medians
from benchmarks.kernels.points import DTYPES
from benchmarks.options import add_compile, add_device, at_least_one
from benchmarks.report import Report
from benchmarks.train_step import COMPILE, EAGER, check
from benchmarks.whole_models import turns
from benchmarks.whole_models.measure import Slow, Subject, slow_kernels, waits, where_time_goes
from benchmarks.whole_models.zoo import ENTRIES, Entry
from thunder_fuser import fuser

OURS, SHORT = "ours", "thunder_fuser.jit"  # the first by thunder.jit or thunderfx
GRAPHS, REDUCED = "in graphs", "reduce-overhead"
LABELS = {OURS: "", SHORT: "  by its jit", GRAPHS: "  in graphs"}
PEERS = {GRAPHS: REDUCED}  # of a contender, if not torch.compile
IN_A_ROW = 8  # steps of a contender, on a GPU
SLOWEST = 20  # rows of generated kernels
HEADER = (
    f"{'model':12} {'train ms':>9} {'x eager':>8} {'x compile':>9} {'infer ms':>9} {'x eager':>8} "
    f"{'x compile':>9} {'peak MiB':>9} {'of compile':>10} {'first s':>8} {'of compile':>10}"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add_compile(parser, default=True)
    parser.add_argument("--model", action="append", choices=list(ENTRIES), help="default: all")
    parser.add_argument("--dtype", choices=("bf16", "f32"), help="bf16 on a GPU, else f32")
    parser.add_argument("--seconds", type=at_least_one, default=6, help="of running, for a time")
    parser.add_argument(
        "--side-by-side", type=at_least_one, metavar="N",
        help="compile N models at once, each in its own process; then measure them in turns",
    )  # fmt: skip
    parser.add_argument("--graphs", action="store_true", help="on a GPU: CUDA graphs too")
    parser.add_argument(
        "--limit", type=at_least_one, default=280, metavar="SECONDS",
        help="with --side-by-side: a process that takes longer prints its stacks and ends",
    )  # fmt: skip
    parser.add_argument("--turn", type=int, default=-1, help=argparse.SUPPRESS)


def run(given: argparse.Namespace, report: Report) -> None:
    report.lines.append(HEADER)
    if given.turn >= 0:  # one of several: the others wait for its turn to end
        faulthandler.dump_traceback_later(given.limit, exit=True)
    names = list(given.model or ENTRIES)
    if given.side_by_side:
        for at in range(0, len(names), given.side_by_side):
            several = names[at : at + given.side_by_side]
            report.figures |= turns.side_by_side(several, given)
            report.write()
    for name in names:
        with report.section(name):
            found = report.figures.get(name) or measure(
                ENTRIES[name], given, turns.Turn(given.turn)
            )
            report.figures[name] = found
            judge(report, name, found)
        torch._dynamo.reset()
        if given.device.type == "cuda":
            torch.cuda.empty_cache()
    report.lines += means(report.figures) + slowest(report.figures)


def judge(report: Report, name: str, found: Mapping[str, Any]) -> None:
    """Adds a model's row, and what is wrong with it."""
    for contender, label in LABELS.items():
        ours = found["steps"].get(contender, found)
        if contender != OURS and ours is found:
            continue
        why, row = ours.get("why"), label or name
        report.check(name, why is None or "extra" in found, str(why))
        report.lines.append(f"{row:12} not run: {why}" if why else line(row, found, contender))
        if why is None:
            check(report, name, ours, found["steps"][EAGER], DTYPES[found["dtype"]])
            count = ours.get("waits", 0)
            report.check(name, count == 0, f"{count} waits for the device in a step")


def measure(entry: Entry, given: argparse.Namespace, turn: turns.Turn) -> dict[str, Any]:
    """All figures of a model; `why` of a contender that cannot run it, or of all."""
    device = given.device
    sizes = entry.cuda if device.type == "cuda" else entry.cpu
    dtype = given.dtype or ("bf16" if device.type == "cuda" else "f32")
    torch.manual_seed(0)
    try:
        model, inputs = entry.make(sizes)
    except ModuleNotFoundError as error:
        return {"why": f"{error}; install the extra models", "extra": "models", "steps": {}}
    with turn.memory():
        subject = Subject.make(model, inputs(), DTYPES[dtype], device)
    found: dict[str, Any] = {"sizes": str(sizes), "dtype": dtype, "steps": {}}
    calls: dict[str, Callable[..., Any]] = {}
    graphs = given.graphs and device.type == "cuda"
    for contender, call in contenders(entry, subject.model, given.compile, graphs).items():
        try:
            first = subject.first(call)
        except Exception as error:  # a model that a contender refuses is a row with its reason
            found["steps"][contender] = {"why": f"{type(error).__name__}: {error}"[:500]}
            continue
        calls[contender] = call
        found["steps"][contender] = first
    subject.model.eval()
    for call in calls.values():
        subject.infer(call)()
    if calls.keys() & LABELS.keys():
        with turn.alone():
            _time(found, subject, calls, given)
    return found


def contenders(
    entry: Entry, model: nn.Module, with_compile: bool, graphs: bool
) -> dict[str, Callable[..., Any]]:
    """Eager, the fuser, and torch.compile, all of one model and its parameters."""
    import thunder  # noqa: PLC0415  the fuser comes first
    from thunder.dynamo import thunderfx  # noqa: PLC0415

    found: dict[str, Callable[..., Any]] = {EAGER: model}
    if entry.by == "thunderfx":
        found[OURS] = thunderfx(model, executors=[fuser])
    else:
        found[OURS] = thunder.jit(model, executors=[fuser])
        found[SHORT] = thunder_fuser.jit(model)
        if graphs:
            found[GRAPHS] = thunder_fuser.jit(model, fuser_cuda_graphs=True)
    if with_compile:
        found[COMPILE] = torch.compile(model, dynamic=False)
    if with_compile and graphs:
        found[REDUCED] = torch.compile(model, dynamic=False, mode=REDUCED)
    return found


def _time(
    found: dict[str, Any], subject: Subject, calls: dict[str, Callable[..., Any]],
    given: argparse.Namespace,
) -> None:  # fmt: skip
    """Adds times, memory and where a step's time goes; the model is in inference afterwards."""
    steps, device = found["steps"], given.device
    row = IN_A_ROW if device.type == "cuda" else 1
    subject.model.train()
    train = {name: subject.train(call) for name, call in calls.items()}
    for name, one in train.items():
        steps[name]["waits"] = waits(one, device)
    for name, us in medians(train, given.seconds, device, in_a_row=row).items():
        peak = subject.peak(train[name]) + steps[name]["held"]
        steps[name] |= {"train_ms": us / 1e3, "peak": peak}
        where = where_time_goes(train[name], device)
        steps[name]["train"] = where.figures()
        if name == OURS and device.type == "cuda":
            rows = slow_kernels(calls[name], where, device)
            found["slow_kernels"] = [asdict(row) for row in rows]
    subject.model.eval()
    infer = {name: subject.infer(call) for name, call in calls.items()}
    for name, us in medians(infer, given.seconds, device, in_a_row=row).items():
        steps[name] |= {
            "infer_ms": us / 1e3,
            "infer": where_time_goes(infer[name], device).figures(),
        }


def line(name: str, found: Mapping[str, Any], contender: str = OURS) -> str:
    """One row of the table; `-` for what this device or run does not have."""
    steps = found["steps"]
    ours, peer = steps[contender], PEERS.get(contender, COMPILE)

    def over(other: str, key: str) -> float:
        theirs = steps.get(other, {}).get(key, math.nan)
        return theirs / ours[key] if ours.get(key) else math.nan

    def part(key: str) -> float:
        return 1 / one if (one := over(peer, key)) else math.nan

    peak = ours["peak"] / 2**20 or math.nan
    cells = (
        f"{ours['train_ms']:9.2f}", f"{over(EAGER, 'train_ms'):8.2f}",
        f"{over(peer, 'train_ms'):9.2f}", f"{ours['infer_ms']:9.2f}",
        f"{over(EAGER, 'infer_ms'):8.2f}", f"{over(peer, 'infer_ms'):9.2f}", f"{peak:9.1f}",
        f"{part('peak'):10.2f}", f"{ours['first_step_s']:8.1f}", f"{part('first_step_s'):10.2f}",
    )  # fmt: skip
    return " ".join((f"{name:12}", *cells)).replace("nan", "  -")


def slowest(figures: Mapping[str, Any]) -> list[str]:
    """The generated kernels of all models farthest from a clone of as many bytes."""
    rows = [
        (model, Slow(**row)) for model, found in figures.items()
        for row in found.get("slow_kernels", ())
    ]  # fmt: skip
    rows.sort(key=lambda pair: pair[1].of_clone)
    return [f"{model:12} {row}" for model, row in rows[:SLOWEST]]


def means(figures: Mapping[str, Any]) -> list[str]:
    """Geometric means over all models that were timed beside each other."""
    found = []
    for ours, label in LABELS.items():
        for other in (EAGER, PEERS.get(ours, COMPILE)):
            for key in ("train_ms", "infer_ms"):
                steps = [one["steps"] for one in figures.values()]
                pairs = [(one.get(other), one.get(ours)) for one in steps]
                ratios = [a[key] / b[key] for a, b in pairs if a and b and key in a and key in b]
                if ratios:
                    mean, worst = statistics.geometric_mean(ratios), min(ratios)
                    told = f"{label.strip()} {key[:-3]} x {other}".strip()
                    found.append(f"{told}: mean {mean:.2f}, worst {worst:.2f}")
    return found
