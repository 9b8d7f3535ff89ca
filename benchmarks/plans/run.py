# SPDX-License-Identifier: Apache-2.0
"""How good plans are, and how long they take to make.

Plans of real graphs, plans of small ones beside the best, and the time to plan large ones. No
kernel is compiled and no device is needed: a plan follows from sizes and a Target. Fails if a bound
is missed.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import log2
from time import process_time
from typing import Any

import torch

from benchmarks.bounds import Bound
from benchmarks.options import at_least_one
from benchmarks.plans.dry_run import TracedRegion, regions
from benchmarks.plans.exhaustive import least_cost, plan_cost
from benchmarks.plans.families import FAMILIES
from benchmarks.plans.graphs import GRAPHS
from benchmarks.plans.random_graphs import random_graph
from benchmarks.report import Report
from thunder_fuser.analysis.part import bytes_in_memory
from thunder_fuser.compiler import plan_segments
from thunder_fuser.explain.shown import table
from thunder_fuser.options import compile_options
from thunder_fuser.schedule.joined import JoinedKernels
from thunder_fuser.segment.plan import Segment, SegmentedFusion
from thunder_fuser.target import TARGETS, Target, named

PARTS = ("graphs", "optimum", "time")
BOUND = 1.10  # of the bytes of a graph's regions over the least
MEAN, MOST = 1.05, 1.5  # of a plan's cost over the best one's
DOUBLING, SECONDS = 2.3, 20.0
SIZES = (156, 312, 625, 1250, 2500, 5000, 10000)
MAX_EXPRS = 9
SEEDS = 5
REPEATS = 3
_TARGETS = ("h200", "cpu")


@dataclass(frozen=True, slots=True)
class GraphRow:
    """The regions of one direction of a graph together; bytes as the plan reports them.

    two_passes: reductions over different axes that read the same data, and may not be one kernel.
    """

    graph: str
    direction: str
    regions: int
    segments: int
    kernels: int
    edge_bytes: int
    lower_bound: int
    peak_bytes: int
    schedulers: tuple[str, ...]
    two_passes: tuple[str, ...]

    @property
    def ratio(self) -> float:
        return self.edge_bytes / max(self.lower_bound, 1)


@dataclass(frozen=True, slots=True)
class TimeRow:
    """CPU seconds of a plan, the least of a few runs."""

    family: str
    ops: int
    segments: int
    seconds: float


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS)
    add("--target", choices=tuple(TARGETS), default="h200", help="of the real graphs")
    add("--fusions", type=at_least_one, default=300, metavar="N",
        help="random ones beside the best plan")  # fmt: skip


def run(given: argparse.Namespace, report: Report) -> None:
    bounds: list[Bound] = []
    report.figures["target"] = given.target
    if "graphs" in given.parts:
        rows = list(graph_rows(named(given.target)))
        report.figures["graphs"] = [{**asdict(row), "ratio": row.ratio} for row in rows]
        report.lines += [_graph_table(rows), ""]
        bounds += map(_graph_bound, rows)
    if "optimum" in given.parts:
        ratios = optimum_ratios(given.fusions)
        mean, most = sum(ratios) / len(ratios), max(ratios)
        report.figures["optimum"] = {"fusions": len(ratios), "mean": mean, "most": most}
        bounds.append(Bound(f"cost over the best plan's, mean of {len(ratios)}", MEAN, mean))
        bounds.append(Bound("cost over the best plan's, the most", MOST, most))
    if "time" in given.parts:
        times = list(time_rows(SIZES, REPEATS))
        report.figures["time"] = [asdict(row) for row in times]
        report.lines += [_time_table(times), ""]
        found = different_plans(SIZES[0], range(SEEDS))
        name = f"different plans under {SEEDS} values of PYTHONHASHSEED"
        bounds += [*_time_bounds(times), Bound(name, 1, found)]
    report.figures["bounds"] = [one.content() for one in bounds]
    report.lines += map(str, bounds)
    for one in bounds:
        report.check(one.name, one.met, str(one))


# ----------------------------------------------------------------------------------- real graphs


def graph_rows(target: Target) -> Iterator[GraphRow]:
    """A row for the forward and the backward of every graph."""
    for name, make in GRAPHS.items():
        torch.manual_seed(0)
        found = regions(*make())
        for direction in dict.fromkeys(one.direction for one in found):
            yield _graph_row(name, [one for one in found if one.direction == direction], target)


def _graph_row(name: str, found: list[TracedRegion], target: Target) -> GraphRow:
    options = compile_options()
    plans = [plan_segments(one.fusion, one.keys, target, options) for one in found]
    segments = [segment for plan in plans for segment in plan.segments]
    return GraphRow(
        name,
        found[0].direction,
        len(plans),
        len(segments),
        sum(one.scheduler.makes_kernel for one in segments),
        sum(plan.edge_bytes for plan in plans),
        sum(plan.lower_bound for plan in plans),
        max(plan.peak_bytes for plan in plans),
        tuple(one.scheduler.name for one in segments),
        tuple(text for plan in plans for text in two_passes(plan)),
    )


def two_passes(plan: SegmentedFusion) -> Iterator[str]:
    """Pairs of segments that were not joined, make reductions over different axes, and both read
    most of what the region reads."""
    read = sum(_bytes(plan, name) for name in plan.fusion.inputs)
    for one in plan.refusals:
        first, second = plan.segments[one.first], plan.segments[one.second]
        shared = [name for name in first.inputs if name in second.inputs]
        shapes = [_reduced_to(segment) for segment in (first, second)]
        most = 2 * sum(_bytes(plan, name) for name in shared) > read
        if most and all(shapes) and shapes[0] != shapes[1]:
            yield f"{', '.join(shared)} reduced to {shapes[0]} and to {shapes[1]}"


def _bytes(plan: SegmentedFusion, name: str) -> int:
    view = plan.fusion.tensors[name]
    return 0 if view.by_value else bytes_in_memory(view, plan.strides[name])


def _reduced_to(segment: Segment) -> str:
    """The sizes of what its reductions make."""
    views = [segment.part.tensors[expr.outputs[0]] for expr in segment.part.reductions]
    return ", ".join(dict.fromkeys(str([n for n in view.sizes if n != 1]) for view in views))


def _graph_bound(row: GraphRow) -> Bound:
    """One bound for all; of a region that takes two passes over its data, with what they are."""
    passes = f", in two passes ({'; '.join(row.two_passes)})" if row.two_passes else ""
    return Bound(f"{row.graph}, {row.direction}: bytes over the least{passes}", BOUND, row.ratio)


def _graph_table(rows: list[GraphRow]) -> str:
    head = ("graph", "direction", "regions", "segments", "kernels", "MiB", "over least", "peak MiB")
    return table(head, [
        (r.graph, r.direction, str(r.regions), str(r.segments), str(r.kernels),
         f"{r.edge_bytes / 2**20:.1f}", f"{r.ratio:.3f}", f"{r.peak_bytes / 2**20:.2f}")
        for r in rows
    ])  # fmt: skip


# ------------------------------------------------------------------------------- the best there is


def optimum_ratios(count: int) -> list[float]:
    """The cost of plans over that of the best, for seeds up to `count`, planned for each target.

    Fusions that passes left with more than MAX_EXPRS expressions are left out, and so are plans
    with joined kernels: the search for the best joins none.
    """
    ratios = []
    for seed in range(count):
        fd, inputs = random_graph(seed, 4 + seed % 6)
        target = TARGETS[_TARGETS[seed % len(_TARGETS)]]
        plan = fd.plan(inputs, target=target)
        is_joined = any(one.scheduler is JoinedKernels for one in plan.segments)
        if 0 < len(plan.fusion.exprs) <= MAX_EXPRS and not is_joined:
            ratios.append(plan_cost(plan, target) / least_cost(plan.fusion, target))
    return ratios


# -------------------------------------------------------------------------------------------- time


def time_rows(sizes: tuple[int, ...], repeats: int) -> Iterator[TimeRow]:
    """Every family at every size."""
    for name, make in FAMILIES.items():
        for ops in sizes:
            fd, inputs = make(ops)
            _ = fd.fusion
            least, plan = min(
                (_timed(lambda fd=fd, inputs=inputs: fd.plan(inputs, target="h200"))
                 for _ in range(repeats)), key=lambda found: found[0],
            )  # fmt: skip
            yield TimeRow(name, ops, len(plan.segments), least)


def _timed(call: Any) -> tuple[float, SegmentedFusion]:
    gc.collect()
    gc.freeze()  # what earlier fusions left is not this one's to look through
    start = process_time()
    plan = call()
    return process_time() - start, plan


def _time_bounds(rows: list[TimeRow]) -> Iterator[Bound]:
    for name in dict.fromkeys(row.family for row in rows):
        line = [row for row in rows if row.family == name]
        for before, after in pairwise(line):
            # A step of another size counts as the doublings it is made of.
            growth = (after.seconds / before.seconds) ** (1 / log2(after.ops / before.ops))
            yield Bound(f"{name}: {before.ops} to {after.ops}, a doubling", DOUBLING, growth)
        yield Bound(f"{name}: seconds of {line[-1].ops}", SECONDS, line[-1].seconds)


def _time_table(rows: list[TimeRow]) -> str:
    head = ("family", "ops", "segments", "seconds")
    return table(head, [(r.family, str(r.ops), str(r.segments), f"{r.seconds:.3f}") for r in rows])


def different_plans(ops: int, seeds: Iterable[int]) -> int:
    """How many different texts all families' plans have, here and under seeds of hashes."""
    code = f"from {__name__} import digest; print(digest({ops}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        ).stdout.strip()
        for seed in seeds
    }  # fmt: skip
    return len(found | {digest(ops)})


def digest(ops: int) -> str:
    """A digest of the plans of every family and of random fusions, texts and pictures."""
    graphs = [make(ops) for make in FAMILIES.values()]
    graphs += [random_graph(seed, 12) for seed in range(20)]
    plans = [fd.plan(inputs, target="h200") for fd, inputs in graphs]
    text = "".join(str(plan) + plan.dot() for plan in plans)
    return hashlib.sha256(text.encode()).hexdigest()
