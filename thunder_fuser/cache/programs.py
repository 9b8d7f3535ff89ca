# SPDX-License-Identifier: Apache-2.0
"""The programs of one fusion, by keys of arguments. The least recently used are evicted.

(target, device, input keys, options)  ->  HostProgram
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from thunder_fuser.cache.arguments import check_arguments, check_device, device_of
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.compiler import compile_fusion
from thunder_fuser.host.device import target_of_device
from thunder_fuser.host.dispatch import input_keys
from thunder_fuser.host.program import HostProgram
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.options import option
from thunder_fuser.single_flight import SingleFlight
from thunder_fuser.target import CPU, EMULATOR, Target

ProgramKey = tuple[Target, torch.device, tuple[Any, ...], CompileOptions]


class Recent(OrderedDict[Hashable, HostProgram]):
    """At most `max_programs` programs, the least recently used first."""

    def get(self, key: Hashable, default: Any = None) -> Any:
        found = super().get(key, default)
        if found is not None:
            self.move_to_end(key)
        return found

    def __setitem__(self, key: Hashable, program: HostProgram) -> None:
        super().__setitem__(key, program)
        while len(self) > int(option("max_programs")):
            del self[next(iter(self))]


class Programs:
    """Compiles on a miss. The first thread that asks for a key compiles; the others wait.

    Callables refer to this object and not to the cache's entry, so they outlive an eviction.
    """

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self._flight: SingleFlight[HostProgram] = SingleFlight(Recent())

    def items(self) -> list[tuple[ProgramKey, HostProgram]]:
        """The programs with their keys, the least recently used first."""
        return list(self._flight.values.items())  # type: ignore[arg-type]

    def program_for(
        self, arguments: Sequence[Any], target: Target | None, options: CompileOptions
    ) -> HostProgram:
        """The program for such arguments, compiled on a miss. InputError if they do not fit."""
        check_arguments(self.fusion, arguments)
        device = device_of(self.fusion, arguments)
        chosen = target or _target_for(device, options)
        check_device(chosen, device)
        keys = input_keys(self.fusion, tuple(arguments))
        return self._flight.get(
            (chosen, device, keys, options),
            lambda: compile_fusion(self.fusion, keys, chosen, options, device),
        )


def _target_for(device: torch.device, options: CompileOptions) -> Target:
    if device.type == "cuda":
        return target_of_device(device.index or 0)
    return EMULATOR if options.emulate else CPU
