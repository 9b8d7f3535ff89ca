# SPDX-License-Identifier: Apache-2.0
"""Logical <-> allocation: a bijection, by going through all elements of random chains."""

from __future__ import annotations

import os
import random
from math import prod

import pytest
import torch
from layouts import Call, lay_out, random_chain, random_shape, stored

from thunder_fuser.errors import InputError
from thunder_fuser.ir import binding
from thunder_fuser.ir.build import define
from thunder_fuser.ir.domain import TensorDomain
from thunder_fuser.ir.language import Recorder
from thunder_fuser.ir.scalar import Scalar, const, symbol

# The property was shown with LAYOUT_CASES=10000, a minute's work.
CASES = int(os.environ.get("LAYOUT_CASES", "1000"))


def domain_of(shape: list[int], calls: list[Call]) -> TensorDomain:
    fd = Recorder()
    tensor = fd.define_tensor(shape, True)
    fd.add_output(fd.ops.neg(tensor))
    lay_out(tensor, calls)
    return define(fd.definition).tensors["T0"].domain


def values(index: tuple[Scalar, ...], names: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Index expressions, for all elements at once."""
    like = next(iter(names.values()), torch.zeros(1, dtype=torch.int64))
    return [torch.zeros_like(like) + eval(str(at), {}, dict(names)) for at in index]


def places(sizes: list[int]) -> tuple[tuple[Scalar, ...], dict[str, torch.Tensor]]:
    """A symbol an axis, and its value at every element in row-major order."""
    symbols = tuple(symbol(f"x{at}", 0, size - 1) for at, size in enumerate(sizes))
    grids = torch.meshgrid(*(torch.arange(n) for n in sizes), indexing="ij") if sizes else ()
    found = {f"x{at}": grid.reshape(-1) for at, grid in enumerate(grids)}
    return symbols, found


def test_binding_is_a_bijection() -> None:
    for seed in range(CASES):
        chance = random.Random(seed)
        shape = random_shape(chance)
        calls = random_chain(chance, shape, uneven=seed % 5 == 0)
        check(shape, calls, seed)


def check(shape: list[int], calls: list[Call], seed: int) -> None:
    domain = domain_of(shape, calls)
    sizes = [size.value for size in binding.allocation_sizes(domain, shape)]
    elements = torch.arange(1, prod(shape) + 1).reshape(shape)
    assert sizes == list(stored(elements, calls).shape), seed
    assert [n.value for n in binding.logical_sizes(domain, sizes)] == shape, seed

    symbols, names = places(shape)
    there = values(binding.allocation_index(domain, shape, symbols), names)
    memory = torch.zeros(sizes, dtype=torch.int64)
    memory[tuple(there)] = elements.reshape(-1)
    assert torch.equal(memory, stored(elements, calls)), seed

    back, names = places(sizes)
    found = values(binding.logical_index(domain, shape, back), names)
    inside = torch.stack([at < n for at, n in zip(found, shape, strict=True)]).all(0)
    used = memory.reshape(-1) != 0
    assert binding.divides(domain, shape) == bool(used.all()), seed
    assert not bool((used & ~inside).any()), seed
    read = elements[tuple(torch.where(inside, at, 0) for at in found)]
    assert torch.equal(read[used], memory.reshape(-1)[used]), seed


def test_strides_both_ways() -> None:
    """Where strides say it, torch's view of the storage is the logical tensor."""
    told = 0
    for seed in range(400):
        chance = random.Random(seed)
        shape = random_shape(chance)
        calls = random_chain(chance, shape)
        domain, elements = domain_of(shape, calls), torch.arange(prod(shape)).reshape(shape)
        storage = stored(elements, calls)
        strides = binding.logical_strides(domain, shape, storage.stride())
        if None in strides:
            continue
        told += 1
        assert torch.equal(storage.as_strided(shape, strides), elements), seed
        again = binding.allocation_strides(domain, shape, strides)
        real = [at for at, size in enumerate(storage.shape) if size > 1]
        if None not in again:
            steps = [again[at] for at in real]
            assert steps == [storage.stride(at) for at in real], seed
    assert told > 100


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
