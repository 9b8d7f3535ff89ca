# SPDX-License-Identifier: Apache-2.0
"""An expensive value that the backward broadcasts is kept; others of its kind are recomputed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from thunder_fuser.explain.jitted import jit, recomputation_of

SHAPE = BATCH, HEADS, LENGTH, WIDTH = 4, 4, 256, 32
TABLE = (LENGTH, WIDTH)
WHICH = {
    "over heads": (torch.exp, TABLE, True),
    "over heads, in two steps": (lambda a: torch.exp(a)[None].expand(HEADS, *TABLE), TABLE, True),
    "the angles of a rotary table": (torch.cos, TABLE, True),
    "of the same size": (torch.exp, SHAPE, False),
    "a cheap one": (torch.sqrt, TABLE, False),
    "along a row": (torch.exp, (*SHAPE[:3], 1), False),
    "too few elements": (torch.exp, (*SHAPE[1:3], 1), False),
}


def turned(
    x: torch.Tensor, w: torch.Tensor, angles: torch.Tensor, function: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """Two layers, which multiply by one table."""
    table = function(angles)
    for _ in range(2):
        x = torch.matmul(x, w) * table
    return x


def arguments(shape: tuple[int, ...]) -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(3)
    x, w = (torch.rand(*one, generator=numbers) for one in (SHAPE, (WIDTH, WIDTH)))
    return [x.requires_grad_(), (w / WIDTH).requires_grad_(), torch.rand(shape, generator=numbers)]


@pytest.mark.parametrize("name", WHICH)
def test_what_is_kept(name: str) -> None:
    function, shape, is_kept = WHICH[name]
    jitted = jit(lambda *args: turned(*args, function), strict=True)
    args = arguments(shape)
    result = jitted(*args)
    result.sum().backward()
    found = recomputation_of(jitted)
    again = {found.forward.operations[at].name for at in found.plan.again}
    assert again.isdisjoint({"exp", "cos", "sqrt"}) == is_kept

    wanted = arguments(shape)
    turned(*wanted, function).sum().backward()
    for got, want in zip(args[:2], wanted[:2], strict=True):
        torch.testing.assert_close(got.grad, want.grad)
