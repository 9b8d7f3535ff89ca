# SPDX-License-Identifier: Apache-2.0
"""Functions that move elements, or make tensors.

    roll(x[N], 2)              ->  cat([x[N-2:], x[:N-2]])
    pixel_shuffle(x, r)        ->  [N, C, r, r, H, W]  ->  [N, C, H, r, W, r]  ->  [N, C, H r, W r]
    vstack([a[3], b[3]])       ->  cat([reshape(a, (1, 3)), reshape(b, (1, 3))], 0)
    take_along_dim(x[3], i, 0) ->  take_along_dim(x, remainder(i, 3), 0)

Thunder leaves stacks to torch, and treats their results as without gradients; and it gives the
gradient of index_put to the indices. So these have gradients here.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import thunder.torch as ltorch
import torch
from thunder import clang
from thunder.core import dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.trace import detached_trace
from thunder.core.transforms import sum_to
from thunder.core.utils import canonicalize_dim

from thunder_fuser.errors import ThunderLimitError
from thunder_fuser.executors.record.result_dtypes import may_differ
from thunder_fuser.executors.support.dtypes import ANY, FLOATS, data_type, is_known_number
from thunder_fuser.functions.define import (
    Backward,
    Composite,
    Table,
    noted,
    promoted,
    rewrites,
    with_gradient,
)
from thunder_fuser.trace.op import Reject

Dims = tuple[int, ...]


def _tuple(numbers: Any) -> tuple[Any, ...]:
    if numbers is None:
        return ()
    return tuple(numbers) if isinstance(numbers, Sequence) else (numbers,)


def swapaxes(input: Any, dim0: int, dim1: int) -> Any:
    return ltorch.transpose(input, dim0, dim1) if input.ndim else NotImplemented


def narrow(input: Any, dim: int, start: int, length: int) -> Any:
    if not isinstance(start, int) or not isinstance(length, int):
        return NotImplemented
    dim = canonicalize_dim(input.ndim, dim)
    start += input.shape[dim] if start < 0 else 0
    if not 0 <= start <= start + length <= input.shape[dim]:
        return NotImplemented
    return _sliced(input, dim, start, start + length)


def take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Any:
    """Torch takes every index modulo the size, but none of a flattened tensor."""
    if not isinstance(indices, TensorProxy) or indices.dtype is not dtypes.int64:
        return NotImplemented
    if dim is None:
        return ltorch.take_along_dim(ltorch.flatten(input), ltorch.flatten(indices), 0)
    if input.ndim != indices.ndim or not input.ndim:
        return NotImplemented
    dim = canonicalize_dim(input.ndim, dim)
    others = torch.broadcast_shapes(*(_resized(x.shape, dim, 1) for x in (input, indices)))
    input, indices = (
        ltorch.expand(x, _resized(others, dim, x.shape[dim])) for x in (input, indices)
    )
    size = input.shape[dim]
    return ltorch.take_along_dim(input, ltorch.remainder(indices, size) if size else indices, dim)


def _resized(shape: Dims, dim: int, size: int) -> Dims:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _sliced(x: Any, dim: int, begin: int, end: int) -> Any:
    return x[(slice(None),) * dim + (slice(begin, end),)]


def roll(input: Any, shifts: Any, dims: Any = None) -> Any:
    """Elements shifted past the end come in at the beginning; without dims, x is one long row."""
    shifts, dims = _tuple(shifts), _tuple(dims)
    if not dims and len(shifts) == 1:
        return ltorch.reshape(roll(ltorch.flatten(input), shifts, 0), input.shape)
    if len(shifts) != len(dims) or not input.ndim:
        return NotImplemented
    for shift, along in zip(shifts, dims, strict=True):
        dim = canonicalize_dim(input.ndim, along)
        size = input.shape[dim]
        if cut := -shift % size:
            ends = [_sliced(input, dim, cut, size), _sliced(input, dim, 0, cut)]
            input = ltorch.cat(ends, dim)
    return input


def windows(a: Any, /, dimension: int, size: int, step: int) -> Any:
    """x.unfold(0, 2, 1) of x[4]  ->  x[[0, 1, 1, 2, 2, 3]] as [3, 2]; torch makes a view.

    Thunder gives the method and torch.nn.functional.unfold one name, and runs the latter for both.
    """
    with detached_trace():  # raises what torch would
        prims.unfold.meta(a, dimension, size, step)
    if not a.ndim:
        return ltorch.unsqueeze(a, 0)[:size]
    dim = canonicalize_dim(a.ndim, dimension)
    starts = range(0, a.shape[dim] - size + 1, step)
    places = ltorch.unsqueeze(ltorch.arange(len(starts), device=a.device) * step, 1)
    places = ltorch.flatten(places + ltorch.arange(size, device=a.device))
    shape = (*a.shape[:dim], len(starts), size, *a.shape[dim + 1 :])
    taken = ltorch.reshape(ltorch.index_select(a, dim, places), shape)
    return ltorch.movedim(taken, dim + 1, -1) if a.ndim > 1 else taken


def tile(input: Any, *dims: Any) -> Any:
    """As repeat, with ones before the numbers if these are too few."""
    dims = _tuple(dims[0]) if len(dims) == 1 else dims
    return repeat(input, *(1,) * (input.ndim - len(dims)), *dims)


def repeat(input: Any, *repeats: Any) -> Any:
    """Thunder's function, but results without elements do not require gradients in Thunder."""
    counts = _tuple(repeats[0]) if len(repeats) == 1 else repeats
    if 0 not in counts:
        return ltorch.repeat(input, *counts)
    sizes = (1,) * (len(counts) - input.ndim) + tuple(input.shape)
    none = ltorch.reshape(input, (-1,))[:0]
    return ltorch.reshape(none, tuple(map(operator.mul, sizes, counts)))


