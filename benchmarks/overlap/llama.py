# SPDX-License-Identifier: Apache-2.0
"""Llama, written once for tensor parallelism and for FSDP: products and pointwise parts are given.

Rows are tokens. With tensor parallelism a rank holds some of the tokens between the products
(sequence parallelism), and some of the heads and of the hidden columns inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
EPSILON = 1e-5
DEVIATION = 0.02  # of initial weights


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a model; batch: sequences that attention sees on a rank."""

    width: int
    heads: int
    shared: int  # heads of keys and values
    hidden: int
    batch: int
    sequence: int
    layers: int
    words: int

    @property
    def head(self) -> int:
        return self.width // self.heads

    def matrices(self, ranks: int) -> dict[str, tuple[int, int]]:
        """[k, n] of each product, where a rank has its part of the heads and columns."""
        head, rest = self.head, self.hidden // ranks
        return {
            "qkv": (self.width, (self.heads + 2 * self.shared) * head // ranks),
            "out": (self.width // ranks, self.width),
            "up": (self.width, 2 * rest), "down": (rest, self.width),
        }  # fmt: skip


LARGE = Sizes(4096, 32, 8, 14336, 1, 8192, 4, 32000)
TINY = Sizes(64, 16, 8, 48, 2, 8, 2, 40)  # for eight ranks at most


# ------------------------------------------------------------------------------------------- parts


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMS norm of the last axis, in float32."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)
    return (wide * scale).to(x.dtype) * weight


def add_norm(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum, and its norm."""
    total = x + y
    return total, norm(total, weight)


def gated(both: torch.Tensor) -> torch.Tensor:
    """silu of the left half times the right half."""
    left, right = both.chunk(2, -1)
    return F.silu(left) * right


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions of [batch, sequence, heads, head]; cos, sin: [sequence, 1, head]."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


@dataclass(frozen=True, slots=True)
class Parts:
    """What lies between the products, as a compiler has compiled it, or as it is."""

    norm: Callable[..., torch.Tensor]
    add_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    gated: Callable[..., torch.Tensor]
    rotated: Callable[..., torch.Tensor]

    @classmethod
    def made(cls, jit: Callable[..., Callable[..., object]]) -> Parts:
        return cls(jit(norm), jit(add_norm), jit(gated), jit(rotated))  # type: ignore[arg-type]


PLAIN = Parts(norm, add_norm, gated, rotated)


# ------------------------------------------------------------------------------------------ layers


def positions(
    sizes: Sizes, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, [sequence, 1, head]."""
    half = torch.arange(0, sizes.head, 2, device=device).float() / sizes.head
    angles = torch.arange(sizes.sequence, device=device).float()[:, None] / 10000.0**half
    angles = torch.cat((angles, angles), -1)[:, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def attention(
    qkv: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], sizes: Sizes, parts: Parts
) -> torch.Tensor:
    """[tokens, heads * head] of [tokens, (heads + 2 * shared) * head], for a rank's heads."""
    groups = sizes.heads // sizes.shared
    shared = qkv.shape[-1] // sizes.head // (groups + 2)
    x = qkv.view(sizes.batch, sizes.sequence, -1, sizes.head)
    q, k, v = x.split((shared * groups, shared, shared), 2)
    q, k = parts.rotated(q, *angles), parts.rotated(k, *angles)
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return found.transpose(1, 2).reshape(qkv.shape[0], -1)


class Layer(nn.Module):
    """One layer: weights of given shapes, and how they are multiplied.

    wide: the product of what goes into attention or the hidden layer. narrow: of what comes out.
    """

    def __init__(
        self, sizes: Sizes, parts: Parts, wide: Product, narrow: Product,
        weights: dict[str, torch.Tensor],
    ) -> None:  # fmt: skip
        super().__init__()
        self.sizes, self.parts, self.wide, self.narrow = sizes, parts, wide, narrow
        for name, weight in weights.items():
            self.register_parameter(name, nn.Parameter(weight))

    def forward(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """x: [tokens, width]."""
        qkv = self.wide(self.parts.norm(x, self.first), self.qkv)
        seen = attention(qkv, angles, self.sizes, self.parts)
        x, normed = self.parts.add_norm(x, self.narrow(seen, self.out), self.second)
        return x + self.narrow(self.parts.gated(self.wide(normed, self.up)), self.down)


class Model(nn.Module):
    """Tokens and targets [tokens] -> the mean cross entropy.

    whole: the embedding's weight on this rank -> all of it. linear: as in Layer.
    """

    def __init__(
        self, sizes: Sizes, parts: Parts, linear: Product,
        whole: Callable[[torch.Tensor], torch.Tensor], weights: dict[str, torch.Tensor],
    ) -> None:  # fmt: skip
        super().__init__()
        self.parts, self.linear, self.whole = parts, linear, whole
        self.layers = nn.ModuleList(
            Layer(sizes, parts, linear, linear, layer_weights(weights, number))
            for number in range(sizes.layers)
        )
        for name in ("words", "last", "head"):
            self.register_parameter(name, nn.Parameter(weights[name]))
        self.angles = positions(sizes, self.head.device, self.head.dtype)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = F.embedding(tokens, self.whole(self.words))
        for layer in self.layers:
            x = layer(x, self.angles)
        logits = self.linear(self.parts.norm(x, self.last), self.head)
        return F.cross_entropy(logits.float(), targets)


def layer_weights(weights: dict[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
    """Those of one layer."""
    start = f"{number}."
    return {
        name.removeprefix(start): one for name, one in weights.items() if name.startswith(start)
    }
