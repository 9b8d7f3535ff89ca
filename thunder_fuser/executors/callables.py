# SPDX-License-Identifier: Apache-2.0
"""A Region -> the function a trace calls: looked up by layout, defined and compiled on a miss.

    arguments -> layouts -> (miss) Definition -> compile -> a runner kept for these layouts
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from thunder_fuser import options
from thunder_fuser.errors import EmulatorError, FuserError, LaunchError
from thunder_fuser.executors.fallback import torch_function
from thunder_fuser.executors.regions import Region
from thunder_fuser.executors.repro import write_repro
from thunder_fuser.executors.translate import layout_of, record_region
from thunder_fuser.ir.fusion import Definition

Runner = Callable[..., list[torch.Tensor]]
Compile = Callable[[Definition, str, Sequence[Any]], Runner]


class RegionCallable:
    """Runs a region. Building one does nothing: all work waits for the first call.

    `given` are options of the jit call, in force while the region is compiled.
    """

    def __init__(
        self, name: str, region: Region, compile_region: Compile,
        given: Mapping[str, options.Value],
    ) -> None:
        self.name, self.region = name, region
        self.definitions: list[Definition] = []
        self._compile = compile_region
        self._given = dict(given)
        self._runners: dict[Any, Runner] = {}

    def __call__(self, *args: Any) -> Sequence[torch.Tensor]:
        key = tuple([(a.shape, a.stride()) for a in args if isinstance(a, torch.Tensor)])
        runner = self._runners.get(key)
        if runner is None:
            with options.options(**self._given):
                runner = self._runners[key] = self._prepare(args)
        return runner(*args)

    def _prepare(self, args: Sequence[Any]) -> Runner:
        layouts = [layout_of(arg) if isinstance(arg, torch.Tensor) else None for arg in args]
        region = self.region
        definition = record_region(region.leaves, region.inputs, region.outputs, layouts)
        self.definitions.append(definition)
        try:
            return self._compile(definition, self.name, args)
        except (LaunchError, EmulatorError):
            raise  # a kernel that misbehaves must never be papered over
        except FuserError as error:
            if options.get("strict"):
                raise
            return self._fall_back(error, definition, args)

    def _fall_back(self, error: FuserError, definition: Definition, args: Sequence[Any]) -> Runner:
        path = write_repro(self.name, str(error), definition, args)
        warnings.warn(
            f"{self.name} runs its {len(self.region.leaves)} torch ops one by one, for it could"
            f" not be compiled: {error} To see it again, without Thunder: python {path}",
            stacklevel=3,
        )
        return torch_function(self.region, self.name)
