# SPDX-License-Identifier: Apache-2.0
"""What the cost model predicts for 2, 8 and 64 ranks, beside the committed measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.overlap.points import SHAPES, Point, points
from thunder_fuser.communication.cost import H200, Bandwidths, decide
from thunder_fuser.explain.table import table

MEASURED = Path(__file__).resolve().parents[1] / "results" / "h200_overlap.json"
WORLDS = (2, 8, 64)
_HEAD = ("m, k, n", "ranks", "as decided", "pipeline ms", "measured", "collective ms", "measured")


def model_lines(figures: dict[str, Any]) -> list[str]:
    """The tables; the predictions go into the figures too.

    All ranks reach each other at the same rate, as behind one NVLink switch: between hosts it is
    less. m, k and n are those of one rank's product, so a rank's part of m shrinks.
    """
    measured = json.loads(MEASURED.read_text("utf-8"))["figures"] if MEASURED.exists() else {}
    rates = _rates(measured)
    where = "benchmarks/results/h200_overlap.json" if measured else "built in"
    lines = [f"rates ({where}): {rates}"]
    figures["predicted"] = []
    for kind in dict.fromkeys(point.kind for point in points(SHAPES)):
        chosen = [point for point in points(SHAPES) if point.kind == kind]
        rows = [_row(point, world, rates, measured) for point in chosen for world in WORLDS]
        lines += ["", kind, table(_HEAD, rows)]
        figures["predicted"] += [[kind, *row] for row in rows]
    return lines


def _rates(measured: Mapping[str, Any]) -> Bandwidths:
    if not measured:
        return H200
    given = dict(measured["bandwidths"])
    flops = tuple((dtype, rate) for dtype, rate in given.pop("flops"))
    return Bandwidths(flops=flops, **given)


def _row(
    point: Point, world: int, rates: Bandwidths, measured: Mapping[str, Any]
) -> tuple[str, ...]:
    m, k, n = point.m, point.k, point.n
    one = decide(point.kind, m, k, n, dtype="bfloat16", world=world, rates=rates)
    ms = _measured(point, world, measured)
    return (
        f"{m}, {k}, {n}", str(world),
        f"pipeline in {one.chunks}" if one.pipeline else "collective",
        f"{1e3 * one.pipeline_seconds:.3f}", _beside(ms.get(f"in {one.chunks}")),
        f"{1e3 * one.collective_seconds:.3f}", _beside(ms.get("NCCL")),
    )  # fmt: skip


def _measured(point: Point, world: int, measured: Mapping[str, Any]) -> Mapping[str, float]:
    if measured.get("ranks") != world:
        return {}
    size = asdict(point)
    found = (one["ms"] for one in measured["points"] if {**one, **size} == one)
    return next(found, {})


def _beside(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.3f}"
