# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of a call. An InputError names the one that does not fit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from thunder_fuser.errors import InputError, shown
from thunder_fuser.host.bind import check_bound, is_bound
from thunder_fuser.host.plain import check_memory, check_plain
from thunder_fuser.ir.dtypes import DataType, integer_range
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.strides import is_distinct
from thunder_fuser.runtime.torch_types import to_torch_dtype
from thunder_fuser.target import Target


def check_kinds(fusion: Fusion, arguments: Sequence[Any]) -> None:
    """Checks the number of arguments and which are tensors, before the warm path reads them."""
    check_count(fusion, arguments)
    for name, value in zip(fusion.inputs, arguments, strict=True):
        _check_kind(fusion.tensors[name], value)


def check_arguments(fusion: Fusion, arguments: Sequence[Any]) -> None:
    """Raises InputError naming the first argument that does not fit the definition."""
    check_count(fusion, arguments)
    written = {output.alias for output in fusion.outputs}
    for name, value in zip(fusion.inputs, arguments, strict=True):
        _check_argument(fusion.tensors[name], value)
        if name in written:
            _check_writable(name, value)
        if isinstance(value, torch.Tensor):
            check_bound(fusion.tensors[name], value)


def check_device(target: Target, device: torch.device) -> None:
    """InputError if the target cannot reach the device's memory: a kernel would crash."""
    wanted = "cpu" if target.is_cpu or target.emulated else target.kind
    if device.type != wanted:
        raise InputError(
            "arguments", expected=f"{wanted} tensors for target {target.name}", got=str(device)
        )


def device_of(fusion: Fusion, arguments: Sequence[Any]) -> torch.device:
    """The device of all tensors except CPU scalars; InputError if there are several."""
    devices = {
        value.device: name
        for name, value in zip(fusion.inputs, arguments, strict=True)
        if isinstance(value, torch.Tensor) and not fusion.tensors[name].is_cpu
    }
    if len(devices) > 1:
        listed = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise InputError("arguments", expected="one device", got=listed)
    return next(iter(devices), torch.device("cpu"))


def check_count(fusion: Fusion, arguments: Sequence[Any]) -> None:
    """InputError unless there is one argument for each input."""
    if len(arguments) != len(fusion.inputs):
        raise InputError(
            "the call",
            expected=f"{len(fusion.inputs)} arguments ({', '.join(fusion.inputs)})",
            got=f"{len(arguments)}",
        )


def _check_kind(view: TensorView, value: Any) -> None:
    if not view.is_scalar:
        if not isinstance(value, torch.Tensor):
            raise _refused(view, "a tensor", _describe(value))
    elif not isinstance(value, (bool, int, float)):
        raise _refused(view, "a number", _describe(value))
    elif not _holds(view.dtype, value):
        raise _refused(view, _numbers(view.dtype), _describe(value))


def _check_argument(view: TensorView, value: Any) -> None:
    """Compares rank, sizes, dtype and device of an argument with its definition."""
    _check_kind(view, value)
    if view.is_scalar:
        return
    check_plain(f"argument {view.name}", value)
    check_memory(f"argument {view.name}", value)
    if not is_bound(view) and value.dim() != len(view.shape):
        raise _refused(view, f"rank {len(view.shape)}", _describe(value))
    sizes = () if is_bound(view) else value.shape
    for at, (extent, size) in enumerate(zip(view.shape, sizes, strict=False)):
        if extent.is_const and extent.value != size:
            raise _refused(view, f"size {extent} on axis {at}", f"size {size}")
    dtype = to_torch_dtype(view.dtype)
    if value.dtype is not dtype:
        raise _refused(view, str(dtype), str(value.dtype))
    if value.device.type not in ("cpu", "cuda", "meta"):
        raise _refused(view, "a CPU or CUDA tensor", str(value.device))
    if view.is_cpu and value.device.type != "cpu":
        raise _refused(view, "a CPU tensor", str(value.device))


def _refused(view: TensorView, expected: str, got: str) -> InputError:
    return InputError(f"argument {view.name}", expected=expected, got=got)


def _check_writable(name: str, value: torch.Tensor) -> None:
    if not is_distinct(value.shape, value.stride()):
        raise InputError(
            f"argument {name}",
            expected="separate memory for each element, because it is overwritten",
            got=f"strides {value.stride()}",
            do="clone the tensor",
        )


def _holds(dtype: DataType, value: float) -> bool:
    """True if a scalar of the type can hold the number."""
    if dtype.is_int:
        least, most = integer_range(dtype)
        return not isinstance(value, float) and least <= value <= most
    return isinstance(value, float) or -sys.float_info.max <= value <= sys.float_info.max


def _numbers(dtype: DataType) -> str:
    if not dtype.is_int:
        return "a number that a double holds"
    return f"a {8 * dtype.bytes}-bit integer" + " >= 0" * (dtype is DataType.UInt8)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {value.dtype}"
    return shown(value)
