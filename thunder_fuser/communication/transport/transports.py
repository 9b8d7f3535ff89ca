# SPDX-License-Identifier: Apache-2.0
"""Finds the exchange for a call of a group; there is none if the ranks cannot share memory."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import lru_cache, partial
from weakref import ref

import torch
from torch.distributed import ProcessGroup

from thunder_fuser.base.warn import warn_at
from thunder_fuser.communication.transport.buffers import (
    CACHE,
    BufferCache,
    BufferKey,
    stream_number,
)
from thunder_fuser.communication.transport.exchange import BufferLayout, Exchange
from thunder_fuser.communication.transport.rank_consistency import agree, from_all
from thunder_fuser.communication.transport.shared import make_shared
from thunder_fuser.communication.transport.symmetric import make_symmetric
from thunder_fuser.errors import CommunicationWarning, PeerError

_MAKERS: dict[str, Callable[[BufferLayout, ProcessGroup, torch.device], Exchange]] = {
    "cpu": make_shared, "cuda": make_symmetric,
}
_PROBE = BufferLayout("probe", 1, 1, 64, torch.uint8, 1)
# {(group's name, device type): (the group, why it has no exchanges or "")}
_PROBED: dict[tuple[str, str], tuple[ref[ProcessGroup], str]] = {}


def exchange_for(
    layout: BufferLayout, group: ProcessGroup, device: torch.device, cache: BufferCache = CACHE
) -> Exchange | None:
    """The exchange of this call. Calls of a layout use two exchanges in turn. All ranks call it.

    PeerError if the ranks ask for different ones. This is checked only when an exchange is made,
    so that a warm call sends no message.
    """
    if why_not(group, device):
        return None
    key = _key(layout, group.group_name, device, stream_number(device))
    return cache.get(
        key, partial(_make, layout, key.stream, group, device),
        partial(_finish_calls, group, device), count=2,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _key(layout: BufferLayout, group: str, device: torch.device, stream: int) -> BufferKey:
    strides = (layout.rows * layout.columns, layout.columns, 1)
    place = str(device) if device.type == "cpu" else device.type  # ranks differ in the index
    return BufferKey(
        f"{layout.statement}, {layout.flags} flags", layout.shape, strides, layout.dtype, place,
        stream, group,
    )  # fmt: skip


def _make(layout: BufferLayout, stream: int, group: ProcessGroup, device: torch.device) -> Exchange:
    agree(f"group {group.group_name}", (str(layout), layout.flags, stream), group)
    return _MAKERS[device.type](layout, group, device)


def _finish_calls(group: ProcessGroup, device: torch.device) -> None:
    """Waits until no rank reads or writes the memory of another."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    from_all("settled", group)


def release(group: ProcessGroup, device: torch.device, cache: BufferCache = CACHE) -> None:
    """Frees the exchanges of a group. All ranks call it."""
    cache.release(group.group_name, partial(_finish_calls, group, device))


def why_not(group: ProcessGroup, device: torch.device) -> str:
    """Why the group can have no exchanges; "" if it can. All ranks probe it once, together."""
    name = group.group_name, device.type
    known = _PROBED.get(name)
    if known is None or known[0]() is not group:
        CACHE.release(group.group_name, lambda: None)  # those of an earlier group of that name
        known = _PROBED[name] = ref(group), _probe(group, device)
        if known[1]:
            text = f"Pipelines of group {group.group_name} are replaced by collectives: {known[1]}"
            warn_at("", text, CommunicationWarning)
    return known[1]


def _probe(group: ProcessGroup, device: torch.device) -> str:
    hosts = set(from_all(socket.gethostname(), group))
    if len(hosts) > 1:
        return f"its ranks are on {len(hosts)} hosts"
    if device.type not in _MAKERS:
        return f"no transport for devices of type {device.type}"
    try:
        _MAKERS[device.type](_PROBE, group, device).close()
    except PeerError as error:
        return error.sentence
    return ""
