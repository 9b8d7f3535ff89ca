# SPDX-License-Identifier: Apache-2.0
"""Functions of torch that move elements, in functions that Thunder knows.

    roll(x[N], 2)          ->  cat([x[N-2:], x[:N-2]])
    pixel_shuffle(x, r)    ->  [N, C, r, r, H, W]  ->  [N, C, H, r, W, r]  ->  [N, C, H r, W r]

What is a view in torch is one here, see VIEWING; all else is a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import thunder.torch as ltorch
from thunder.core.utils import canonicalize_dim


def swapaxes(input: Any, dim0: int, dim1: int) -> Any:
    return ltorch.transpose(input, dim0, dim1) if input.ndim else NotImplemented


def narrow(input: Any, dim: int, start: int, length: int) -> Any:
    if not isinstance(start, int) or not isinstance(length, int):
        return NotImplemented
    dim = canonicalize_dim(input.ndim, dim)
    start += input.shape[dim] if start < 0 else 0
    if not 0 <= start <= start + length <= input.shape[dim]:
        return NotImplemented  # for torch to refuse
    return _sliced(input, dim, start, start + length)


def _sliced(x: Any, dim: int, begin: int, end: int) -> Any:
    return x[(slice(None),) * dim + (slice(begin, end),)]


def flip(input: Any, *places: Any, dims: Any = None) -> Any:
    return ltorch.flip(input, *(places if dims is None else (dims,)))


def roll(input: Any, shifts: Any, dims: Any = None) -> Any:
    """Elements past the end come in at the beginning; without dims, of all of them in a row."""
    shifts, dims = _tuple(shifts), _tuple(dims)
    if not dims and len(shifts) == 1:
        return ltorch.reshape(roll(ltorch.flatten(input), shifts, 0), input.shape)
    if len(shifts) != len(dims) or not input.ndim:
        return NotImplemented
    for shift, dim in zip(shifts, dims, strict=True):
        input = _rolled(input, shift, canonicalize_dim(input.ndim, dim))
    return input


def _rolled(x: Any, shift: int, dim: int) -> Any:
    size = x.shape[dim]
    cut = -shift % size
    return x if not cut else ltorch.cat([_sliced(x, dim, cut, size), _sliced(x, dim, 0, cut)], dim)


def tile(input: Any, *dims: Any) -> Any:
    """As repeat, with ones in front of too few numbers."""
    dims = _tuple(dims[0]) if len(dims) == 1 else dims
    if 0 in dims:
        return NotImplemented
    return ltorch.repeat(input, *(1,) * (input.ndim - len(dims)), *dims)


def ravel(input: Any) -> Any:
    return ltorch.flatten(input)


def reshape_as(input: Any, other: Any) -> Any:
    return ltorch.reshape(input, other.shape)


def split_with_sizes(input: Any, split_sizes: Sequence[int], dim: int = 0) -> Any:
    return ltorch.split(input, tuple(split_sizes), dim)


def constant_pad_nd(input: Any, pad: Sequence[int], value: Any = 0) -> Any:
    return ltorch.pad(input, tuple(pad), "constant", value)


def diff(
    input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None
) -> Any:
    """x[1:] - x[:-1], n times."""
    if not input.ndim or n < 0 or "bool" in str(input.dtype):
        return NotImplemented
    dim = canonicalize_dim(input.ndim, dim)
    parts = [one for one in (prepend, input, append) if one is not None]
    if any(one.ndim != input.ndim for one in parts):
        return NotImplemented
    x = ltorch.cat(parts, dim) if len(parts) > 1 else input
    for _ in range(min(n, x.shape[dim])):
        size = x.shape[dim]
        x = ltorch.sub(_sliced(x, dim, min(1, size), size), _sliced(x, dim, 0, max(size - 1, 0)))
    return x


def trace(input: Any) -> Any:
    return ltorch.sum(ltorch.diagonal(input)) if input.ndim == 2 else NotImplemented


def pixel_shuffle(input: Any, upscale_factor: int) -> Any:
    """[..., C r r, H, W] -> [..., C, H r, W r]"""
    r = upscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-3] % (r * r):
        return NotImplemented
    *batch, channels, height, width = input.shape
    apart = ltorch.reshape(input, (*batch, channels // r**2, r, r, height, width))
    moved = ltorch.clone(ltorch.permute(apart, _last(len(batch), 0, 3, 1, 4, 2)))
    return ltorch.reshape(moved, (*batch, channels // r**2, height * r, width * r))


def pixel_unshuffle(input: Any, downscale_factor: int) -> Any:
    """[..., C, H r, W r] -> [..., C r r, H, W]"""
    r = downscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-1] % r or input.shape[-2] % r:
        return NotImplemented
    *batch, channels, height, width = input.shape
    apart = ltorch.reshape(input, (*batch, channels, height // r, r, width // r, r))
    moved = ltorch.clone(ltorch.permute(apart, _last(len(batch), 0, 2, 4, 1, 3)))
    return ltorch.reshape(moved, (*batch, channels * r**2, height // r, width // r))


def channel_shuffle(input: Any, groups: int) -> Any:
    """[N, g C, ...] -> [N, C g, ...]: the first channels of all groups, then the second."""
    if input.ndim < 3 or groups < 1 or input.shape[1] % groups:
        return NotImplemented
    batch, channels, *rest = input.shape
    apart = ltorch.reshape(input, (batch, groups, channels // groups, *rest))
    return ltorch.reshape(ltorch.clone(ltorch.transpose(apart, 1, 2)), input.shape)


def _last(batch: int, *order: int) -> tuple[int, ...]:
    """The order of the last dimensions, behind the batch's."""
    return (*range(batch), *(batch + dim for dim in order))


