# SPDX-License-Identifier: Apache-2.0
"""Regions of views as functions: the values, the memory and the strides of torch's own views."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import pytest
import torch
from thunder.core import prims
from thunder.core.devices import to_device
from thunder.core.dtypes import to_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser.executors.record.torch_function import ViewFunction, view_function
from thunder_fuser.executors.regions.region import Region

Step = Callable[[Any, Any], Any]


def compiled(function: Callable[..., Sequence[Any]], *args: torch.Tensor) -> ViewFunction:
    """The function of a region with the primitives of a function."""
    trace = TraceCtx()
    with tracectx(trace):
        proxies = [
            TensorProxy(
                f"x{at}", shape=tuple(x.shape), device=to_device(x.device),
                dtype=to_dtype(x.dtype), requires_grad=False,
            )
            for at, x in enumerate(args)
        ]  # fmt: skip
        names = [proxy.name for proxy in function(prims, *proxies)]
    region = Region(tuple(trace.bound_symbols), (), (), is_backward=False).narrowed(names)
    assert [proxy.name for proxy in region.outputs] == names
    return view_function(region)


def step(rng: random.Random, shape: Sequence[int]) -> tuple[str, tuple[Any, ...], tuple[int, ...]]:
    """(primitive, its arguments, the shape of its result)"""
    rank = len(shape)
    kind = rng.choice(("transpose", "reshape", "slice_prim", "broadcast_in_dim", "squeeze"))
    if kind == "transpose":
        order = tuple(rng.sample(range(rank), rank))
        return kind, (order,), tuple(shape[axis] for axis in order)
    if kind == "slice_prim":
        starts = [rng.randint(0, max(0, size - 1)) for size in shape]
        ends = [rng.randint(start, size) for start, size in zip(starts, shape, strict=True)]
        sizes = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return kind, (starts, ends), sizes
    if kind == "broadcast_in_dim":
        at = rng.randint(0, rank)
        sizes = (*shape[:at], rng.choice((1, 3)), *shape[at:])
        return kind, (sizes, [axis for axis in range(rank + 1) if axis != at]), sizes
    ones = tuple(axis for axis, size in enumerate(shape) if size == 1)
    if kind == "squeeze" and ones:
        return kind, (ones,), tuple(size for size in shape if size != 1)
    sizes = (prod(shape[:2]), *shape[2:]) if rank > 1 else (*shape, 1)
    return "reshape", (sizes,), sizes


ONE_BY_ONE: dict[str, Step] = {
    "transpose": lambda x, args: x.permute(args[0]),
    "reshape": lambda x, args: x.reshape(args[0]),
    "squeeze": lambda x, args: x.squeeze(args[0]),
    "slice_prim": lambda x, args: x[tuple(map(slice, *args))],
    "broadcast_in_dim": lambda x, args: x.unsqueeze(
        next(axis for axis in range(len(args[0])) if axis not in args[1])
    ).expand(args[0]),
}


@pytest.mark.parametrize("layout", ["contiguous", "inside", "permuted", "broadcast"])
def test_chains_of_views(layout: str) -> None:
    """Also in the middle of a larger tensor, and where a reshape must copy."""
    for seed in range(150):
        rng = random.Random(seed)
        shape = tuple(rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(1, 4)))
        x = {
            "contiguous": torch.randn,
            "inside": lambda shape: torch.randn(3, *shape)[1],
            "permuted": lambda shape: torch.randn(shape[::-1]).permute(*range(len(shape))[::-1]),
            "broadcast": lambda shape: torch.randn(shape[-1]).expand(shape),
        }[layout](shape)
        chains, sizes = [], shape
        for _ in range(rng.randint(1, 4)):
            kind, args, sizes = step(rng, sizes)
            chains.append((kind, args))

        def function(lib: Any, x: Any, chains: Any = chains) -> list[Any]:
            results = []
            for kind, args in chains:
                x = getattr(lib, kind)(x, *args) if lib is prims else ONE_BY_ONE[kind](x, args)
                results.append(x)
            return results[-1:] if len(results) < 3 else [results[0], results[-1]]

        for got, right in zip(compiled(function, x)(x), function(None, x), strict=True):
            assert torch.equal(got, right), (seed, chains)
            shares = right.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            assert (got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) == shares
            if shares and got.numel():
                assert got.data_ptr() == right.data_ptr()
                sizes_and_strides = zip(got.shape, got.stride(), right.stride(), strict=True)
                assert all(mine == torchs for size, mine, torchs in sizes_and_strides if size > 1)


def test_one_call_for_each_result() -> None:
    """Of a contiguous argument; of others as many as torch needs."""

    def split(lib: Any, x: Any, y: Any) -> list[Any]:
        parts = [lib.slice_prim(x, [0, at], [4, at + 2]) for at in (0, 2)]
        return [*(lib.transpose(part, (1, 0)) for part in parts), lib.reshape(y, (6,))]

    x, y = torch.randn(4, 4), torch.randn(3, 2).t()
    names = compiled(split, x, y).__code__.co_names
    assert {"is_contiguous", "as_strided", "narrow", "permute", "reshape"} <= {*names}
    calls = []

    class Counted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            calls.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    one_by_one = ["narrow", "narrow", "permute", "permute"]
    for at, wanted in ((x, ["as_strided"] * 2), (x.t(), one_by_one)):
        calls.clear()
        compiled(split, x, y)(at.as_subclass(Counted), y)
        assert [name for name in calls if name in ("as_strided", "narrow", "permute")] == wanted


def test_parts_of_complex_numbers() -> None:
    """They have another type, so no call of as_strided makes them."""
    x = torch.randn(2, 3, dtype=torch.complex64)
    views = compiled(lambda lib, x: [lib.transpose(lib.reshape(lib.real(x), (3, 2)), (1, 0))], x)
    (got,) = views(x)
    assert torch.equal(got, x.real.reshape(3, 2).t())
    assert "as_strided" not in views.__code__.co_names
