# SPDX-License-Identifier: Apache-2.0
"""A process group beside the caller's, for the rendezvous of torch's symmetric memory.

torch exchanges handles of memory through the group's store, under keys "<name>/<number>/<rank>".
The number counts such exchanges in a process, over all its groups. So a rank that is also in
another group has other numbers than its peers, and each waits for a key that nobody writes. The
store here replaces the number by a count of this group alone.
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
    """Numbers the group's rendezvous, and the exchanges inside each from 0.

    So a rendezvous that failed halfway on one rank does not disturb the next one. In an exchange a
    rank writes its own key before it reads those of its peers.
    """

    def __init__(self, group_name: str, store: dist.Store) -> None:
        super().__init__()
        self.group_name = group_name
        self._store = dist.PrefixStore("thunder_fuser", store)
        self._rendezvous = self._exchange = 0

    def begin(self) -> None:
        """Begins a rendezvous. All ranks of the group call it."""
        self._rendezvous, self._exchange = self._rendezvous + 1, 0

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        self._exchange += 1
        self._store.set(self._key(key), value)  # type: ignore[arg-type]

    def get(self, key: str) -> bytes:
        return self._store.get(self._key(key))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # type: ignore[override]
        prefixed = [self._key(key) for key in keys]
        self._store.wait(prefixed, timeout) if timeout else self._store.wait(prefixed)

    def _key(self, key: str) -> str:
        name, _, rank = key.rsplit("/", 2)
        return f"{name}/{self._rendezvous}.{self._exchange}/{rank}"


_NUMBERS = count()  # new names for all groups: torch keeps the names of groups that were deleted
# torch holds a named group weakly; this table keeps it as long as the caller's group.
_GROUPS: WeakKeyDictionary[ProcessGroup, tuple[GroupStore, ProcessGroup]] = WeakKeyDictionary()


def begin_rendezvous(group: ProcessGroup, device: torch.device) -> str:
    """Begins a rendezvous, and returns the name of our group. All ranks of the group call it."""
    known = _GROUPS.get(group)
    if known is None:
        known = _GROUPS[group] = _new_group(group, device)
    known[0].begin()
    return known[0].group_name


def _new_group(group: ProcessGroup, device: torch.device) -> tuple[GroupStore, ProcessGroup]:
    store = GroupStore(f"thunder_fuser:{next(_NUMBERS)}", group.get_group_store())
    new_group = ProcessGroup(store, group.rank(), group.size())
    backend = group._get_backend(device)  # torch takes the name in its logs from it
    new_group._register_backend(device, ProcessGroup.BackendType.CUSTOM, backend)
    c10d._register_process_group(store.group_name, new_group)
    return store, new_group
