# SPDX-License-Identifier: Apache-2.0
"""Gradients of embeddings that are added to another one, summed by row: eager torch's values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager
from helpers.pairs import pairs

from thunder_fuser.executors.pipeline import TRACE_PASSES
from thunder_fuser.explain.jitted import final_traces, jit
from thunder_fuser.trace.prepared import Pass, Prepared
from thunder_fuser.trace.proxies import parts
from thunder_fuser.trace.rewrites import embedding_gradients
from thunder_fuser.trace.rewrites.embedding_gradients import sum_embedding_rows

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
EMULATE = pytest.mark.parametrize("emulate", [False, True], ids=["cpu", "emulator"])
WORDS, WIDTH = 96, 24


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_gradients, "LEAST_BYTES", 0)


def tied(tokens: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(F.embedding(tokens, w) * 2.0)
    return F.linear(hidden, w).float().square().mean()


def alone(tokens: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(F.embedding(tokens, w) * 2.0).float().square().mean()


def padded(tokens: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(F.embedding(tokens, w, padding_idx=3) * 2.0)
    return F.linear(hidden, w).float().square().mean()


def by_frequency(tokens: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(F.embedding(tokens, w, scale_grad_by_freq=True) * 2.0)
    return F.linear(hidden, w).float().square().mean()


def arguments(shape: tuple[int, ...], dtype: torch.dtype, most: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, most, shape, generator=generator)
    w = torch.randn(WORDS, WIDTH, generator=generator).to(dtype)
    return [tokens, w.requires_grad_()]


def gradient(call: Function, tokens: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    (found,) = torch.autograd.grad(call(tokens, w), w)
    return found


def is_by_row(jitted: Function) -> bool:
    """Whether the backward sums as many rows as there are tokens, not words."""
    backward = final_traces(jitted)[1]
    found = [
        part.args[2] for bsym in backward.bound_symbols for part in parts(bsym)
        if "embedding_backward" in part.sym.name
    ]  # fmt: skip
    assert len(found) == 1
    return found != [WORDS]


@pytest.mark.parametrize(
    ("emulate", "dtype", "shape", "most"),
    pairs(
        [False, True], [torch.bfloat16, torch.float16, torch.float32], [(1,), (40,), (2, 3, 5)],
        [1, 5, WORDS],
    ),
    ids=str,
)  # fmt: skip
def test_the_values_of_eager_torch(
    emulate: bool, dtype: torch.dtype, shape: tuple[int, ...], most: int
) -> None:
    tokens, w = arguments(shape, dtype, most)
    jitted = jit(tied, strict=True, emulate=emulate)
    found, eager = gradient(jitted, tokens, w), gradient(tied, tokens, w)
    assert is_by_row(jitted)
    exact = gradient(tied, tokens, w.detach().double().requires_grad_())
    assert_as_exact_as_eager([found], [eager], [exact])
    assert torch.equal(found, gradient(jitted, tokens, w))


@pytest.mark.parametrize("tokens", [torch.int32, torch.int64])
def test_tokens_of_each_type(tokens: torch.dtype) -> None:
    given, w = arguments((17,), torch.float64, WORDS)
    jitted = jit(tied, strict=True)
    found = gradient(jitted, given.to(tokens), w)
    torch.testing.assert_close(found, gradient(tied, given, w))
    assert is_by_row(jitted)


@EMULATE
def test_a_word_without_a_gradient(emulate: bool) -> None:
    tokens, w = arguments((40,), torch.float32, 5)
    jitted = jit(padded, emulate=emulate)
    torch.testing.assert_close(gradient(jitted, tokens, w), gradient(padded, tokens, w))
    assert is_by_row(jitted) and (tokens == 3).any()


@pytest.mark.parametrize("function", [alone, by_frequency])
def test_others_stay(function: Function) -> None:
    """No sum that reads it; gradients divided by counts."""
    tokens, w = arguments((40,), torch.float32, WORDS)
    jitted = jit(function)
    torch.testing.assert_close(gradient(jitted, tokens, w), gradient(function, tokens, w))
    assert not is_by_row(jitted)


def test_many_tokens_stay() -> None:
    """The sums by row would be nearly as large as the gradient."""
    tokens, w = arguments((WORDS // 2 + 1,), torch.float32, WORDS)
    jitted = jit(tied, strict=True)
    gradient(jitted, tokens, w)
    assert not is_by_row(jitted)


def test_small_gradients_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_gradients, "LEAST_BYTES", 4 * WORDS * WIDTH + 1)
    tokens, w = arguments((9,), torch.float32, WORDS)
    jitted = jit(tied, strict=True)
    gradient(jitted, tokens, w)
    assert not is_by_row(jitted)


def test_once_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass leaves its own result as it is."""
    seen: list[tuple[Prepared, Prepared]] = []

    def both(prepared: Prepared) -> Prepared:
        once = sum_embedding_rows(prepared)
        seen.append((once, sum_embedding_rows(once)))
        return once

    changed = tuple(
        Pass(both) if each.run is sum_embedding_rows else each for each in TRACE_PASSES
    )
    monkeypatch.setattr("thunder_fuser.executors.fuser.TRACE_PASSES", changed)
    gradient(jit(tied, strict=True), *arguments((9,), torch.float32, WORDS))
    assert seen and all(once.ops == again.ops for once, again in seen)
