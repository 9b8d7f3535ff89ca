# SPDX-License-Identifier: Apache-2.0
"""Functions whose plans are golden texts: together they make every pass over a trace do work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import nn

from helpers.models import MODELS, arguments


@dataclass(frozen=True)
class Traced:
    """What to jit, and a call of it. options: of thunder.jit."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


def _rand(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


def _model(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Traced:
    return Traced(MODELS[name][0], tuple(arguments(name, dtype)), options)


# ---------------------------------------------------------------------------------- functions


def norm_gelu(x: Any, weight: Any) -> Any:
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    return F.gelu(x * scale * weight)


def loss_of_logits(x: Any, weight: Any, target: Any) -> Any:
    return F.cross_entropy(F.linear(x, weight).float(), target)


def swiglu(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def adam(p: Any, g: Any, m: Any, v: Any) -> None:
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


def cache_step(cache: Any, k: Any, at: Any) -> Any:
    cache.index_copy_(1, at, k * 2)
    return (cache + 1).sum(1)


def written_activation(x: Any, w: Any) -> Any:
    h = torch.tanh(F.linear(x, w))
    y = h * 3
    h.add_(1)
    return (h * y).sum()


def row_major_view(x: Any) -> Any:
    return torch.softmax(x.t(), -1).view(-1) * 2


def attention(x: Any, qkv: Any, out: Any) -> Any:
    q, k, v = F.linear(x, qkv).reshape(2, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q * 1.5, k, v, is_causal=True)
    return F.linear(y.transpose(1, 2).reshape(2, 8, 16), out) + x


def mixture(h: Any, w: Any, experts: Any) -> Any:
    order = experts.flatten().argsort(stable=True)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel())
    rows = h[order // 2] * 2
    return ((rows.tanh())[back].view(-1, 2, h.shape[-1]) * w[..., None]).sum(1)


def shared_embedding(tokens: Any, weight: Any) -> Any:
    hidden = F.layer_norm(F.embedding(tokens, weight), (16,))
    return F.linear(hidden, weight).logsumexp(-1).mean()


def sums_of_groups(x: Any) -> Any:
    y = x.exp()
    return y.sum((0, 1)), y.sum(1), x.amax(-1)


def sorted_rows(x: Any, at: Any) -> Any:
    values, _ = torch.sort(x * 2, -1)
    return torch.gather(values + 1, 1, at).exp(), values[:, :2].transpose(0, 1)


def repeated_cast(x: Any, u: Any) -> Any:
    mask = (u < 0.9).float()
    a = torch.tanh(x * mask)
    return torch.exp((a @ a) * mask)


def group_norm_of_rows(x: Any, weight: Any, bias: Any) -> Any:
    """Its gradients are sums over groups, and over all rows."""
    return F.silu(F.group_norm(x, 4, weight, bias))


def sequence_parallel(x: Any, up: Any, down: Any) -> Any:
    """Rows are gathered before a product, and its result is scattered."""
    group = dist.group.WORLD
    rows = functional.all_gather_tensor(torch.tanh(x), 0, group)
    product = F.linear(F.gelu(F.linear(rows, up)), down)
    return functional.reduce_scatter_tensor(product, "sum", 0, group) * 2 + x


def views_only(x: Any) -> Any:
    return x.transpose(0, 1).reshape(-1)[2:6]


def autocast_product(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(F.gelu(F.linear(x, w)), w).float().softmax(-1)


def batch_norm_step(x: Any, mean: Any, weight: Any, bias: Any) -> Any:
    """One buffer: the order of two in Thunder's fence differs from process to process."""
    mean.mul_(0.9).add_(x.mean((0, 2, 3)), alpha=0.1)
    return F.batch_norm(x, None, None, weight, bias, training=True).relu()


class Convolutions(nn.Module):
    """Three convolutions of images, with batch norms, and a residual that the user sees."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.norm = nn.BatchNorm2d(4, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm(self.first(x)))
        return F.relu(self.third(F.silu(self.second(y))) + y)


class GatedMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def _seeded(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(2)
    return kind()


# ------------------------------------------------------------------------------------ the table

TRACES: Mapping[str, Callable[[], Traced]] = {
    "gpt2_block": lambda: _model("gpt2"),
    "llama_block": lambda: _model("llama"),
    "llama_block_bf16": lambda: _model("llama", torch.bfloat16),
    "mlp_memory": lambda: _model("mlp", fuser_rematerialization="memory"),
    "mlp_graphs": lambda: _model("mlp", fuser_cuda_graphs=True),
    "norm_inference": lambda: Traced(
        norm_gelu, (_rand(4, 16, dtype=torch.bfloat16), _rand(16, dtype=torch.bfloat16))
    ),
    "loss": lambda: Traced(
        loss_of_logits,
        (_rand(8, 16, grad=True), _rand(32, 16, grad=True), torch.randint(32, (8,))),
    ),
    "swiglu_donation": lambda: Traced(
        swiglu, tuple(_rand(*shape, grad=True) for shape in ((8, 16), (32, 16), (32, 16), (16, 32)))
    ),
    "adam_in_place": lambda: Traced(adam, tuple(_rand(8, 8).abs() for _ in range(4))),
    "cache_in_place": lambda: Traced(
        cache_step, (_rand(2, 8, 4), _rand(2, 1, 4), torch.tensor([3]))
    ),
    "written_activation": lambda: Traced(
        written_activation, (_rand(4, 8, grad=True), _rand(8, 8, grad=True))
    ),
    "row_major_view": lambda: Traced(row_major_view, (_rand(4, 6),)),
    "attention": lambda: Traced(
        attention, (_rand(2, 8, 16, grad=True), _rand(48, 16, grad=True), _rand(16, 16, grad=True))
    ),
    "mixture_of_experts": lambda: Traced(
        mixture, (_rand(8, 16, grad=True), _rand(8, 2, grad=True), torch.randint(4, (8, 2)))
    ),
    "shared_embedding": lambda: Traced(
        shared_embedding, (torch.randint(32, (2, 6)), _rand(32, 16, grad=True))
    ),
    "sums": lambda: Traced(sums_of_groups, (_rand(4, 6, 8),)),
    "sort_and_gather": lambda: Traced(sorted_rows, (_rand(4, 8), torch.randint(8, (4, 3)))),
    "repeated_cast": lambda: Traced(repeated_cast, (_rand(6, 6), _rand(6, 6))),
    "group_norm": lambda: Traced(
        group_norm_of_rows,
        (_rand(2, 8, 8, 8, grad=True), _rand(8, grad=True), _rand(8, grad=True)),
    ),
    "views": lambda: Traced(views_only, (_rand(3, 4),)),
    "autocast": lambda: Traced(autocast_product, (_rand(4, 16, grad=True), _rand(16, 16))),
    "batch_norm": lambda: Traced(
        batch_norm_step,
        (_rand(4, 3, 5, 5, grad=True), torch.zeros(3), _rand(3, grad=True), _rand(3, grad=True)),
    ),
    "images": lambda: Traced(_seeded(Convolutions), (_rand(2, 4, 8, 8),)),
    "images_inference": lambda: Traced(
        _seeded(Convolutions).eval().requires_grad_(requires_grad=False),
        (_rand(2, 4, 8, 8).to(memory_format=torch.channels_last),),
    ),
}  # fmt: skip
