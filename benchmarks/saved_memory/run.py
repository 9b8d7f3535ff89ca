# SPDX-License-Identifier: Apache-2.0
"""Bytes that a forward keeps for its backward under each policy.

Beside Thunder's own policy and torch.compile's, on the CPU, in bf16. Fails if a bound is missed for
no known reason. The picture is of live memory over forward and backward, in the deepest of each
model.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.models import MODELS, make_model
from benchmarks.options import add_layers
from benchmarks.report import Report
from benchmarks.saved_memory.floor import floor
from benchmarks.saved_memory.measure import Kept, kept_by
from benchmarks.saved_memory.pairwise import jit_pairwise
from benchmarks.saved_memory.rows import COMPILE, POLICIES, THUNDER, Row
from thunder_fuser.demo.blocks import Sizes, make_input
from thunder_fuser.explain.jitted import jit, recomputation_of
from thunder_fuser.explain.memory import LiveMemory, need_matplotlib, picture, timeline
from thunder_fuser.explain.shown import kib, table

LAYERS = (1, 4, 12)
SIZES = Sizes()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=tuple(MODELS), choices=tuple(MODELS))
    add_layers(parser, LAYERS)
    parser.add_argument("--plot", metavar="FILE", help="where the picture goes (needs matplotlib)")


def run(given: argparse.Namespace, report: Report) -> None:
    if given.plot is not None:
        need_matplotlib()
    rows: list[Row] = []
    for row in _rows(given):
        rows.append(row)
        report.figures = {"sizes": str(SIZES), "rows": list(map(_content, rows))}
        report.write()
        for one, why in row.bounds():
            report.check(one.name, one.met or bool(why), str(one))
    report.lines.append(_text(rows))
    if given.plot is not None:
        deep = [row for row in rows if row.timelines]
        picture({f"{row.model}, {row.layers} layers": row.timelines for row in deep}, given.plot)


def _rows(given: argparse.Namespace) -> Iterator[Row]:
    """Each model and depth, in as many processes as there are cores: most of it is tracing."""
    deepest = max(given.layers) if given.plot is not None else None
    wanted = [
        (name, layers, layers == deepest) for name in given.models for layers in given.layers
    ]
    workers = min(os.cpu_count() or 1, len(wanted))
    if workers == 1:
        yield from (_row(*one) for one in wanted)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
        yield from processes.map(_row, *zip(*wanted, strict=True))


def _row(name: str, layers: int, pictured: bool) -> Row:
    model = make_model(name, layers, SIZES, torch.bfloat16)
    x, _ = make_input(SIZES, torch.bfloat16, "cpu")
    x.requires_grad_()
    kept: dict[str, Kept] = {}
    timelines: dict[str, LiveMemory] = {}
    for policy in POLICIES:
        jitted = jit(model, strict=True, rematerialization=policy)
        kept[policy] = kept_by(jitted, model, x)
        if pictured:
            timelines[policy] = timeline(jitted)
    recomputation = recomputation_of(jitted)
    assert recomputation is not None  # the models have gradients
    least = floor(recomputation.forward)
    torch._dynamo.reset()
    others = {THUNDER: jit_pairwise(model), COMPILE: torch.compile(model, dynamic=False)}
    kept |= {which: kept_by(call, model, x) for which, call in others.items()}
    return Row(name, layers, kept, least, timelines)


# ------------------------------------------------------------------------------------ text, JSON


def _content(row: Row) -> dict[str, Any]:
    """What the JSON says."""
    return {
        "model": row.model, "layers": row.layers,
        "bytes": {which: kept.bytes for which, kept in row.kept.items()},
        "floor": row.floor,
        "bounds": [{**one.content(), "why": why} for one, why in row.bounds()],
        "parts": {which: _counted(kept) for which, kept in row.kept.items()}
        if row.layers == 1 else {},
    }  # fmt: skip


def _counted(kept: Kept) -> list[str]:
    return [f"{part.bytes} {part}" for part in kept.parts]


def _text(rows: Sequence[Row]) -> str:
    """KiB, and shares of the smaller of Thunder's and torch.compile's.

    Of the floor: what is never recomputed and is kept, or what is made of it.
    """
    names = (*POLICIES, THUNDER, COMPILE)
    head = ("model", "layers", *names, "floor", "time", "memory", "floor")
    lines = []
    for row in rows:
        found = [kib(row.kept[which].bytes) for which in names]
        shares = (row.kept["time"].bytes, row.kept["memory"].bytes, sum(row.floor.values()))
        lines.append(
            (row.model, str(row.layers), *found, kib(shares[-1]),
             *(f"{row.share(bytes):.4f}" for bytes in shares))
        )  # fmt: skip
    said = [f"{one}{why and f'; {why}'}" for row in rows for one, why in row.bounds()]
    made = [f"floor of {row.model}, {row.layers} layers, KiB: {_made(row.floor)}" for row in rows]
    return "\n\n".join((table(head, lines), "\n".join(made), "\n".join(said)))


def _made(floor: dict[str, int]) -> str:
    return ", ".join(f"{name} {kib(bytes)}" for name, bytes in floor.items())
