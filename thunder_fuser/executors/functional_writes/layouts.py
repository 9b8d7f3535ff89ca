# SPDX-License-Identifier: Apache-2.0
"""The trace of a call -> the strides that each tensor has in eager torch.

    x: f32[4, 3], transposed; b = sin(x); c = reshape(b, (-1,))   ->  c is a copy, for such an x

Eager torch's functions run on fake tensors, as torch.compile decides it. Thunder does not guard
strides, so the prologue compares those on which an answer depends: for others it traces again.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from typing import Any

import torch
from thunder.core.compile_data import _compile_data
from thunder.core.devices import Device, to_torch_device
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.pytree import tree_iter, tree_map
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.transforms.extraction_only_prologue_transform import ExtractionOnlyPrologueTransform
from torch._subclasses.fake_tensor import FakeTensorMode

from thunder_fuser.executors.record.result_dtypes import as_meta, function_named
from thunder_fuser.executors.stride_orders.simulate import noted_of
from thunder_fuser.executors.support.dtypes import is_known_number
from thunder_fuser.thunder_patches.fixes.arguments import add_check
from thunder_fuser.trace.proxies import makes, reads

Pairs = set[tuple[str, str]]  # a result, and the operand whose memory it has
ArgumentStrides = dict[str, tuple[int, ...]]  # of arguments


class EagerLayouts:
    """The tensors of a trace as fake tensors: none if an operation or an argument is not known.

    doubted: the views that may be copies, of which it is asked.
    """

    def __init__(self, trace: TraceCtx, doubted: Set[str]) -> None:
        self.doubted = doubted
        self._prologue = _prologue()
        returned = reads(self._prologue.bound_symbols[-1]) if self._prologue is not None else ()
        self._arguments = {proxy.name: proxy for proxy in returned}
        self._values: dict[str, torch.Tensor] = {}
        self._deciding: dict[str, ArgumentStrides] = {}
        self._guarded: ArgumentStrides = {}
        with FakeTensorMode():
            self._take(trace)
            for bsym in trace.bound_symbols:
                self._follow(bsym)

    def pairs(self, bsym: BoundSymbol) -> Pairs | None:
        """Which results share memory with which operands, if that is asked and known."""
        results, read = _tensors(makes(bsym)), _tensors(reads(bsym))
        if not results & self.doubted or not results <= self._values.keys():
            return None
        self._guarded.update(*(self._deciding[name].items() for name in read))
        return pairs_of(bsym, self._operand)

    def guard(self) -> None:
        """Lets the prologue of the call compare the strides that have decided."""
        expected = [*self._guarded.values()]

        def check_strides(*tensors: torch.Tensor) -> None:
            if [tensor.stride() for tensor in tensors] != expected:
                raise LookupError("arguments with other strides")

        if expected and self._prologue is not None:
            read = [self._arguments[name] for name in self._guarded]
            at = len(self._prologue.bound_symbols) - 1
            add_check(self._prologue, at, "check_strides", check_strides, *read)

    def _take(self, trace: TraceCtx) -> None:
        """The arguments, which the prologue returns under the same names."""
        for name, noted in noted_of(trace).items():
            if (proxy := self._arguments.get(name)) is not None:
                self._values[name] = torch.empty_strided(
                    noted.shape, noted.stride(), dtype=noted.dtype,
                    device=to_torch_device(proxy.device), requires_grad=proxy.requires_grad,
                )  # fmt: skip
                self._deciding[name] = {name: noted.stride()}

    def _follow(self, bsym: BoundSymbol) -> None:
        proxies = [proxy for proxy in makes(bsym) if isinstance(proxy, TensorProxy)]
        read = _tensors(reads(bsym))
        results = (call(bsym, self._operand) if read <= self._values.keys() else None) or ()
        shapes = [tuple(proxy._shape) for proxy in proxies]
        if not proxies or [tuple(result.shape) for result in results] != shapes:
            return
        deciding = dict(ChainMap(*(self._deciding[name] for name in read)))
        for proxy, result in zip(proxies, results, strict=True):
            self._values[proxy.name], self._deciding[proxy.name] = result, deciding

    def _operand(self, value: Any) -> Any:
        if isinstance(value, TensorProxy):
            return self._values[value.name]
        if isinstance(value, NumberProxy) and not is_known_number(value):
            raise TypeError(f"{value.name} is not known")
        is_device = isinstance(value, (Device, torch.device))
        return to_torch_device(value) if is_device else as_meta(value, {})


def _prologue() -> TraceCtx | None:
    """The prologue of the call that is compiled; None where transforms change its arguments."""
    data, stats = _compile_data.get()
    traces = getattr(stats, "last_prologue_traces", None)
    transforms = getattr(data, "transforms", ())
    if not traces or {*map(type, transforms)} - {ExtractionOnlyPrologueTransform}:
        return None
    prologue: TraceCtx = traces[-1]
    return prologue if prologue.bound_symbols[-1].sym.id is PrimIDs.RETURN else None


def call(bsym: BoundSymbol, operand: Callable[[Any], Any]) -> list[torch.Tensor] | None:
    """The tensors that torch returns for such operands; None if torch refuses."""
    functions = function_named(bsym.sym.id), getattr(torch.Tensor, bsym.sym.name, None)
    for function in filter(None, functions):
        with suppress(Exception):  # whatever torch raises without data, or for such strides
            args, kwargs = tree_map(operand, (bsym.args, bsym.kwargs))
            results = tree_iter(function(*args, **kwargs))
            return [result for result in results if isinstance(result, torch.Tensor)]
    return None


def pairs_of(bsym: BoundSymbol, operand: Callable[[Any], Any]) -> Pairs | None:
    """Which results share memory with which of such operands; None if torch refuses them."""
    memory: dict[int, str] = {}

    def noted(value: Any) -> Any:
        result = operand(value)
        if isinstance(value, TensorProxy):
            memory[_memory_of(result)] = value.name
        return result

    names = [proxy.name for proxy in makes(bsym) if isinstance(proxy, TensorProxy)]
    results = call(bsym, noted)
    if results is None or len(results) != len(names):
        return None
    places = zip(names, map(_memory_of, results), strict=True)
    return {(name, memory[place]) for name, place in places if place in memory}


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _tensors(proxies: Iterable[object]) -> set[str]:
    return {proxy.name for proxy in proxies if isinstance(proxy, TensorProxy)}
