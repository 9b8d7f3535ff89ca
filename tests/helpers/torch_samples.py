# SPDX-License-Identifier: Apache-2.0
"""Torch's own samples of its functions, and what a call of one gives, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from helpers.exactness import assert_as_exact_as_eager

Call = Callable[..., Any]


@cache
def known() -> dict[str, tuple[Any, Call]]:
    """{name: torch's description of it, and how to call it}."""
    found: dict[str, tuple[Any, Call]] = {}
    for info in op_db:
        for name, op in [(info.name, info.op), *((one.name, one.op) for one in info.aliases)]:
            found.setdefault(name, (info, op))
    return found


def samples(
    name: str, dtype: torch.dtype, count: int, device: str = "cpu"
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of up to so many calls; those of no elements are left out."""
    info, _ = known()[name]
    if dtype in info.dtypes:
        torch.manual_seed(0)
        smooth = dtype.is_floating_point and info.supports_autograd
        for one in islice(info.sample_inputs(device, dtype, smooth), count):
            given = (one.input, *one.args), one.kwargs
            if all(x.numel() for x in tree_leaves(given) if isinstance(x, torch.Tensor)):
                yield given


def called(op: Call, given: Any) -> list[torch.Tensor]:
    """The results, then gradients of what has one."""

    def own(x: Any) -> Any:
        tensor = isinstance(x, torch.Tensor)
        return x.detach().clone().requires_grad_(x.requires_grad) if tensor else x

    args, kwargs = tree_map(own, given)
    results = [one for one in tree_leaves(op(*args, **kwargs)) if isinstance(one, torch.Tensor)]
    smooth = [one for one in results if one.requires_grad]
    if not smooth:
        return results
    torch.manual_seed(1)
    seeds = [torch.randn(one.shape, dtype=torch.float64).to(one) for one in smooth]
    leaves = [x for x in tree_leaves((args, kwargs)) if getattr(x, "requires_grad", False)]
    found = torch.autograd.grad(smooth, leaves, seeds, allow_unused=True)
    zeros = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]
    return [one.detach() for one in (*results, *zeros)]


def doubled(given: Any) -> Any:
    floats = lambda x: isinstance(x, torch.Tensor) and x.is_floating_point()  # noqa: E731
    return tree_map(lambda x: x.double() if floats(x) else x, given)


def assert_as_good(
    got: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]
) -> None:
    """Whole numbers, NaN and infinities are equal, floats as exact as eager's."""
    for mine, usual, right in zip(got, eager, exact, strict=True):
        assert (mine.dtype, mine.shape) == (usual.dtype, usual.shape)
        if not usual.is_floating_point():
            assert torch.equal(mine, usual)
            continue
        odd = ~torch.isfinite(usual)
        assert torch.equal(~torch.isfinite(mine), odd)
        torch.testing.assert_close(mine[odd], usual[odd], equal_nan=True)
        if not odd.all():
            # Of a single number eager's error is chance, and it may be a sum that cancels.
            ulps = 4 if mine.numel() > 1 else 16
            assert_as_exact_as_eager([mine[~odd]], [usual[~odd]], [right[~odd]], ulps=ulps)
