# SPDX-License-Identifier: Apache-2.0
"""Sends and receives between the devices of a group: posted together, awaited later.

    sent = post(receive(below, 1), send(rows, -1), mesh=(0, 1, 2, 3), on="mesh_x")
    part(whole, 1, mesh=(0, 1, 2, 3), on="mesh_x")        the run of `whole` of the next device
    wait(sent, "below")

A device is named by its distance from this one along `on`, around the group: 1 is the next one, -1
the one before. So all devices run the same lines: what one sends to distance -1, the device there
receives from distance 1. torch.distributed moves the elements, NCCL those of a post as one group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from thunder_fuser.communication.collectives import Posted, as_bytes, group_of, posting


@dataclass(frozen=True)
class Transfer:
    """One tensor to or from the device at a distance. call: torch's isend or irecv."""

    call: Callable[..., Any]
    tensor: torch.Tensor
    distance: int


def send(given: torch.Tensor, distance: int) -> Transfer:
    """To the device at this distance. What is given stays as it is until the post is awaited."""
    return Transfer(dist.isend, given.contiguous(), distance)


def receive(into: torch.Tensor, distance: int) -> Transfer:
    """From the device at this distance, into a contiguous tensor."""
    return Transfer(dist.irecv, into, distance)


def post(*transfers: Transfer, mesh: Any, on: str) -> Posted:
    """Begins all of them, behind the caller's work so far."""
    first = transfers[0].tensor
    group = group_of(mesh, on, first.device.type)
    operations = [
        dist.P2POp(one.call, as_bytes(one.tensor), _peer(group, one.distance), group)
        for one in transfers
    ]
    peers = ", ".join(map(str, sorted({one.peer for one in operations})))
    what = f"post to and from ranks {peers} (mesh={mesh}, on={on!r})"
    works = posting(what, partial(dist.batch_isend_irecv, operations))
    return Posted(what, _All(works, operations), lambda: first, first)


def part(
    whole: torch.Tensor, distance: int, *, mesh: Any, on: str, dim: int = 0
) -> torch.Tensor:
    """The run along `dim` that belongs to the device at this distance."""
    group = group_of(mesh, on, whole.device.type)
    size = whole.shape[dim] // group.size()
    at = (group.rank() + distance) % group.size()
    return whole.narrow(dim, at * size, size)


def _peer(group: Any, distance: int) -> int:
    return dist.get_global_rank(group, (group.rank() + distance) % group.size())


class _All:
    """torch's handles of one post as one, and the tensors, which torch may not keep alive."""

    def __init__(self, works: Sequence[Any], operations: Sequence[dist.P2POp]) -> None:
        self._works, self._kept = works, operations

    def wait(self, *timeout: timedelta) -> None:
        for work in self._works:
            work.wait(*timeout)


POINT_TO_POINT: dict[str, Callable[..., Any]] = {
    one.__name__: one for one in (post, send, receive, part)
}
