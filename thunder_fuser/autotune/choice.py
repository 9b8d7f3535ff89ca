# SPDX-License-Identifier: Apache-2.0
"""The autotuner's choice of a schedule for a kernel, and its entry in the store.

    recipe of a choice   the kernel as its scheduler makes it, its sizes, device, driver, compiler
    its entry            {"schedule": "def schedule(s): ...", "seconds": 1.2e-05, ...}

An entry is data: its schedule is parsed and checked like a user's, and never run as code.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

import torch

from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.runtime.cpu import library_recipe_of
from thunder_fuser.runtime.cuda import cubin_recipe, driver_version
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.store.entry import Recipe
from thunder_fuser.store.store import Store

KIND = "choice"


@dataclass(frozen=True, slots=True)
class Tuning:
    """The fastest schedule of a kernel among those that were tried.

    schedule: its text; empty if the scheduler's own is as fast. params: the same in a few words.
    seconds, own_seconds: of a call with it, and with the scheduler's own. tried: the number of
    schedules that ran. wrong: those with different results, which are a bug. spent: the seconds of
    the search. asked: the seconds that it was given.
    from_store: whether another process, or an earlier one, made the choice.
    """

    schedule: str
    params: str
    seconds: float
    own_seconds: float
    tried: int
    wrong: tuple[str, ...]
    spent: float
    asked: float
    from_store: bool = False

    @property
    def gain(self) -> float:
        """The speed relative to the scheduler's own schedule; 1 if that was chosen."""
        return self.own_seconds / self.seconds if self.seconds else 1.0

    def __str__(self) -> str:
        """own, 12.1 us, 9 tried; pointwise(...), 8.0 us instead of 12.1, 9 tried, 1 wrong"""
        words = [self.params if self.schedule else "own schedule", f"{1e6 * self.seconds:.1f} us"]
        words[1] += f" instead of {1e6 * self.own_seconds:.1f}" * bool(self.schedule)
        words += [f"{self.tried} tried"] + [f"{len(self.wrong)} wrong"] * bool(self.wrong)
        return ", ".join(words)


def recipe_of(default: ScheduledFusion, source: KernelSource) -> Recipe:
    """The recipe of a kernel's choice: everything on which the times of its schedules depend."""
    if default.target.is_cpu:
        base, flags = library_recipe_of(source), [f"threads={torch.get_num_threads()}"]
    else:
        base = cubin_recipe(source.text, source.name, default.target.arch)
        flags = [f"driver={driver_version()}", f"device={default.target.name}"]
    launch = source.grid, source.block, source.sizes, source.threaded
    text = "\n".join([source.text, str(launch), str(default), str(default.alignment)])
    return replace(base, kind=KIND, text=text, flags=tuple(flags))


def stored(store: Store | None, recipe: Recipe, seconds: float) -> Tuning | None:
    """The choice in the store. None if there is none that can be read, or if its search had less
    than half of these seconds."""
    entry = store.get(recipe) if store else None
    if entry is None:
        return None
    try:
        known = json.loads(entry.code)
        wrong = tuple(map(str, known.pop("wrong")))
        choice = replace(Tuning(**known, wrong=wrong), from_store=True)
        return choice if _is_whole(choice) and 2 * choice.asked >= seconds else None
    except (ValueError, KeyError, TypeError, AttributeError):  # of another version
        return None


def _is_whole(choice: Tuning) -> bool:
    """True if its fields have their types, which JSON does not check."""
    numbers = choice.seconds, choice.own_seconds, choice.tried, choice.spent, choice.asked
    texts = choice.schedule, choice.params
    return all(type(number) in (int, float) for number in numbers) and all(
        isinstance(text, str) for text in texts
    )


def keep(store: Store, recipe: Recipe, choice: Tuning) -> None:
    """Stores a choice."""
    store.put(recipe, json.dumps(asdict(choice)).encode())
