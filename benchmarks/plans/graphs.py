# SPDX-License-Identifier: Apache-2.0
"""Real graphs: torch functions, forward and backward, whose regions are planned.

Blocks with their matmuls, rotary embedding in the forms of Llama, Phi-3 and Qwen2, losses, norms.
Everything is bf16 unless said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.models import GPT2_SIZES
from thunder_fuser.demo.blocks import Sizes, make_block, make_input

Call = tuple[Callable[..., Tensor], list[Tensor]]
BF16 = torch.bfloat16
VOCABULARY = 32000


def _random(*shape: int, grad: bool = True, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_(grad)


# ----------------------------------------------------------------------------------------- blocks


def _block(name: str, sizes: Sizes) -> Call:
    block = make_block(name, sizes, BF16, "cpu")
    x, _ = make_input(sizes, BF16, "cpu")
    return block, [x.requires_grad_()]


def _gpt2() -> Call:
    return _block("gpt2", GPT2_SIZES)


def _llama() -> Call:
    return _block("llama", Sizes(batch=1, sequence=512, width=1024, heads=8, hidden=2816))


# ------------------------------------------------------------------------------- rotary embedding

TOKENS, HEADS, KEYS, WIDTH = 1024, 32, 8, 128


def _rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + _rotate_half(x) * sin


def _tables() -> list[Tensor]:
    return [_random(1, TOKENS, WIDTH, grad=False) for _ in range(2)]


def _heads(x: Tensor, count: int) -> Tensor:
    return x.view(1, TOKENS, count, WIDTH).transpose(1, 2)


def _repeated(x: Tensor) -> Tensor:
    """Each key head for the queries that share it: [1, KEYS, ...] -> [1, HEADS, ...]"""
    wide = x[:, :, None].expand(1, KEYS, HEADS // KEYS, TOKENS, WIDTH)
    return wide.reshape(1, HEADS, TOKENS, WIDTH)


def _rope_llama() -> Call:
    def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return _turned(_heads(q, HEADS), cos, sin), _turned(_heads(k, HEADS), cos, sin)

    q, k = (_random(1, TOKENS, HEADS * WIDTH) for _ in range(2))
    return rope, [q, k, *_tables()]  # type: ignore[return-value]


def _rope_phi3() -> Call:
    """One projection holds q, k and v; the tables are float32 and made here, from angles."""

    def rope(qkv: Tensor, angles: Tensor) -> tuple[Tensor, ...]:
        both = torch.cat((angles, angles), dim=-1)
        cos, sin = both.cos().to(qkv.dtype).unsqueeze(1), both.sin().to(qkv.dtype).unsqueeze(1)
        size = HEADS * WIDTH
        q, k, v = qkv[..., :size], qkv[..., size : 2 * size], qkv[..., 2 * size :]
        turned = (_turned(_heads(part, HEADS), cos, sin) for part in (q, k))
        return (*turned, _heads(v, HEADS))

    angles = _random(1, TOKENS, WIDTH // 2, grad=False, dtype=torch.float32)
    return rope, [_random(1, TOKENS, 3 * HEADS * WIDTH), angles]  # type: ignore[return-value]


def _rope_qwen2() -> Call:
    """Keys and values have fewer heads, and are repeated for the queries that share them."""

    def rope(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q, k, v = _heads(q, HEADS), _heads(k, KEYS), _heads(v, KEYS)
        return _turned(q, cos, sin), _repeated(_turned(k, cos, sin)), _repeated(v)

    q, k, v = (_random(1, TOKENS, heads * WIDTH) for heads in (HEADS, KEYS, KEYS))
    return rope, [q, k, v, *_tables()]  # type: ignore[return-value]


# --------------------------------------------------------------------------------- losses and norms


def _cross_entropy() -> Call:
    return F.cross_entropy, [_random(1024, VOCABULARY), torch.randint(VOCABULARY, (1024,))]


def _group_norm() -> Call:
    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.silu(F.group_norm(x, 32, weight, bias))

    return norm, [_random(8, 256, 32, 32), _random(256), _random(256)]


def _soft_cap() -> Call:
    """Gemma caps its logits, in float32, before the softmax."""

    def capped(x: Tensor) -> Tensor:
        return torch.softmax(torch.tanh(x.float() / 30.0) * 30.0, dim=-1)

    return capped, [_random(1024, VOCABULARY)]


def _rms_norm_backward() -> Call:
    """Llama-2's: dx and dweight of `weight * (x * rstd)`, beside the gradient of the residual."""

    def backward(
        dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, more: Tensor
    ) -> tuple[Tensor, ...]:
        wide, scaled = x.float(), (dy * weight).float()
        unit = wide * rstd
        mean = (scaled * unit).mean(-1, keepdim=True)
        dx = rstd * (scaled - unit * mean) + more.float()
        dweight = (dy.float() * unit.to(dy.dtype).float()).sum((0, 1))
        return dx.to(x.dtype), dweight.to(weight.dtype)

    shape = (2, 1024, 4096)
    dy, x, more = (_random(*shape, grad=False) for _ in range(3))
    rstd = _random(2, 1024, 1, grad=False, dtype=torch.float32)
    return backward, [dy, x, _random(4096, grad=False), rstd, more]  # type: ignore[return-value]


GRAPHS: Mapping[str, Callable[[], Call]] = {
    "GPT-2 block": _gpt2,
    "Llama block": _llama,
    "RoPE, Llama": _rope_llama,
    "RoPE, Phi-3": _rope_phi3,
    "RoPE, Qwen2": _rope_qwen2,
    "cross entropy": _cross_entropy,
    "group norm, SiLU": _group_norm,
    "Gemma soft cap": _soft_cap,
    "Llama-2 RMS norm backward": _rms_norm_backward,
}
