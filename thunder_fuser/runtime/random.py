# SPDX-License-Identifier: Apache-2.0
"""Random numbers in torch: draws from its generators, and reference functions of random ops.

Note [Random numbers] in ir/op_table.py says how seed, offset and position give an element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from thunder_fuser.base.threads import make_lock
from thunder_fuser.errors import LaunchError

DrawWords = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Philox = tuple[torch.Tensor, torch.Tensor]  # seed and offset, int64 of rank 0

_WORD = 0xFFFFFFFF
_DRAWING = make_lock()  # two threads must not draw the same offsets


def draw(device: torch.device, count: int) -> tuple[int, int]:
    """(seed, first offset) for `count` random ops, from the device's default generator.

    The generator advances: torch.manual_seed reproduces the numbers, and the next draw differs. On
    CUDA the seed is the generator's, and four of its offsets are one of ours, as in nvFuser.

    Raises LaunchError while a CUDA graph is captured.
    """
    if device.type != "cuda":
        return int(torch.empty((), dtype=torch.int64, device="cpu").random_()), 0
    if torch.cuda.is_current_stream_capturing():
        raise LaunchError(
            "random numbers in a CUDA graph",
            expected="no capture of a CUDA graph, which would replay the same numbers",
            got="a captured call",
            do="leave random ops such as dropout out of the graph",
        )
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    with _DRAWING:
        offset = -(-generator.get_offset() // 4)
        generator.set_offset(4 * (offset + count))
        seed = generator.initial_seed()
    return seed - (1 << 64) if seed >> 63 else seed, offset  # 64 bits as a signed integer


def draw_state(device: torch.device, count: int) -> Philox:
    """The same as tensors on the device, each of rank 0 and int64."""
    seed, offset = draw(device, count)
    return tuple(torch.full((), bits, dtype=torch.int64, device=device) for bits in (seed, offset))


def philox(counter: DrawWords, key: tuple[torch.Tensor, torch.Tensor]) -> DrawWords:
    """Philox 4x32-10. Each tensor holds 32-bit words as int64."""
    a, b, c, d = counter
    key_a, key_b = key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c  # wraps to the bits of an unsigned product
        a, b, c, d = (
            (right >> 32) & _WORD ^ b ^ key_a,
            right & _WORD,
            (left >> 32) & _WORD ^ d ^ key_b,
            left & _WORD,
        )
        key_a, key_b = (key_a + 0x9E3779B9) & _WORD, (key_b + 0xBB67AE85) & _WORD
    return a, b, c, d


def _halves(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return value & _WORD, (value >> 32) & _WORD


def _words(stream: Philox, shape: Sequence[int], share: int) -> tuple[torch.Tensor, DrawWords]:
    """For each element: (its position in its group of words, the words of the group)."""
    seed, offset = stream
    position = torch.arange(math.prod(shape), device=seed.device).reshape(tuple(shape))
    low, high = (half.expand(position.shape) for half in _halves(offset))
    words = philox((low, high, *_halves(position // share)), _halves(seed))
    return position % share, words


def uniform(
    lo: torch.Tensor, hi: torch.Tensor, stream: Philox, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Numbers in [lo, hi), with the same bits as every kernel. lo and hi have rank 0."""
    compute = torch.float64 if dtype is torch.float64 else torch.float32
    lane, words = _words(stream, shape, 2 if dtype is torch.float64 else 4)
    low, high = lo.to(compute), hi.to(compute)
    scaled = _unit(lane, words, dtype).to(compute) * (high - low) + low
    result = scaled.to(dtype)
    return torch.where(result.to(compute) < high, result, low.to(dtype))


_BITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def _unit(lane: torch.Tensor, words: DrawWords, dtype: torch.dtype) -> torch.Tensor:
    """Multiples of 2**-bits in [0, 1) as float64, where bits is the size of the significand."""
    if dtype is torch.float64:
        return _long_unit(
            torch.where(lane == 0, words[1], words[3]), torch.where(lane == 0, words[0], words[2])
        )
    chosen = torch.stack(words).gather(0, lane.unsqueeze(0)).squeeze(0)
    bits = _BITS[dtype]
    return (chosen >> (32 - bits)).double() * 2.0**-bits


def _long_unit(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    return ((high << 21) | (low >> 11)).double() * 2.0**-53


def normal(
    mean: torch.Tensor, std: torch.Tensor, stream: Philox, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Normal numbers by Box-Muller in float64. A kernel computes them in its result's type."""
    wide = dtype is torch.float64
    lane, words = _words(stream, shape, 2 if wide else 4)
    if wide:
        first, second = _long_unit(words[1], words[0]), _long_unit(words[3], words[2])
    else:
        first, second = (
            (torch.where(lane < 2, words[at], words[at + 2]) >> 8).double() * 2.0**-24
            for at in (0, 1)
        )
    step = 2.0**-53 if wide else 2.0**-24
    radius, angle = torch.sqrt(-2.0 * torch.log(first + step)), 2.0 * math.pi * second
    unit = radius * torch.where(lane % 2 == 0, torch.cos(angle), torch.sin(angle))
    return mean.double() + std.double() * unit
