# SPDX-License-Identifier: Apache-2.0
"""prims.pad, with (low, high, dilation) of each axis -> pads and reshapes of the fuser's language.

    pad([1, 2], 0, [(1, 2, 1)])  ->  [0, 1, 0, 2, 0, 0]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder_fuser.ir.language import Recorder


def padded(fd: Recorder, a: Any, padding_value: Any, config: Any) -> Any:
    """Widths go from the last axis on, as in torch.nn.functional.pad."""
    ends = []
    for axis, (low, high, dilation) in enumerate(config):
        if dilation:
            a = _spread(fd, a, padding_value, axis, config)
        ends.append((low, high - dilation))
    return fd.ops.pad(a, _widths(ends), padding_value)


def _widths(ends: Sequence[tuple[int, int]]) -> list[int]:
    return [width for low, high in reversed(ends) for width in (low, high)]


def _spread(fd: Recorder, a: Any, value: Any, axis: int, config: Any) -> Any:
    """An axis with values after each element: [1, 2], dilation 1  ->  [1, v, 2, v]."""
    rank, dilation = len(config), config[axis][2]
    sizes: list[Any] = [fd.ops.size(a, at) for at in range(rank)]
    columns = fd.ops.broadcast(a, [at == axis + 1 for at in range(rank + 1)])
    ends = [(0, dilation if at == axis + 1 else 0) for at in range(rank + 1)]
    sizes[axis] = fd.ops.mul(sizes[axis], dilation + 1)
    return fd.ops.reshape(fd.ops.pad(columns, _widths(ends), value), sizes)
