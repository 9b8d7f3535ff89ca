# SPDX-License-Identifier: Apache-2.0
"""Torch's global state, on which a trace depends besides its arguments, as thunder.jit records it.

    environment()               the state of this thread, now
    environment_of(recorded)    the state that Thunder recorded at a compilation; None if it has
                                something that `environment` does not read
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
# Looked up once: each call uses them all.
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
    """Autocast's state as Thunder records it. Thunder refuses autocast on GPU and CPU at once, so
    "both" equals no recorded state."""
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
    """f(*args) with autocast off. Thunder's decorator is slower, and it later restores the state
    of the compilation."""
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
