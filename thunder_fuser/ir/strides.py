# SPDX-License-Identifier: Apache-2.0
"""Stride orders, contiguity and strides: functions between logical and allocation order.

`stride_order[i] = p`: logical axis i sits at allocation position rank-1-p, so 0 is the fastest.
Contiguity is listed in allocation order, None for a broadcast (size 1 or stride 0).

>>> compute_tensor_descriptor((2, 3, 4), (12, 1, 3))
((True, True, True), (2, 0, 1))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from thunder_fuser.errors import DefinitionError, StrideOrderError

Contiguity = tuple[bool | None, ...]


def check_stride_order(stride_order: Sequence[int], rank: int) -> tuple[int, ...]:
    """The order with negative values normalised; StrideOrderError if it is no permutation."""
    order = tuple(p + rank if p < 0 else p for p in stride_order)
    if sorted(order) != list(range(rank)):
        wrong, do = list(stride_order), "give each logical axis its own position, 0 for the fastest"
        expected = f"a permutation of 0..{rank - 1}"
        raise StrideOrderError(f"stride_order {wrong}", expected=expected, got=str(wrong), do=do)
    return order


def allocation_of(stride_order: Sequence[int]) -> tuple[int, ...]:
    """Logical axes in memory order, outermost first.

    >>> allocation_of((2, 0, 1))
    (0, 2, 1)
    """
    return tuple(sorted(range(len(stride_order)), key=lambda axis: -stride_order[axis]))


def stride_order_of(allocation: Sequence[int]) -> tuple[int, ...]:
    """The inverse of `allocation_of`."""
    rank = len(allocation)
    return tuple(rank - 1 - allocation.index(axis) for axis in range(rank))


def contiguous_strides(
    sizes: Sequence[int], stride_order: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Strides of a dense tensor laid out in the given order; an empty axis counts as size 1.

    >>> contiguous_strides((2, 3, 4)), contiguous_strides((2, 3, 4), (2, 0, 1))
    ((12, 4, 1), (12, 1, 3))
    """
    order = tuple(range(len(sizes) - 1, -1, -1)) if stride_order is None else stride_order
    strides, running = [0] * len(sizes), 1
    for axis in reversed(allocation_of(order)):
        strides[axis] = running
        running *= max(sizes[axis], 1)
    return tuple(strides)


def is_distinct(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """True if each axis steps over the span of the faster ones, so no elements share memory.

    False for strides that interleave, such as 3 and 2 for sizes (2, 3).

    >>> is_distinct((2, 3), (3, 1)), is_distinct((2, 3), (1, 1)), is_distinct((4, 6), (0, 1))
    (True, False, False)
    """
    if 0 in sizes:
        return True
    span = 0
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size > 1 and stride <= span:
            return False
        span += (size - 1) * stride
    return True


def compute_tensor_descriptor(
    sizes: Sequence[int], strides: Sequence[int]
) -> tuple[Contiguity, tuple[int, ...]]:
    """(contiguity, stride order) of a strided tensor.

    Axes are sorted by stride, slowest first. Axes of stride 0 keep their logical position.
    """
    if len(sizes) != len(strides):
        raise DefinitionError("strides", expected=f"{len(sizes)} values", got=str(list(strides)))
    if any(s < 0 for s in strides):
        raise DefinitionError("strides", expected="no negative stride", got=str(list(strides)))
    rank = range(len(strides))
    allocation = sorted((axis for axis in rank if strides[axis]), key=lambda axis: -strides[axis])
    for axis in (axis for axis in rank if strides[axis] == 0):
        allocation.insert(axis, axis)
    return _contiguity(sizes, strides, allocation), stride_order_of(allocation)


def _contiguity(
    sizes: Sequence[int], strides: Sequence[int], allocation: Sequence[int]
) -> Contiguity:
    result: list[bool | None] = []
    expected = 1
    for axis in reversed(allocation):
        if sizes[axis] == 1 or strides[axis] == 0:
            result.append(None)
            continue
        result.append(strides[axis] == expected)
        expected = sizes[axis] * strides[axis]
    return tuple(reversed(result))


def reshaped_order(
    order: tuple[int, ...], before: Sequence[int], after: Sequence[int]
) -> tuple[int, ...] | None:
    """The stride order after a reshape, if no element needs to move in memory; else None.

    >>> reshaped_order((3, 0, 2, 1), (8, 6, 5, 4), (8, 2, 3, 5, 4))
    (4, 1, 0, 3, 2)
    >>> reshaped_order((4, 1, 0, 3, 2), (8, 2, 3, 5, 4), (8, 6, 5, 4))
    (3, 0, 2, 1)
    >>> reshaped_order((3, 0, 2, 1), (8, 6, 5, 4), (8, 30, 4)) is None
    True
    """
    memory = allocation_of(order)
    place = {axis: at for at, axis in enumerate(memory)}
    results: dict[int, Sequence[int]] = {}  # by the first axis of a group
    for group, into in () if 0 in before else reshape_groups(before, after):
        if any(place[axis] != place[group[0]] + at for at, axis in enumerate(group)):
            return None
        results[group[0]] = into
    allocation = [axis for first in memory for axis in results.get(first, ())]
    return stride_order_of(allocation) if len(allocation) == len(after) else None


def reshape_groups(
    before: Sequence[int], after: Sequence[int]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The groups of axes that a reshape merges, with the axes that it makes of each group."""
    i = j = 0
    while i < len(before) and j < len(after):
        first, start, sizes, target = i, j, before[i], after[j]
        i, j = i + 1, j + 1
        while sizes != target:
            if sizes < target:
                sizes, i = sizes * before[i], i + 1
            else:
                target, j = target * after[j], j + 1
        is_last = prod(before[i:]) == prod(after[j:]) == 1
        i, j = (len(before), len(after)) if is_last else (i, j)
        yield range(first, i), range(start, j)


def nontrivial_groups(
    before: Sequence[int], after: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """The groups of a reshape without axes of size 1.

    >>> nontrivial_groups((4, 6, 5), (24, 1, 5))
    [([0, 1], [0]), ([2], [2])]
    """
    pairs = (
        ([at for at in sources if before[at] != 1], [at for at in results if after[at] != 1])
        for sources, results in reshape_groups(before, after)
    )
    return [pair for pair in pairs if any(pair)]
