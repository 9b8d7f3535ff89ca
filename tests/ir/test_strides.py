# SPDX-License-Identifier: Apache-2.0
"""Stride orders, contiguity and strides, against the strides torch gives."""

from __future__ import annotations

import doctest
import itertools

import pytest
import torch
from helpers.strategies import permutations, strided_tensors
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.errors import DefinitionError, StrideOrderError
from thunder_fuser.ir import strides as module
from thunder_fuser.ir.strides import (
    allocation_of,
    check_stride_order,
    compute_tensor_descriptor,
    contiguous_strides,
    stride_order_of,
)

MARKS = {True: "T", False: "F", None: "-"}

# nvFuser's expected values for compute_tensor_descriptor.
TRUTH = [
    ((2, 1, 3, 1, 4, 3), (12, 4, 4, 4, 1, 0), "T-T-T-", (5, 4, 3, 2, 1, 0)),
    ((2, 3, 1, 5, 4), (28, 4, 14, 0, 1), "F-T-T", (4, 2, 3, 1, 0)),
    ((2, 2, 1, 1, 2, 2, 2), (8, 4, 3, 9, 2, 0, 1), "-TT-T-T", (5, 4, 3, 6, 2, 1, 0)),
    ((2, 2, 1, 2, 4, 2), (2, 32, 1, 8, 0, 4), "FTTF--", (2, 5, 0, 4, 1, 3)),
    ((2, 2, 2, 2), (8, 4, 2, 1), "TTTT", (3, 2, 1, 0)),
    ((2, 1, 3, 1, 4), (24, 4, 8, 4, 2), "TT--F", (4, 2, 3, 1, 0)),
    ((2, 2, 2, 2), (8, 4, 0, 2), "TT-F", (3, 2, 1, 0)),
]


@pytest.mark.parametrize(("sizes", "strides", "marks", "order"), TRUTH)
def test_truth_table(
    sizes: tuple[int, ...], strides: tuple[int, ...], marks: str, order: tuple[int, ...]
) -> None:
    contiguity, found = compute_tensor_descriptor(sizes, strides)
    assert "".join(MARKS[c] for c in contiguity) == marks
    assert found == order


@pytest.mark.parametrize("rank", range(5))
def test_stride_order_and_allocation_are_inverse(rank: int) -> None:
    for order in itertools.permutations(range(rank)):
        assert stride_order_of(allocation_of(order)) == order
        assert allocation_of(stride_order_of(order)) == order


@settings(max_examples=100, deadline=None)
@given(permutations(4), st.lists(st.integers(0, 4), min_size=4, max_size=4))
def test_contiguous_strides_are_torchs(order: tuple[int, ...], sizes: list[int]) -> None:
    """A dense tensor made in allocation order and permuted back to logical order."""
    allocation = allocation_of(order)
    dense = torch.empty([sizes[axis] for axis in allocation])
    expected = dense.permute([allocation.index(axis) for axis in range(4)])
    assert list(expected.shape) == sizes
    assert contiguous_strides(sizes, order) == expected.stride()
    assert contiguous_strides(sizes) == torch.empty(sizes).stride()


@settings(max_examples=100, deadline=None)
@given(permutations(4), st.lists(st.integers(2, 5), min_size=4, max_size=4))
def test_the_descriptor_of_a_dense_tensor_is_its_order(
    order: tuple[int, ...], sizes: list[int]
) -> None:
    strides = contiguous_strides(sizes, order)
    assert compute_tensor_descriptor(sizes, strides) == ((True,) * 4, order)


@settings(max_examples=300, deadline=None)
@given(strided_tensors())
def test_contiguity_says_which_axes_can_be_walked_as_one(tensor: torch.Tensor) -> None:
    """Axes next to each other in memory order, all but the first contiguous, merge by a view."""
    sizes, strides = tuple(tensor.shape), tensor.stride()
    contiguity, order = compute_tensor_descriptor(sizes, strides)
    allocation = allocation_of(order)
    assert sorted(allocation) == list(range(tensor.ndim))
    expected = 1
    for axis, flag in reversed(list(zip(allocation, contiguity, strict=True))):
        if sizes[axis] == 1 or strides[axis] == 0:
            assert flag is None
            continue
        assert flag is (strides[axis] == expected)
        expected = strides[axis] * sizes[axis]
    kept = [axis for axis in allocation if strides[axis] and sizes[axis] != 1]
    assert [strides[axis] for axis in kept] == sorted((strides[a] for a in kept), reverse=True)


@settings(max_examples=200, deadline=None)
@given(strided_tensors())
def test_all_contiguous_means_torch_can_view_it_flat(tensor: torch.Tensor) -> None:
    sizes, strides = tuple(tensor.shape), tensor.stride()
    contiguity, order = compute_tensor_descriptor(sizes, strides)
    if tensor.numel() and not any(s == 0 and n > 1 for n, s in zip(sizes, strides, strict=True)):
        dense = all(flag is not False for flag in contiguity)
        in_memory = tensor.permute(allocation_of(order))
        assert dense == in_memory.is_contiguous()


def test_negative_orders_count_from_the_end() -> None:
    assert check_stride_order((-1, 0, 1), 3) == (2, 0, 1)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ((0, 0), "stride_order [0, 0]: expected a permutation of 0..1, got [0, 0]"),
        ((2, 1), "stride_order [2, 1]: expected a permutation of 0..1, got [2, 1]"),
        ((0,), "stride_order [0]: expected a permutation of 0..1, got [0]"),
    ],
)
def test_an_order_that_is_no_permutation(order: tuple[int, ...], message: str) -> None:
    with pytest.raises(StrideOrderError) as error:
        check_stride_order(order, 2)
    advice = ". To fix it: give each logical axis its own position, 0 for the fastest."
    assert str(error.value) == message + advice


def test_strides_that_cannot_be() -> None:
    with pytest.raises(DefinitionError) as error:
        compute_tensor_descriptor((2, 3), (3, -1))
    assert str(error.value) == "strides: expected no negative stride, got [3, -1]"
    with pytest.raises(DefinitionError) as error:
        compute_tensor_descriptor((2, 3), (3,))
    assert str(error.value) == "strides: expected 2 values, got [3]"


def test_the_examples_of_the_module() -> None:
    assert doctest.testmod(module).failed == 0
