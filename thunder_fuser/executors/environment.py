# SPDX-License-Identifier: Apache-2.0
"""What a trace depends on besides its arguments: torch's global state, as thunder.jit asks for it.

    environment()               of this thread, now
    environment_of(recorded)    of what Thunder has recorded of a compilation; None if it is
                                something that `environment` does not ask for
    without_autocast(f, args)   f(*args) with autocast off, as Thunder's decorator no_autocast
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from thunder.core.dtypes import to_dtype

# Thunder's names, by whether autocast is on.
_ALWAYS = {
    "default_dtype", "default_device", "is_grad_enabled", "is_autocast_enabled", "no_grad_sync",
}  # fmt: skip
_AUTOCAST = (
    "autocast_config_torch_enabled", "autocast_config_torch_cpu_enabled",
    "autocast_gpu_dtype", "autocast_cpu_dtype", "autocast_thunder_dtype",
)  # fmt: skip
_DEVICES = ("cuda", "cpu")
_CPU = torch.device("cpu")
# Looked up once: a call asks them all.
_default_dtype, _is_grad_enabled = torch.get_default_dtype, torch.is_grad_enabled
_modes, _is_autocast_enabled = torch._C._len_torch_function_stack, torch._C._is_any_autocast_enabled
_GLOBAL_DEVICE = torch._GLOBAL_DEVICE_CONTEXT

# (default dtype, default device, whether gradients are on, autocast as Thunder records it or None)
Environment = tuple[torch.dtype, torch.device, bool, tuple[Any, ...] | None]


def environment() -> Environment:
    # The default device is the CPU unless somebody set another, in one of two places.
    is_set = _modes() or hasattr(_GLOBAL_DEVICE, "device_context")
    return (
        _default_dtype(),
        torch.get_default_device() if is_set else _CPU,
        _is_grad_enabled(),
        _autocast() if _is_autocast_enabled() else None,
    )


def environment_of(recorded: Mapping[str, Any]) -> Environment | None:
    is_on = recorded.get("is_autocast_enabled")
    if recorded.keys() != _ALWAYS | set(_AUTOCAST if is_on else ()) or recorded["no_grad_sync"]:
        return None
    autocast = tuple(recorded[name] for name in _AUTOCAST) if is_on else None
    names = ("default_dtype", "default_device", "is_grad_enabled")
    dtype, device, grad = (recorded[name] for name in names)
    return dtype, device, grad, autocast


def _autocast() -> tuple[Any, ...] | None:
    """As Thunder records it. Both at once, which it refuses, are equal to nothing recorded."""
    of_gpu, of_cpu = map(torch.is_autocast_enabled, _DEVICES)
    if not (of_gpu or of_cpu):
        return None
    gpu, cpu = (_name(torch.get_autocast_dtype(device)) for device in _DEVICES)
    used = "both" if of_gpu and of_cpu else cpu if of_cpu else gpu
    return of_gpu, of_cpu, gpu, cpu, used


@cache
def _name(dtype: torch.dtype) -> str:
    return str(to_dtype(dtype))


def without_autocast(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Thunder's decorator costs more, and later sets what was on when the trace was compiled."""
    before = [torch.is_autocast_enabled(device) for device in _DEVICES]
    if not any(before):
        return function(*args)
    try:
        for device in _DEVICES:
            torch.set_autocast_enabled(device, False)
        return function(*args)
    finally:
        for device, enabled in zip(_DEVICES, before, strict=True):
            torch.set_autocast_enabled(device, enabled)
