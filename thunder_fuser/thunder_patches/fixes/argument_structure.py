# SPDX-License-Identifier: Apache-2.0
"""What Thunder's guards do not compare in the arguments of a call.

    (x, None, [y, 2.0], {"scale": z}), {"dtype": torch.float32}
->  [0, None, [list, 0, 0], [dict, ("scale", 0)], {"dtype": [dtype, torch.float32]}]

A tensor, a number or a string is a 0: guards compare it. Without this, f(x, mask), f(x, None) and
f(x, mask) would compute the third result without the mask, since the newest program fits. It is
part of Thunder's prologue, see thunder_patches/fixes/arguments.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from numbers import Number
from typing import Any

import torch

Structure = list[Any]

_COMPARED = (torch.Tensor, Number, str)
_USUAL = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, complex, str})
_CONSTANT = (type, Enum, torch.dtype, torch.device, torch.layout, torch.memory_format)


def structure_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Structure:
    """Equal for two calls that one program may serve, as far as guards do not tell."""
    structure: Structure = [0 if type(arg) in _USUAL else _part(arg) for arg in args]
    if kwargs:
        structure.append({name: _part(arg) for name, arg in kwargs.items()})
    return structure


def _part(value: Any) -> Any:
    kind = type(value)
    if value is None:
        return None
    if kind in _USUAL or isinstance(value, _COMPARED):
        return 0
    if isinstance(value, (list, tuple)):
        return [kind, *map(_part, value)]
    if isinstance(value, dict):
        return [kind, *((key, _part(item)) for key, item in value.items())]
    return [kind, value] if isinstance(value, _CONSTANT) else kind
