# SPDX-License-Identifier: Apache-2.0
"""Attention of few queries: as reductions of a region, in the emulator, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from helpers.cases import rand

import thunder_fuser
from thunder_fuser.executors.fuser import fuser

Tensor = torch.Tensor
KEYS, WIDTH = 37, 32


def jit(function: Any, **options: Any) -> Any:
    """On the emulator, since attention on a CPU stays with torch."""
    options |= {"fuser_emulate": True, "fuser_strict": True}
    return thunder.jit(function, executors=[fuser], **options)


def left_to_torch() -> set[str]:
    return {one.name for one in fuser.last_claims.unfused if "attention" in one.name}


def operands(
    batch: int, heads: int, groups: int, length: int, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """A query, keys and values."""
    query = rand(batch, heads, length, WIDTH, dtype=dtype)
    rows = (rand(batch, groups, KEYS, WIDTH, dtype=dtype, seed=seed) for seed in (1, 2))
    return [query, *rows]


def attention(mask: Tensor | None = None, **options: Any) -> Callable[..., Tensor]:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        added = mask if mask is None or mask.dtype is torch.bool else mask.to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=added, **options)

    return attend


def bools(*sizes: int) -> Tensor:
    return rand(*sizes, seed=3) > -0.5


# (batch, heads, heads of keys, length), the mask, and what else the call gets.
CASES: dict[str, tuple[tuple[int, int, int, int], Tensor | None, dict[str, Any]]] = {
    "one query": ((1, 4, 4, 1), None, {}),
    "a scale": ((2, 4, 4, 2), bools(1, KEYS), {"scale": 0.3}),
    "a mask of each row": ((2, 4, 4, 3), bools(3, KEYS), {}),
    "shared heads": ((2, 8, 2, 1), bools(2, 1, 1, KEYS), {"enable_gqa": True}),
    "shared heads, a mask of each": ((2, 8, 2, 1), bools(2, 8, 1, KEYS), {"enable_gqa": True}),
    "shared heads, two queries": ((2, 4, 2, 2), bools(2, 1, 2, KEYS), {"enable_gqa": True}),
    "floats added": ((2, 8, 2, 1), rand(1, 8, 1, KEYS, seed=3), {"enable_gqa": True}),
    "a mask along the rows": ((1, 2, 2, 4), bools(4, 1), {}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str, dtype: torch.dtype) -> None:
    sizes, mask, options = CASES[name]
    function, values = attention(mask, **options), operands(*sizes, dtype=dtype)
    with torch.no_grad():
        ours, eager = jit(function)(*values), function(*values)
        exact = function(*(one.double() for one in values))
    assert not left_to_torch()
    assert ours.dtype is eager.dtype and ours.shape == eager.shape
    assert ours.stride() == eager.stride()
    errors = [float((one.double() - exact).abs().nan_to_num().max()) for one in (ours, eager)]
    assert errors[0] <= 1.2 * errors[1] + 1e-6


@pytest.mark.parametrize("mask", [bools(2, 1, 1, KEYS) & False, torch.full((1, KEYS), -math.inf)])
def test_a_mask_that_hides_all_keys(mask: Tensor) -> None:
    function, values = attention(mask), operands(2, 2, 2, 1)
    result = jit(function)(*values)
    assert not left_to_torch()
    assert torch.equal(result, function(*values)) and not result.any()


def test_nan_and_infinity_stay_in_their_row() -> None:
    values = operands(3, 2, 2, 1)
    values[0][0, 0, 0, 0], values[1][1, 1, 4, 0] = math.nan, math.inf
    result, eager = jit(attention())(*values), attention()(*values)
    assert not left_to_torch()
    assert torch.equal(result.isnan().any(-1), eager.isnan().any(-1))
    torch.testing.assert_close(result[2], eager[2])


def test_keys_that_the_program_repeats() -> None:
    """As Hugging Face's models do; read unrepeated where no gradient may be asked for."""

    mask = bools(2, 1, 1, KEYS)

    def repeated(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = (one.repeat_interleave(4, dim=1) for one in (key, value))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    values, jitted = operands(2, 8, 2, 1), jit(repeated)
    with torch.no_grad():
        torch.testing.assert_close(jitted(*values), repeated(*values))
    assert not left_to_torch()
    for definition in fuser.last_claims.regions:
        assert [2, 8, KEYS, WIDTH] not in [list(one.shape) for one in definition.inputs]


KEPT: dict[str, tuple[tuple[int, int, int, int], dict[str, Any], dict[str, Any]]] = {
    "nine queries": ((1, 2, 2, 9), {}, {}),
    "nine heads of one": ((1, 9, 1, 1), {"enable_gqa": True}, {}),
    "many rows": ((129, 2, 2, 1), {}, {}),
    "causal": ((1, 2, 2, 2), {"is_causal": True}, {}),
    "an option": ((1, 2, 2, 1), {}, {"fuser_few_rows": 0}),
}


@pytest.mark.parametrize("name", KEPT)
def test_torch_keeps_it(name: str) -> None:
    sizes, options, of_jit = KEPT[name]
    values, function = operands(*sizes), attention(**options)
    torch.testing.assert_close(jit(function, **of_jit)(*values), function(*values))
    assert left_to_torch()


@pytest.mark.parametrize("jitting", [jit, lambda f: thunder_fuser.jit(f, fuser_emulate=True)])
def test_a_gradient_is_torchs(jitting: Any) -> None:
    values = [one.requires_grad_() for one in operands(2, 4, 2, 1)]
    function = attention(bools(1, KEYS), enable_gqa=True)
    gradients = [
        torch.autograd.grad(call(*values).sum(), values) for call in (jitting(function), function)
    ]
    assert left_to_torch()
    torch.testing.assert_close(*gradients)


def test_a_cpu_keeps_it() -> None:
    values = operands(1, 2, 2, 1)
    torch.testing.assert_close(
        thunder.jit(attention(), executors=[fuser])(*values), attention()(*values)
    )
    assert left_to_torch()