def new_zeros(input: Any, *size: Any, **kwargs: Any) -> Any:
    return _filled(input, size, 0, **kwargs)


def new_ones(input: Any, *size: Any, **kwargs: Any) -> Any:
    return _filled(input, size, 1, **kwargs)


def new_full(input: Any, size: Any, fill_value: Any, **kwargs: Any) -> Any:
    return _filled(input, size, fill_value, **kwargs)


def _filled(
    like: Any, size: Any, value: Any, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Any:  # fmt: skip
    """A tensor of that size, of the type and on the device of another unless said."""
    if requires_grad or isinstance(value, ltorch.TensorProxy):
        return NotImplemented
    size = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    kind = like.dtype if dtype is None else dtype
    return ltorch.full(size, value, dtype=kind, device=like.device if device is None else device)


def _tuple(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Sequence) else (given,)


MOVEMENT = {
    "Tensor.new_full": new_full,
    "Tensor.new_ones": new_ones,
    "Tensor.new_zeros": new_zeros,
    "Tensor.reshape_as": reshape_as,
    "torch.nn.functional.channel_shuffle": channel_shuffle,
    "torch.constant_pad_nd": constant_pad_nd,
    "torch.diff": diff,
    "torch.flip": flip,
    "torch.fliplr": lambda input: ltorch.flip(input, 1) if input.ndim > 1 else NotImplemented,
    "torch.flipud": lambda input: ltorch.flip(input, 0) if input.ndim else NotImplemented,
    "torch.moveaxis": ltorch.movedim,
    "torch.narrow": narrow,
    "torch.nn.functional.pixel_shuffle": pixel_shuffle,
    "torch.nn.functional.pixel_unshuffle": pixel_unshuffle,
    "torch.ravel": ravel,
    "torch.roll": roll,
    "torch.split_with_sizes": split_with_sizes,
    "torch.swapaxes": swapaxes,
    "torch.swapdims": swapaxes,
    "torch.tile": tile,
    "torch.trace": trace,
}

# Those that torch answers with a view.
VIEWING = frozenset(
    {
        "Tensor.reshape_as", "torch.moveaxis", "torch.narrow", "torch.ravel",
        "torch.split_with_sizes", "torch.swapaxes", "torch.swapdims",
    }
)  # fmt: skip
