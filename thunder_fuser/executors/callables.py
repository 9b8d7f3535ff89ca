# SPDX-License-Identifier: Apache-2.0
"""A Region -> the function a trace calls: looked up by layout, defined and compiled on a miss.

    arguments -> layouts -> (miss) Definition -> compile -> a runner kept for these layouts
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.torch.experimental.dtensor_proxy import is_dtensor_proxy

from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.errors import (
    CacheMissError,
    EmulatorError,
    FuserError,
    LaunchError,
    OptionError,
    ToolchainError,
)
from thunder_fuser.executors.donation import may_be_freed
from thunder_fuser.executors.dtensor import on_dtensors, on_locals, sharded
from thunder_fuser.executors.fallback import torch_function
from thunder_fuser.executors.regions import Region
from thunder_fuser.executors.repro import write_repro
from thunder_fuser.executors.translate import layout_of, record_region, whole_layout
from thunder_fuser.executors.views import view_function, views_for
from thunder_fuser.host.dispatch import make_dispatch
from thunder_fuser.ir.record import Definition
from thunder_fuser.options import Value, option, options
from thunder_fuser.stages import stage

Runner = Callable[..., Sequence[torch.Tensor]]
Compile = Callable[[Definition, str, Sequence[Any]], Runner]


class RegionCallable:
    """Makes `call`, the function of a region. All work waits for its first call.

    `given` are options of the jit call, in force while the region is compiled. A model has many
    regions, and each lives as long as the compiled function: what they have in common is shared.
    """

    __slots__ = (
        "__weakref__", "_compile", "_context", "_dispatches", "_given", "call", "definitions",
        "name", "on_mesh", "region",
    )

    def __init__(
        self,
        name: str,
        region: Region,
        compile_region: Compile,
        given: Mapping[str, Value],
    ) -> None:
        self.name, self.region = name, region
        self.definitions: tuple[Definition, ...] = ()
        self._compile = compile_region
        self._given = given
        # Not the proxies' names: a user may call an argument `key`.
        inputs = [(f"a{at}", _kind(proxy)) for at, proxy in enumerate(region.inputs)]
        misses = [self._miss, self._miss_freeing] if region.donated_if_freed else [self._miss]
        self._dispatches = () if region.makes_views else tuple(
            make_dispatch(inputs, miss, checked=False) for miss in misses
        )
        self.call: Any = self._call()
        self.on_mesh = any(map(is_dtensor_proxy, region.outputs))
        if self.on_mesh:
            self.call = on_locals(self.call, region.inputs, region.outputs)
        self.call.owner = self
        self._context = {name: self.call}

    def bind(self, bsym: BoundSymbol) -> None:
        """Makes it call this region; Thunder asks for it at each new copy of the bound symbol."""
        bsym._call_ctx = self._context

    def meta(self, *args: Any) -> list[Proxy]:
        """What Thunder is told of the results."""
        return list(self.region.outputs)

    def _call(self) -> Runner:
        if self.region.makes_views:
            return view_function(self.region)
        return _either(*self._dispatches) if len(self._dispatches) > 1 else self._dispatches[0]

    @property
    def runners(self) -> list[Runner]:
        """What its calls have run, for each layout and shape of theirs."""
        return [run for one in self._dispatches for run in one.__globals__["runners"].values()]

    def _miss(self, args: Sequence[Any]) -> Runner:
        views = views_for(self.region, args) if self.region.moves_only else None
        return views or self._compiled(self.region.donated, args)

    def _miss_freeing(self, args: Sequence[Any]) -> Runner:
        return self._compiled(self.region.donated | self.region.donated_if_freed, args)

    def _compiled(self, donated: frozenset[str], args: Sequence[Any]) -> Runner:
        with options(**self._given):
            definition: Definition = ()
            try:
                definition = self._define(donated, args)
                return self._compile(definition, self.name, args)
            except (LaunchError, EmulatorError, OptionError, CacheMissError):
                raise  # a kernel that misbehaves, or a broken promise, is never papered over
            except FuserError as error:
                if option("strict"):
                    raise
                return self._fall_back(error, definition, args)

    @stage("record")
    def _define(self, donated: frozenset[str], args: Sequence[Any]) -> Definition:
        region = self.region
        if self.on_mesh:
            layouts = [
                whole_layout(proxy) if isinstance(proxy, TensorProxy) else None
                for proxy in region.inputs
            ]
        else:
            layouts = [layout_of(arg) if isinstance(arg, torch.Tensor) else None for arg in args]
        definition = record_region(
            region.leaves, region.inputs, region.outputs, layouts, donated
        )
        definition = FusionCache.get().own(sharded(definition, region.inputs))
        if definition not in self.definitions:  # other sizes are most often the same one
            self.definitions += (definition,)
        return definition

    def _fall_back(self, error: FuserError, definition: Definition, args: Sequence[Any]) -> Runner:
        reason = " ".join(str(error).split()).rstrip(".")
        again = ""
        if definition and not isinstance(error, ToolchainError):
            path = write_repro(self.name, reason, definition, args)
            again = f" To see it again, without Thunder: python {path}"
        warnings.warn(
            f"{self.name} runs its {len(self.region.leaves)} torch ops one by one, for it could"
            f" not be compiled: {reason}.{again}",
            stacklevel=3,
        )
        run = torch_function(self.region, self.name)
        return on_dtensors(run, self.region.inputs) if self.on_mesh else run


def _either(keeping: Runner, freeing: Runner) -> Runner:
    """`freeing`, which writes over what autograd has kept, where that is about to be freed."""

    def call(*args: Any) -> Sequence[torch.Tensor]:
        return (freeing if may_be_freed() else keeping)(*args)

    return call


def _kind(proxy: Proxy) -> str:
    return "tensor" if isinstance(proxy, TensorProxy) else "number"
