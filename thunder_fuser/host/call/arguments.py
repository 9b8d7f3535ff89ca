# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of a call. An InputError names the one that does not fit.

A kernel reads a tensor through its pointer, in the order of its allocation domain. The facts that
allow it are also part of a call's key (dispatch.py), so a warm call does not check them again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from thunder_fuser.errors import InputError, shown
from thunder_fuser.ir import binding
from thunder_fuser.ir.dtypes import DataType, integer_range
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.rules.layouts import local_domain
from thunder_fuser.ir.strides import is_distinct
from thunder_fuser.runtime.torch_types import to_torch_dtype
from thunder_fuser.target import Target


def check_kinds(fusion: Fusion, arguments: Sequence[Any]) -> None:
    """Checks the number of arguments and which are tensors, before the warm path reads them."""
    check_count(fusion, arguments)
    for name, value in zip(fusion.inputs, arguments, strict=True):
        _check_kind(fusion.tensors[name], value)


def check_arguments(fusion: Fusion, arguments: Sequence[Any]) -> None:
    """Raises InputError naming an argument that does not fit the definition."""
    check_kinds(fusion, arguments)
    written = {output.alias for output in fusion.outputs}
    for name, value in zip(fusion.inputs, arguments, strict=True):
        view = fusion.tensors[name]
        if view.is_scalar:
            continue
        _check_tensor(view, value)
        if name in written and not is_distinct(value.shape, value.stride()):
            raise InputError(
                f"argument {name}",
                expected="separate memory for each element, because it is overwritten",
                got=f"strides {value.stride()}", do="clone the tensor",
            )  # fmt: skip
        check_bound(view, value)


def check_device(target: Target, device: torch.device) -> None:
    """InputError if the target cannot access the device's memory: a kernel would crash."""
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
    count = len(fusion.inputs)
    if len(arguments) != count:
        wanted = f"{count} arguments ({', '.join(fusion.inputs)})"
        raise InputError("the call", expected=wanted, got=str(len(arguments)))


def _check_kind(view: TensorView, value: Any) -> None:
    if not view.is_scalar:
        if not isinstance(value, torch.Tensor):
            raise _refused(view, "a tensor", _describe(value))
    elif not isinstance(value, (bool, int, float)):
        raise _refused(view, "a number", _describe(value))
    elif not _holds(view.dtype, value):
        wanted = "a number that a double holds"
        if view.dtype.is_int:
            sign = " >= 0" * (view.dtype is DataType.UInt8)
            wanted = f"a {8 * view.dtype.bytes}-bit integer{sign}"
        raise _refused(view, wanted, _describe(value))


def _check_tensor(view: TensorView, value: torch.Tensor) -> None:
    """Compares rank, sizes, dtype and device of a tensor with its definition."""
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


def _holds(dtype: DataType, value: float) -> bool:
    """True if a scalar of the type can hold the number."""
    if dtype.is_int:
        least, most = integer_range(dtype)
        return not isinstance(value, float) and least <= value <= most
    return isinstance(value, float) or -sys.float_info.max <= value <= sys.float_info.max


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {value.dtype}"
    return shown(value)


# ---- memory


def _has_rules(kind: type[torch.Tensor]) -> bool:
    """True for a class that overrides torch functions, or operators. Parameter does not.

    Modes are no rules of a class: torch.set_default_device makes one, which is about new tensors.
    """
    if kind is torch.Tensor:
        return False
    overrides = kind.__torch_function__ is not torch._C._disabled_torch_function_impl
    return overrides or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def refusal(tensor: torch.Tensor) -> str:
    """Why no kernel may read the tensor's memory; empty if one may."""
    if _has_rules(type(tensor)):
        return f"a {type(tensor).__name__}, a class that overrides torch's functions"
    if tensor.layout is not torch.strided:
        return f"a {str(tensor.layout).removeprefix('torch.')} tensor"
    if tensor.is_nested:
        return "a nested tensor"
    if not torch._C._has_storage(tensor):
        return "a tensor inside a transform of torch.func"
    if tensor._is_zerotensor() or torch._is_functional_tensor(tensor):
        return "a tensor without memory"
    return ""


def check_plain(thing: str, tensor: torch.Tensor) -> None:
    """InputError if no kernel may read the tensor's memory. torch's ops may still accept it."""
    reason = refusal(tensor)
    if reason:
        raise InputError(thing, expected="a plain strided tensor", got=reason)


def check_memory(thing: str, tensor: torch.Tensor) -> None:
    """InputError if the storage was freed: then torch's ops cannot read it either."""
    if refusal(tensor) or tensor.is_meta or not tensor.numel() or tensor.data_ptr():
        return
    raise InputError(
        thing, expected="a tensor with memory",
        got=f"one of shape {tuple(tensor.shape)} whose storage was freed",
        do="allocate its storage again before the call",
    )  # fmt: skip


def is_bound(view: TensorView) -> bool:
    """True if an argument has a mesh or a transformed allocation domain."""
    return view.mesh is not None or bool(view.domain.transforms)


def check_bound(view: TensorView, value: torch.Tensor) -> None:
    """InputError if a tensor does not fit its allocation domain.

    An axis that is declared contiguous must have the stride that the faster axes' sizes give.
    """
    local = local_domain(view)
    sizes, strides = list(value.shape), list(value.stride())
    if not local.transforms:
        sizes = [sizes[at] for at in local.allocation]
        strides = [strides[at] for at in local.allocation]
    names = [str(at) for at in local.allocation]
    if is_bound(view):
        names = [axis.name for axis in local.memory]
        binding.logical_sizes(local, sizes, f"argument {view.name}")
    if 0 in sizes:
        return
    expected = 1
    rows = list(zip(names, local.contiguity, sizes, strides, strict=True))
    for axis, flag, size, stride in reversed(rows):
        if size == 1 or (flag is None and stride == 0):
            continue
        if flag and stride != expected:
            raise InputError(
                f"argument {view.name}: axis {axis}",
                expected=f"stride {expected}, as it is defined contiguous", got=f"stride {stride}",
                do="pass it through .contiguous(), or define it with contiguity False",
            )  # fmt: skip
        expected = stride * size
