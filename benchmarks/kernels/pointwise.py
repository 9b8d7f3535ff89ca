# SPDX-License-Identifier: Apache-2.0
"""Operations on each element by itself: sums, GELU, SwiGLU, dropout and rotary embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.kernels.operation import Argument, Operation, Shape, Sizes, row_vector

GELU_SCALE, GELU_CUBE = 0.7978845608028654, 0.044715  # sqrt(2 / pi), and Hendrycks' constant
DROPPED = 0.1

_SMALL: tuple[Shape, ...] = ((-1, 33), (-1, 96))
_PLAIN = Sizes(_SMALL, ((-1, 16384),), ((-1, 4095), (16, 4096), (2048, 4096)), ((-1, 16384),))
_MLP = Sizes(_SMALL, ((-1, 14336),), ((-1, 11008), (-1, 28672), (-1, 4095)))
_ROTARY = Sizes(((-1, 8, 4, 2, 16),), ((-1, 4096, 32, 8, 128),), ((-1, 32768, 32, 8, 128),))


def _full(count: int) -> Any:
    return lambda shape: (Argument(shape),) * count


def _with_bias(count: int) -> Any:
    return lambda shape: (*(Argument(shape),) * count, Argument(shape[1:]))


def _tanh_of(ops: Any, x: Any) -> Any:
    cube = ops.mul(ops.mul(x, x), x)
    return ops.tanh(ops.mul(GELU_SCALE, ops.add(x, ops.mul(GELU_CUBE, cube))))


def _bias_gelu(ops: Any, shape: Shape, x: Any, bias: Any) -> Any:
    x = ops.add(x, row_vector(ops, bias))
    return ops.mul(ops.mul(0.5, x), ops.add(1.0, _tanh_of(ops, x)))


def _bias_gelu_bwd(ops: Any, shape: Shape, dy: Any, x: Any, bias: Any) -> Any:
    x = ops.add(x, row_vector(ops, bias))
    t = _tanh_of(ops, x)
    rising = ops.mul(GELU_SCALE, ops.add(1.0, ops.mul(3 * GELU_CUBE, ops.mul(x, x))))
    bend = ops.mul(ops.mul(x, ops.sub(1.0, ops.mul(t, t))), rising)
    return ops.mul(dy, ops.mul(0.5, ops.add(ops.add(1.0, t), bend)))


def _silu_mul_bwd(ops: Any, shape: Shape, dy: Any, a: Any, b: Any) -> Any:
    s = ops.sigmoid(a)
    slope = ops.mul(s, ops.add(1.0, ops.mul(a, ops.sub(1.0, s))))
    return ops.mul(ops.mul(dy, b), slope), ops.mul(dy, ops.mul(a, s))


def _torch_silu_mul_bwd(dy: Any, a: Any, b: Any) -> Any:
    return torch.ops.aten.silu_backward(dy * b, a), dy * F.silu(a)


def _dropout_add(ops: Any, shape: Shape, x: Any, residual: Any) -> Any:
    keep = ops.lt(ops.rand_like(x), 1 - DROPPED)
    return ops.add(residual, ops.where(keep, ops.mul(x, 1 / (1 - DROPPED)), 0.0))


def _dropout_reference(
    inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """What the results should be, given the elements they say were kept: about 9 of 10."""
    x, residual = inputs
    kept = residual + x / (1 - DROPPED)
    mask = (results[0] - kept).abs() <= (results[0] - residual).abs()
    share, allowed = float(mask.double().mean()), 5 * (DROPPED / x.numel()) ** 0.5 + 1e-3
    if abs(share - (1 - DROPPED)) > allowed:
        raise AssertionError(f"dropout kept {share:.4f} of the elements, not {1 - DROPPED}")
    return [torch.where(mask, kept, residual)]


def _rope_arguments(shape: Shape) -> tuple[Argument, ...]:
    batch, sequence, heads, kv_heads, width = shape
    table = Argument((sequence, width))
    q, k = ((batch, count, sequence, width) for count in (heads, kv_heads))
    return Argument(q), Argument(k), table, table


def _rope(ops: Any, shape: Shape, *tensors: Any) -> Any:
    q, k, cos, sin = tensors
    _, sequence, heads, kv_heads, width = shape
    tables = [ops.broadcast(table, [True, True, False, False]) for table in (cos, sin)]

    def turn(x: Any, count: int) -> Any:
        ends = [shape[0], count, sequence]
        left = ops.slice(x, [0, 0, 0, 0], [*ends, width // 2])
        right = ops.slice(x, [0, 0, 0, width // 2], [*ends, width])
        turned = ops.cat([ops.neg(right), left], -1)
        return ops.add(ops.mul(x, tables[0]), ops.mul(turned, tables[1]))

    return turn(q, heads), turn(k, kv_heads)


def _torch_rope(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    def turn(x: Any) -> Any:
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat((-right, left), -1) * sin

    return turn(q), turn(k)


OPERATIONS = (
    Operation(
        "add", "pointwise", _full(2), lambda ops, shape, a, b: ops.add(a, b), torch.add, _PLAIN
    ),
    Operation(
        "bias_gelu", "pointwise", _with_bias(1), _bias_gelu,
        lambda x, bias: F.gelu(x + bias, approximate="tanh"), _PLAIN,
    ),
    Operation(
        "bias_gelu_bwd", "pointwise", _with_bias(2), _bias_gelu_bwd,
        lambda dy, x, bias: torch.ops.aten.gelu_backward(dy, x + bias, approximate="tanh"), _PLAIN,
    ),
    Operation(
        "silu_mul", "pointwise", _full(2),
        lambda ops, shape, a, b: ops.mul(ops.silu(a), b), lambda a, b: F.silu(a) * b, _MLP,
    ),
    Operation(
        "silu_mul_bwd", "pointwise", _full(3), _silu_mul_bwd, _torch_silu_mul_bwd, _MLP
    ),
    Operation(
        "dropout_add", "dropout", _full(2), _dropout_add,
        lambda x, residual: residual + F.dropout(x, DROPPED), _PLAIN,
        reference=_dropout_reference, is_random=True,
    ),
    Operation("rope", "rope", _rope_arguments, _rope, _torch_rope, _ROTARY),
)
