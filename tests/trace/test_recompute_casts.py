# SPDX-License-Identifier: Apache-2.0
"""A cast to a wider type is recomputed where it is read, and not stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from helpers.cases import rand

from thunder_fuser.executors.pipeline import read_trace
from thunder_fuser.explain.jitted import final_traces, fusions_of, jit
from thunder_fuser.options import compile_options
from thunder_fuser.target import CPU
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.rewrites.casts import recompute_casts
from thunder_fuser.trace.rewrites.split_regions import partition

Tensor = torch.Tensor


def crossing(function: Callable[..., Any], *args: Tensor) -> list[list[str]]:
    """The types that each fusion of the first trace gives; its results are checked."""
    jitted = jit(function, strict=True)
    torch.testing.assert_close(jitted(*args), function(*args))
    return [[out.dtype.shortname() for out in one.region.outputs] for one in fusions_of(jitted)]


def masked(x: Tensor, w: Tensor) -> Tensor:
    mask = (x > 0.5).float()
    return ((x * mask) @ w) * mask


def test_a_mask_crosses_as_bools() -> None:
    assert crossing(masked, rand(8, 8), rand(8, 8, seed=1)) == [["b8", "f32"], ["f32"]]


def upcast(x: Tensor, w: Tensor) -> Tensor:
    wide = torch.exp(x).float()
    return (torch.sin(wide).to(torch.bfloat16) @ w) * wide


def test_a_16_bit_value_crosses_as_it_is() -> None:
    x, w = rand(8, 8).bfloat16(), rand(8, 8, seed=1).bfloat16()
    jitted = jit(upcast, strict=True)
    jitted(x, w)
    first, second = fusions_of(jitted)
    assert {out.dtype.shortname() for out in first.region.outputs} == {"bf16"}
    casts = [leaf for leaf in second.region.leaves if leaf.sym.name == "convert_element_type"]
    assert len(casts) == 2


def test_three_readers_make_it_once_each() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        mask = (x > 0.5).float()
        y = (x * mask) @ w
        z = (y * mask - mask) @ w
        return z * mask

    x, w = rand(8, 8), rand(8, 8, seed=1)
    assert crossing(function, x, w) == [["b8", "f32"], ["f32"], ["f32"]]
    jitted = jit(function, strict=True)
    jitted(x, w)
    (trace,) = final_traces(jitted)[:1]
    assert str(trace).count("convert_element_type") == 3


def torch_reads_it(x: Tensor, w: Tensor) -> Tensor:
    mask = (x > 0.5).float()
    return (mask @ w) * mask


def torch_reads_a_view(x: Tensor, w: Tensor) -> Tensor:
    mask = (x > 0.5).float()
    return ((x * mask) @ w) @ mask.t()


def returned(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    mask = (x > 0.5).float()
    return ((x * mask) @ w) * mask, mask


def narrower(x: Tensor, w: Tensor) -> Tensor:
    short = torch.exp(x).to(torch.float16)
    return ((x + short.float()) @ w) + short.float()


@pytest.mark.parametrize(
    ("function", "expected"),
    [(torch_reads_it, "f32"), (torch_reads_a_view, "f32"), (returned, "f32"), (narrower, "f16")],
)
def test_what_is_stored_anyway_stays(function: Callable[..., Any], expected: str) -> None:
    first, *_ = crossing(function, rand(8, 8), rand(8, 8, seed=1))
    assert expected in first and "b8" not in first


def partitioned(function: Callable[..., Any]) -> Prepared:
    trace = thunder.trace()(function, rand(8, 8), rand(8, 8, seed=1))
    return partition(read_trace(trace, CPU, compile_options()))


@pytest.mark.parametrize("function", [torch_reads_it, torch_reads_a_view, returned])
def test_their_traces_stay(function: Callable[..., Any]) -> None:
    before = partitioned(function)
    assert recompute_casts(before) is before


def test_a_source_that_is_written_in_place_is_not_read_later() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        flag = x > 0.5
        mask = flag.float()
        y = (x * mask) @ w
        flag.logical_not_()
        return y * mask

    x, w = rand(8, 8), rand(8, 8, seed=1)
    torch.testing.assert_close(jit(function, strict=True)(x, w), function(x, w))


def test_twice_is_once() -> None:
    before = partitioned(masked)
    once = recompute_casts(before)
    assert once is not before
    assert recompute_casts(once) is once


def test_gradients_are_those_of_eager_under_every_policy() -> None:
    x, w = rand(8, 8).requires_grad_(), rand(8, 8, seed=1).requires_grad_()
    exact = torch.autograd.grad(masked(x, w).sum(), (x, w))
    for policy in ("none", "time", "memory"):
        got = torch.autograd.grad(
            jit(masked, strict=True, rematerialization=policy)(x, w).sum(), (x, w)
        )
        for mine, theirs in zip(got, exact, strict=True):
            torch.testing.assert_close(mine, theirs)
