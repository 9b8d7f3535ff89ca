# SPDX-License-Identifier: Apache-2.0
"""Numbers that Dynamo hands over as tensors once they change, and what Thunder cannot trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import rand
from thunder.core.jit_ext import JitCtx
from thunder.dynamo import thunderfx

import thunder_fuser
from thunder_fuser.errors import FallbackWarning, ThunderLimitError
from thunder_fuser.executors.fuser import fuser

FUNCTIONS: dict[str, Callable[[Any, Any, float], Any]] = {
    "add": lambda x, y, n: torch.add(x, y, alpha=n),
    "add_": lambda x, y, n: x.clone().add_(y, alpha=n),
    "sub": lambda x, y, n: x.sub(y, alpha=n),
    "sub_": lambda x, y, n: x.clone().sub_(y, alpha=n),
    "rsub": lambda x, y, n: torch.rsub(x, y, alpha=n),
    "lerp": torch.lerp,
    "clamp": lambda x, y, n: x.clamp(max=n) * y,
    "weight decay": lambda x, y, n: x.mul(1 - n).add(y, alpha=-n),
    "leaky_relu": lambda x, y, n: torch.nn.functional.leaky_relu(x, n) + y,
    "eps": lambda x, y, n: torch.nn.functional.layer_norm(x, (4,), eps=n) + y,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_float_that_changes(name: str) -> None:
    torch._dynamo.reset()
    function = FUNCTIONS[name]
    compiled = thunderfx(function, executors=[fuser])
    for n in (0.1, 0.25, 0.4):
        args = rand(3, 4), rand(3, 4, seed=1), n
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            torch.testing.assert_close(compiled(*args), function(*args))


def test_a_traceback_that_torch_reads_is_not_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.fx looks for the line of an error in its file, which Thunder guarded line by line."""
    torch._dynamo.reset()
    guards: list[Any] = []
    add = JitCtx.add_constraint

    def note(self: JitCtx, guard: Any) -> None:
        guards.append(guard)
        add(self, guard)

    monkeypatch.setattr(JitCtx, "add_constraint", note)
    compiled = thunderfx(FUNCTIONS["rsub"], executors=[fuser])
    for n in (0.1, 0.25):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            compiled(rand(3, 4), rand(3, 4, seed=1), n)
    assert 0 < len(guards) < 100


def test_a_rate_of_dropout_that_changes() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Dropout(0.5))
    compiled, x = thunderfx(model, executors=[fuser]), torch.ones(1000)
    for rate in (0.1, 0.2, 0.5):
        model[0].p = rate
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            kept = compiled(x)
        torch.testing.assert_close(kept[kept != 0], x[kept != 0] / (1 - rate))


def ranges(x: Any) -> Any:
    return torch.sin(x) * torch.linspace(-1, 1, 4)


def test_torch_runs_what_cannot_be_traced() -> None:
    torch._dynamo.reset()
    x = rand(3, 4)
    with pytest.warns(FallbackWarning, match="Torch runs a part of a graph: .*linspace"):
        result = thunderfx(ranges, executors=[fuser])(x)
    torch.testing.assert_close(result, ranges(x))


def test_it_raises_with_strict() -> None:
    torch._dynamo.reset()
    with thunder_fuser.options(strict=True), pytest.raises(NotImplementedError, match="linspace"):
        thunderfx(ranges, executors=[fuser])(rand(3, 4))


def test_a_condition_on_a_computed_number() -> None:
    def branches(x: Any, n: Any) -> Any:
        return x * 2 if n.item() > 1 else x

    with pytest.raises(ThunderLimitError, match=r"a number that the program computes.*numbers\.py"):
        thunder_fuser.jit(branches)(rand(3), torch.tensor(2.0))


def halves(x: Any, weight: Any) -> Any:
    return torch.tanh(x.view(*x.size()[:-1], 2, -1) * weight)


def split_in_between(x: Any, weight: Any) -> Any:
    """Thunder has no bucketize: the part before it returns sizes beside a tensor."""
    size = x.size()
    y = torch.sin(x) * weight
    z = y + torch.bucketize(x.detach(), torch.arange(3.0))
    return torch.tanh(z.view(*size[:-1], 2, -1))


@pytest.mark.parametrize(("function", "is_split"), [(halves, False), (split_in_between, True)])
def test_sizes_that_change(function: Callable[..., Any], is_split: bool) -> None:
    torch._dynamo.reset()
    compiled = thunderfx(function, executors=[fuser])
    for rows in (3, 5, 7):
        x, ours = rand(rows, 4), rand(1, seed=1).requires_grad_()
        theirs = ours.detach().clone().requires_grad_()
        result, expected = compiled(x, ours), function(x, theirs)
        torch.testing.assert_close(result, expected)
        result.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    last = compiled._backend.subgraph_infos[-1]
    assert (len([*last.split_graph_module.children()]) > 1) == is_split
