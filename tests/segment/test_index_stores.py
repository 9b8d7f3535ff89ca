# SPDX-License-Identifier: Apache-2.0
"""Slices that replace those of an argument are stored there by the kernel that computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import TARGETS, rand

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.errors import AliasError, DefinitionError, EmulatorError, OutOfRangeError

TYPES = {torch.float32: DataType.Float, torch.bfloat16: DataType.BFloat16,
         torch.float16: DataType.Half, torch.int64: DataType.Int}  # fmt: skip


def defined(
    cache: torch.Tensor, index: torch.Tensor, x: torch.Tensor, dim: int, *, donated: bool = True,
    read: bool = False,
) -> FusionDefinition:  # fmt: skip
    """cache.index_copy_(dim, index, x * 2), and the sums of x * 2 over its last axis.

    read: the cache is read too, as it was before.
    """
    with FusionDefinition() as fd:
        c, i, a = (
            fd.define_tensor(
                sizes=one.shape, strides=one.stride(), static_sizes=True, dtype=TYPES[one.dtype],
                donated=donated and one is cache,
            )
            for one in (cache, index, x)
        )  # fmt: skip
        new = fd.ops.cast(fd.ops.mul(a, 2.0), TYPES[cache.dtype])
        whole = fd.ops.index_copy(c, i, new, dim)
        fd.add_output(whole, alias_input=c)
        fd.add_output(c)
        fd.add_output(fd.ops.sum(new, [-1]))
        if read:
            fd.add_output(fd.ops.neg(c))
    return fd


def check(cache: torch.Tensor, index: torch.Tensor, x: torch.Tensor, dim: int, target: str) -> Any:
    """The results are torch's, bit for bit in the cache, whose other slices stay."""
    new = (x.float() * 2).to(cache.dtype)
    expected = cache.clone().index_copy_(dim, index, new)
    fd = defined(cache, index, x, dim)
    whole, sums = fd.execute([cache, index, x], target=target)
    assert whole is cache and torch.equal(cache, expected)
    torch.testing.assert_close(sums, new.float().sum(-1).to(sums.dtype))
    return fd


