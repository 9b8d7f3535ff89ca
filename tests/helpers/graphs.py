# SPDX-License-Identifier: Apache-2.0
"""Graphs that several tests use: definitions over float32 or bfloat16 rows."""

from __future__ import annotations

import torch

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.options import compile_options
from thunder_fuser.presegment import run_passes
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.runtime.torch_types import to_torch_dtype

Graph = tuple[FusionDefinition, list[torch.Tensor]]


def rows(*shape: int, dtype: DataType = DataType.Float) -> tuple[FusionDefinition, Tensor]:
    """A definition with one dense input of these sizes, symbolic."""
    fd = FusionDefinition()
    return fd, fd.define_tensor(shape=[-1] * len(shape), contiguity=True, dtype=dtype)


def after_passes(graph: Graph) -> Fusion:
    """The fusion for its arguments, after the passes that depend on no target."""
    fd, values = graph
    known = specialise(fd.fusion, input_keys(fd.fusion, tuple(values)))
    return run_passes(known, compile_options())


def meta(*shape: int, dtype: DataType = DataType.Float) -> torch.Tensor:
    """An argument without memory: enough to plan."""
    return torch.empty(shape, dtype=to_torch_dtype(dtype), device="meta")


def biased(*shape: int, dtype: DataType = DataType.Float) -> Graph:
    """relu(x + bias) over the last axis."""
    fd, x = rows(*shape, dtype=dtype)
    bias = fd.define_tensor(shape=[-1], contiguity=[True], dtype=dtype)
    fd.add_output(fd.ops.cast(fd.ops.relu(fd.ops.add(x, bias)), dtype))
    return fd, [meta(*shape, dtype=dtype), meta(shape[-1], dtype=dtype)]


def summed(*shape: int, dims: list[int], dtype: DataType = DataType.Float) -> Graph:
    """sum(exp(x)) over axes."""
    fd, x = rows(*shape, dtype=dtype)
    fd.add_output(fd.ops.cast(fd.ops.sum(fd.ops.exp(x), dims), dtype))
    return fd, [meta(*shape, dtype=dtype)]


def softmax(*shape: int, dtype: DataType = DataType.Float) -> Graph:
    """Over the last axis."""
    fd, x = rows(*shape, dtype=dtype)
    powers = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [-1], keepdim=True)))
    total = fd.ops.sum(powers, [-1], keepdim=True)
    fd.add_output(fd.ops.cast(fd.ops.truediv(powers, total), dtype))
    return fd, [meta(*shape, dtype=dtype)]


def layer_norm(*shape: int, dtype: DataType = DataType.Float) -> Graph:
    """Over the last axis, with weight and bias."""
    fd, x = rows(*shape, dtype=dtype)
    weight, bias = (fd.define_tensor([-1], [True], dtype) for _ in range(2))
    variance, mean = fd.ops.var_mean(x, [-1], 0, keepdim=True)
    scaled = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
    fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.mul(scaled, weight), bias), dtype))
    row = meta(shape[-1], dtype=dtype)
    return fd, [meta(*shape, dtype=dtype), row, row]


def scanned(*shape: int, dim: int, op: str = "cumsum") -> Graph:
    """relu of a scan of exp(x)."""
    fd, x = rows(*shape)
    fd.add_output(fd.ops.relu(getattr(fd.ops, op)(fd.ops.exp(x), dim)))
    return fd, [meta(*shape)]


def transposed(rows_: int, columns: int) -> Graph:
    """x.T + y, and its row sums: each tensor has the axes in an order of its own."""
    fd, x = rows(rows_, columns)
    y = fd.define_tensor(shape=[-1, -1], contiguity=True)
    total = fd.ops.add(fd.ops.permute(x, [1, 0]), y)
    fd.add_output(total)
    fd.add_output(fd.ops.sum(total, [1]))
    return fd, [meta(rows_, columns), meta(columns, rows_)]


def turned(rows_: int, columns: int, dtype: DataType = DataType.Float) -> Graph:
    """relu(x.T + y): x lies across y and the result."""
    fd, x = rows(rows_, columns, dtype=dtype)
    y = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype)
    total = fd.ops.relu(fd.ops.add(fd.ops.permute(x, [1, 0]), y))
    fd.add_output(fd.ops.cast(total, dtype))
    return fd, [meta(rows_, columns, dtype=dtype), meta(columns, rows_, dtype=dtype)]


def group_norm(
    shape: tuple[int, ...],
    groups: int,
    dtype: DataType = DataType.BFloat16,
    *,
    with_statistics: bool = False,
) -> Graph:
    """silu of a group norm of images [n, h, w, c], with weight and bias; mean and variance too."""
    fd, x = rows(*shape, dtype=dtype)
    weight, bias = (fd.define_tensor([-1], [True], dtype) for _ in range(2))
    ops, split = fd.ops, [groups, shape[-1] // groups]
    wide = ops.reshape(ops.cast(x, DataType.Float), [*shape[:-1], *split])
    variance, mean = ops.var_mean(wide, [1, 2, 4], 0, keepdim=True)
    unit = ops.mul(ops.sub(wide, mean), ops.rsqrt(ops.add(variance, 1e-5)))
    scale, shift = (
        ops.broadcast(ops.reshape(v, split), [True, True, True, False, False])
        for v in (weight, bias)
    )
    y = ops.silu(ops.reshape(ops.add(ops.mul(unit, scale), shift), list(shape)))
    fd.add_output(ops.cast(y, dtype))
    for one in (variance, mean) if with_statistics else ():
        fd.add_output(one)
    row = meta(shape[-1], dtype=dtype)
    return fd, [meta(*shape, dtype=dtype), row, row]
