# SPDX-License-Identifier: Apache-2.0
"""Attention goes to torch's kernels, on the CPU too; what these do not take is taken apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager, with_gradients
from thunder.core import devices, dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.trace import detached_trace

from thunder_fuser.explain import why
from thunder_fuser.explain.jitted import final_traces, jit
from thunder_fuser.functions import attention
from thunder_fuser.functions.define import Composite

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SHAPE, KEYS = (2, 3, 5, 8), (2, 3, 7, 8)  # [B, H, L, E], [B, H, S, E]


def made(
    *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def qkv(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return made(SHAPE, KEYS, KEYS, dtype=dtype)


def called(mask: torch.Tensor | None = None, **keywords: Any) -> Callable[..., torch.Tensor]:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, **keywords)

    return attention


def in_float64(mask: torch.Tensor | None = None, **keywords: Any) -> Callable[..., torch.Tensor]:
    """Op by op, by torch."""
    wide = mask if mask is None or mask.dtype == torch.bool else mask.double()

    def attention(*args: torch.Tensor) -> torch.Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return called(wide, **keywords)(*(arg.double() for arg in args))

    return attention


def names(jitted: Any) -> set[str]:
    return {bsym.sym.name for trace in final_traces(jitted) for bsym in trace.bound_symbols}


def check(values: list[torch.Tensor], mask: torch.Tensor | None = None, **keywords: Any) -> Any:
    """Result and gradients; asserts that torch's kernels made them. Gives the jitted function."""
    function = called(mask, **keywords)
    jitted = jit(function, strict=True)
    got = with_gradients(jitted, values)
    exact = with_gradients(in_float64(mask, **keywords), [one.double() for one in values])
    assert_as_exact_as_eager(got, with_gradients(function, values), exact)
    assert {"attention_forward", "attention_backward"} <= names(jitted)
    assert not {"matmul", "linear"} & names(jitted)
    return jitted


MASKS = {
    "bool": torch.arange(7) <= torch.arange(5)[:, None],
    "no key for a row": torch.arange(1, 6)[:, None] % 2 * torch.ones(7) > 0,
    "of keys": torch.arange(7)[None] < 4,
    "of batches": (torch.arange(7) < torch.tensor([[3], [6]])).view(2, 1, 1, 7),
    "added": made((5, 7))[0],
    "added to all": made((*SHAPE[:3], 7))[0],
    "infinite": torch.where(torch.arange(7) <= torch.arange(5)[:, None] - 1, 0.0, -math.inf),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "keywords", ({}, {"is_causal": True}, {"scale": 0.3}, {"scale": 0}, {"mask": "added"}), ids=str
)
def test_values_and_gradients(keywords: dict[str, Any], dtype: torch.dtype) -> None:
    mask = {"mask": MASKS["added"].to(dtype)} if "mask" in keywords else {}
    check(qkv(dtype), **{**keywords, **mask})


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    check(qkv(), MASKS[name])


STRIDES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "heads last": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "columns": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "every other": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "one head": lambda x: x[:, :1].expand_as(x),
    "one row": lambda x: x[:, :, :1].expand_as(x),
    "one number": lambda x: x[..., :1].expand_as(x),
}


@pytest.mark.parametrize("name", STRIDES)
def test_strides_of_inputs_and_of_the_gradient(name: str) -> None:
    """torch's kernels read what is not there if a row's elements are not neighbours."""
    jitted = check(qkv(), is_causal=True)
    args = [STRIDES[name](one).detach().requires_grad_() for one in qkv()]
    exact = [one.detach().double().requires_grad_() for one in args]
    results = jitted(*args), in_float64(is_causal=True)(*exact)
    seed = STRIDES[name](made(SHAPE)[0])
    got, wanted = (
        torch.autograd.grad(result, given, seed.to(result))
        for result, given in zip(results, (args, exact), strict=True)
    )
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other.float())


@pytest.mark.parametrize("shape", ((1, 1, 1, 1), (2, 3, 1, 4), (2, 3, 5, 1), (1, 1, 4, 3)), ids=str)
def test_sizes_of_1(shape: tuple[int, ...]) -> None:
    check(made(shape, shape, shape), is_causal=True)


def test_nan_stays_in_its_row() -> None:
    mask = MASKS["added"].clone()
    mask[1, 2] = math.nan
    args = [one.requires_grad_() for one in qkv()]
    result = jit(called(mask), strict=True)(*args)
    wanted = called(mask)(*args)
    torch.testing.assert_close(result, wanted, equal_nan=True)
    assert result[:, :, 1].isnan().all() and not result[:, :, [0, 2, 3, 4]].isnan().any()


