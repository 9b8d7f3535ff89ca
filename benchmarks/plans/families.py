# SPDX-License-Identifier: Apache-2.0
"""Fusions of any number of expressions, in the shapes that graphs grow in: for planning time.

Each is planned for [4096, 1024] floats (rope for [4, 8, 128, 64]).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.frontend.values import Tensor

Graph = tuple[FusionDefinition, list[torch.Tensor]]
ROWS, COLUMNS = 4096, 1024


def _matrix(fd: FusionDefinition) -> Tensor:
    return fd.define_tensor(shape=[-1, -1], contiguity=True)


def _meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def chain(ops: int) -> Graph:
    """y = sin(1.5 * y), again and again."""
    fd = FusionDefinition()
    y = _matrix(fd)
    for at in range(ops):
        y = fd.ops.sin(y) if at % 2 else fd.ops.mul(y, 1.5)
    fd.add_output(y)
    return fd, [_meta(ROWS, COLUMNS)]


def diamonds(ops: int) -> Graph:
    """y = -y + exp(y): every value is read twice."""
    fd = FusionDefinition()
    y = _matrix(fd)
    for _ in range(ops // 3):
        y = fd.ops.add(fd.ops.neg(y), fd.ops.exp(y))
    fd.add_output(y)
    return fd, [_meta(ROWS, COLUMNS)]


def ladder(ops: int) -> Graph:
    """a, b = a + b, a * b: two strands, joined at every step."""
    fd = FusionDefinition()
    a = b = _matrix(fd)
    for _ in range(ops // 2):
        a, b = fd.ops.add(a, b), fd.ops.mul(a, b)
    fd.add_output(a)
    fd.add_output(b)
    return fd, [_meta(ROWS, COLUMNS)]


def rope(ops: int) -> Graph:
    """Heads that share an input and the tables: each turns its halves, a result each."""
    fd = FusionDefinition()
    x = fd.define_tensor(shape=[-1] * 4, contiguity=True)
    cos, sin = _matrix(fd), _matrix(fd)
    for head in range(ops // 8):
        y = fd.ops.mul(x, float(head + 1))
        left = fd.ops.slice(y, [0, 0, 0, 0], [4, 8, 128, 32])
        right = fd.ops.slice(y, [0, 0, 0, 32], [4, 8, 128, 64])
        turned = fd.ops.cat([fd.ops.neg(right), left], 3)
        fd.add_output(fd.ops.add(fd.ops.mul(y, cos), fd.ops.mul(turned, sin)))
    return fd, [_meta(4, 8, 128, 64), _meta(128, 64), _meta(128, 64)]


def residual(ops: int) -> Graph:
    """x = x + tanh(layer_norm(x)): what a stack of blocks is without its matmuls."""
    fd = FusionDefinition()
    x = _matrix(fd)
    for _ in range(ops // 11):
        variance, mean = fd.ops.var_mean(x, [1], 0, keepdim=True)
        unit = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
        x = fd.ops.add(x, fd.ops.tanh(unit))
    fd.add_output(x)
    return fd, [_meta(ROWS, COLUMNS)]


def mixed(ops: int) -> Graph:
    """Sums over rows and over columns in turn: as many segments as sums."""
    fd = FusionDefinition()
    x = _matrix(fd)
    for at in range(ops // 5):
        total = fd.ops.sum(x, [at % 2], keepdim=True)
        x = fd.ops.mul(fd.ops.add(fd.ops.exp(x), total), 0.5)
    fd.add_output(x)
    return fd, [_meta(ROWS, COLUMNS)]


FAMILIES: Mapping[str, Callable[[int], Graph]] = {
    one.__name__: one for one in (chain, diamonds, ladder, rope, residual, mixed)
}
