# SPDX-License-Identifier: Apache-2.0
"""Models and depths -> bytes kept under each policy beside Thunder's and torch.compile's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import torch

from thunder_fuser.errors import InputError
from thunder_fuser.executors.live import Timeline, timeline
from thunder_fuser.executors.pairwise import jit_pairwise
from thunder_fuser.executors.traces import jit, recomputation_of
from thunder_fuser.explain.bench.facts import facts
from thunder_fuser.explain.bench.plot import need_matplotlib
from thunder_fuser.explain.bench.run import write_json
from thunder_fuser.explain.bench_memory.floor import floor
from thunder_fuser.explain.bench_memory.measure import Kept, kept_by
from thunder_fuser.explain.bench_memory.models import MODELS, SIZES, make_model
from thunder_fuser.explain.bench_memory.rows import COMPILE, POLICIES, THUNDER, Row
from thunder_fuser.explain.blocks import Sizes
from thunder_fuser.explain.progress import progress
from thunder_fuser.explain.table import kib, table
from thunder_fuser.explain.timeline import picture

LAYERS = (1, 4, 12)


@dataclass(frozen=True, slots=True)
class BenchMemory:
    """What to run."""

    models: tuple[str, ...] = tuple(MODELS)
    layers: tuple[int, ...] = LAYERS
    sizes: Sizes = SIZES
    json: str | None = None
    plot: str | None = None


def bench_memory(given: BenchMemory) -> bool:
    """Measures on the CPU in bf16, prints and writes; True if each bound is met, or says why not.

    The picture is of live memory in the deepest of each model. Raises InputError for a model that
    there is not, ToolchainError for a picture without matplotlib.
    """
    if given.plot is not None:
        need_matplotlib()
    for name in given.models:
        if name not in MODELS:
            raise InputError("bench memory", expected=f"one of {', '.join(MODELS)}", got=name)
    about = {**facts(torch.device("cpu")), "sizes": str(given.sizes)}
    rows: list[Row] = []
    for row in _rows(given):
        rows.append(row)
        if given.json is not None:
            write_json(given.json, _content(about, rows))
    print(_text(rows))
    if given.plot is not None:
        deep = [row for row in rows if row.timelines]
        picture({f"{row.model}, {row.layers} layers": row.timelines for row in deep}, given.plot)
    return all(one.met or why for row in rows for one, why in row.verdicts())


def _rows(given: BenchMemory) -> Iterator[Row]:
    """Each model and depth, in as many processes as there are cores: most of it is tracing."""
    deepest = max(given.layers) if given.plot is not None else None
    wanted = [
        (name, layers, given.sizes, layers == deepest)
        for name in given.models for layers in given.layers
    ]
    workers = min(os.cpu_count() or 1, len(wanted))
    if workers == 1:
        yield from (_row(*one) for one in wanted)
        return
    with (
        progress(f"bytes kept by {len(wanted)} models"),
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes,
    ):
        yield from processes.map(_row, *zip(*wanted, strict=True))


def _row(name: str, layers: int, sizes: Sizes, pictured: bool) -> Row:
    model = make_model(name, layers, sizes, torch.bfloat16)
    random = torch.Generator().manual_seed(0)
    x = torch.randn(sizes.shape, generator=random).to(torch.bfloat16).requires_grad_()
    kept: dict[str, Kept] = {}
    timelines: dict[str, Timeline] = {}
    for policy in POLICIES:
        jitted = _under(policy, model)
        kept[policy] = kept_by(jitted, model, x)
        if pictured:
            timelines[policy] = timeline(jitted)
    least = floor(recomputation_of(jitted).facts)
    torch._dynamo.reset()
    others = {THUNDER: jit_pairwise(model), COMPILE: torch.compile(model, dynamic=False)}
    kept |= {which: kept_by(call, model, x) for which, call in others.items()}
    return Row(name, layers, kept, least, timelines)


def _under(policy: str, model: torch.nn.Module) -> Callable[..., Any]:
    return jit(model, strict=True, rematerialization=policy)


# ------------------------------------------------------------------------------------ text, JSON


def _content(about: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "facts": about,
        "rows": [
            {
                "model": row.model, "layers": row.layers,
                "bytes": {which: kept.bytes for which, kept in row.kept.items()},
                "floor": row.floor,
                "bounds": [
                    {**asdict(one), "met": one.met, "why": why} for one, why in row.verdicts()
                ],
                "parts": {which: _counted(kept) for which, kept in row.kept.items()}
                if row.layers == 1 else {},
            }
            for row in rows
        ],
    }  # fmt: skip


def _counted(kept: Kept) -> list[str]:
    return [f"{part.bytes} {part}" for part in kept.parts]


def _text(rows: Sequence[Row]) -> str:
    """KiB, and shares of the smaller of Thunder's and torch.compile's.

    Of the floor: what is never made again and is kept, or what is made of it.
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
    said = [f"{one}{why and f'; {why}'}" for row in rows for one, why in row.verdicts()]
    made = [f"floor of {row.model}, {row.layers} layers, KiB: {_made(row.floor)}" for row in rows]
    return "\n\n".join((table(head, lines), "\n".join(made), "\n".join(said)))


def _made(floor: dict[str, int]) -> str:
    return ", ".join(f"{name} {kib(bytes)}" for name, bytes in floor.items())
