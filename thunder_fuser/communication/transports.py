# SPDX-License-Identifier: Apache-2.0
"""A group and a form -> the exchange to use at this call; None where its ranks cannot have one."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable
from functools import partial
from weakref import ref

import torch
from torch.distributed import ProcessGroup

from thunder_fuser.communication.agreement import agree, from_all
from thunder_fuser.communication.buffers import CACHE, BufferCache, BufferKey, stream_number
from thunder_fuser.communication.exchange import Exchange, Form
from thunder_fuser.communication.shared import make_shared
from thunder_fuser.communication.symmetric import make_symmetric
from thunder_fuser.errors import CommunicationWarning, PeerError

_MAKERS: dict[str, Callable[[Form, ProcessGroup, torch.device], Exchange]] = {
    "cpu": make_shared, "cuda": make_symmetric,
}
_TRIED = Form("probe", 1, 1, 64, torch.uint8, 1)
# {(group's name, kind of device): (the group, why it has no exchanges or "")}
_FOUND: dict[tuple[str, str], tuple[ref[ProcessGroup], str]] = {}


def exchange_for(
    form: Form, group: ProcessGroup, device: torch.device, cache: BufferCache = CACHE
) -> Exchange | None:
    """The exchange of this call, of the other parity than the last. All ranks call it alike.

    PeerError if the ranks ask for different ones: only where memory is new, so that a warm call
    costs no message.
    """
    if why_not(group, device):
        return None
    strides = (form.rows * form.columns, form.columns, 1)
    place = str(device) if device.type == "cpu" else device.type  # each rank has its own index
    key = BufferKey(
        "", f"{form.statement}, {form.flags} flags", form.shape, strides, form.dtype, place,
        stream_number(device), group.group_name,
    )  # fmt: skip
    return cache.next(
        key, partial(_made, key, form, group, device), partial(_settled, group, device)
    )


def _made(key: BufferKey, form: Form, group: ProcessGroup, device: torch.device) -> Exchange:
    agree(f"group {group.group_name}", (str(form), form.flags, key.stream), group)
    return _MAKERS[device.type](form, group, device)


def _settled(group: ProcessGroup, device: torch.device) -> None:
    """No rank still reads or writes the memory of another."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    from_all("settled", group)


def release(group: ProcessGroup, device: torch.device, cache: BufferCache = CACHE) -> None:
    """Frees the exchanges of a group. All ranks call it."""
    cache.release(group.group_name, partial(_settled, group, device))


def why_not(group: ProcessGroup, device: torch.device) -> str:
    """Why the group has no exchanges; "" if it has. Tried once, by all ranks together."""
    name = group.group_name, device.type
    known = _FOUND.get(name)
    if known is None or known[0]() is not group:
        CACHE.release(group.group_name, _nothing)  # of an earlier group of that name
        known = _FOUND[name] = ref(group), _tried(group, device)
        if known[1]:
            warnings.warn(
                f"Pipelines of group {group.group_name} are replaced by collectives: {known[1]}",
                CommunicationWarning, stacklevel=2,
            )  # fmt: skip
    return known[1]


def _tried(group: ProcessGroup, device: torch.device) -> str:
    hosts = set(from_all(socket.gethostname(), group))
    if len(hosts) > 1:
        return f"its ranks are on {len(hosts)} hosts"
    if device.type not in _MAKERS:
        return f"no transport for devices of type {device.type}"
    try:
        _MAKERS[device.type](_TRIED, group, device).close()
    except PeerError as error:
        return error.sentence
    return ""


def _nothing() -> None:
    pass