def diff(
    input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None
) -> Any:
    """x[1:] - x[:-1], n times."""
    if not input.ndim or n < 0 or "bool" in str(input.dtype):
        return NotImplemented
    dim = canonicalize_dim(input.ndim, dim)
    parts = [part for part in (prepend, input, append) if part is not None]
    if any(part.ndim != input.ndim for part in parts):
        return NotImplemented
    x = ltorch.cat(parts, dim) if len(parts) > 1 else input
    for _ in range(min(n, x.shape[dim])):
        size = x.shape[dim]
        x = _sliced(x, dim, min(1, size), size) - _sliced(x, dim, 0, max(size - 1, 0))
    return x


def pixel_shuffle(input: Any, upscale_factor: int) -> Any:
    """[..., C r r, H, W] -> [..., C, H r, W r]"""
    r = upscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-3] % (r * r):
        return NotImplemented
    *batch, channels, height, width = input.shape
    split = (*batch, channels // r**2, r, r, height, width)
    return _shuffled(input, split, (0, 3, 1, 4, 2), (channels // r**2, height * r, width * r))


def pixel_unshuffle(input: Any, downscale_factor: int) -> Any:
    """[..., C, H r, W r] -> [..., C r r, H, W]"""
    r = downscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-1] % r or input.shape[-2] % r:
        return NotImplemented
    *batch, channels, height, width = input.shape
    split = (*batch, channels, height // r, r, width // r, r)
    return _shuffled(input, split, (0, 2, 4, 1, 3), (channels * r**2, height // r, width // r))


def channel_shuffle(input: Any, groups: int) -> Any:
    """[N, g C, ...] -> [N, C g, ...]: the first channels of all groups, then all second ones."""
    if input.ndim < 3 or groups < 1 or input.shape[1] % groups:
        return NotImplemented
    batch, channels, *rest = input.shape
    split, order = (batch, groups, channels // groups, *rest), (1, 0, *range(2, input.ndim))
    return _shuffled(input, split, order, input.shape[1:])


def _shuffled(x: Any, split: Dims, order: Dims, shape: Dims) -> Any:
    """x reshaped to `split`, with its last dimensions in this order, then reshaped to `shape`."""
    batch = len(split) - len(order)
    places = (*range(batch), *(batch + dim for dim in order))
    moved = ltorch.clone(ltorch.permute(ltorch.reshape(x, split), places))
    return ltorch.reshape(moved, (*split[:batch], *shape))


def new_full(
    input: Any, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Any:  # fmt: skip
    """A full tensor; type and device are by default those of `input`, as torch has them."""
    if requires_grad or isinstance(fill_value, TensorProxy) or (not dtype and may_differ([input])):
        return NotImplemented
    size = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    dtype = dtype or input.dtype
    return ltorch.full(size, fill_value, dtype=dtype, device=device or input.device)


def eye(
    n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, **others: Any
) -> Any:
    """eye(2, 3)  ->  arange(2)[:, None] == arange(3)[None, :], as numbers."""
    if refused := [name for name, value in others.items() if id(value) not in _PLAIN]:
        raise ThunderLimitError(
            "torch.eye", expected="n, m, dtype and device", got=", ".join(refused),
            do="make the tensor outside of the jitted function, and pass it as an argument",
        )  # fmt: skip
    rows, columns = (ltorch.arange(size, device=device) for size in (n, n if m is None else m))
    is_one = ltorch.eq(ltorch.unsqueeze(rows, 1), ltorch.unsqueeze(columns, 0))
    return ltorch.to(is_one, torch.get_default_dtype() if dtype is None else dtype)


def tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """tensor([0.5])  ->  of torch's type for such numbers; Thunder's gives way to other types."""
    kinds = {*map(type, _numbers(data))}
    if dtype is not None or not kinds or not kinds <= {bool, int, float}:
        return NotImplemented
    kind = torch.get_default_dtype() if float in kinds else torch.int64
    return ltorch.tensor(data, dtype=kind if kinds - {bool} else torch.bool, device=device)


def _numbers(data: Any) -> Iterator[Any]:
    if not isinstance(data, Sequence):
        yield data.value if is_known_number(data) else data
        return
    for each in data:
        yield from _numbers(each)


def embedding(input: Any, weight: Any, padding_idx: Any = None, *others: Any, **named: Any) -> Any:
    """embedding(i32, w[5, 2], -1)  ->  embedding(i64, w, 4): -1 is none where gradients are."""
    if not isinstance(padding_idx, int) or (padding_idx >= 0 and input.dtype is dtypes.int64):
        return NotImplemented
    at = padding_idx + weight.shape[0] * (padding_idx < 0)
    return ltorch.embedding(ltorch.to(input, dtypes.int64), weight, at, *others, **named)


_PLAIN = {*map(id, (None, False, torch.strided))}  # others that change nothing; a proxy's == traces


def _stack(dim: int, ones: Mapping[int, tuple[int, int]]) -> Composite:
    """A cat along `dim`, or along the last axis, of tensors with ones added to their shapes.

    ones: {rank: (the ones before the shape, the ones after it)}
    """

    def shape_of(tensor: TensorProxy) -> Dims:
        before, after = ones.get(tensor.ndim, (0, 0))
        return (*(1,) * before, *tensor.shape, *(1,) * after)

    def forward(tensors: Sequence[Any]) -> tuple[Any, Backward]:
        dtype, along = promoted(*tensors), min(dim, len(shape_of(tensors[0])) - 1)
        alike = [ltorch.to(_shaped(tensor, shape_of(tensor)), dtype) for tensor in tensors]

        def backward(g: Any) -> Any:
            parts = ltorch.split(g, [x.shape[along] for x in alike], along)
            for tensor, part in zip(tensors, parts, strict=True):
                if data_type(tensor.dtype) in FLOATS:
                    yield tensor, _shaped(part, tensor.shape)

        return ltorch.cat(alike, along), backward

    def refuses(tensors: Any, **named: Any) -> Reject | None:
        if named or not isinstance(tensors, Sequence):
            return Reject("a stack of something other than a list of tensors")
        plain = all(type(x) is TensorProxy for x in tensors)
        taken = plain and all(data_type(x.dtype) in ANY and x.numel for x in tensors)
        return None if taken else Reject("a stack of complex, empty or unusual tensors")

    return with_gradient(refuses, forward)


def _shaped(x: Any, shape: Dims) -> Any:
    """The tensor in a shape; itself if it has the shape."""
    return x if tuple(x.shape) == tuple(shape) else ltorch.reshape(x, shape)


def _index_put(
    x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> tuple[Any, Backward]:
    def backward(g: Any) -> Any:
        yield x, g if accumulate else ltorch.index_put(g, indices, ltorch.zeros_like(values))
        yield values, sum_to(g[tuple(indices)], values.shape)

    return ltorch.index_put(x, indices, values, accumulate), backward


MOVEMENT: Table = {
    **rewrites(
        "torch.", diff, roll, take_along_dim, tensor, tile, ltorch.repeat_interleave,
        constant_pad_nd=lambda input, pad, value=0: ltorch.pad(input, tuple(pad), value=value),
        flip=lambda input, *places, dims=None: ltorch.flip(
            input, *(places if dims is None else (dims,))
        ),
        fliplr=lambda input: ltorch.flip(input, 1) if input.ndim > 1 else NotImplemented,
        flipud=lambda input: ltorch.flip(input, 0) if input.ndim else NotImplemented,
        trace=lambda input: ltorch.sum(input.diagonal()) if input.ndim == 2 else NotImplemented,
    ),
    **rewrites("torch.nn.functional.", channel_shuffle, embedding, pixel_shuffle, pixel_unshuffle),
    **rewrites("torch.Tensor.", repeat),
    **rewrites(
        "Tensor.", new_full,
        new_ones=lambda input, *size, **options: new_full(input, size, 1, **options),
        new_zeros=lambda input, *size, **options: new_full(input, size, 0, **options),
    ),
    **rewrites(
        "torch.", narrow, swapaxes, may_be_view=True,
        moveaxis=ltorch.movedim,
        ravel=lambda input: ltorch.flatten(input, 0, -1),
        squeeze=lambda input, dim=None: (
            input if input.ndim == 0 and dim in (None, 0, -1) else NotImplemented
        ),
        split_with_sizes=lambda input, split_sizes, dim=0: ltorch.split(
            input, tuple(split_sizes), dim
        ),
        swapdims=swapaxes,
    ),
    **rewrites(
        "Tensor.", may_be_view=True,
        reshape_as=lambda input, other: ltorch.reshape(input, other.shape),
    ),
    "torch.column_stack": _stack(1, {0: (1, 1), 1: (0, 1)}),
    "torch.dstack": _stack(2, {0: (3, 0), 1: (1, 1), 2: (0, 1)}),
    "torch.hstack": _stack(1, {0: (1, 0)}),
    "torch.row_stack": _stack(0, {0: (2, 0), 1: (1, 0)}),
    "torch.vstack": _stack(0, {0: (2, 0), 1: (1, 0)}),
    "torch.index_put": with_gradient(lambda *_, **__: None, _index_put, clang.index_put),
}  # fmt: skip
# Thunder has no name for these: {torch's function: what is called in its place}
UNNAMED = {
    torch.eye: noted(eye), torch.Tensor.unfold: noted(windows), ltorch.unfold: noted(windows),
}  # fmt: skip
