# SPDX-License-Identifier: Apache-2.0
"""Parts of a tensor are written where they are: the rest of it is neither read nor copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch

from thunder_fuser.explain.jitted import jit

Function = Callable[..., Any]
INDEX = torch.tensor([1, 3])


def put(x: Any, y: Any, i: Any) -> Any:
    x.index_copy_(0, i, y[:2])
    return x * 2


def put_sum(x: Any, y: Any, i: Any) -> Any:
    x.index_add_(0, i, y[:2] + 1)
    return x.sum(0)


def scattered(x: Any, y: Any, i: Any) -> Any:
    x.scatter_add_(0, i[:, None].expand(2, 4), y[2:])
    return x


def rows(x: Any, y: Any, i: Any) -> Any:
    x[1:3] = y[0]
    x[..., 0] = 7.0
    return x @ y


def mask(x: Any, y: Any, i: Any) -> Any:
    """Into memory of the trace."""
    m = torch.full((4, 4), float("-inf"))
    for at in range(4):
        m[at, : at + 1] = 0.0
    return torch.softmax(x + m, -1)


def by_tensor(x: Any, y: Any, i: Any) -> Any:
    x[i] = y[2:]
    return x.exp()


FIRE = {put: 1, put_sum: 1, scattered: 1, rows: 2, mask: 4, by_tensor: 1}


def arguments() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 4), torch.randn(4, 4), INDEX.clone()]


def calls(jitted: Any) -> list[str]:
    return [bsym.sym.name for bsym in thunder.last_traces(jitted)[-1].bound_symbols]


@pytest.mark.parametrize("function", FIRE, ids=lambda one: one.__name__)
def test_it_fires(function: Function) -> None:
    mine, its = arguments(), arguments()
    jitted = jit(function, strict=True)
    torch.testing.assert_close(jitted(*mine), function(*its))
    torch.testing.assert_close(mine, its)
    names = calls(jitted)
    written = [one for one in names if one in ("setitem_", "index_copy_", "index_add_",
                                               "scatter_add_")]  # fmt: skip
    assert len(written) == FIRE[function] and "copy_" not in names


def from_itself(x: Any, y: Any, i: Any) -> Any:
    """Torch refuses to read what it writes."""
    x[1:] = x[:-1]
    return x * 2


def result_read(x: Any, y: Any, i: Any) -> Any:
    made = torch.index_copy(x, 0, i, y[:2])
    x.copy_(made)
    return made * 2 + x


def into_another(x: Any, y: Any, i: Any) -> Any:
    y.copy_(torch.index_copy(x, 0, i, x[:2]))
    return x + y


def operand_written(x: Any, y: Any, i: Any) -> Any:
    """What is put is what was read before the write between."""
    made = torch.index_copy(x, 0, i, y[:2])
    y.mul_(0)
    x.copy_(made)
    return x + y


@pytest.mark.parametrize(
    "function", [from_itself, result_read, into_another, operand_written],
    ids=lambda one: one.__name__,
)  # fmt: skip
def test_it_does_not_fire(function: Function) -> None:
    mine, its = arguments(), arguments()
    jitted = jit(function, strict=True)
    expected = function(*its) if function is not from_itself else shifted(its[0])
    torch.testing.assert_close(jitted(*mine), expected)
    torch.testing.assert_close(mine, its)
    assert "copy_" in calls(jitted) and "setitem_" not in calls(jitted)


def shifted(x: torch.Tensor) -> torch.Tensor:
    x[1:] = x[:-1].clone()
    return x * 2


def test_the_memory_is_that_of_the_argument() -> None:
    """A step of a cache, ten times: its address stays, and each step sees the ones before."""

    def step(cache: Any, i: Any, new: Any) -> Any:
        cache.index_copy_(1, i, new)
        return torch.softmax(cache, 1).sum(1)

    jitted = jit(step, strict=True)
    mine, its = torch.zeros(2, 16, 4), torch.zeros(2, 16, 4)
    place = mine.data_ptr()
    for at in range(10):
        new = torch.randn(2, 1, 4)
        expected = step(its, torch.tensor([at]), new)
        torch.testing.assert_close(jitted(mine, torch.tensor([at]), new), expected)
    torch.testing.assert_close(mine, its)
    assert mine.data_ptr() == place


def test_gradients_of_what_was_written() -> None:
    """The rows that were put have their gradient, and the product reads what was there before."""

    def function(x: Any, y: Any, w: Any) -> Any:
        h = x @ w
        h[0] = y[0] * 2
        return (h * h).sum()

    values = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]
    expected = torch.autograd.grad(function(*values), values)
    found = torch.autograd.grad(jit(function, strict=True)(*values), values)
    torch.testing.assert_close(found, expected)


def test_a_leaf_that_requires_a_gradient() -> None:
    def function(x: Any, y: Any) -> Any:
        x[0] = y[0]
        return x * 2

    x = torch.randn(4, 4, requires_grad=True)
    before = x.detach().clone()
    with pytest.raises(RuntimeError, match=r"leaf|x, which requires a gradient"):
        jit(function)(x, torch.randn(4, 4))
    assert torch.equal(x, before)
