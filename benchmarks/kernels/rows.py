# SPDX-License-Identifier: Apache-2.0
"""Operations on each row of a matrix: softmax, norms and cross entropy, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.kernels.operation import (
    EPS,
    Argument,
    Operation,
    Shape,
    Sizes,
    column_vector,
    row_vector,
    wide,
)
from thunder_fuser.ir.dtypes import DataType

_SMALL: tuple[Shape, ...] = ((-1, 33), (-1, 128))
_FORWARD = Sizes(
    _SMALL,
    tuple((-1, n) for n in (1024, 4095, 4096, 16384, 32768, 131072)),
    (
        *((-1, n) for n in (256, 768, 1600, 2048, 4098, 5120, 6656, 7777, 8192, 12288, 18432)),
        *((-1, n) for n in (50257, 65536)),
        *((rows, n) for rows in (1, 16, 128, 2048) for n in (4096, 8192)),
    ),
    ((-1, 4096), (-1, 131072)),
)
_BACKWARD = Sizes(
    _SMALL,
    tuple((-1, n) for n in (768, 1024, 4096, 5120, 16384)),
    tuple((-1, n) for n in (1280, 2048, 2560, 3072, 4095, 6144, 8192, 12288, 32768, 65536)),
    ((-1, 4096),),
)
_VOCABULARIES = Sizes(
    _SMALL,
    tuple((-1, n) for n in (32000, 50257, 128256)),
    tuple((-1, n) for n in (151936, 262144)),
)


def _one(shape: Shape) -> tuple[Argument, ...]:
    return (Argument(shape),)


def _norm_bwd_arguments(statistics: int) -> Any:
    """The gradient, the input, the weight, and what the forward saved of each row."""
    return lambda shape: (
        *(Argument(shape),) * 2, Argument(shape[1:]),
        *(Argument((shape[0], 1), "statistic"),) * statistics,
    )


def _mean(ops: Any, x: Any) -> Any:
    return ops.truediv(ops.sum(x, [-1], keepdim=True), ops.size(x, -1))


# ---------------------------------------------------------------------------------------- softmax


def _softmax(ops: Any, shape: Shape, x: Any) -> Any:
    exps = ops.exp(ops.sub(x, ops.max(x, [-1], keepdim=True)))
    return ops.truediv(exps, ops.sum(exps, [-1], keepdim=True))


def _softmax_bwd(ops: Any, shape: Shape, dy: Any, y: Any) -> Any:
    both = ops.mul(dy, y)
    return ops.sub(both, ops.mul(y, ops.sum(both, [-1], keepdim=True)))


# ------------------------------------------------------------------------------------------ norms


def _layer_norm(ops: Any, shape: Shape, x: Any, weight: Any, bias: Any) -> Any:
    variance, mean = ops.var_mean(x, [-1], correction=0, keepdim=True)
    unit = ops.mul(ops.sub(x, mean), ops.rsqrt(ops.add(variance, EPS)))
    return ops.add(ops.mul(unit, row_vector(ops, weight)), row_vector(ops, bias))


def _layer_norm_bwd(ops: Any, shape: Shape, *tensors: Any) -> Any:
    dy, x, weight, mean, rstd = tensors
    unit = ops.mul(ops.sub(x, mean), rstd)
    scaled = ops.mul(dy, row_vector(ops, weight))
    slope = ops.mul(unit, _mean(ops, ops.mul(scaled, unit)))
    dx = ops.mul(rstd, ops.sub(ops.sub(scaled, _mean(ops, scaled)), slope))
    return dx, ops.sum(ops.mul(dy, unit), [0]), ops.sum(dy, [0])


def _torch_layer_norm_bwd(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> Any:
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, weight.shape, mean, rstd, weight, weight, [True, True, True]
    )


def _rms_norm(ops: Any, shape: Shape, x: Any, weight: Any) -> Any:
    scale = ops.rsqrt(ops.add(_mean(ops, ops.mul(x, x)), EPS))
    return ops.mul(ops.mul(x, scale), row_vector(ops, weight))


def _rms_norm_bwd(ops: Any, shape: Shape, *tensors: Any) -> Any:
    dy, x, weight, rstd = tensors
    unit = ops.mul(x, rstd)
    scaled = ops.mul(dy, row_vector(ops, weight))
    dx = ops.mul(rstd, ops.sub(scaled, ops.mul(unit, _mean(ops, ops.mul(scaled, unit)))))
    return dx, ops.sum(ops.mul(dy, unit), [0])


def _torch_rms_norm_bwd(dy: Any, x: Any, weight: Any, rstd: Any) -> Any:
    unit, scaled = wide(x) * rstd, wide(dy) * weight
    dx = rstd * (scaled - unit * (scaled * unit).mean(-1, keepdim=True))
    return dx.to(x.dtype), (wide(dy) * unit).sum(0).to(x.dtype)


def _eager_rms_norm_bwd(dy: Any, x: Any, weight: Any, rstd: Any) -> Any:
    if not x.is_cuda:  # the CPU has no kernel for it
        return _torch_rms_norm_bwd(dy, x, weight, rstd)
    return torch.ops.aten._fused_rms_norm_backward(dy, x, weight.shape, rstd, weight, [True, True])


# ---------------------------------------------------------------------------------- cross entropy


def _is_target(ops: Any, x: Any, target: Any) -> Any:
    columns = ops.iota(ops.size(x, 1), 0, 1, DataType.Int)
    return ops.eq(row_vector(ops, columns), column_vector(ops, target))


def _cross_entropy(ops: Any, shape: Shape, x: Any, target: Any) -> Any:
    largest = ops.max(x, [-1], keepdim=True)
    total = ops.sum(ops.exp(ops.sub(x, largest)), [-1])
    picked = ops.squeeze(ops.take_along_axis(x, column_vector(ops, target), 1), [1])
    return ops.sub(ops.add(ops.log(total), ops.squeeze(largest, [1])), picked)


def _cross_entropy_bwd(ops: Any, shape: Shape, log_softmax: Any, target: Any, dy: Any) -> Any:
    picked = ops.where(_is_target(ops, log_softmax, target), 1.0, 0.0)
    return ops.mul(ops.sub(ops.exp(log_softmax), picked), column_vector(ops, dy))


def _torch_cross_entropy_bwd(log_softmax: Any, target: Any, dy: Any) -> Any:
    weights = log_softmax.new_zeros(())
    into = torch.ops.aten.nll_loss_backward(dy, log_softmax, target, None, 0, -100, weights)
    return torch.ops.aten._log_softmax_backward_data(into, log_softmax, -1, log_softmax.dtype)


OPERATIONS = (
    Operation("softmax", "softmax", _one, _softmax, lambda x: F.softmax(x, -1), _FORWARD),
    Operation(
        "softmax_bwd", "softmax", lambda shape: (Argument(shape), Argument(shape, "near_one")),
        _softmax_bwd,
        lambda dy, y: torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype), _BACKWARD,
    ),
    Operation(
        "layer_norm", "norm", lambda shape: (Argument(shape), *(Argument(shape[1:]),) * 2),
        _layer_norm, lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias, EPS),
        _FORWARD,
    ),
    Operation(
        "rms_norm", "norm", lambda shape: (Argument(shape), Argument(shape[1:])), _rms_norm,
        lambda x, weight: F.rms_norm(x, x.shape[-1:], weight, EPS), _FORWARD,
    ),
    Operation(
        "layer_norm_bwd", "norm backward", _norm_bwd_arguments(statistics=2), _layer_norm_bwd,
        _torch_layer_norm_bwd, _BACKWARD,
    ),
    Operation(
        "rms_norm_bwd", "norm backward", _norm_bwd_arguments(statistics=1), _rms_norm_bwd,
        _torch_rms_norm_bwd, _BACKWARD, eager=_eager_rms_norm_bwd,
    ),
    Operation(
        "cross_entropy", "cross entropy",
        lambda shape: (Argument(shape), Argument(shape[:1], "classes")), _cross_entropy,
        lambda x, target: F.cross_entropy(x, target, reduction="none"), _VOCABULARIES,
    ),
    Operation(
        "cross_entropy_bwd", "cross entropy",
        lambda shape: (Argument(shape), Argument(shape[:1], "classes"), Argument(shape[:1])),
        _cross_entropy_bwd, _torch_cross_entropy_bwd, _VOCABULARIES,
    ),
)
