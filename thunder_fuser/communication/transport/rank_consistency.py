# SPDX-License-Identifier: Apache-2.0
"""Exchanges small values between the hosts of a group's ranks: seldom, before tensors are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist
from torch.distributed import ProcessGroup

from thunder_fuser.errors import FuserError, PeerError

V = TypeVar("V")


def from_all(value: V, group: ProcessGroup) -> list[V]:
    """Gathers the value of each rank. It is also a barrier: no rank returns before all call it."""
    values: list[V | None] = [None] * group.size()
    dist.all_gather_object(values, value, group=group)
    return values  # type: ignore[return-value]


def from_first(value: V, group: ProcessGroup) -> V:
    """Broadcasts the value of the group's first rank."""
    box = [value]
    dist.broadcast_object_list(box, group=group, group_src=0)
    return box[0]


def agree(what: str, value: object, group: ProcessGroup) -> None:
    """PeerError on every rank unless all ranks have the same value."""
    texts = from_all(repr(value), group)
    if len(set(texts)) > 1:
        raise PeerError(
            what, expected="the same on all ranks",
            got="; ".join(f"rank {rank}: {text}" for rank, text in enumerate(texts)),
            do="run the same program, with the same shapes, on all ranks of the group",
        )  # fmt: skip


def together(what: str, step: Callable[[], V], group: ProcessGroup) -> V:
    """Runs the step and returns its result; PeerError on every rank if it failed on one. It is
    also a barrier."""
    result, problem = None, ""
    try:
        result = step()
    except (OSError, RuntimeError, FuserError) as error:
        problem = f"{type(error).__name__}: {error}"
    problems = [
        f"rank {rank}: {text}" for rank, text in enumerate(from_all(problem, group)) if text
    ]
    if problems:
        raise PeerError(what, expected="success on all ranks", got="; ".join(problems))
    return result  # type: ignore[return-value]