CASES: dict[str, tuple[tuple[int, ...], int, list[int]]] = {
    "a token": ((2, 4, 32, 64), 2, [5]),
    "several tokens": ((2, 4, 32, 64), 2, [7, 0, 31]),
    "rows": ((50, 33), 0, [49, 3]),
    "columns": ((5, 40), 1, [39, 0, 8, 3]),
    "the middle": ((3, 9, 7), 1, [8, 1]),
    "a vector": ((100,), 0, [3, 99, 50]),
    "one element": ((1, 1), 0, [0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", TARGETS)
def test_results(target: str, name: str, dtype: torch.dtype) -> None:
    shape, dim, places = CASES[name]
    cache, index = rand(*shape, dtype=dtype), torch.tensor(places)
    sizes = (*shape[:dim], len(places), *shape[dim + 1 :])
    fd = check(cache, index, rand(*sizes, dtype=dtype, seed=1), dim, target)
    assert "index_store" in str(fd.plan([cache, index, rand(*sizes, dtype=dtype)], target=target))


@pytest.mark.parametrize("target", TARGETS)
def test_layouts(target: str) -> None:
    """Heads behind places in memory; a part of a larger cache; an address that is little aligned;
    rows that are far apart."""
    index = torch.tensor([3])
    x = rand(2, 4, 1, 16, dtype=torch.bfloat16, seed=1)
    whole = rand(2, 8, 4, 40, dtype=torch.bfloat16)
    for cache in (
        whole[..., :16].transpose(1, 2),
        whole.transpose(1, 2)[..., 3:19],
        rand(2 * 4 * 8 * 16 + 1, dtype=torch.bfloat16)[1:].view(2, 4, 8, 16),
    ):
        kept = whole.clone()
        check(cache, index, x, 2, target)
        untouched = torch.ones_like(whole, dtype=torch.bool)
        untouched[:, 3] = False
        assert torch.equal(whole[untouched], kept[untouched])


def test_one_kernel() -> None:
    cache, index = rand(2, 4, 32, 64, dtype=torch.bfloat16), torch.tensor([5])
    x = rand(2, 4, 1, 64, dtype=torch.bfloat16)
    (source,) = defined(cache, index, x, 2).sources([cache, index, x], target="h200")
    assert "checked_index" in source.text and "stv<8>" in source.text


@pytest.mark.parametrize("options", [{"donated": False}, {"read": True}], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_copied(target: str, options: dict[str, bool]) -> None:
    """An argument that may be read elsewhere is replaced behind all kernels."""
    cache, index, x = rand(6, 8), torch.tensor([4]), rand(1, 8, seed=1)
    old, expected = cache.clone(), cache.clone().index_copy_(0, index, x * 2)
    fd = defined(cache, index, x, 0, **options)
    results = fd.execute([cache, index, x], target=target)
    assert torch.equal(cache, expected)
    if "read" in options:
        assert torch.equal(results[-1], -old)
    assert "index_store" not in str(fd.plan([cache, index, x], target=target))


@pytest.mark.parametrize("place", [6, -1, 1 << 40])
@pytest.mark.parametrize("target", TARGETS)
def test_a_place_outside(target: str, place: int) -> None:
    """Nothing is stored for it."""
    cache, index, x = rand(6, 8), torch.tensor([place]), rand(1, 8, seed=1)
    old = cache.clone()
    with pytest.raises((OutOfRangeError, EmulatorError)):
        defined(cache, index, x, 0).execute([cache, index, x], target=target)
    assert torch.equal(cache, old)


def arguments(fd: FusionDefinition, *, donated: bool = True) -> Any:
    """A cache, a place, and what a kernel computes for it."""
    cache = fd.define_tensor([8, 4], True, donated=donated)
    index = fd.define_tensor([1], True, DataType.Int)
    return cache, index, fd.ops.neg(fd.define_tensor([1, 4], True))


@pytest.mark.parametrize("more", ["order of the copy", "order", "shape"])
@pytest.mark.parametrize("target", TARGETS)
def test_results_in_another_form(target: str, more: str) -> None:
    """Torch copies the cache then."""
    with FusionDefinition() as fd:
        cache, index, new = arguments(fd)
        whole = fd.ops.index_copy(cache, index, new, 0)
        fd.add_output(whole, alias_input=cache)
        if more == "order of the copy":
            fd.add_output(whole, stride_order=[0, 1])
        elif more == "order":
            fd.add_output(cache, stride_order=[0, 1])
        else:
            fd.add_output(whole, shape=[32])
    values = [rand(8, 4), torch.tensor([5]), rand(1, 4, seed=1)]
    expected = values[0].index_copy(0, values[1], -values[2])
    (found,) = fd.execute(values, target=target)
    assert torch.equal(values[0], expected)
    assert torch.equal(found.reshape(8, 4), expected)


MISUSES: dict[str, Callable[[FusionDefinition], None]] = {}


def misuse(build: Callable[[FusionDefinition], None]) -> Callable[[FusionDefinition], None]:
    MISUSES[build.__name__] = build
    return build


@misuse
def as_a_result(fd: FusionDefinition) -> None:
    _, index, new = arguments(fd)
    fd.add_output(fd.ops.index_store(new, index, 0, 8))


@misuse
def over_what_is_not_donated(fd: FusionDefinition) -> None:
    cache, index, new = arguments(fd, donated=False)
    fd.add_output(fd.ops.index_store(new, index, 0, 8), alias_input=cache)


@misuse
def over_what_is_read(fd: FusionDefinition) -> None:
    cache, index, new = arguments(fd)
    fd.add_output(fd.ops.index_store(new, index, 0, 8), alias_input=cache)
    fd.add_output(fd.ops.add(cache, 1.0))


@misuse
def read_itself(fd: FusionDefinition) -> None:
    cache, index, new = arguments(fd)
    stored = fd.ops.index_store(new, index, 0, 8)
    fd.add_output(stored, alias_input=cache)
    fd.add_output(fd.ops.exp(stored))


@misuse
def of_a_size_that_is_too_large(fd: FusionDefinition) -> None:
    cache, index, new = arguments(fd)
    fd.add_output(fd.ops.index_store(new, index, 0, 9), alias_input=cache)


@pytest.mark.parametrize("name", MISUSES)
def test_misuse(name: str) -> None:
    values = [rand(8, 4), torch.tensor([5]), rand(1, 4, seed=1)]
    with pytest.raises((DefinitionError, AliasError)), FusionDefinition() as fd:
        MISUSES[name](fd)
        fd.execute(values, target="cpu")


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_slices_into_two_arguments(target: str) -> None:
    with FusionDefinition() as fd:
        cache, index, new = arguments(fd)
        other = fd.define_tensor([8, 4], True, donated=True)
        for each in (cache, other):
            fd.add_output(fd.ops.index_copy(each, index, new, 0), alias_input=each)
    values = [rand(8, 4), torch.tensor([5]), rand(1, 4, seed=1), rand(8, 4, seed=2)]
    expected = [values[at].index_copy(0, values[1], -values[2]) for at in (0, 3)]
    fd.execute(values, target=target)
    assert torch.equal(values[0], expected[0]) and torch.equal(values[3], expected[1])
