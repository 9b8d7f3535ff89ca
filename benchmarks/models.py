# SPDX-License-Identifier: Apache-2.0
"""Names and depths -> stacks of transformer blocks with seeded weights.

    gpt2, llama   the demo's blocks             gemma   RMS norms of (1 + weight) and a gated GELU
    mlp           x + down(gelu(up(x))), a residual stream and nothing else
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from thunder_fuser.demo.blocks import BLOCKS, SEED, LlamaBlock, Sizes

# Of the smallest GPT-2, in training.
GPT2_SIZES = Sizes(batch=8, sequence=1024, width=768, heads=12, hidden=3072)


class GemmaNorm(nn.Module):
    """x / root mean square of its last axis, times 1 + weight; in float32, then in x's type."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * (1.0 + self.weight.float())).to(x.dtype)


class GemmaBlock(LlamaBlock):
    """Llama's, with Gemma's norms and down(gelu(gate(x)) * up(x))."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.norm_1, self.norm_2 = GemmaNorm(sizes.width), GemmaNorm(sizes.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.project(self.attention(self.norm_1(x)))
        y = self.norm_2(x)
        return x + self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y))


class ResidualMLP(nn.Module):
    """x + down(gelu(up(x)))."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.up = nn.Linear(sizes.width, sizes.hidden)
        self.down = nn.Linear(sizes.hidden, sizes.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


MODELS: Mapping[str, Callable[[Sizes], nn.Module]] = {
    **BLOCKS, "gemma": GemmaBlock, "mlp": ResidualMLP,
}  # fmt: skip


def make_model(
    name: str, layers: int, sizes: Sizes, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> nn.Module:
    """Blocks one after another."""
    torch.manual_seed(SEED)
    model = nn.Sequential(*(MODELS[name](sizes) for _ in range(layers)))
    return model.to(device=device, dtype=dtype)
