# SPDX-License-Identifier: Apache-2.0
"""Logical sizes <-> sizes in memory, compared with torch's on random chains of transforms."""

from __future__ import annotations

import os
import random

import pytest
import torch
from helpers.layouts import Call, lay_out, random_chain, random_shape, stored

from thunder_fuser.errors import InputError
from thunder_fuser.ir import binding
from thunder_fuser.ir.domain import TensorDomain
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.rules.build import define
from thunder_fuser.ir.scalar import const, symbol

# The property was shown with LAYOUT_CASES=10000, a minute's work.
CASES = int(os.environ.get("LAYOUT_CASES", "1000"))


def domain_of(shape: list[int], calls: list[Call]) -> TensorDomain:
    fd = Recorder()
    tensor = fd.define_tensor(shape, True)
    fd.add_output(fd.ops.neg(tensor))
    lay_out(tensor, calls)
    return define(fd.definition).tensors["T0"].domain


def test_sizes_both_ways() -> None:
    for seed in range(CASES):
        chance = random.Random(seed)
        shape = random_shape(chance)
        calls = random_chain(chance, shape, uneven=seed % 5 == 0)
        domain = domain_of(shape, calls)
        sizes = [size.value for size in binding.allocation_sizes(domain, shape)]
        assert sizes == list(stored(torch.empty(shape), calls).shape), seed
        assert [n.value for n in binding.logical_sizes(domain, sizes)] == shape, seed


def test_sizes_of_symbols() -> None:
    """Symbolic sizes go through as numbers do."""
    fd = Recorder()
    tensor = fd.define_tensor([-1, 6], True)
    fd.add_output(fd.ops.neg(tensor))
    tensor.split(1, 2)
    tensor.merge(0)
    tensor.set_allocation_domain([1, 0])
    domain = define(fd.definition).tensors["T0"].domain
    n = symbol("n", 0)
    assert binding.allocation_sizes(domain, (n, 6)) == (const(2), n * 3)
    assert binding.logical_sizes(domain, (2, n * 3)) == (n, const(6))


def test_sizes_that_do_not_fit() -> None:
    domain = domain_of([-1], [("split", (0, 2, False)), ("reorder", ([1, 0],)), ("merge", (0,)),
                               ("set_allocation_domain", ([0],))])
    assert binding.logical_sizes(domain, (6,)) == (const(6),)
    with pytest.raises(InputError) as raised:
        binding.logical_sizes(domain, (31,), "argument T0")
    assert str(raised.value) == (
        "argument T0: axis i0.i*i0.o of the allocation: expected a multiple of 2, the size of"
        " i0.o: a split must divide, got size 31. To fix it: give the logical shape beside the"
        " storage."
    )


def test_sizes_left_open() -> None:
    domain = domain_of([-1, -1], [("merge", (0,)), ("set_allocation_domain", ([0],))])
    with pytest.raises(InputError, match="give the logical shape beside the storage"):
        binding.logical_sizes(domain, (12,))
