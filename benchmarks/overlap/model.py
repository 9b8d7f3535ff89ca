# SPDX-License-Identifier: Apache-2.0
"""What the cost model predicts for 2 to 64 ranks, beside what was measured, where it was.

Every prediction follows from the rates of one measured file, `RATES`. All ranks reach each other
at the same rate, as behind one NVLink switch: between hosts it is less. m, k and n are those of
one rank's product, so a rank's part of m shrinks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.overlap.points import MANY, Point, points, shapes
from thunder_fuser.communication.products.cost import Bandwidths, decide, pipeline_seconds
from thunder_fuser.explain.shown import table

RESULTS = Path(__file__).resolve().parents[1] / "results"
RATES = "h200_overlap.json"
MEASURED = {2: RATES, 4: "h200_overlap_4.json", 8: "h200_overlap_8.json"}  # by ranks
WORLDS = (2, 4, 8, 64)
CHUNKS = (1, 2, 4)
_DTYPE = "bfloat16"
_WAYS = ("alone", "pipeline", "collective")
_HEAD = (
    "m, k, n", "ranks", "as decided",
    *(one for way in _WAYS for one in (f"{way} ms", "TFLOPS a GPU", "measured ms")),
)  # fmt: skip
_RATIOS = ("m, k, n", "ranks", "way", "predicted ms", "measured ms", "model / measured")
_Row = dict[str, Any]


def model_lines(figures: dict[str, Any]) -> list[str]:
    """The tables; the predictions, and how far they are off, go into the figures too."""
    measured = {ranks: found for ranks in WORLDS if (found := measured_figures(ranks))}
    rates = measured_rates(measured[2])
    predicted = [_prediction(point, world, rates, measured) for point, world in _asked()]
    ratios = [
        row for point, world in _asked() if (ms := _measured(point, world, measured))
        for row in _ratios(point, world, rates, ms)
    ]
    note = "predictions by thunder_fuser/communication/products/cost.py; null: not measured"
    figures.update(
        note=note, rates_of=RATES, bandwidths=asdict(rates), predictions=predicted, ratios=ratios
    )
    return [
        f"rates ({RATES}): {rates}", *_tables(_HEAD, predicted, _shown),
        "", "model / measured", *_tables(_RATIOS, ratios, _shown_ratio),
    ]  # fmt: skip


def measured_figures(ranks: int) -> dict[str, Any]:
    """Of the committed measurement; {} if there is none."""
    place = RESULTS / MEASURED.get(ranks, "none")
    return dict(json.loads(place.read_text("utf-8"))["figures"]) if place.exists() else {}


def measured_rates(measured: Mapping[str, Any]) -> Bandwidths:
    """The rates of the measurement's machine."""
    given = dict(measured["bandwidths"])
    flops = tuple((dtype, rate) for dtype, rate in given.pop("flops"))
    return Bandwidths(flops=flops, **given)


def _asked() -> Iterator[tuple[Point, int]]:
    """Points and numbers of ranks, each kind's together."""
    every = [(point, world) for point in points(shapes(MANY)) for world in WORLDS]
    return iter(sorted(every, key=lambda one: one[0].kind))


def _prediction(
    point: Point, world: int, rates: Bandwidths, measured: Mapping[int, Mapping[str, Any]]
) -> _Row:
    sizes = point.m, point.k, point.n
    one = decide(point.kind, *sizes, dtype=_DTYPE, world=world, rates=rates)
    alone = decide(point.kind, *sizes, dtype=_DTYPE, world=1, rates=rates).collective_seconds
    times = dict(zip(_WAYS, (alone, one.pipeline_seconds, one.collective_seconds), strict=True))
    ms = _measured(point, world, measured)
    names = ("alone", f"in {one.chunks}", "NCCL")
    return {
        **asdict(point), "ranks": world, "decided": one.way,
        "predicted_ms": {way: round(1e3 * seconds, 4) for way, seconds in times.items()},
        "predicted_tflops_a_gpu": {
            way: round(point.flops / seconds / 1e12, 1) for way, seconds in times.items()
        },
        "measured_ms": {way: ms.get(name) for way, name in zip(_WAYS, names, strict=True)},
    }  # fmt: skip


def _ratios(
    point: Point, world: int, rates: Bandwidths, ms: Mapping[str, float]
) -> Iterator[_Row]:
    """How far the model is off at a measured point: the product, NCCL, and each pipeline."""
    sizes = point.m, point.k, point.n
    one = decide(point.kind, *sizes, dtype=_DTYPE, world=world, rates=rates)
    alone = decide(point.kind, *sizes, dtype=_DTYPE, world=1, rates=rates).collective_seconds
    found = {"alone": alone, "NCCL": one.collective_seconds}
    for chunks in CHUNKS:
        found[f"in {chunks}"] = pipeline_seconds(
            point.kind, *sizes, dtype=_DTYPE, world=world, rates=rates, chunks=chunks
        )
    for way, seconds in found.items():
        yield {
            **asdict(point), "ranks": world, "way": way, "predicted_ms": round(1e3 * seconds, 4),
            "measured_ms": ms[way], "ratio": round(1e3 * seconds / ms[way], 3),
        }  # fmt: skip


def _measured(
    point: Point, world: int, measured: Mapping[int, Mapping[str, Any]]
) -> Mapping[str, float]:
    size = asdict(point)
    every = measured.get(world, {}).get("points", ())
    return next((one["ms"] for one in every if {**one, **size} == one), {})


# ------------------------------------------------------------------------------------------ tables


def _tables(head: Sequence[str], rows: Sequence[_Row], shown: Any) -> Iterator[str]:
    for kind in dict.fromkeys(row["kind"] for row in rows):
        yield ""
        yield kind
        yield table(head, [shown(row) for row in rows if row["kind"] == kind])


def _shown(row: _Row) -> tuple[str, ...]:
    cells = [
        text for way in _WAYS for text in (
            f"{row['predicted_ms'][way]:.3f}", f"{row['predicted_tflops_a_gpu'][way]:.0f}",
            _beside(row["measured_ms"][way]),
        )
    ]  # fmt: skip
    return (_size(row), str(row["ranks"]), row["decided"], *cells)


def _shown_ratio(row: _Row) -> tuple[str, ...]:
    times = (f"{row[name]:.3f}" for name in ("predicted_ms", "measured_ms"))
    return (_size(row), str(row["ranks"]), row["way"], *times, f"{row['ratio']:.3f}")


def _size(row: _Row) -> str:
    return f"{row['m']}, {row['k']}, {row['n']}"


def _beside(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.3f}"
