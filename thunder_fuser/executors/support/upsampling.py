# SPDX-License-Identifier: Apache-2.0
"""Primitives that repeat the pixels of an image, and sum what was repeated.

    upsample_nearest(x[N, C, H, W], (N, C, H, 2, W, 3))               ->  [N, C, 2 H, 3 W]
    upsample_nearest_backward(g[N, C, 2 H, 3 W], (N, C, H, 2, W, 3))  ->  [N, C, H, W]

As reshapes they would lose the order of an image in channels-last memory, which torch keeps. What
no region takes runs in torch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from ctypes import c_float
from itertools import chain, product
from math import floor, prod
from typing import Any

import torch
from thunder.core.proxies import TensorProxy
from thunder.extend import OperatorExecutor

from thunder_fuser.executors.support.dtypes import FLOATS
from thunder_fuser.executors.support.rows import Row
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.trace.proxies import NEW_MEMORY

Sizes = tuple[int, ...]
UPSAMPLING = OperatorExecutor("thunder_fuser_upsampling")
FORWARD, BACKWARD = "upsample_nearest", "upsample_nearest_backward"
_HALVES = {"nearest": 0.0, "nearest-exact": 0.5}
FEW_REPEATS = 16  # so many repeated pixels, and fewer, are added up without a reduction


def repeats(before: Sequence[int], after: Sequence[int], scale: Any, mode: str) -> Sizes | None:
    """How often interpolate(mode=mode) repeats each element along each axis; None if it does not,
    or not all equally often. scale: its scale_factor."""
    half, counts = _HALVES.get(mode), tuple(map(int.__floordiv__, after, before))
    scales = tuple(scale) if isinstance(scale, Sequence) else (scale,) * len(counts)
    if half is None or (scale is not None and scales != counts):
        return None
    is_regular = (_is_regular(*sizes, half) for sizes in zip(before, after, strict=True))
    return counts if all(is_regular) else None


@functools.lru_cache(maxsize=4096)
def _is_regular(before: int, after: int, half: float) -> bool:
    """True if torch reads element i // k for element i, in float32 as in float64.

    41 times as many: in float32, 41 * (1 / 41) is less than 1, so element 41 is element 0 again.
    """
    count = after // before

    def is_right(at: int) -> bool:
        exact, short = (at + half) * (1 / count), c_float(1 / count).value
        return floor(exact) == floor(c_float((at + half) * short).value) == at // count

    return before * count == after and all(map(is_right, range(after)))


# ---------------------------------------------------------------------------- the primitives


def split_by(shape: Sizes, counts: Sizes) -> Sizes:
    """(N, C, H, W), (2, 3)  ->  (N, C, H, 2, W, 3)"""
    return (*shape[:2], *chain.from_iterable(zip(shape[2:], counts, strict=True)))


def _small(split: Sizes) -> Sizes:
    """(N, C, H, 2, W, 3)  ->  (N, C, H, W)"""
    return (*split[:2], *split[2::2])


def _large(split: Sizes) -> Sizes:
    """(N, C, H, 2, W, 3)  ->  (N, C, 2 H, 3 W)"""
    return (*split[:2], *map(int.__mul__, split[2::2], split[3::2]))


def _gradient_in_torch(g: torch.Tensor, split: Sizes) -> torch.Tensor:
    backward = getattr(torch.ops.aten, f"upsample_nearest{g.ndim - 2}d_backward")
    gradient: torch.Tensor = backward(g, g.shape[2:], _small(split))
    return gradient


upsample_nearest = UPSAMPLING.register_operator(
    FORWARD, meta=lambda x, split: TensorProxy(like=x, shape=_large(split)), tags=[NEW_MEMORY],
    fn=lambda x, split: torch.nn.functional.interpolate(x, _large(split)[2:]),
)  # fmt: skip
upsample_nearest_backward = UPSAMPLING.register_operator(
    BACKWARD, meta=lambda g, split: TensorProxy(like=g, shape=_small(split)), tags=[NEW_MEMORY],
    fn=_gradient_in_torch,
)  # fmt: skip


def _repeated(fd: Recorder, x: Any, split: Sizes) -> Any:
    kept = (0, 1, *range(2, len(split), 2))
    return fd.ops.reshape(fd.ops.broadcast_in_dim(x, split, kept), _large(split))


def _summed(fd: Any, g: Any, split: Sizes) -> Any:
    """Sums in float32, rounded once. A few pixels are added up in any kernel:

    (2, 2)  ->  g[..., 0::2, 0::2] + g[..., 0::2, 1::2] + g[..., 1::2, 0::2] + g[..., 1::2, 1::2]
    """
    counts = split[3::2]
    if prod(counts) > FEW_REPEATS:
        return fd.ops.sum(fd.ops.reshape(g, split), (*range(3, len(split), 2),))
    ends, strides, wide = _large(split), (1, 1, *counts), fd.dtype_of(g).compute
    parts = (
        fd.ops.cast(fd.ops.slice(g, (0, 0, *at), ends, strides), wide)
        for at in product(*map(range, counts))
    )
    return functools.reduce(fd.ops.add, parts)


UPSAMPLED = (Row(FORWARD, _repeated, FLOATS), Row(BACKWARD, _summed, FLOATS))
