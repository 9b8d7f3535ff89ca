# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention and the transformer layers of torch.nn, as thunder_fuser.jit reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import rand
from torch import nn

import thunder_fuser
from thunder_fuser.explain import report

Tensor = torch.Tensor
BATCH, LENGTH, WIDTH, HEADS = 2, 5, 16, 4
PADDING = torch.arange(LENGTH) >= torch.tensor([[3], [5]])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH)


def attention(**options: Any) -> nn.Module:
    return nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True, **options})


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(
        WIDTH, HEADS, 24, **{"batch_first": True, "dropout": 0.0, **options}
    )


def of_itself(**options: Any) -> Callable[[nn.Module, Tensor], Any]:
    return lambda net, x: net(x, x, x, **options)


def of_others(net: nn.Module, x: Tensor) -> Any:
    return net(x, rand(BATCH, 7, 6, seed=1), rand(BATCH, 7, 10, seed=2))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Any]]] = {
    "attention": (attention, of_itself()),
    "without weights": (attention, of_itself(need_weights=False)),
    "weights of each head": (attention, of_itself(average_attn_weights=False)),
    "padding": (attention, of_itself(key_padding_mask=PADDING)),
    "causal": (attention, of_itself(attn_mask=CAUSAL, is_causal=True, need_weights=False)),
    "keys of another width": (lambda: attention(kdim=6, vdim=10), of_others),
    "a key more": (lambda: attention(add_bias_kv=True, add_zero_attn=True), of_itself()),
    "length first": (lambda: attention(batch_first=False), of_itself()),
    "no bias": (lambda: attention(bias=False), of_itself(need_weights=False)),
    "encoder": (encoder, lambda net, x: net(x)),
    "encoder, norm first": (lambda: encoder(norm_first=True), lambda net, x: net(x)),
    "encoder, gelu": (lambda: encoder(activation="gelu"), lambda net, x: net(x)),
    "encoder, padding": (encoder, lambda net, x: net(x, src_key_padding_mask=PADDING)),
    "encoder, causal": (encoder, lambda net, x: net(x, CAUSAL, is_causal=True)),
    "decoder": (
        lambda: nn.TransformerDecoderLayer(WIDTH, HEADS, 24, 0.0, batch_first=True),
        lambda net, x: net(x, x.flip(1), tgt_mask=CAUSAL, memory_key_padding_mask=PADDING),
    ),
    "both": (
        lambda: nn.Transformer(WIDTH, HEADS, 1, 1, 24, 0.0, batch_first=True),
        lambda net, x: net(x, x.flip(1)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_trains_as_in_eager_torch(name: str) -> None:
    make, call = CASES[name]
    torch.manual_seed(3)
    net = make()
    jitted = thunder_fuser.jit(net, fuser_strict=True)

    def step(model: nn.Module) -> list[Tensor]:
        x = rand(BATCH, LENGTH, WIDTH).requires_grad_()
        results = call(model, x)
        results = [y for y in results if y is not None] if type(results) is tuple else [results]
        sum((y * y).sum() for y in results).backward()
        gradients = [x.grad, *(p.grad for p in net.parameters())]
        net.zero_grad()
        return [*results, *gradients]

    wanted = step(net)
    for _ in range(2):
        for got, want in zip(step(jitted), wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert report(jitted).fusions


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, CAUSAL], ids=["", "causal"])
def test_inference_without_the_fast_path(mask: Tensor | None, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    net = nn.TransformerEncoder(encoder(), 2).eval().to(dtype)
    x = rand(BATCH, LENGTH, WIDTH, dtype=dtype)
    jitted = thunder_fuser.jit(net, fuser_strict=True)
    mask = None if mask is None else mask.to(dtype)
    with torch.no_grad():
        got, want = jitted(x, mask), net(x, mask)
    tolerance = 1e-5 if dtype is torch.float32 else 5e-2
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    assert report(jitted).fusions


def test_padding_in_inference() -> None:
    """Eager torch's fast path writes zeros where there is padding; other rows are the same."""
    torch.manual_seed(3)
    net = nn.TransformerEncoder(encoder(), 2).eval()
    x = rand(BATCH, LENGTH, WIDTH)
    with torch.no_grad(), pytest.warns(UserWarning, match="nested tensors"):
        want = net(x, src_key_padding_mask=PADDING)
    with torch.no_grad():
        got = thunder_fuser.jit(net)(x, src_key_padding_mask=PADDING)
    torch.testing.assert_close(got[~PADDING], want[~PADDING], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", [CAUSAL, CAUSAL < 0, CAUSAL.bfloat16()], ids=["", "bools", "bf16"])
def test_a_mask_under_autocast(mask: Tensor) -> None:
    """Autocast casts the mask of attention too, as in eager torch."""

    def attend(x: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    x = rand(BATCH, HEADS, LENGTH, 8)
    mask = ~mask if mask.dtype is torch.bool else mask
    got, want = thunder_fuser.jit(attend)(x, mask), attend(x, mask)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("by_position", [False, True])
def test_an_encoder_under_autocast(by_position: bool) -> None:
    torch.manual_seed(3)
    net, x = encoder(), rand(BATCH, LENGTH, WIDTH)

    def step(model: nn.Module) -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x, CAUSAL) if by_position else model(x, src_mask=CAUSAL)
        (y * rand(WIDTH, seed=2)).sum().backward()
        gradients = [p.grad for p in net.parameters() if p.grad is not None]
        net.zero_grad()
        return [y, *gradients]

    for got, want in zip(step(thunder_fuser.jit(net)), step(net), strict=True):
        torch.testing.assert_close(got, want, rtol=5e-2, atol=8e-2)
