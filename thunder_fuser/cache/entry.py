# SPDX-License-Identifier: Apache-2.0
"""A leaf of the trie: one definition, its Fusion or its error, and its programs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from thunder_fuser.cache.arguments import check_arguments, check_count, check_kinds
from thunder_fuser.cache.placed import Placed, placed
from thunder_fuser.cache.programs import ProgramKey, Programs
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.host.bind import Bound
from thunder_fuser.host.dispatch import input_keys, make_dispatch
from thunder_fuser.host.placements import is_dtensor
from thunder_fuser.host.plain import on_resolved
from thunder_fuser.host.program import HostProgram, Runner
from thunder_fuser.ir.build import define
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import Definition
from thunder_fuser.options import compile_options
from thunder_fuser.single_flight import Bounded, make_lock
from thunder_fuser.stages import stage
from thunder_fuser.target import Target

# Meshes, placements, given logical shapes, and options that one definition keeps entries for.
MOST_BOUND = 64


class FusionEntry:
    """Made with its definition; `prepare` makes the IR, once, whoever asks. Safe under threads.

    number: its id, which never changes and which no other definition gets.
    """

    def __init__(self, definition: Definition, number: int) -> None:
        self.definition = definition
        self.number = number
        self.error: Exception | None = None
        self._programs: Programs | None = None
        self._lock = make_lock()
        self._callables: Bounded[Runner] = Bounded(MOST_BOUND)
        self._bound: Bound | None = None
        self._shaped: Bounded[FusionEntry] = Bounded(MOST_BOUND)
        self._placed: Bounded[Placed] = Bounded(MOST_BOUND)
        self._users: list[None] = []  # append and pop are atomic, a counter is not

    @property
    def fusion(self) -> Fusion:
        """The typed fusion; the definition's error if it has one."""
        return self._prepared().fusion

    def prepare(self) -> None:
        """Makes the IR if nobody has. Raises the error of a definition that has no meaning."""
        self._prepared()

    def _prepared(self) -> Programs:
        if self._programs is None:
            with self._lock:
                self._define()
        if self._programs is None:
            assert self.error is not None
            raise copy.copy(self.error)  # a copy: each raise adds its frames, which hold tensors
        return self._programs

    def _define(self) -> None:
        if self._programs is None and self.error is None:
            try:
                with stage("define"):
                    self._programs = Programs(define(self.definition))
            except ValueError as error:
                error.__cause__ = error.__context__ = None
                self.error = error.with_traceback(None)

    def held_programs(self) -> list[tuple[ProgramKey, HostProgram]]:
        """The programs held now, each with its key."""
        return self._prepared().items()

    # ---- use

    def pin(self) -> None:
        """From here to `unpin` the cache does not evict it. Pins are counted."""
        self._users.append(None)

    def unpin(self) -> None:
        self._users.pop()

    @property
    def is_used(self) -> bool:
        """Whether some call of it has not ended."""
        return bool(self._users)

    def execute(self, arguments: Sequence[Any], target: Target | None = None) -> list[Any]:
        """Runs the fusion, every argument checked.

        A result is an AllocatedTensor where no strides can say how it lies in memory, and a
        DTensor where arguments are.
        """
        self.pin()
        try:
            if any(map(is_dtensor, arguments)):
                check_count(self.fusion, arguments)
                return self._placed_for(arguments).execute(arguments, target)
            entry, arguments = self.bind(arguments)
            check_kinds(entry.fusion, arguments)
            return entry.callable(target)(*arguments)
        finally:
            self.unpin()

    def _placed_for(self, arguments: Sequence[Any]) -> Placed:
        """The definition on the mesh and placements of these DTensors."""
        key = tuple(
            (id(v.device_mesh), v.placements) if is_dtensor(v) else isinstance(v, torch.Tensor)
            for v in arguments
        )
        found = self._placed.get(key)
        if found is None:
            made = placed(self, arguments, lambda one: FusionEntry(one, self.number))
            found = self._placed.keep(key, made)
        return found

    def bind(self, arguments: Sequence[Any]) -> tuple[FusionEntry, Sequence[Any]]:
        """The memory behind the arguments, and the entry for it: another one where the logical
        sizes were given beside a storage that does not tell them."""
        bound = self.bound
        if not bound.has_layouts:
            return self, arguments
        check_count(self.fusion, arguments)
        arguments, shapes = bound.storages(arguments)
        if not shapes:
            return self, arguments
        found = self._shaped.get(shapes)
        if found is None:
            made = FusionEntry(bound.with_shapes(shapes), self.number)
            found = self._shaped.keep(shapes, made)
        return found, arguments

    @property
    def bound(self) -> Bound:
        """How arguments and results stand to memory."""
        if self._bound is None:
            self._bound = Bound(self.fusion)
        return self._bound

    def check(self, arguments: Sequence[Any]) -> None:
        """Raises InputError naming the first argument that does not fit."""
        check_arguments(self.fusion, arguments)

    def callable(self, target: Target | None = None) -> Runner:
        """The function that finds the program of a call by one lookup and runs it."""
        options = compile_options()
        found = self._callables.get((target, options))
        if found is None:
            made = _dispatch(self._prepared(), self.bound, target, options)
            found = self._callables.keep((target, options), made)
        return found

    def program_for(self, arguments: Sequence[Any], target: Target | None = None) -> HostProgram:
        """The program for such arguments, compiled if need be. InputError if they do not fit."""
        self.pin()
        try:
            return self._prepared().program_for(arguments, target, compile_options())
        finally:
            self.unpin()


def _dispatch(
    programs: Programs, bound: Bound, target: Target | None, options: CompileOptions
) -> Runner:
    fusion = programs.fusion
    kinds = [(name, _kind(fusion, name)) for name in fusion.inputs]

    def miss(arguments: tuple[Any, ...]) -> Runner:
        return on_resolved(compiled, arguments)

    def compiled(values: Sequence[Any]) -> Runner:
        run = programs.program_for(values, target, options).run
        return bound.runner(run, input_keys(fusion, tuple(values)))

    return make_dispatch(kinds, miss, checked=True)


def _kind(fusion: Fusion, name: str) -> str:
    view = fusion.tensors[name]
    if not view.is_scalar:
        return "complex" if view.dtype.is_complex else "tensor"
    return "size" if name in fusion.shape_scalars else "number"
