# SPDX-License-Identifier: Apache-2.0
"""Samples of the ops that read or write where a tensor of indices says, and of sorts.

Each row meets every type of the source in one fusion, both types of the indices, and the layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_fuser.ir.dtypes import COMPUTED, DataType
from thunder_fuser.runtime.torch_types import to_torch_dtype

D = DataType
INDEX_TYPES = (torch.int64, torch.int32)
# (row, what is special, inputs, the call)
Sampled = tuple[str, str, tuple[torch.Tensor, ...], Callable[..., Any]]


def values(dtype: DataType, *shape: int) -> torch.Tensor:
    """Normal numbers, or small integers; the same on each call."""
    generator = torch.Generator().manual_seed(len(shape))
    made = torch.randn(shape, generator=generator) * 3
    return (made.abs() if dtype is D.UInt8 else made).to(to_torch_dtype(dtype))


def indices(
    size: int, *shape: int, dtype: torch.dtype = torch.int64, distinct: bool = False
) -> torch.Tensor:
    """Indices of an axis, some of them equal unless they are to be distinct."""
    generator = torch.Generator().manual_seed(size)
    if distinct:
        return torch.randperm(size, generator=generator)[: shape[0]].to(dtype)
    return torch.randint(0, size, shape, generator=generator).to(dtype)


def layouts(x: torch.Tensor) -> list[torch.Tensor]:
    """The same matrix: dense, transposed, every second row and column of a larger one, moved by
    one element, and one row or column of it expanded."""
    rows, columns = x.shape
    memory = torch.zeros(rows * columns + 1, dtype=x.dtype)
    wide = torch.zeros(2 * rows, 2 * columns, dtype=x.dtype)
    return [
        x,
        x.t().contiguous().t(),
        wide[::2, ::2].copy_(x),
        memory[1:].view(rows, columns).copy_(x),
        x[:1].expand(rows, columns),
        x[:, :1].expand(rows, columns),
    ]


def _each(call: Callable[..., Any], count: int) -> Callable[..., list[Any]]:
    """Calls on the operands taken `count` at a time; results of several values are joined."""

    def body(fd: Any, *operands: Any) -> list[Any]:
        made: list[Any] = []
        for at in range(0, len(operands), count):
            result = call(fd, *operands[at : at + count])
            made += result if isinstance(result, tuple) else [result]
        return made

    return body


def _of_types(
    row: str, make: Callable[[DataType, torch.dtype], Sequence[torch.Tensor]],
    call: Callable[..., Any], types: Sequence[DataType] = tuple(COMPUTED),
) -> Sampled:  # fmt: skip
    inputs = [make(d, INDEX_TYPES[at % 2]) for at, d in enumerate(types)]
    count = len(inputs[0])
    return row, "dtypes", tuple(t for group in inputs for t in group), _each(call, count)


def _reads() -> list[Sampled]:
    x = values(D.Float, 6, 10)
    rows, line = indices(6, 4), indices(10, 6, 3)
    of_columns = indices(10, 6, 1)
    words = indices(50, 3, 7)
    selects = _each(lambda fd, a, i: fd.ops.index_select(a, i, 0), 2)
    picks = _each(lambda fd, a, i: fd.ops.take_along_axis(a, i, 1), 2)
    weights = values(D.Float, 50, 8)
    return [
        _of_types("index_select", lambda d, i: (values(d, 6, 10), indices(10, 4, dtype=i)),
                  lambda fd, a, i: fd.ops.index_select(a, i, 1)),
        _of_types("take_along_axis", lambda d, i: (values(d, 6, 10), indices(6, 4, 10, dtype=i)),
                  lambda fd, a, i: fd.ops.take_along_axis(a, i, 0)),
        _of_types("gather", lambda d, i: (values(d, 6, 10), indices(10, 3, 12, dtype=i)),
                  lambda fd, a, i: fd.ops.gather(a, i, -1)),
        _of_types("embedding_fwd", lambda d, i: (indices(50, 3, 7, dtype=i), values(d, 50, 8)),
                  lambda fd, i, a: fd.ops.embedding_fwd(i, a)),
        ("index_select", "layouts", tuple(t for a in layouts(x) for t in (a, rows)), selects),
        ("take_along_axis", "layouts", tuple(t for a in layouts(x) for t in (a, line)), picks),
        ("take_along_axis", "layouts of the indices",
         tuple(t for i in layouts(line) for t in (x, i)), picks),
        ("take_along_axis", "one of a row", (x, of_columns), picks),
        ("take_along_axis", "sizes of 1", (x[:1], line, x, line[:1]), picks),
        ("index_select", "one index", (x, rows[0], x, rows[:1]), selects),
        ("index_select", "no index", (x, rows[:0]), selects),
        ("index_select", "a source of one row", (x[:1], rows * 0), selects),
        ("index_select", "a number", (x,), lambda fd, a: fd.ops.index_select(a, 3, 1)),
        ("gather", "nothing", (x, line[:0]), _each(lambda fd, a, i: fd.ops.gather(a, i, 1), 2)),
        ("embedding_fwd", "wide rows of bf16", (words, values(D.BFloat16, 50, 64)),
         lambda fd, i, a: fd.ops.mul(fd.ops.embedding_fwd(i, a, padding_idx=3), 2.0)),
        ("embedding_fwd", "misaligned rows", (words, layouts(weights)[3]),
         lambda fd, i, a: fd.ops.neg(fd.ops.embedding_fwd(i, a))),
        ("embedding_fwd", "transposed weights", (words, layouts(weights)[1]),
         lambda fd, i, a: fd.ops.neg(fd.ops.embedding_fwd(i, a))),
        ("flip", "every axis", (values(D.Float, 3, 4, 5),), _flips),
        ("flip", "sizes of 1 and 0", (x[:1], x[:0]), _each(lambda fd, a: fd.ops.flip(a, [0]), 1)),
        ("slice", "with strides", (x, x.t()),
         _each(lambda fd, a: fd.ops.slice(a, [1, 0], [6, 6], [2, 4]), 1)),
    ]  # fmt: skip


def _flips(fd: Any, x: Any) -> list[Any]:
    return [fd.ops.flip(fd.ops.neg(x), dims) for dims in ([0], [-1], [0, 2], [0, 1, 2])]


def _around(call: Callable[..., Any]) -> Callable[..., Any]:
    """With a fused op before and after the torch call."""

    def body(fd: Any, first: Any, *rest: Any) -> Any:
        made = call(fd, fd.ops.set(first), *rest)
        return tuple(map(fd.ops.set, made)) if isinstance(made, tuple) else fd.ops.set(made)

    return body


def _writes() -> list[Sampled]:
    number = [d for d in COMPUTED if d is not D.Bool]
    floats = [D.Double, D.Float]

    def written(d: DataType, i: torch.dtype) -> tuple[torch.Tensor, ...]:
        return values(d, 6, 5), indices(6, 4, dtype=i, distinct=True), values(d, 4, 5)

    def scattered(d: DataType, i: torch.dtype) -> tuple[torch.Tensor, ...]:
        return values(d, 6, 5), indices(6, 4, 1, dtype=i).expand(4, 5), values(d, 4, 5)

    def once(d: DataType, i: torch.dtype) -> tuple[torch.Tensor, ...]:
        target, index, source = written(d, i)
        return target, index[:, None].expand(4, 5), source

    def numbered(fd: Any, a: Any, i: Any) -> Any:
        return fd.ops.scatter(fd.ops.neg(a), i, 2.5, 1)

    return [
        _of_types("scatter", once, _around(lambda fd, *t: fd.ops.scatter(*t, 0))),
        ("scatter", "a number", (values(D.Float, 4, 6), indices(6, 4, 2)), numbered),
        _of_types("scatter_add", scattered, _around(lambda fd, *t: fd.ops.scatter_add(*t, 0)),
                  number),
        _of_types("index_add", written, _around(lambda fd, *t: fd.ops.index_add(*t, 0))),
        _of_types("index_copy", written, _around(lambda fd, *t: fd.ops.index_copy(*t, 0))),
        _of_types("index_put", written, _around(lambda fd, *t: fd.ops.index_put(*t))),
        _of_types("index_put_accumulate", written,
                  _around(lambda fd, *t: fd.ops.index_put_accumulate(*t))),
        _of_types("embedding_backward", lambda d, i: (values(d, 3, 5), indices(7, 3, dtype=i)),
                  _around(lambda fd, *t: fd.ops.embedding_backward(*t, 7, 2)), floats),
        _of_types("argsort", lambda d, i: (values(d, 6, 5),),
                  _around(lambda fd, a: fd.ops.argsort(a, 0, True, True))),
        _of_types("sort", lambda d, i: (values(d, 6, 5),),
                  _around(lambda fd, a: fd.ops.sort(a, -1, False, True))),
        _of_types("topk", lambda d, i: (values(d, 6, 5),),
                  _around(lambda fd, a: fd.ops.topk(a, 3, 0, True, True)), floats),
        ("sort", "layouts", tuple(layouts(values(D.Float, 6, 5))),
         _each(_around(lambda fd, a: fd.ops.sort(a, 0, True, True)), 1)),
        ("topk", "sizes of 1 and 0", (values(D.Float, 1, 5), values(D.Float, 0, 5)),
         _each(_around(lambda fd, a: fd.ops.topk(a, 2, 1, False, True)), 1)),
    ]  # fmt: skip


def index_samples() -> list[Sampled]:
    """All of them."""
    return [*_reads(), *_writes()]
