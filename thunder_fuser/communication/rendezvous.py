# SPDX-License-Identifier: Apache-2.0
"""A group of our own beside a caller's, through which torch's symmetric memory finds the peers.

torch exchanges handles of memory through the group's store, under keys "<name>/<number>/<rank>".
The number counts such exchanges in a process, over all its groups. So ranks that are also in
another group have other numbers than those that are not, and each waits for a key that nobody
writes. The store here puts a number of its own group in that place.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import ProcessGroup


class GroupStore(dist.Store):
    """Counts exchanges from 0 in each rendezvous, and these in the order of the group's calls.

    So a rendezvous that failed on one rank in the middle does not disturb the next one. An exchange
    writes the own key before it reads those of its peers.
    """

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = dist.PrefixStore("thunder_fuser", store)
        self._rendezvous = self._exchange = 0

    def begin(self) -> None:
        """A new rendezvous. All ranks of the group call it."""
        self._rendezvous, self._exchange = self._rendezvous + 1, 0

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        self._exchange += 1
        self._store.set(self._key(key), value)  # type: ignore[arg-type]

    def get(self, key: str) -> bytes:
        return self._store.get(self._key(key))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # type: ignore[override]
        own = [self._key(key) for key in keys]
        self._store.wait(own, timeout) if timeout else self._store.wait(own)

    def _key(self, key: str) -> str:
        name, _, rank = key.rsplit("/", 2)
        return f"{name}/{self._rendezvous}.{self._exchange}/{rank}"


_NUMBERS = count()  # of names: torch keeps those of groups that are gone
# torch holds a group of a name weakly; it lives as long as the caller's group.
_GROUPS: WeakKeyDictionary[ProcessGroup, tuple[str, GroupStore, ProcessGroup]]
_GROUPS = WeakKeyDictionary()


def begin_rendezvous(group: ProcessGroup, device: torch.device) -> str:
    """The name of our group for one rendezvous. All ranks of the group call it."""
    found = _GROUPS.get(group)
    if found is None:
        found = _GROUPS[group] = _made(group, device)
    name, store, _ = found
    store.begin()
    return name


def _made(group: ProcessGroup, device: torch.device) -> tuple[str, GroupStore, ProcessGroup]:
    store = GroupStore(group.get_group_store())
    made = ProcessGroup(store, group.rank(), group.size())
    backend = group._get_backend(device)  # torch asks it for the name in its logs
    made._register_backend(device, ProcessGroup.BackendType.CUSTOM, backend)
    name = f"thunder_fuser:{next(_NUMBERS)}"
    c10d._register_process_group(name, made)
    return name, store, made
