# SPDX-License-Identifier: Apache-2.0
"""Sends and receives between the devices of a group: posted together, awaited later.

    sent = post(receive(below, 1), send(rows, -1), mesh=(0, 1, 2, 3), on="mesh_x")
    part(whole, 1, mesh=(0, 1, 2, 3), on="mesh_x")        the next device's part of `whole`
    wait(sent, "below")

A device is named by its distance from this one along `on`: 1 is the next one, -1 the one before,
and after the last device comes the first. So all devices run the same lines: if one sends to
distance -1, the device there receives from distance 1. NCCL runs a post as one group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from thunder_fuser.communication.collectives import Posted, as_bytes, begun, group_of


@dataclass(frozen=True)
class Transfer:
    """A send or a receive of one tensor. call: torch's isend or irecv. distance: of the peer."""

    call: Callable[..., Any]
    tensor: torch.Tensor
    distance: int


def send(tensor: torch.Tensor, distance: int) -> Transfer:
    """A send to the device at this distance. The tensor must not change until the post's wait."""
    return Transfer(dist.isend, tensor.contiguous(), distance)


def receive(into: torch.Tensor, distance: int) -> Transfer:
    """A receive from the device at this distance, into a contiguous tensor."""
    return Transfer(dist.irecv, into, distance)


def post(*transfers: Transfer, mesh: Any, on: str) -> Posted:
    """Begins all transfers, after the work that the caller's stream has so far."""
    first = transfers[0].tensor
    group = group_of(mesh, on, first.device.type)
    operations = [
        dist.P2POp(transfer.call, as_bytes(transfer.tensor), _peer(group, transfer.distance), group)
        for transfer in transfers
    ]
    peers = ", ".join(map(str, sorted({operation.peer for operation in operations})))
    what = f"post to and from ranks {peers} (mesh={mesh}, on={on!r})"
    works = begun(what, partial(dist.batch_isend_irecv, operations))
    return Posted(what, _Works(works, operations), lambda: first, first)


def part(
    whole: torch.Tensor, distance: int, *, mesh: Any, on: str, dim: int = 0
) -> torch.Tensor:
    """The part along `dim` that belongs to the device at this distance."""
    group = group_of(mesh, on, whole.device.type)
    size = whole.shape[dim] // group.size()
    at = (group.rank() + distance) % group.size()
    return whole.narrow(dim, at * size, size)


def _peer(group: Any, distance: int) -> int:
    return dist.get_global_rank(group, (group.rank() + distance) % group.size())


class _Works:
    """The handles of a post as one handle. It keeps the tensors alive, which torch may not do."""

    def __init__(self, works: Sequence[Any], operations: Sequence[dist.P2POp]) -> None:
        self._works, self._kept = works, operations

    def wait(self, *timeout: timedelta) -> None:
        for work in self._works:
            work.wait(*timeout)


POINT_TO_POINT: dict[str, Callable[..., Any]] = {
    call.__name__: call for call in (post, send, receive, part)
}
