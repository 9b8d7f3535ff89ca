# SPDX-License-Identifier: Apache-2.0
"""A Region -> the function a trace calls: looked up by layout, defined and compiled on a miss.

    arguments -> layouts -> (miss) Definition -> compile -> a runner kept for these layouts
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from thunder.core.proxies import TensorProxy

from thunder_fuser import options
from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.errors import EmulatorError, FuserError, LaunchError
from thunder_fuser.executors.fallback import torch_function
from thunder_fuser.executors.regions import Region
from thunder_fuser.executors.repro import write_repro
from thunder_fuser.executors.translate import layout_of, record_region
from thunder_fuser.host.dispatch import make_dispatch
from thunder_fuser.ir.fusion import Definition

Runner = Callable[..., Sequence[torch.Tensor]]
Compile = Callable[[Definition], Runner]


def look_up(definition: Definition) -> Runner:
    """The process-wide cache's function for a definition; a trace has guarded its arguments."""
    return FusionCache.get().look_up(definition).callable()  # type: ignore[no-any-return]


class RegionCallable:
    """Runs a region. Building one does nothing: all work waits for the first call.

    `given` are options of the jit call, in force while the region runs.
    """

    def __init__(
        self,
        name: str,
        region: Region,
        compile_definition: Compile,
        given: Mapping[str, options.Value],
    ) -> None:
        self.name, self.region = name, region
        self.definitions: list[Definition] = []
        self._compile = compile_definition
        self._given = dict(given)
        self._runners: dict[Any, Runner] = {}

    def __call__(self, *args: Any) -> Sequence[torch.Tensor]:
        if self._given:
            with options.options(**self._given):
                return self._run(args)
        return self._run(args)

    def _run(self, args: Sequence[Any]) -> Sequence[torch.Tensor]:
        key = tuple([(a.shape, a.stride()) for a in args if isinstance(a, torch.Tensor)])
        try:
            runner = self._runners.get(key)
            if runner is None:
                runner = self._runners[key] = self._compile(self._define(args))
            return runner(*args)
        except (LaunchError, EmulatorError):
            raise  # a kernel that misbehaves must never be papered over
        except FuserError as error:
            if options.get("strict"):
                raise
            self._runners[key] = self._fall_back(error, args)
        return self._runners[key](*args)

    def _define(self, args: Sequence[Any]) -> Definition:
        layouts = [layout_of(arg) if isinstance(arg, torch.Tensor) else None for arg in args]
        region = self.region
        self.definitions.append(
            record_region(region.leaves, region.inputs, region.outputs, layouts)
        )
        return self.definitions[-1]

    def _fall_back(self, error: FuserError, args: Sequence[Any]) -> Runner:
        path = write_repro(self.name, str(error), self.definitions[-1], args)
        warnings.warn(
            f"{self.name} runs its {len(self.region.leaves)} torch ops one by one, for it could"
            f" not be compiled: {error} To see it again, without Thunder: python {path}",
            stacklevel=4,
        )
        return torch_function(self.region, self.name)
