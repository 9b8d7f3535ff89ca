# SPDX-License-Identifier: Apache-2.0
"""A leaf of the trie: one definition, what runs it or its error, and its DTensor variants."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from thunder_fuser.cache.executable import MOST_VARIANTS, Executable, ProgramKey
from thunder_fuser.cache.sharded import ShardedEntry, is_dtensor, shard
from thunder_fuser.host.arguments import check_count
from thunder_fuser.host.program import HostProgram
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import Definition
from thunder_fuser.options import compile_options
from thunder_fuser.target import Target
from thunder_fuser.threads import Bounded, make_lock


class FusionEntry:
    """A definition in the cache. number: its id, which no other definition ever gets."""

    def __init__(self, definition: Definition, number: int) -> None:
        self.definition = definition
        self.number = number
        self.error: Exception | None = None
        self._executable: Executable | None = None
        self._lock = make_lock()
        self._sharded: Bounded[ShardedEntry] = Bounded(MOST_VARIANTS)
        self._users: list[None] = []  # append and pop are atomic, a counter is not

    @property
    def fusion(self) -> Fusion:
        """The typed fusion; raises the definition's error if it has one."""
        return self.prepare().fusion

    def prepare(self) -> Executable:
        """What runs the definition, made at the first call. Raises the definition's error."""
        if self._executable is None:
            with self._lock:
                self._define()
        if self._executable is None:
            assert self.error is not None
            raise copy.copy(self.error)  # a copy: each raise adds its frames, which hold tensors
        return self._executable

    def _define(self) -> None:
        if self._executable is None and self.error is None:
            try:
                self._executable = Executable(self.definition)
            except ValueError as error:
                error.__cause__ = error.__context__ = None
                self.error = error.with_traceback(None)

    def held_programs(self) -> list[tuple[ProgramKey, HostProgram]]:
        """The programs held now, each with its key."""
        return self.prepare().programs.items()

    # ---- use

    def pin(self) -> None:
        """Until `unpin` the cache does not evict the entry. Pins are counted."""
        self._users.append(None)

    def unpin(self) -> None:
        self._users.pop()

    @property
    def is_used(self) -> bool:
        """True while a call of the entry runs."""
        return bool(self._users)

    def execute(self, arguments: Sequence[Any], target: Target | None = None) -> list[Any]:
        """Runs the fusion, every argument checked.

        A result whose memory no strides describe is an AllocatedTensor. The results are DTensors
        if arguments are.
        """
        self.pin()
        try:
            runs: Executable | ShardedEntry = self.prepare()
            if any(map(is_dtensor, arguments)):
                check_count(self.fusion, arguments)
                runs = self._sharded_for(arguments)
            return runs.execute(arguments, target)
        finally:
            self.unpin()

    def _sharded_for(self, arguments: Sequence[Any]) -> ShardedEntry:
        """The definition on the mesh and placements of these DTensors."""
        key = tuple(
            (id(v.device_mesh), v.placements) if is_dtensor(v) else isinstance(v, torch.Tensor)
            for v in arguments
        )
        return self._sharded.get_or_make(key, lambda: shard(self.prepare(), arguments))

    def bind(self, arguments: Sequence[Any]) -> tuple[Executable, Sequence[Any]]:
        """What runs a call, and the memory behind its arguments."""
        return self.prepare().bind(arguments)

    def program_for(self, arguments: Sequence[Any], target: Target | None = None) -> HostProgram:
        """The program for such arguments, compiled on a miss. InputError if they do not fit."""
        self.pin()
        try:
            executable, values = self.bind(arguments)
            return executable.programs.program_for(values, target, compile_options())
        finally:
            self.unpin()
