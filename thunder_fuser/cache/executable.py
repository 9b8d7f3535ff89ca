# SPDX-License-Identifier: Apache-2.0
"""The Executable of a Definition, which runs it on plain tensors and storages.

(target, device, input keys, options)  ->  HostProgram

A call may give logical sizes that a storage does not determine. They become part of a definition:

    entry of T0: [i0{31}], allocation [i0.o, i0.i]
    call with a storage of 32 elements and the logical shape (31,)
->  the Executable of the definition in which T0 has the shape (31,)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

from thunder_fuser.base.dump import Dump
from thunder_fuser.base.logs import timing
from thunder_fuser.base.stages import stage
from thunder_fuser.base.threads import Bounded, Recent, SingleFlight
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.compiler import Planned, build_kernels, compile_fusion, plan_kernels
from thunder_fuser.host.call.arguments import (
    check_arguments,
    check_count,
    check_device,
    check_kinds,
    device_of,
)
from thunder_fuser.host.call.bind import Bound
from thunder_fuser.host.call.dispatch import input_keys, make_dispatch, on_resolved
from thunder_fuser.host.call.recompiles import note_miss
from thunder_fuser.host.programs.program import HostProgram, ProgramRun
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import Definition
from thunder_fuser.ir.rules.build import define
from thunder_fuser.options import compile_options, option
from thunder_fuser.presegment.specialise import InputKey
from thunder_fuser.runtime.torch_types import target_of_device
from thunder_fuser.sharding.agreement import Agreement
from thunder_fuser.target import CPU, EMULATOR, Target

# The most variants of a definition: targets with options, logical shapes, meshes with placements.
MOST_VARIANTS = 64

Schedules = tuple[tuple[int | str, Any], ...]  # segments, each with its text or function
ProgramKey = tuple[Target, torch.device, tuple[Any, ...], CompileOptions]


class Programs:
    """The programs of a fusion. A missing one is compiled by the first thread that needs it, while
    others wait.

    Callables refer to this object and not to an Executable, so an eviction does not break them.
    """

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self._agreement = Agreement(fusion)
        most = partial(option, "max_programs")
        self._flight: SingleFlight[HostProgram] = SingleFlight(Recent(most))
        self._ahead: SingleFlight[Planned] = SingleFlight(Recent(most))

    def items(self) -> list[tuple[ProgramKey, HostProgram]]:
        """The programs with their keys, the least recently used first."""
        return list(self._flight.values.items())  # type: ignore[arg-type]

    def program_for(
        self, arguments: Sequence[Any], target: Target | None, options: CompileOptions
    ) -> HostProgram:
        """The program for such arguments, compiled on a miss. InputError if they do not fit."""
        check_arguments(self.fusion, arguments)
        device = device_of(self.fusion, arguments)
        chosen = target or target_for(device, options)
        check_device(chosen, device)
        keys = input_keys(self.fusion, tuple(arguments))

        def compiled() -> HostProgram:
            with timing("definition"):
                planned = self._planned_ahead(chosen, keys, options)
                return compile_fusion(self.fusion, keys, chosen, options, device, planned)

        agreed = partial(self._agreement.program, compiled, keys, options.multi_device, device)
        return self._flight.get((chosen, device, keys, options), agreed)

    def plan_ahead(
        self, keys: tuple[InputKey, ...], target: Target, options: CompileOptions
    ) -> None:
        """Plans and compiles for calls with such arguments, but loads nothing."""
        if self._is_called(keys, target, options):
            return

        def planned() -> Planned:
            return plan_kernels(self.fusion, keys, target, options, Dump(options.dump))

        key = (target, keys, options)
        build_kernels(self._ahead.get(key, planned), target)
        if self._is_called(keys, target, options):  # a call came meanwhile, and needs it no more
            self._ahead.drop(key)

    def _is_called(
        self, keys: tuple[InputKey, ...], target: Target, options: CompileOptions
    ) -> bool:
        """True if a call has made the program, or is making it."""
        known: Iterable[Any] = self._flight.keys()
        return any((entry[0], *entry[2:]) == (target, keys, options) for entry in known)

    def _planned_ahead(
        self, target: Target, keys: tuple[InputKey, ...], options: CompileOptions
    ) -> Planned | None:
        """The plan of `plan_ahead`, which is waited for if it is being made. It is used once."""
        planned = self._ahead.wait_for((target, keys, options))
        self._ahead.drop((target, keys, options))
        return planned


def target_for(device: torch.device, options: CompileOptions) -> Target:
    """The target for tensors on a device. Meta tensors have that of CPU tensors."""
    if device.type == "cuda":
        return target_of_device(device.index or 0)
    return EMULATOR if options.emulate else CPU


class Executable:
    """A typed definition and its programs. Making one raises the errors of the definition."""

    def __init__(self, definition: Definition) -> None:
        with stage("define"):
            self.fusion = define(definition)
        self.programs = Programs(self.fusion)
        self._bound = Bound(self.fusion)
        self._callables: Bounded[ProgramRun] = Bounded(MOST_VARIANTS)
        self._shaped: Bounded[Executable] = Bounded(MOST_VARIANTS)

    def bind(self, arguments: Sequence[Any]) -> tuple[Executable, Sequence[Any]]:
        """The Executable that runs a call, and the memory of the call's arguments."""
        if not self._bound.has_layouts:
            return self, arguments
        check_count(self.fusion, arguments)
        storages, shapes = self._bound.storages(arguments)
        if not shapes:
            return self, storages
        variant = self._shaped.get_or_make(
            shapes, lambda: Executable(self._bound.with_shapes(shapes))
        )
        return variant, storages

    def execute(
        self, arguments: Sequence[Any], target: Target | None, schedules: Schedules = ()
    ) -> list[Any]:
        """Checks plain tensors, storages and numbers, and runs the definition on them."""
        executable, values = self.bind(arguments)
        check_kinds(executable.fusion, values)
        return executable.callable(target, schedules)(*values)  # type: ignore[no-any-return]

    def callable(self, target: Target | None = None, schedules: Schedules = ()) -> ProgramRun:
        """The function that finds a call's program by one lookup, and runs it."""
        options = compile_options(schedules)
        return self._callables.get_or_make(
            (target, options), lambda: _dispatch(self.programs, self._bound, target, options)
        )


def _dispatch(
    programs: Programs, bound: Bound, target: Target | None, options: CompileOptions
) -> ProgramRun:
    """The warm path for one target. It does not refer to the Executable, which would be a cycle."""
    fusion = programs.fusion
    kinds = [(name, _kind(fusion, name)) for name in fusion.inputs]

    def miss(arguments: tuple[Any, ...]) -> ProgramRun:
        note_miss(programs, "a definition", fusion.inputs, arguments, variant=target)
        return on_resolved(compiled, arguments)

    def compiled(values: Sequence[Any]) -> ProgramRun:
        run = programs.program_for(values, target, options).run
        return bound.runner(run, input_keys(fusion, tuple(values)))

    return make_dispatch(kinds, miss, checked=True)


def _kind(fusion: Fusion, name: str) -> str:
    view = fusion.tensors[name]
    if not view.is_scalar:
        return "complex" if view.dtype.is_complex else "tensor"
    return "size" if name in fusion.shape_scalars else "number"
