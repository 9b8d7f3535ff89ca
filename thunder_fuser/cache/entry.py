# SPDX-License-Identifier: Apache-2.0
"""A leaf of the trie: one definition, its Fusion, and its programs for each key seen."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from thunder_fuser.compiler import compile_fusion
from thunder_fuser.errors import InputError
from thunder_fuser.host.device import target_of_device
from thunder_fuser.host.dispatch import input_keys, make_dispatch
from thunder_fuser.host.program import HostProgram, Runner
from thunder_fuser.ir.build import define
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.record import Definition
from thunder_fuser.options import option, options_key
from thunder_fuser.runtime.torch_types import to_torch_dtype
from thunder_fuser.stages import stage
from thunder_fuser.target import CPU, EMULATOR, Target


class FusionEntry:
    """Compiles on a miss and runs. Safe under threads: a key is compiled by whoever comes first."""

    def __init__(self, definition: Definition, number: int) -> None:
        self.definition = definition
        self.number = number
        with stage("define"):
            self.fusion = define(definition)
        self.programs: dict[Any, HostProgram] = {}
        self._lock = threading.Lock()
        self._callables: dict[Any, Runner] = {}

    def execute(self, arguments: Sequence[Any], target: Target | None = None) -> list[torch.Tensor]:
        """Runs the fusion, every argument checked."""
        self._check_count(arguments)
        for name, value in zip(self.fusion.inputs, arguments, strict=True):
            _check_kind(self.fusion.tensors[name], value)
        return self.callable(target)(*arguments)

    def check(self, arguments: Sequence[Any]) -> None:
        """Raises InputError naming the first argument that does not fit."""
        self._check_count(arguments)
        written = {output.alias for output in self.fusion.outputs}
        for name, value in zip(self.fusion.inputs, arguments, strict=True):
            _check_argument(self.fusion.tensors[name], value)
            if name in written:
                _check_writable(name, value)

    def _check_count(self, arguments: Sequence[Any]) -> None:
        if len(arguments) != len(self.fusion.inputs):
            raise InputError(
                "the call",
                expected=f"{len(self.fusion.inputs)} arguments ({', '.join(self.fusion.inputs)})",
                got=f"{len(arguments)}",
            )

    def callable(self, target: Target | None = None) -> Runner:
        """The function that finds the program of a call by one lookup and runs it."""
        key = (target, options_key())
        found = self._callables.get(key)
        if found is None:
            kinds = [(name, _kind(self.fusion, name)) for name in self.fusion.inputs]
            made = make_dispatch(
                kinds, lambda args: self.program_for(args, target).run, checked=True
            )
            found = self._callables.setdefault(key, made)
        return found

    def program_for(self, arguments: Sequence[Any], target: Target | None = None) -> HostProgram:
        """The program for such arguments, compiled if need be. InputError if they do not fit."""
        self.check(arguments)
        device = _device_of(self, arguments)
        chosen = target or _target_for(device)
        _check_device(chosen, device)
        keys = input_keys(self.fusion, tuple(arguments))
        key = (chosen, device, keys, options_key())
        with self._lock:
            if key not in self.programs:
                self.programs[key] = compile_fusion(self.fusion, keys, chosen, device)
            return self.programs[key]


def _kind(fusion: Fusion, name: str) -> str:
    if not fusion.tensors[name].is_scalar:
        return "tensor"
    return "size" if name in fusion.shape_scalars else "number"


def _target_for(device: torch.device) -> Target:
    if device.type == "cuda":
        return target_of_device(device.index or 0)
    return EMULATOR if option("emulate") else CPU


def _check_device(target: Target, device: torch.device) -> None:
    """A kernel given memory that its target cannot reach would crash the process."""
    wanted = "cpu" if target.is_cpu or target.emulated else target.kind
    if device.type != wanted:
        raise InputError(
            "arguments", expected=f"{wanted} tensors for target {target.name}", got=str(device)
        )


def _device_of(entry: FusionEntry, arguments: Sequence[Any]) -> torch.device:
    """The one device of all tensors that are no CPU scalars; InputError if there are two."""
    devices = {
        value.device: name
        for name, value in zip(entry.fusion.inputs, arguments, strict=True)
        if isinstance(value, torch.Tensor) and not entry.fusion.tensors[name].is_cpu
    }
    if len(devices) > 1:
        listed = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise InputError("arguments", expected="one device", got=listed)
    return next(iter(devices), torch.device("cpu"))


def _check_kind(view: TensorView, value: Any) -> None:
    if view.is_scalar:
        if not isinstance(value, (bool, int, float)):
            raise InputError(f"argument {view.name}", expected="a number", got=_describe(value))
        if view.dtype is DataType.Int and not _fits_int64(value):
            raise InputError(
                f"argument {view.name}", expected="a 64-bit integer", got=_describe(value)
            )
    elif not isinstance(value, torch.Tensor):
        raise InputError(f"argument {view.name}", expected="a tensor", got=_describe(value))
    elif value.layout is not torch.strided or value.is_neg():
        kind = str(value.layout) if value.layout is not torch.strided else "a pending negation"
        raise InputError(
            f"argument {view.name}",
            expected="a plain strided tensor",
            got=kind,
            do="pass it through .to_dense() or .resolve_neg()",
        )


def _check_argument(view: TensorView, value: Any) -> None:
    """Rank, sizes, dtype and device of one argument, against its definition."""
    _check_kind(view, value)
    if view.is_scalar:
        return
    if value.dim() != len(view.shape):
        raise InputError(
            f"argument {view.name}", expected=f"rank {len(view.shape)}", got=_describe(value)
        )
    for at, (extent, size) in enumerate(zip(view.shape, value.shape, strict=True)):
        if extent.is_const and extent.value != size:
            raise InputError(
                f"argument {view.name}", expected=f"size {extent} on axis {at}", got=f"size {size}"
            )
    if value.dtype is not to_torch_dtype(view.dtype):
        raise InputError(
            f"argument {view.name}", expected=str(to_torch_dtype(view.dtype)), got=str(value.dtype)
        )
    if value.device.type not in ("cpu", "cuda", "meta"):
        raise InputError(
            f"argument {view.name}", expected="a CPU or CUDA tensor", got=str(value.device)
        )
    if view.is_cpu and value.device.type != "cpu":
        raise InputError(f"argument {view.name}", expected="a CPU tensor", got=str(value.device))


def _check_writable(name: str, value: torch.Tensor) -> None:
    if any(st == 0 < n - 1 for n, st in zip(value.shape, value.stride(), strict=True)):
        raise InputError(
            f"argument {name}",
            expected="memory of its own for each element, as it is written",
            got=f"strides {value.stride()}",
            do="clone the expanded tensor",
        )


def _fits_int64(value: float) -> bool:
    return not isinstance(value, float) and -(2**63) <= value < 2**63


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {value.dtype}"
    return f"{type(value).__name__} {value!r}"
