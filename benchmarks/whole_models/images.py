# SPDX-License-Identifier: Apache-2.0
"""Models of images, [N, 3, H, W] -> logits or an image: a ResNet, a vision transformer, a U-Net."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 1000


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with batch norms, beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        made = 4 * width
        self.reduce, self.norm_1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.convolve = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm_2 = nn.BatchNorm2d(width)
        self.expand, self.norm_3 = nn.Conv2d(width, made, 1, bias=False), nn.BatchNorm2d(made)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != made:
            self.shortcut.append(nn.Conv2d(channels, made, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(made))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm_1(self.reduce(x)))
        y = F.relu(self.norm_2(self.convolve(y)))
        return F.relu(self.norm_3(self.expand(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-50; small: one block a stage, of an eighth of its width."""

    def __init__(self, small: bool) -> None:
        super().__init__()
        width, depths = (8, (1, 1, 1, 1)) if small else (64, (3, 4, 6, 3))
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        blocks, channels = [], width
        for stage, depth in enumerate(depths):
            for at in range(depth):
                stride = 2 if stage and not at else 1
                blocks.append(Bottleneck(channels, width << stage, stride))
                channels = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Attention(nn.Module):
    """Self-attention of [N, L, C] without a mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(x).view(split).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(q, k, v)
        return self.project(made.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """Of a transformer, its norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class VisionTransformer(nn.Module):
    """ViT-B/16; small: two layers of width 128."""

    def __init__(self, small: bool) -> None:
        super().__init__()
        width, heads, layers = (128, 4, 2) if small else (768, 12, 12)
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.layers(x)).mean(1))


class Residual(nn.Module):
    """Of a diffusion model: group norm, SiLU and convolution, twice."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(8, channels), nn.GroupNorm(8, channels)
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(F.silu(self.norm_1(x)))
        return x + self.second(F.silu(self.norm_2(y)))


class UNet(nn.Module):
    """Down, attention, up: a level of a U-Net."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.before, self.inside = Residual(channels), Residual(channels)
        self.down = nn.Conv2d(channels, channels, 3, 2, 1)
        self.norm, self.attention = nn.GroupNorm(8, channels), Attention(channels, 8)
        self.up = nn.Conv2d(2 * channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        y = self.inside(self.down(x))
        rows = self.norm(y).flatten(2).transpose(1, 2)
        y = y + self.attention(rows).transpose(1, 2).view(y.shape)
        y = F.interpolate(y, scale_factor=2.0, mode="nearest")
        return self.up(torch.cat([x, y], 1))
