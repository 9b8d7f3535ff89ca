# SPDX-License-Identifier: Apache-2.0
"""The operations the benchmarks run, each as a FusionDefinition and as one torch expression.

The torch expression is eager's contender, what torch.compile gets, and, on doubles, the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from thunder_fuser import FusionDefinition
from thunder_fuser.runtime.torch_types import from_torch_dtype

EPS = 1e-5
GELU_SCALE, GELU_CUBE = 0.7978845608028654, 0.044715  # sqrt(2 / pi), and Hendrycks' constant


@dataclass(frozen=True, slots=True)
class Case:
    """`full` inputs of [rows, columns] and then `vectors` of [columns] go into both functions."""

    define: Callable[..., Any]
    torch: Callable[..., torch.Tensor]
    full: int = 1
    vectors: int = 0


def _row(ops: Any, vector: Any) -> Any:
    return ops.broadcast(vector, [True, False])


def _bias_gelu(ops: Any, x: Any, bias: Any) -> Any:
    x = ops.add(x, _row(ops, bias))
    cube = ops.mul(ops.mul(x, x), x)
    inner = ops.mul(GELU_SCALE, ops.add(x, ops.mul(GELU_CUBE, cube)))
    return ops.mul(ops.mul(0.5, x), ops.add(1.0, ops.tanh(inner)))


def _softmax(ops: Any, x: Any) -> Any:
    exps = ops.exp(ops.sub(x, ops.max(x, [-1], keepdim=True)))
    return ops.truediv(exps, ops.sum(exps, [-1], keepdim=True))


def _layer_norm(ops: Any, x: Any, weight: Any, bias: Any) -> Any:
    variance, mean = ops.var_mean(x, [-1], correction=0, keepdim=True)
    unit = ops.mul(ops.sub(x, mean), ops.rsqrt(ops.add(variance, EPS)))
    return ops.add(ops.mul(unit, _row(ops, weight)), _row(ops, bias))


def _rms_norm(ops: Any, x: Any, weight: Any) -> Any:
    squares = ops.sum(ops.mul(x, x), [-1], keepdim=True)
    mean = ops.truediv(squares, ops.size(x, -1))
    return ops.mul(ops.mul(x, ops.rsqrt(ops.add(mean, EPS))), _row(ops, weight))


def _torch_layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def _torch_rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


CASES: dict[str, Case] = {
    "add": Case(lambda ops, a, b: ops.add(a, b), torch.add, full=2),
    "bias_gelu": Case(
        _bias_gelu, lambda x, bias: F.gelu(x + bias, approximate="tanh"), vectors=1
    ),
    "silu_mul": Case(
        lambda ops, a, b: ops.mul(ops.silu(a), b), lambda a, b: F.silu(a) * b, full=2
    ),
    "softmax": Case(_softmax, lambda x: F.softmax(x, -1)),
    "layer_norm": Case(_layer_norm, _torch_layer_norm, vectors=2),
    "rms_norm": Case(_rms_norm, _torch_rms_norm, vectors=1),
    "row_sum": Case(lambda ops, x: ops.sum(x, [1]), lambda x: x.sum(1)),
    "column_sum": Case(lambda ops, x: ops.sum(x, [0]), lambda x: x.sum(0)),
}


def make_inputs(
    case: Case, rows: int, columns: int, dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    """Fresh normal numbers."""
    shapes: list[tuple[int, ...]] = [(rows, columns)] * case.full + [(columns,)] * case.vectors
    return [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]


def make_definition(case: Case, inputs: Sequence[torch.Tensor]) -> FusionDefinition:
    """The case for inputs like these; the result has the first one's dtype."""
    with FusionDefinition() as fd:
        result = case.define(fd.ops, *(fd.from_pytorch(tensor) for tensor in inputs))
        fd.add_output(fd.ops.cast(result, from_torch_dtype(inputs[0].dtype)))
    return fd


def bytes_moved(inputs: Sequence[torch.Tensor], result: torch.Tensor) -> int:
    """The fewest bytes: every input read once, the result written once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, result))
