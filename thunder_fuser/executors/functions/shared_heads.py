# SPDX-License-Identifier: Apache-2.0
"""Keys and values that several heads of a query share, before and after they are repeated.

    k.repeat_interleave(r, dim=1)                  k: [B, G, S, E]  ->  [B, G * r, S, E]
    k[:, :, None].expand(B, G, r, S, E).reshape(B, G * r, S, E)       the same
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy

from thunder_fuser.executors.functions.producers import producer

# Primitives whose results have the elements of their operand.
_SAME = {PrimIDs.CLONE, PrimIDs.SHALLOW_COPY, PrimIDs.STRIDE_ORDER}


def unrepeated(tensor: Any) -> Any:
    """The tensor [B, G, S, E] that the program repeated to this [B, G * r, S, E]; else this one."""
    made = producer(tensor) if type(tensor) is TensorProxy and tensor.ndim == 4 else None
    while made is not None and made.sym.id in _SAME:
        made = producer(made.args[0])
    if made is None or made.sym.id is not PrimIDs.RESHAPE or made.args[0].ndim != 5:
        return tensor
    batch, groups, times, *row = made.args[0]._shape
    source, axes = _before_expand(made.args[0])
    is_repeat = tuple(tensor._shape) == (batch, groups * times, *row) and axes == (0, 1, 3, 4)
    return source if is_repeat and tuple(source._shape) == (batch, groups, *row) else tensor


def _before_expand(tensor: TensorProxy) -> tuple[TensorProxy, tuple[int, ...]]:
    """(the tensor before it was expanded to this one, for each of its axes the axis here)"""
    source, axes = tensor, tuple(range(tensor.ndim))
    while (made := producer(source)) is not None and made.sym.id is PrimIDs.BROADCAST_IN_DIM:
        source, _, dims = made.args
        axes = tuple(axes[at] for at in dims)
        if len(axes) < tensor.ndim:
            break
    return source, axes


def repeated(tensor: TensorProxy, heads: int) -> Any:
    """[B, G, S, E] -> [B, heads, S, E], as torch does with enable_gqa."""
    return ltorch.repeat_interleave(tensor, heads // tensor._shape[1], dim=1)
