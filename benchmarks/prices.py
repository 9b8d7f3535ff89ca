# SPDX-License-Identifier: Apache-2.0
"""What a forced segment, a launch and an operation cost.

forced   the fusion of NVIDIA/Fuser#3832: rows normalised by their sum, and an unrelated value
         behind a segment_set; beside it the same without the boundary, and the norm alone
prices   a launch and an operation, in bytes that memory moves meanwhile; beside them the Target's
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import combinations
from statistics import median
from typing import Any

import torch

from benchmarks.allocator import can_keep, kept
from benchmarks.bounds import Bound
from benchmarks.clock import Call, Calls, cpu_times, cuda_times, sets_for
from benchmarks.options import add_device, add_small
from benchmarks.report import Report
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.explain.shown import table
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.op_table import OPS

WITHIN = 1.05  # of the time without the forced segment
COLUMNS = 65536  # of #3832
ROWS = {"cuda": (128, 4096), "cpu": (16,)}
UNRELATED = 10

LAUNCHES = (1, 2, 4, 8, 16, 32)  # that share the work of one
MOVED = {"cuda": 256 << 20, "cpu": 32 << 20}  # bytes read, as many are written
ELEMENTS = {"cuda": 1 << 24, "cpu": 1 << 20}
WORK = (256, 512)  # simple operations an element: far above what memory hides, and one kernel
SLEEP = 4_000_000  # cycles: the host writes all launches of a call meanwhile


def _apply(name: str, ops: Any, y: Tensor) -> Tensor:
    return getattr(ops, name)(y)  # type: ignore[no-any-return]


STEPS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "mul": lambda ops, y: ops.mul(y, 1.0001),
    "add": lambda ops, y: ops.add(y, 0.001),
    "truediv": lambda ops, y: ops.truediv(1.5, y),
    "exp": lambda ops, y: ops.exp(ops.neg(y)),  # exp alone is infinite soon, an easy argument
    **{
        name: partial(_apply, name)
        for name in ("sqrt", "rsqrt", "log1p", "sin", "cos", "tanh", "sigmoid", "erf")
    },
    "pow": lambda ops, y: ops.pow(y, 1.01),
}
SIMPLE = ("mul", "add")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add_small(parser)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each point")


def run(given: argparse.Namespace, report: Report) -> None:
    kind = given.device.type
    for rows in (2,) if given.small else ROWS[kind]:
        with report.section(f"forced {rows}"):
            found = forced(rows, given.device, given.seconds)
            report.figures[f"forced {rows}"] = found
            report.lines += forced_lines(rows, found)
    scale = 1 << 6 if given.small else 1
    with report.section("prices"):
        found = prices(given.device, given.seconds, MOVED[kind] // scale, ELEMENTS[kind] // scale)
        report.figures["prices"] = found
        report.lines += price_lines(found)


def _times(sets: Calls, seconds: float, device: torch.device) -> dict[str, float]:
    """Microseconds of each call: the median on a GPU, the shortest where others share the cores."""
    if device.type == "cuda":
        return {name: one.us for name, one in cuda_times(sets, seconds, graphs=True)[0].items()}
    with kept() if can_keep() else nullcontext():
        return {name: one.least for name, one in cpu_times(sets, seconds, keep=True).items()}


# ------------------------------------------------------------------------------ NVIDIA/Fuser#3832

FORMS = ("forced", "unforced", "norm alone")


def norm(form: str, rows: int, device: torch.device) -> tuple[FusionDefinition, list[torch.Tensor]]:
    """bf16 rows and their sums, and in two of the forms an unrelated value."""
    x = torch.randn(rows, COLUMNS, device=device).bfloat16()
    inputs = [x]
    with FusionDefinition() as fd:
        wide = fd.ops.set(fd.ops.cast(fd.from_pytorch(x), DataType.Float))
        total = fd.ops.broadcast(fd.ops.sum(wide, [1]), [False, True])
        fd.add_output(fd.ops.cast(fd.ops.add(wide, total), DataType.BFloat16))
        if form != "norm alone":
            inputs.append(torch.randn(UNRELATED, device=device).bfloat16())
            other = fd.ops.cast(fd.from_pytorch(inputs[1]), DataType.Float)
            keep = fd.ops.segment_set if form == "forced" else fd.ops.set
            fd.add_output(keep(other))
    return fd, inputs


def forced(rows: int, device: torch.device, seconds: float) -> dict[str, Any]:
    """Microseconds of the three forms, their schedulers, and whether the norm's kernel is one."""
    sets: dict[str, list[Call]] = {}
    found: dict[str, Any] = {"us": {}, "schedulers": {}}
    texts = set()
    for form in FORMS:
        count = min(8, sets_for(2 * rows * COLUMNS * 2, device))
        made = [norm(form, rows, device) for _ in range(count)]
        fd, inputs = made[0]
        program = fd.program(inputs)
        segments = program.segmented.segments
        found["schedulers"][form] = [one.scheduler.name for one in segments]
        (at,) = (n for n, one in enumerate(segments) if one.part.reductions)
        texts.add(program.sources[at].text)
        sets[form] = [partial(fd.entry.prepare().callable(), *inputs) for _, inputs in made]
    found["us"] = _times(sets, seconds * len(FORMS), device)
    found["same_kernel"] = len(texts) == 1
    us = found["us"]
    found["over_unforced"] = us["forced"] / us["unforced"]
    found["over_norm_alone"] = us["forced"] / us["norm alone"]
    return found


