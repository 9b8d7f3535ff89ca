# SPDX-License-Identifier: Apache-2.0
"""gcc 12 read at a wrong place, with AVX-512, where an index could only be 0 or 1."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from thunder_fuser.explain.jitted import jit

INDICES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "and": lambda x: (x > 2) & 1,
    "cast": lambda x: (x > 2).long(),
    "where": lambda x: torch.where(x > 2, 1, 0),
    "narrow": lambda x: (x > 2).int(),
}


@pytest.mark.parametrize("name", INDICES)
def test_rows_chosen_by_a_condition(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.index_select(x, 0, INDICES[name](x)) * 2

    x = torch.randn(333) * 3
    assert torch.equal(jit(function, strict=True)(x), function(x))
