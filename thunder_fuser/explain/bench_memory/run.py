# SPDX-License-Identifier: Apache-2.0
"""Models and depths -> bytes kept under each policy beside Thunder's and torch.compile's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from thunder_fuser.errors import InputError
from thunder_fuser.executors.traces import jit
from thunder_fuser.explain.bench.facts import facts
from thunder_fuser.explain.bench.run import write_json
from thunder_fuser.explain.bench_memory.measure import Kept, kept_by
from thunder_fuser.explain.bench_memory.models import MODELS, SIZES, make_model
from thunder_fuser.explain.table import kib, table

LAYERS = (1, 4, 12)
POLICIES = ("none", "time", "memory")
COMPILE = "compile"
MEMORY_LIMIT = 0.8


@dataclass(frozen=True, slots=True)
class BenchMemory:
    """What to run. Policy `none` keeps what Thunder's gradient rules read."""

    models: tuple[str, ...] = tuple(MODELS)
    layers: tuple[int, ...] = LAYERS
    json: str | None = None


def bench_memory(given: BenchMemory) -> bool:
    """Measures on the CPU in bf16, prints and writes; True if no policy keeps more than `none`."""
    rows: list[dict[str, Any]] = []
    for name in given.models:
        if name not in MODELS:
            raise InputError("bench memory", expected=f"one of {', '.join(MODELS)}", got=name)
        for layers in given.layers:
            rows.append(_row(name, layers))
            if given.json is not None:
                found = {"facts": facts(torch.device("cpu")), "sizes": str(SIZES), "rows": rows}
                write_json(given.json, found)
    print(_text(rows))
    return all(row["bytes"][policy] <= row["bytes"]["none"] for row in rows for policy in POLICIES)


def _row(name: str, layers: int) -> dict[str, Any]:
    model = make_model(name, layers, SIZES, torch.bfloat16)
    random = torch.Generator().manual_seed(0)
    x = torch.randn(SIZES.shape, generator=random).to(torch.bfloat16).requires_grad_()
    calls: dict[str, Callable[..., Any]] = {
        policy: jit(model, strict=True, rematerialization=policy) for policy in POLICIES
    }
    torch._dynamo.reset()
    calls[COMPILE] = torch.compile(model, dynamic=False)
    kept = {which: kept_by(call, model, x) for which, call in calls.items()}
    return {
        "model": name, "layers": layers,
        "bytes": {which: one.bytes for which, one in kept.items()},
        "parts": {which: _counted(one) for which, one in kept.items()} if layers == 1 else {},
    }  # fmt: skip


def _counted(kept: Kept) -> list[str]:
    return [f"{size} {name}" for name, size in kept.parts]


def _text(rows: list[dict[str, Any]]) -> str:
    """KiB, and shares of the smaller of `none` and torch.compile."""
    lines = []
    for row in rows:
        found = row["bytes"]
        least = min(found["none"], found[COMPILE])
        shares = [f"{found[policy] / least:.3f}" for policy in ("time", "memory")]
        kibs = [kib(found[which]) for which in (*POLICIES, COMPILE)]
        lines.append((row["model"], str(row["layers"]), *kibs, *shares))
    head = ("model", "layers", "none KiB", *POLICIES[1:], COMPILE, "time share", "memory share")
    return table(head, lines)