@pytest.mark.parametrize("shape", ((5, 7), (1, 7), (2, 3, 5, 7), (2, 1, 1, 7)), ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_the_gradient_of_a_computed_mask(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Thunder does not know whether a computed mask has one. torch's kernels do not make it."""

    def attention(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, bias * 2.0)

    values = [*qkv(dtype), *made(shape, dtype=dtype, seed=1)]
    jitted = jit(attention, strict=True)
    got = with_gradients(jitted, values)
    exact = with_gradients(attention, [one.double() for one in values])
    assert_as_exact_as_eager(got, with_gradients(attention, values), exact)
    assert "attention_backward" in names(jitted)
    with_gradients(jitted, values, fixed=[3])
    assert "matmul" not in names(jitted)  # it was dead code


def test_the_gradient_of_a_mask_without_a_key_for_a_row() -> None:
    bias = torch.where(torch.arange(5)[:, None] == 2, -math.inf, made((5, 7))[0]).requires_grad_()
    args = [*(one.requires_grad_() for one in qkv()), bias]

    def attention(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, bias)

    got = torch.autograd.grad(jit(attention, strict=True)(*args).sum(), args)
    wanted = torch.autograd.grad(attention(*args).sum(), args)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_without_gradients_it_is_one_call() -> None:
    jitted = jit(called(is_causal=True), strict=True)
    torch.testing.assert_close(jitted(*qkv()), called(is_causal=True)(*qkv()))
    assert "scaled_dot_product_attention" in names(jitted)


def test_in_a_checkpoint_it_runs_again() -> None:
    def block(q: Any, k: Any, v: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(
            lambda *a: called(is_causal=True)(*a) * 2.0, q, k, v, use_reentrant=False
        )

    values = qkv()
    jitted = jit(block, strict=True)
    exact = with_gradients(block, [one.double() for one in values])
    assert_as_exact_as_eager(with_gradients(jitted, values), with_gradients(block, values), exact)


REFUSED: dict[str, tuple[list[torch.Tensor], dict[str, Any], str]] = {
    "no batch": (made((3, 5, 8), (3, 7, 8), (3, 7, 8)), {}, "other than [B, H, L, E]"),
    "values of another width": (made(SHAPE, KEYS, (2, 3, 7, 4)), {}, "other than [B, H, L, E]"),
    "one batch of keys": (made(SHAPE, (1, 3, 7, 8), (1, 3, 7, 8)), {}, "other than [B, H, L, E]"),
    "a mask of heads": (qkv(), {"mask": made((3, 5, 7))[0]}, "a mask of a shape other than [L, S]"),
    "a mask of another type": (qkv(), {"mask": MASKS["added"].bfloat16()}, "of another type"),
    "no rows": (made((2, 3, 0, 8), KEYS, KEYS), {}, "without elements"),
    "no heads": (made(*[(2, 0, 5, 8)] * 3), {}, "without elements"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_taken_apart_says_why(name: str) -> None:
    values, keywords, reason = REFUSED[name]
    jitted = jit(called(**keywords), strict=True)
    result = jitted(*[one.requires_grad_() for one in values])
    torch.testing.assert_close(result, in_float64(**keywords)(*values).float(), check_dtype=False)
    assert not any(one.startswith("attention_") for one in names(jitted))
    assert reason in str(why(jitted))


def test_dropout_is_taken_apart() -> None:
    jitted = jit(called(dropout_p=0.5), strict=True)
    assert jitted(*[one.requires_grad_() for one in qkv()]).shape == SHAPE
    assert "attention with dropout" in str(why(jitted))


def test_on_cuda_thunders_executor_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all parameters by position but the scale, for its functions have no defaults."""
    asked: list[Any] = []
    takes = SimpleNamespace(
        checker=lambda *args, **given: asked.append((args, given)),
        grad_transform=lambda *args, **given: asked.append((args, given)),
    )
    monkeypatch.setattr(attention, "_CUDA", takes)
    row = attention.ATTENTION["torch.nn.functional.scaled_dot_product_attention"]
    assert isinstance(row, Composite)
    with detached_trace():
        q = TensorProxy(shape=SHAPE, device=devices.Device("cuda:0"), dtype=dtypes.float32)
        assert "no kernel of torch" in str(row.refuses(q, q, q, is_causal=True))
        row.gradient(q, q, value=q, scale=2.0)
    assert asked == [
        ((q, q, q, None, 0.0, True), {"scale": None}),
        ((q, q, q, None, 0.0, False), {"scale": 2.0}),
    ]
