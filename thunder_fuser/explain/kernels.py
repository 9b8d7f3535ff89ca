# SPDX-License-Identifier: Apache-2.0
"""A jitted function -> its kernels, and a folder with the text of every step of every fusion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thunder_fuser.executors.traces import Jitted, fusions_of
from thunder_fuser.explain.programs import Compiled, compiled
from thunder_fuser.segment.plan import with_params

_ENDING = {"cuda": "cu", "cpu": "cpp"}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A generated kernel: of which fusion, what it computes, its text and how it is launched."""

    name: str
    fusion: str
    scheduler: str
    ops: tuple[str, ...]
    source: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem_bytes: int


def kernels(jitted: Jitted) -> list[Kernel]:
    """The kernels of every fusion of a jitted function, in the order they run."""
    return [kernel for one in _programs(jitted) for kernel in _kernels_of(one)]


def dump(jitted: Jitted, folder: str | Path) -> list[Path]:
    """Writes one folder a program: definition, segments, schedules, kernels and host program."""
    folders: list[Path] = []
    for number, one in enumerate(_programs(jitted)):
        path = Path(folder) / f"{number:02}_{one.name}"
        path.mkdir(parents=True, exist_ok=True)
        for name, text in _texts(one).items():
            (path / name).write_text(text, encoding="utf-8")
        folders.append(path)
    return folders


def _programs(jitted: Jitted) -> Iterator[Compiled]:
    for one in fusions_of(jitted):
        yield from compiled(one)


def _kernels_of(one: Compiled) -> Iterator[Kernel]:
    for segment, source in one.kernels:
        ops = tuple(expr.op for expr in segment.part.exprs)
        yield Kernel(
            source.name, one.name, segment.scheduler.name, ops, source.text, source.grid,
            source.block, source.smem_bytes,
        )


def _texts(one: Compiled) -> dict[str, str]:
    """File name -> text, one file for the result of each stage."""
    texts = {
        "definition.py": str(one.fusion),
        "segments.txt": str(with_params(one.program.segmented)),
        "host.py": str(one.program),
    }
    for number, scheduled in enumerate(one.schedules()):
        if scheduled is not None:
            texts[f"schedule_{number}.py"] = str(scheduled)
    for number, (_, source) in enumerate(one.kernels):
        texts[f"kernel_{number}.{_ENDING[source.dialect]}"] = source.text
    return texts
