# SPDX-License-Identifier: Apache-2.0
"""Sizes -> two transformer blocks and a seeded input: what the demo, tests and benchmarks run.

A GPT-2-style block (layer norm, fused qkv, GELU) and a Llama-style one (RMS norm, rotary position
embedding, SwiGLU). Between their matmuls lie the ops that a fuser should fuse. Dropout is off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

SEED = 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """batch x sequence tokens of `width` features, in `heads` heads; the MLP's inner width."""

    batch: int = 2
    sequence: int = 128
    width: int = 256
    heads: int = 4
    hidden: int = 768

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.batch, self.sequence, self.width


SMALL = Sizes(batch=2, sequence=16, width=32, heads=2, hidden=80)


class GPTBlock(nn.Module):
    """x + attention(layer_norm(x)), then + mlp(layer_norm of that), with biases."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.width = sizes.heads, sizes.width
        self.norm_1 = nn.LayerNorm(sizes.width)
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.project = nn.Linear(sizes.width, sizes.width)
        self.norm_2 = nn.LayerNorm(sizes.width)
        self.up = nn.Linear(sizes.width, sizes.hidden)
        self.down = nn.Linear(sizes.hidden, sizes.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.project(self.attention(self.norm_1(x)))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).split(self.width, dim=-1)
        q, k, v = (_to_heads(part, self.heads) for part in parts)
        return _from_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class LlamaBlock(nn.Module):
    """x + attention(rms_norm(x)), then + swiglu(rms_norm of that), without biases."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.norm_1 = nn.RMSNorm(sizes.width, eps=1e-5)
        self.q, self.k, self.v, self.project = (
            nn.Linear(sizes.width, sizes.width, bias=False) for _ in range(4)
        )
        self.norm_2 = nn.RMSNorm(sizes.width, eps=1e-5)
        self.gate = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.up = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.width, bias=False)
        cos, sin = _rotary_tables(sizes.sequence, sizes.width // sizes.heads)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.project(self.attention(self.norm_1(x)))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (_to_heads(layer(x), self.heads) for layer in (self.q, self.k, self.v))
        q, k = _rotate(q, self.cos, self.sin), _rotate(k, self.cos, self.sin)
        return _from_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def _to_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    batch, sequence, width = x.shape
    return x.view(batch, sequence, heads, width // heads).transpose(1, 2)


def _from_heads(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding in its rotate-half form."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def _rotary_tables(sequence: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(sequence, dtype=torch.float64), frequencies).repeat(1, 2)
    return angles.cos().float(), angles.sin().float()


BLOCKS: Mapping[str, Callable[[Sizes], nn.Module]] = {"gpt2": GPTBlock, "llama": LlamaBlock}


def make_block(
    name: str, sizes: Sizes, dtype: torch.dtype, device: torch.device | str
) -> nn.Module:
    """The block of that name with seeded weights. Norm weights and biases are random too."""
    torch.manual_seed(SEED)
    block = BLOCKS[name](sizes)
    with torch.no_grad():
        for parameter in block.parameters():
            if parameter.dim() == 1:  # with ones and zeros, a wrong weight or bias would not show
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return block.to(device=device, dtype=dtype)


def make_input(
    sizes: Sizes, dtype: torch.dtype, device: torch.device | str, seed: int = SEED
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the block's input, the gradient of its output), seeded and the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    x, gradient = (torch.randn(sizes.shape, generator=generator) for _ in range(2))
    return x.to(device=device, dtype=dtype), gradient.to(device=device, dtype=dtype)
