# SPDX-License-Identifier: Apache-2.0
"""Primitives of max pooling: the largest element of each window of an image, and its place there.

    max_pool(x[N, C, 7, 9], (N, C), windows)              ->  y[N, C, 4, 5], places u8[N, C, 4, 5]
    max_pool_backward(dy[N, C, 4, 5], places, (N, C), windows)                ->  dx[N, C, 7, 9]

    windows = ((7, 4, 3, 2, 1), (9, 5, 3, 2, 1))    of each axis: its size, how many windows it has,
                                                    their length, step and padding

A place takes a byte, where torch's index of an element takes eight. For windows of 3 x 3 it is
4 * row + column: a row is as long as the steps that it reaches over. What no region takes runs in
torch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import product
from math import inf, prod
from typing import Any

import torch
from thunder.core import dtypes
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.extend import OperatorExecutor

from thunder_fuser.executors.support.dtypes import FLOATS
from thunder_fuser.executors.support.rows import Row, widths
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.strides import stride_order_of
from thunder_fuser.trace.proxies import NEW_MEMORY

Sizes = tuple[int, ...]
Windows = tuple[Sizes, ...]
POOLING = OperatorExecutor("thunder_fuser_pooling")
FORWARD, BACKWARD = "max_pool", "max_pool_backward"
_MOST = 9  # elements of a window: a kernel reads each of them
_FEW = 4  # elements of a tile: a kernel may also compute them


def windows_of(before: Sizes, after: Sizes, length: Sizes, step: Sizes, padding: Sizes) -> Windows:
    """One entry an axis; none for windows whose places do not fit in a byte, or are many."""
    windows = tuple(zip(before, after, length, step, padding, strict=True))
    return windows if prod(length) <= _MOST and prod(map(_row, windows)) <= 256 else ()


def are_tiles(windows: Windows) -> bool:
    """True if each element lies in one window at most, and no window in the padding."""
    return all(_reach(window) == 1 and window[4] == _beyond(window) == 0 for window in windows)


def _reach(window: Sizes) -> int:
    """How many windows an element may be in, along an axis."""
    _, _, length, step, _ = window
    return -(-length // step)


def _row(window: Sizes) -> int:
    return window[3] * _reach(window)


def _starts(window: Sizes) -> range:
    """Where the windows of an axis begin, the first ones in the padding."""
    _, count, _, step, padding = window
    return range(-padding, count * step - padding, step)


def _beyond(window: Sizes) -> int:
    """How far the last window of an axis reaches beyond the image."""
    return max(0, _starts(window)[-1] + window[2] - window[0])


# ---------------------------------------------------------------------------- the primitives


def _typed(x: TensorProxy, outer: Sizes, windows: Windows) -> tuple[TensorProxy, TensorProxy]:
    shape = (*outer, *(window[1] for window in windows))
    return TensorProxy(like=x, shape=shape), TensorProxy(like=x, shape=shape, dtype=dtypes.uint8)


def _typed_gradient(
    g: TensorProxy, places: TensorProxy, outer: Sizes, windows: Windows
) -> TensorProxy:
    return TensorProxy(like=g, shape=(*outer, *(window[0] for window in windows)))


def _starts_in_torch(windows: Windows, device: torch.device) -> list[torch.Tensor]:
    """Made on the device: a CUDA graph captures no copy from the host."""
    starts = map(_starts, windows)
    rows, columns = (torch.arange(s.start, s.stop, s.step, device=device) for s in starts)
    return [rows[:, None], columns]


def _in_torch(x: torch.Tensor, outer: Sizes, windows: Windows) -> tuple[torch.Tensor, ...]:
    (_, width), _, length, step, padding = zip(*windows, strict=True)
    is_rounded_up = any(_beyond(window) > window[4] for window in windows)
    y, indices = torch.nn.functional.max_pool2d(
        x, length, step, padding, ceil_mode=is_rounded_up, return_indices=True
    )
    rows, columns = _starts_in_torch(windows, x.device)
    places = (indices // width - rows) * _row(windows[1]) + indices % width - columns
    return y, places.to(torch.uint8)


def _gradient_in_torch(
    g: torch.Tensor, places: torch.Tensor, outer: Sizes, windows: Windows
) -> torch.Tensor:
    height, width = (window[0] for window in windows)
    rows, columns = _starts_in_torch(windows, g.device)
    row, at = _row(windows[1]), places.long()
    indices = (at // row + rows) * width + at % row + columns
    wide = torch.promote_types(g.dtype, torch.float32)
    sums = torch.zeros((*outer, height * width), dtype=wide, device=g.device)
    sums.scatter_add_(2, indices.flatten(2), g.flatten(2).to(wide))
    image = sums.to(g.dtype).unflatten(2, (height, width))
    is_last = places.is_contiguous(memory_format=torch.channels_last)
    return image.contiguous(memory_format=torch.channels_last) if is_last else image


max_pool = POOLING.register_operator(
    FORWARD, meta=_typed, fn=_in_torch,
    tags=[NEW_MEMORY, OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD],  # places are smaller than the image
)
max_pool_backward = POOLING.register_operator(
    BACKWARD, meta=_typed_gradient, tags=[NEW_MEMORY], fn=_gradient_in_torch
)


# ----------------------------------------------------------------------------- in a region


def _maxima(fd: Any, x: Any, outer: Sizes, windows: Windows) -> tuple[Any, Any]:
    """As torch: the first of equal elements, the last NaN, and never an element of the padding.

    An image of the same region is stored first if windows overlap: else each of them would compute
    its elements again.
    """
    wide, row = fd.dtype_of(x).compute, _row(windows[1])
    is_read_once = are_tiles(windows) and prod(window[2] for window in windows) <= _FEW
    x = x if is_read_once else fd.ops.in_memory(x)
    best, place = None, _first_places(fd, outer, windows)
    for at in product(*(range(window[2]) for window in windows)):
        read = [*map(_read, windows, at)]
        if not all(inside for inside, _ in read):
            continue  # all of them lie in the padding
        element = fd.ops.cast(_elements(fd, x, outer, read), wide)
        if best is None:
            best = element
            continue
        is_better = fd.ops.logical_or(fd.ops.gt(element, best), fd.ops.isnan(element))
        best = fd.ops.where(is_better, element, best)
        place = fd.ops.where(is_better, at[0] * row + at[1], place)
    return best, place


def _read(window: Sizes, at: int) -> tuple[range, tuple[int, int]]:
    """Which rows lie at one place of the windows, and how many windows before and after these have
    padding there:

        (7, 4, 3, 2, 1), 0  ->  range(1, 7, 2), (1, 0)
    """
    size, count, _, step, padding = window
    first = at - padding
    low, high = (min(count, len(range(first, end, step))) for end in (0, size))
    return range(first, first + count * step, step)[low:high], (low, count - high)


def _elements(fd: Any, x: Any, outer: Sizes, read: Sequence[tuple[range, tuple[int, int]]]) -> Any:
    """The elements of the image in these rows and columns, and -inf around them."""
    spans, ends = zip(*read, strict=True)
    starts, stops, steps = zip(*((span[0], span[-1] + 1, span.step) for span in spans), strict=True)
    inner = fd.ops.slice(x, (0, 0, *starts), (*outer, *stops), (1, 1, *steps))
    return fd.ops.pad(inner, widths(ends), -inf)


def _first_places(fd: Any, outer: Sizes, windows: Windows) -> Any:
    """The first place of each window that is not in the padding."""
    shape = (*outer, *(window[1] for window in windows))
    if not any(window[4] for window in windows):
        return fd.ops.full(shape, 0, DataType.Int32)
    rows, columns = (
        fd.ops.broadcast_in_dim(
            fd.ops.maximum(fd.ops.iota(count, padding, -step, DataType.Int32), 0), shape, (axis,)
        )
        for axis, (_, count, _, step, padding) in enumerate(windows, 2)
    )
    return fd.ops.add(fd.ops.mul(rows, _row(windows[1])), columns)


def _gathered(fd: Any, g: Any, places: Any, outer: Sizes, windows: Windows) -> Any:
    """Each element adds up the gradients of the windows whose place it is, in float32.

    A step holds `step` elements, and each of them lies in the same `reach` windows:

        dx[2 t + r]  ->  dy[t] where places[t] == r, plus dy[t - 1] where places[t - 1] == r + 2

    Where windows overlap, channels last, the image is stored: a reduction that computed it, as that
    of a batch norm does, would hold too much at once.
    """
    dtype, row = fd.dtype_of(g), _row(windows[1])
    sizes, counts, _, steps, padding = zip(*windows, strict=True)
    reach = [*map(_reach, windows)]
    g = g if prod(reach) == 1 else fd.ops.in_memory(g)
    tiles = [
        max(-(-(size + pad) // step), count + most - 1)
        for size, pad, step, count, most in zip(sizes, padding, steps, counts, reach, strict=True)
    ]
    split = (*outer, tiles[0], steps[0], tiles[1], steps[1])
    within = fd.ops.add(*(
        fd.ops.broadcast_in_dim(fd.ops.iota(step, 0, each, DataType.Int32), split, (axis,))
        for step, each, axis in zip(steps, (row, 1), (3, 5), strict=True)
    ))

    def part(shifts: Sequence[int]) -> Any:
        ends = [(j, n - count - j) for j, n, count in zip(shifts, tiles, counts, strict=True)]
        dy, place = (
            fd.ops.broadcast_in_dim(fd.ops.pad(value, widths(ends), 0), split, (0, 1, 2, 4))
            for value in (g, places)
        )
        here = fd.ops.add(within, shifts[0] * steps[0] * row + shifts[1] * steps[1])
        return fd.ops.where(fd.ops.eq(place, here), fd.ops.cast(dy, dtype.compute), 0.0)

    total = functools.reduce(fd.ops.add, map(part, product(*map(range, reach))))
    whole = fd.ops.reshape(total, (*outer, *map(int.__mul__, tiles, steps)))
    stops = map(int.__add__, padding, sizes)
    image = fd.ops.cast(fd.ops.slice(whole, (0, 0, *padding), (*outer, *stops)), dtype)
    order = stride_order_of(fd.view_of(places.name).domain.allocation)
    if prod(reach) == 1 or order[1] != 0:
        return image
    return fd.ops.segment_set(fd.ops.stride_order(image, order))


POOLED = (
    Row(FORWARD, _maxima, FLOATS),
    Row(BACKWARD, _gathered, FLOATS | {DataType.UInt8}),
)