def forced_lines(rows: int, found: dict[str, Any]) -> list[str]:
    """The table of one number of rows, and its bound."""
    lines = [
        (form, f"{found['us'][form]:.2f}", ", ".join(found["schedulers"][form])) for form in FORMS
    ]
    bound = Bound(f"{rows} rows: time over the unforced", WITHIN, found["over_unforced"])
    same = "one text" if found["same_kernel"] else "DIFFERENT texts"
    return [
        table((f"#3832, {rows} rows", "us", "schedulers"), lines),
        f"{bound}; {found['over_norm_alone']:.3f} of the norm alone; the norm's kernels: {same}",
    ]


# ------------------------------------------------------------------------------------------ prices


def prices(device: torch.device, seconds: float, moved: int, elements: int) -> dict[str, Any]:
    """A launch and operations in time, and in bytes as the segmenter counts them."""
    found = launches(device, seconds * 3, moved)
    ns = {name: _op_seconds(name, device, seconds, elements) * 1e9 for name in STEPS}
    simple = sum(ns[name] for name in SIMPLE) / len(SIMPLE)
    found["ops_in_simple_ones"] = {name: one / simple for name, one in ns.items()}
    found["ops_per_s"] = 1e9 / simple
    bandwidth = found["bandwidth_bytes_per_s"]
    found["derived"] = {
        "launch_bytes": max(found["launch_us"].values()) * 1e-6 * bandwidth,
        "ops_per_byte": 1e9 / simple / bandwidth,
    }
    return found


def launches(device: torch.device, seconds: float, moved: int) -> dict[str, Any]:
    """The same bytes in one launch and in several: time = bytes / bandwidth + launches * price."""
    x = torch.randn(moved // 4, device=device)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.mul(fd.from_pytorch(x), 1.5))
    target = fd.program([x]).segmented.segments[0].match.target
    copies = {str(count): _shared(fd, x, count) for count in LAUNCHES}
    us = {"replayed": _times({name: [call] for name, call in copies.items()}, seconds, device)}
    if device.type == "cuda":
        us["streamed"] = {name: _streamed(call) for name, call in copies.items()}
    fits = {way: _fit(one) for way, one in us.items()}
    return {
        "target": target.name,
        "us_by_launches": us,
        "launch_us": {way: slope for way, (slope, _) in fits.items()},
        "bandwidth_bytes_per_s": 2 * moved / (fits["replayed"][1] * 1e-6),
        "the_target_says": {
            "launch_us": target.launch_seconds * 1e6,
            "bandwidth_bytes_per_s": target.bandwidth_bytes_per_s,
            "launch_bytes": target.launch_bytes,
            "ops_per_byte": target.ops_per_byte,
        },
    }


def _shared(fd: FusionDefinition, x: torch.Tensor, count: int) -> Call:
    """A call that multiplies x in so many launches."""
    call, pieces = fd.entry.prepare().callable(), x.chunk(count)
    return lambda: [call(piece) for piece in pieces]


def _fit(us: dict[str, float]) -> tuple[float, float]:
    """Microseconds of one more launch, and of no launch at all: the median of all pairs' lines, for
    a run that others disturbed says nothing."""
    points = [(int(count), one) for count, one in us.items()]
    slope = median((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2))
    return slope, median(one - slope * count for count, one in points)


def _streamed(call: Call, repeats: int = 15) -> float:
    """Microseconds between two events of launches that wait in a stream: the median."""
    found = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(SLEEP)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3)
    return sorted(found)[repeats // 2]


def _op_seconds(name: str, device: torch.device, seconds: float, elements: int) -> float:
    """Seconds of one more operation, for one element: two chains differ by work alone."""
    x = torch.rand(elements, device=device) + 0.5
    counts = [work // OPS[name].cost for work in WORK]
    sets: dict[str, list[Call]] = {}
    for count in counts:
        with FusionDefinition() as fd:
            y = fd.from_pytorch(x)
            for _ in range(count):
                y = STEPS[name](fd.ops, y)
            fd.add_output(y)
        sets[str(count)] = [partial(fd.entry.prepare().callable(), x)]
    us = _times(sets, seconds, device)
    few, many = (us[str(count)] for count in counts)
    return max(many - few, 1e-9) * 1e-6 / (counts[1] - counts[0]) / elements


def price_lines(found: dict[str, Any]) -> list[str]:
    """Measured numbers beside those of the Target's row."""
    says, rows = found["the_target_says"], []
    for way, us in found["launch_us"].items():
        rows.append((f"a launch, {way}, us", f"{us:.2f}", f"{says['launch_us']:.2f}"))
    measured = {**found["derived"], "bandwidth_bytes_per_s": found["bandwidth_bytes_per_s"]}
    rows += [(name, f"{one:.4g}", f"{says[name]:.4g}") for name, one in measured.items()]
    costs = [
        (name, f"{one:.2f}", str(OPS[name].cost))
        for name, one in found["ops_in_simple_ones"].items()
    ]
    return [
        table(("price", "measured", found["target"]), rows),
        table(("operation", "simple ones", "cost in op_table.py"), costs),
    ]
