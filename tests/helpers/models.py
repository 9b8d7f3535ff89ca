# SPDX-License-Identifier: Apache-2.0
"""Transformer blocks and an MLP as functions of tensors: Thunder reads those much faster than
modules, and what is tested is what becomes of the trace. Some sizes are odd, some are vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

BATCH, SEQUENCE, HEADS, HEAD = 2, 16, 3, 6
WIDTH, HIDDEN = HEADS * HEAD, 37

Shapes = tuple[tuple[int, ...], ...]


def _heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(BATCH, SEQUENCE, HEADS, HEAD).transpose(1, 2)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Written out: of torch's own attention no fusion sees the inside."""
    later = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)
    scores = (_heads(q) @ _heads(k).transpose(-2, -1)) / math.sqrt(HEAD)
    mixed = torch.softmax(scores.masked_fill(later, -math.inf), -1) @ _heads(v)
    return mixed.transpose(1, 2).reshape(BATCH, SEQUENCE, WIDTH)


def gpt2(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """A block of GPT-2: layer norms, biases, GELU, dropout."""
    norm, bias, qkv, up, up_bias, down = weights
    q, k, v = F.linear(F.layer_norm(x, (WIDTH,), norm, bias), qkv).split(WIDTH, -1)
    x = x + F.dropout(_attention(q, k, v), 0.2)
    hidden = F.linear(F.layer_norm(x, (WIDTH,), norm, bias), up, up_bias)
    return x + F.dropout(F.linear(F.gelu(hidden, approximate="tanh"), down), 0.2)


def llama(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """A block of Llama: RMS norms, rotary embedding, SwiGLU."""
    norm, qkv, gate, up, down, turns = weights
    q, k, v = F.linear(F.rms_norm(x, (WIDTH,), norm), qkv).split(WIDTH, -1)
    q, k = (one * torch.cos(turns) + torch.roll(one, 1, -1) * torch.sin(turns) for one in (q, k))
    x = x + _attention(q, k, v)
    y = F.rms_norm(x, (WIDTH,), norm)
    return x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)


def mlp(x: torch.Tensor, up: torch.Tensor, bias: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Two residual layers with dropout, softmax and an exact GELU between."""
    for _ in range(2):
        hidden = F.dropout(F.gelu(F.linear(x, up, bias)), 0.25)
        x = F.dropout(torch.softmax(F.linear(hidden, down), -1) + torch.exp(-x * x), 0.5) + x
    return x


_ROW = (BATCH, SEQUENCE, WIDTH)
MODELS: Mapping[str, tuple[Callable[..., torch.Tensor], Shapes]] = {
    "gpt2": (
        gpt2,
        (_ROW, (WIDTH,), (WIDTH,), (3 * WIDTH, WIDTH), (HIDDEN, WIDTH), (HIDDEN,), (WIDTH, HIDDEN)),
    ),
    "llama": (
        llama,
        (
            _ROW, (WIDTH,), (3 * WIDTH, WIDTH), (HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN),
            (SEQUENCE, WIDTH),
        ),
    ),
    "mlp": (mlp, (_ROW, (HIDDEN, WIDTH), (HIDDEN,), (WIDTH, HIDDEN))),
}


def arguments(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Seeded ones of a model, all of which have gradients."""
    generator = torch.Generator().manual_seed(5)
    return [
        torch.randn(shape, generator=generator).to(dtype).requires_grad_()
        for shape in MODELS[name][1]
    ]
