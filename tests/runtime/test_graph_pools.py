# SPDX-License-Identifier: Apache-2.0
"""What a capture takes of the saved values that are lent to it, and when their memory is free."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import torch

from thunder_fuser.runtime.graph_pools import Owners, lending, over, storage_of, taken


def lent() -> tuple[torch.Tensor, Owners, weakref.ref[Any]]:
    """A saved value, the owner of its memory, and what is alive as long as that is."""
    memory = (ctypes.c_float * 6)(*range(6))
    owner = torch.frombuffer(memory, dtype=torch.float32).untyped_storage()
    whole = (ctypes.c_float * 6).from_address(owner.data_ptr())
    alias = torch.frombuffer(whole, dtype=torch.float32)[2:].view(2, 2).t()
    return alias, {owner.data_ptr(): [owner]}, weakref.ref(memory)


def test_nothing_is_taken_where_nothing_is_lent() -> None:
    x = torch.rand(3)
    assert taken(x, x)[0] is x
    with lending({}):
        assert taken(x)[0] is x


def test_a_taken_value_frees_its_memory() -> None:
    alias, owners, memory = lent()
    with lending(owners):
        (value,) = taken(alias)
        (again,) = taken(alias)
    assert again is alias
    assert torch.equal(value, torch.tensor([[2.0, 4.0], [3.0, 5.0]]))
    assert value.stride() == alias.stride() and storage_of(value) != storage_of(alias)
    view = value[0]
    del value
    assert memory() is not None
    del view
    assert memory() is None


def test_memory_of_two_values_is_free_when_both_are_taken() -> None:
    alias, owners, memory = lent()
    (place,) = owners
    owners[place] *= 2
    with lending(owners):
        (value,) = taken(alias)
        del value
        assert memory() is not None
        del [taken(alias)][:]
    assert memory() is None


def test_a_tensor_over_other_memory() -> None:
    x = torch.rand(4, 5)[1:, ::2]
    other = torch.zeros(20)
    found = over(other.untyped_storage(), x)
    assert (found.shape, found.stride(), found.storage_offset()) == (x.shape, x.stride(), 5)
    found.fill_(1)
    assert other.sum() == found.numel()
