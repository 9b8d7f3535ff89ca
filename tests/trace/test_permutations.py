# SPDX-License-Identifier: Apache-2.0
"""Gradients of rows that were taken by a permutation: taken back, with eager torch's values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.executors.pipeline import TRACE_PASSES
from thunder_fuser.explain.jitted import final_traces, jit
from thunder_fuser.trace.prepared import Pass, Prepared
from thunder_fuser.trace.proxies import parts
from thunder_fuser.trace.rewrites.permutations import take_in_old_order

Function = Callable[..., torch.Tensor]
EMULATE = pytest.mark.parametrize("emulate", [False, True], ids=["cpu", "emulator"])
SCATTERS = {"embedding_backward", "index_add"}
TOKENS, TIMES, WIDTH = 6, 4, 8  # each of six rows is taken four times


def inverse_of(order: torch.Tensor) -> torch.Tensor:
    back = torch.empty_like(order)
    back[order] = torch.arange(order.shape[0], device=order.device)
    return back


def mixture(h: torch.Tensor, w: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """A mixture of experts: rows by expert, weighted, and back in order."""
    _, order = torch.sort(experts)
    x = h[order // TIMES] * w[order].unsqueeze(-1)
    return x[inverse_of(order)].view(h.shape[0], TIMES, -1).sum(1)


def by_argsort(h: torch.Tensor, w: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    order = torch.argsort(experts, descending=True)
    x = h[torch.div(order, TIMES, rounding_mode="floor")] * w[order].unsqueeze(-1)
    return x[torch.argsort(order)]


def without_inverse(h: torch.Tensor, w: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    return h[torch.argsort(experts) // TIMES] * w.unsqueeze(-1)


def whole_rows(h: torch.Tensor, w: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    return (w.view(-1, 2) * 2.0)[torch.argsort(experts[: w.shape[0] // 2])] * h.sum()


def given_inverse(h: torch.Tensor, w: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """The order is an argument, in which -1 is the last row."""
    return w.view(-1, 1)[inverse_of(order)] * h.sum()


def twice(h: torch.Tensor, w: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """The order of an order, from the largest on, is not its inverse."""
    order = torch.argsort(experts)
    x = h[order // TIMES] * w[order].unsqueeze(-1)
    return x[torch.argsort(order, descending=True)]


def any_rows(h: torch.Tensor, w: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return h[rows] * w.unsqueeze(-1)


def shifted(h: torch.Tensor, w: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Not every row is taken, and one is taken more often than the others."""
    return h[(torch.argsort(experts) // TIMES + 1).clamp(max=TOKENS - 1)] * w.unsqueeze(-1)


def some_rows(h: torch.Tensor, w: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Fewer rows are taken than there are."""
    return h[torch.argsort(experts) // (2 * TIMES)] * w.unsqueeze(-1)


def partly_written(h: torch.Tensor, w: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """`back` has values before the write, so that the order need not be a permutation."""
    back = torch.zeros_like(order)
    back[order % 3] = torch.arange(order.shape[0], device=order.device)
    return w.view(-1, 1)[back] * h.sum()


def narrow(h: torch.Tensor, w: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """The numbers of an int8 may have wrapped around."""
    order = torch.argsort(experts)
    back = torch.empty_like(order, dtype=torch.int8)
    back[order] = torch.arange(order.shape[0], dtype=torch.int8)
    return (w.view(-1, 1) * 2.0)[back.long()] * h.sum()


def written_later(h: torch.Tensor, w: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """The inverse is overwritten after it was computed: the backward needs it as it was."""
    order = torch.argsort(experts)
    back = inverse_of(order)
    last = back[-1:] * 1
    back.zero_()
    return (w.view(-1, 1) * 3.0)[order] * h.sum() + last + back.unsqueeze(-1)


def arguments(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    h = torch.randn(TOKENS, WIDTH, generator=generator).to(dtype).requires_grad_()
    w = torch.randn(TOKENS * TIMES, generator=generator).to(dtype).requires_grad_()
    return [h, w, torch.randint(0, 5, (TOKENS * TIMES,), generator=generator)]


def permutation() -> torch.Tensor:
    order = torch.randperm(TOKENS * TIMES, generator=torch.Generator().manual_seed(6))
    return torch.where(order == TOKENS * TIMES - 1, -1, order)


def gradients(function: Function, args: list[torch.Tensor]) -> list[torch.Tensor]:
    result = function(*args)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(7))
    return list(torch.autograd.grad(result, args[:2], weights.to(result.dtype)))


def scatters(jitted: Function) -> list[str]:
    """The scatters of a function's traces, those inside regions too."""
    names = [
        part.sym.name for trace in final_traces(jitted) for bsym in trace.bound_symbols
        for part in parts(bsym)
    ]  # fmt: skip
    return [name for name in names if name in SCATTERS]


@EMULATE
@pytest.mark.parametrize(
    "function",
    [mixture, by_argsort, without_inverse, whole_rows, twice, given_inverse, written_later],
)
def test_rows_are_taken_back(function: Function, emulate: bool) -> None:
    args = arguments()
    args[2] = permutation() if function is given_inverse else args[2]
    jitted = jit(function, strict=True, emulate=emulate)
    torch.testing.assert_close(gradients(jitted, args), gradients(function, args))
    assert scatters(jitted) == []


@pytest.mark.parametrize("function", [any_rows, shifted, some_rows, partly_written, narrow])
def test_other_rows_are_scattered(function: Function) -> None:
    args = arguments()
    if function is any_rows:
        args[2] = args[2] % TOKENS
    jitted = jit(function, strict=True)
    torch.testing.assert_close(gradients(jitted, args), gradients(function, args))
    assert scatters(jitted) != []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_rows_of_one_are_added_in_float32_or_wider(dtype: torch.dtype) -> None:
    args = arguments(dtype)
    exact = [arg.detach().double().requires_grad_() if n < 2 else arg for n, arg in enumerate(args)]
    jitted = jit(without_inverse, strict=True)
    found, expected = gradients(jitted, args), gradients(without_inverse, exact)
    assert scatters(jitted) == []
    assert [one.dtype for one in found] == [dtype] * 2
    limit = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close([one.double() for one in found], expected, rtol=limit, atol=limit)


@settings(max_examples=20, deadline=None)
@given(
    tokens=st.integers(0, 5), times=st.integers(1, 3), width=st.integers(1, 5), seed=st.integers()
)
def test_any_sizes(tokens: int, times: int, width: int, seed: int) -> None:
    def function(h: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        order = torch.argsort(experts)
        return (h * 2.0)[order // times][inverse_of(order)]

    generator = torch.Generator().manual_seed(seed % 2**32)
    h = torch.randn(tokens, width, generator=generator).requires_grad_()
    experts = torch.randint(0, 3, (tokens * times,), generator=generator)
    jitted = jit(function, strict=True)
    result = jitted(h, experts)
    torch.testing.assert_close(result, function(h, experts))
    weights = torch.randn(result.shape, generator=generator)
    found, expected = (
        torch.autograd.grad(one(h, experts), h, weights) for one in (jitted, function)
    )
    torch.testing.assert_close(found, expected)


def test_once_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass leaves its own result as it is."""
    seen: list[tuple[Prepared, Prepared]] = []

    def both(prepared: Prepared) -> Prepared:
        once = take_in_old_order(prepared)
        seen.append((once, take_in_old_order(once)))
        return once

    changed = tuple(
        Pass(both) if each.run is take_in_old_order else each for each in TRACE_PASSES
    )
    monkeypatch.setattr("thunder_fuser.executors.fuser.TRACE_PASSES", changed)
    gradients(jit(mixture, strict=True), arguments())
    assert seen and all(once.ops == again.ops for once, again in seen)
