# SPDX-License-Identifier: Apache-2.0
"""Parameters and modules of two names: one gradient of the program, and guards that stay short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.core.transform_common import Transform
from torch import nn

import thunder_fuser
from thunder_fuser import fuser
from thunder_fuser.explain.jitted import final_traces

Jit = Callable[..., Any]
JITS: dict[str, Jit] = {
    "thunder.jit": lambda of, **given: thunder.jit(of, executors=[fuser], **given),
    "thunder_fuser.jit": thunder_fuser.jit,
}
by_each_jit = pytest.mark.parametrize("jit", JITS.values(), ids=[*JITS])
WORDS, WIDTH = 24, 8


class Tied(nn.Module):
    """A language model whose head has the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding, self.inner = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.inner(self.embedding(tokens)))
        return F.cross_entropy(self.head(hidden)[:-1], tokens[1:])


TOKENS = torch.randint(0, WORDS, (16,), generator=torch.Generator().manual_seed(5))


def check(model: Tied, jitted: Any) -> None:
    """The loss and all gradients of eager torch."""
    found = []
    for call in (jitted, model):
        model.zero_grad()
        loss = call(TOKENS)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(*found)
    assert len(found[0]) == 1 + len([*model.parameters()])


def reads_head(jitted: Any) -> bool:
    """Whether the program reads the weight by its second name."""
    forward = final_traces(jitted)[0]
    return any("t_head_weight" in str(bsym) for bsym in forward.bound_symbols[:-1]
               if bsym.sym.name != "unpack_trivial")


@by_each_jit
def test_one_gradient(jit: Jit) -> None:
    model = Tied()
    jitted = jit(model)
    check(model, jitted)
    assert not reads_head(jitted)
    backward = thunder.last_backward_traces(jitted)[-1]
    (gradients,) = backward.bound_symbols[-1].args
    names = [p.name for p in thunder.last_prologue_traces(jitted)[-1].bound_symbols[-1].args[0][0]]
    assert [g is None for g in gradients] == [n in ("tokens", "t_head_weight") for n in names]


@by_each_jit
def test_weights_that_are_tied_no_more(jit: Jit) -> None:
    model = Tied()
    jitted = jit(model)
    check(model, jitted)
    model.head.weight = nn.Parameter(torch.randn(WORDS, WIDTH))
    check(model, jitted)
    assert reads_head(jitted) and thunder.cache_misses(jitted) == 2
    model.head.weight = model.embedding.weight
    check(model, jitted)
    assert thunder.cache_misses(jitted) == 2


def test_a_transform_finds_both_names() -> None:
    """It may put another parameter in the place of each name."""
    class Nothing(Transform):
        pass

    model = Tied()
    jitted = thunder.jit(model, executors=[fuser], transforms=[Nothing()])
    check(model, jitted)
    assert reads_head(jitted)


class SharedModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


@pytest.mark.parametrize(("model", "x"), [
    (Tied(), TOKENS), (SharedModule(), torch.randn(3, WIDTH)),
], ids=["weight", "module"])  # fmt: skip
def test_the_second_call_is_short(
    model: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guards of thunder_fuser.jit find second names, which Thunder's tables lack."""
    jitted = thunder_fuser.jit(model)
    jitted(x)
    monkeypatch.setattr(jitted._lc_cd, "get_computation_and_inputs", None)
    torch.testing.assert_close(jitted(x), model(x))


def test_a_function_of_a_tied_model() -> None:
    """Its parameters belong to no jitted module, so each name has its own gradient."""
    model = Tied()

    def halved(tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens) * 0.5

    jitted = thunder.jit(halved, executors=[fuser])
    check(model, lambda tokens: jitted(tokens) * 2.0)
