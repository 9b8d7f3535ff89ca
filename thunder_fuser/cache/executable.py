# SPDX-License-Identifier: Apache-2.0
"""A Definition -> what runs it on plain tensors and storages.

    entry of T0: [i0{31}], allocation [i0.o, i0.i]
    call with a storage of 32 elements and the logical shape (31,)
->  the Executable of the definition in which T0 has the shape (31,)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder_fuser.cache.arguments import check_count, check_kinds
from thunder_fuser.cache.programs import Programs
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.host.bind import Bound, Shapes
from thunder_fuser.host.dispatch import input_keys, make_dispatch
from thunder_fuser.host.plain import on_resolved
from thunder_fuser.host.program import Runner
from thunder_fuser.ir.build import define
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import Definition
from thunder_fuser.options import compile_options
from thunder_fuser.single_flight import Bounded
from thunder_fuser.stages import stage
from thunder_fuser.target import Target

# The most variants of a definition: targets with options, logical shapes, meshes with placements.
MOST_VARIANTS = 64


class Executable:
    """A typed definition and its programs. Making one raises the errors of the definition."""

    def __init__(self, definition: Definition) -> None:
        with stage("define"):
            self.fusion = define(definition)
        self.bound = Bound(self.fusion)
        self.programs = Programs(self.fusion)
        self._callables: Bounded[Runner] = Bounded(MOST_VARIANTS)

    def callable(self, target: Target | None) -> Runner:
        """The function that finds the program of a call by one lookup and runs it."""
        options = compile_options()
        found = self._callables.get((target, options))
        if found is None:
            made = _dispatch(self.programs, self.bound, target, options)
            found = self._callables.keep((target, options), made)
        return found


class ExecutableByShape:
    """The Executable of a definition, and one for each set of logical shapes that calls give."""

    def __init__(self, definition: Definition) -> None:
        self.general = Executable(definition)
        self._shaped: Bounded[Executable] = Bounded(MOST_VARIANTS)

    def bind(self, arguments: Sequence[Any]) -> tuple[Executable, Sequence[Any]]:
        """The Executable for a call, and the memory behind the arguments.

        A call may give logical shapes beside storages whose sizes do not determine them. Such
        shapes become part of the definition.
        """
        bound = self.general.bound
        if not bound.has_layouts:
            return self.general, arguments
        check_count(self.general.fusion, arguments)
        storages, shapes = bound.storages(arguments)
        return self._for_shapes(shapes) if shapes else self.general, storages

    def _for_shapes(self, shapes: Shapes) -> Executable:
        found = self._shaped.get(shapes)
        if found is None:
            made = Executable(self.general.bound.with_shapes(shapes))
            found = self._shaped.keep(shapes, made)
        return found

    def execute(self, arguments: Sequence[Any], target: Target | None) -> list[Any]:
        """Runs the definition on plain tensors, storages and numbers, each of them checked."""
        executable, values = self.bind(arguments)
        check_kinds(executable.fusion, values)
        return executable.callable(target)(*values)


def _dispatch(
    programs: Programs, bound: Bound, target: Target | None, options: CompileOptions
) -> Runner:
    """The warm path of one target. It keeps no Executable alive, so no reference cycle arises."""
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
