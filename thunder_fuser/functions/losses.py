# SPDX-License-Identifier: Apache-2.0
"""Losses and distances: pointwise, then reduced; log_softmax and cross entropy.

    huber_loss(x, y, delta=1)      ->  mean(where(d < 1, d * d / 2, d - 1/2))  with d = |x - y|

    binary_cross_entropy(x, t)         its gradient where x is 0 or 1
->  Thunder:  that of its pieces       NaN
    here:     torch's                  (x - t) / max(x (1 - x), 1e-12)

    log_softmax(x)                     for x = [1e8, 1e8] and for x = [1, inf]
->  Thunder:  x - (max + log(sum))     [0, 0] and [-inf, NaN]
    here:     x - max - log(sum)       [-0.69, -0.69] and NaN, as in torch

    cross_entropy(x[N, C], target[N])  the backward reads
->  Thunder:  log_softmax, a lookup    log-softmax[N, C], target[N]
    here:     one pass over each row   x[N, C], target[N], two numbers a row

The functions here lack torch's deprecated arguments: torch runs a call that has them.
"""

from __future__ import annotations

import functools
import inspect
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import thunder.torch as ltorch
from thunder.core import dtypes, prims
from thunder.core.proxies import TensorProxy

from thunder_fuser.executors.support.dtypes import INTS, data_type
from thunder_fuser.functions.define import (
    Backward,
    Function,
    Table,
    as_type,
    compute_type,
    of_calls,
    refuses_floats,
    refuses_tensors,
    rewrites,
    rounded_once,
    wide,
    with_gradient,
)
from thunder_fuser.functions.pointwise import clip
from thunder_fuser.functions.reductions import vector_norm
from thunder_fuser.trace.op import Reject

REDUCTIONS = ("none", "sum", "mean")


def _reduced(losses: Any, reduction: str) -> Any:
    if losses is NotImplemented or reduction not in REDUCTIONS:
        return NotImplemented
    return losses if reduction == "none" else getattr(ltorch, reduction)(losses)


def _at_least(x: Any, low: float) -> Any:
    return ltorch.where(x < low, low, x)


def _loss(losses: Function) -> Function:
    """f(x, y)  ->  f(x, y, *, reduction="mean")"""

    @functools.wraps(losses)
    def call(*args: Any, reduction: str = "mean", **kwargs: Any) -> Any:
        return _reduced(losses(*args, **kwargs), reduction)

    signature = inspect.signature(losses)
    last = inspect.Parameter("reduction", inspect.Parameter.KEYWORD_ONLY, default="mean")
    parameters = [*signature.parameters.values(), last]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return rounded_once(call)


@_loss
def smooth_l1_loss(input: Any, target: Any, *, beta: float = 1.0) -> Any:
    """Quadratic below beta: d * d / (2 beta), above d - beta / 2."""
    if beta < 0:
        return NotImplemented
    d = abs(input - target)
    return d if beta == 0 else _bent(d, beta, 0.5 / beta, d - 0.5 * beta)


@rounded_once
def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    """Quadratic below delta: d * d / 2, above delta * (d - delta / 2)."""
    if delta <= 0:
        return NotImplemented
    d = abs(input - target)
    return _reduced(_bent(d, delta, 0.5, (d - 0.5 * delta) * delta), reduction)


def _bent(d: Any, limit: float, scale: float, far: Any) -> Any:
    """scale * d * d below the limit, and for NaN, whose gradient is NaN; `far` elsewhere.

    There d is squared as 0: else the gradient of the square would be 0 times infinity.
    """
    is_far = d >= limit
    near = ltorch.where(is_far, 0.0, d)
    return ltorch.where(is_far, far, near * near * scale)


@_loss
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, *, pos_weight: Any = None
) -> Any:
    """(1 - t) x - (1 + (p - 1) t) logsigmoid(x), in one form that does not overflow."""
    if input.shape != target.shape:
        return NotImplemented
    below = -ltorch.logsigmoid(input)
    if pos_weight is not None:
        below = below * ((pos_weight - 1) * target + 1)
    losses = (1 - target) * input + below
    return losses if weight is None else losses * weight


@rounded_once
def kl_div(input: Any, target: Any, *, reduction: str = "mean", log_target: bool = False) -> Any:
    """t (log(t) - x), or exp(t) (t - x); batchmean divides by the first size."""
    if log_target:
        losses = ltorch.exp(target) * (target - input)
    else:
        losses = ltorch.xlogy(target, target) - target * input
    if reduction != "batchmean":
        return _reduced(losses, reduction)
    return ltorch.sum(losses) / input.shape[0] if input.ndim else NotImplemented


def nll_loss(  # noqa: PLR0917 - torch's
    input: Any, target: Any, weight: Any = None, size_average: None = None,
    ignore_index: int = -100, reduce: None = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """Thunder's function, with torch's defaults."""
    if (size_average, reduce) != (None, None):
        return NotImplemented
    return ltorch.nll_loss(input, target, weight, ignore_index=ignore_index, reduction=reduction)


@_loss
def poisson_nll_loss(
    input: Any, target: Any, log_input: bool = True, full: bool = False, *, eps: float = 1e-8
) -> Any:
    """exp(x) - t x, or x - t log(x + eps); full adds Stirling's formula for log(t!) where t > 1."""
    if log_input:
        losses = ltorch.exp(input) - target * input
    else:
        losses = input - target * ltorch.log(input + eps)
    if not full:
        return losses
    above = target > 1
    t = ltorch.where(above, target, 1)
    log, half = ltorch.log(t), ltorch.log(t * (2 * math.pi)) * 0.5
    return losses + ltorch.where(above, t * log - t + half, 0.0)


@_loss
def margin_ranking_loss(input1: Any, input2: Any, target: Any, margin: float = 0) -> Any:
    """max(0, margin - t (x - y))."""
    same = input1.ndim == input2.ndim == target.ndim
    return clip(-target * (input1 - input2) + margin, 0.0) if same else NotImplemented


@_loss
def hinge_embedding_loss(input: Any, target: Any, margin: float = 1.0) -> Any:
    """x where t is 1, max(0, margin - x) where t is -1, their sum for any other t."""
    negative = ltorch.where(target != 1, clip(margin - input, 0.0), 0.0)
    return negative + ltorch.where(target != -1, input, 0.0)


@rounded_once
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """sum(x / max(|x|, eps) * y / max(|y|, eps)) along a dimension that both have."""
    if x1.ndim != x2.ndim or not x1.ndim or x1.shape[dim] != x2.shape[dim]:
        return NotImplemented
    return ltorch.sum(_unit(x1, dim, eps) * _unit(x2, dim, eps), dim)


@rounded_once
def normalize(
    input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: None = None
) -> Any:
    """x / max(|x|, eps), with a finite gradient at zero."""
    return _unit(input, dim, eps) if p == 2 and out is None else NotImplemented


def _unit(x: Any, dim: int, eps: float) -> Any:
    return x / _at_least(vector_norm(x, 2, dim, True), eps)


@dataclass(frozen=True, slots=True)
class _BinaryCrossEntropy:
    """A call of binary_cross_entropy: probabilities, targets and weights of one shape."""

    input: TensorProxy
    target: TensorProxy
    weight: TensorProxy | None = None
    size_average: Any = None
    reduce: Any = None
    reduction: str = "mean"

    def forward(self) -> tuple[Any, Backward]:
        """-t log(x) - (1 - t) log(1 - x), with logarithms of at least -100."""
        kind = compute_type(self.input)
        x, t = as_type(self.input, kind), as_type(self.target, kind)
        w = None if self.weight is None else as_type(self.weight, kind)
        log, other = _at_least(ltorch.log(x), -100.0), _at_least(ltorch.log1p(-x), -100.0)
        losses = (t - 1.0) * other - t * log
        losses = _reduced(losses if w is None else losses * w, self.reduction)
        result = as_type(losses, self.input.dtype)
        return result, lambda g: self.backward(x, t, w, as_type(g, kind))

    def backward(self, x: Any, t: Any, w: Any, scale: Any) -> Any:
        """The gradients, of x: (x - t) / max(x (1 - x), 1e-12), of t: log(1 - x) - log(x)."""
        if self.reduction == "mean":
            scale = scale * (1.0 / self.input.numel)
        scale = scale if w is None else scale * w
        spread = _at_least((1.0 - x) * x, 1e-12)
        yield self.input, scale * ((x - t) / spread)
        yield self.target, scale * (ltorch.log1p(-x) - ltorch.log(x))

    def refuses(self) -> Reject | None:
        name = "binary_cross_entropy"
        if (self.size_average, self.reduce) != (None, None) or self.reduction not in REDUCTIONS:
            return Reject(f"{name} with arguments that torch has deprecated or refuses")
        if refused := refuses_floats(name, self.input, self.target, self.weight):
            return refused
        others = [tensor for tensor in (self.target, self.weight) if tensor is not None]
        same = all(tensor.shape == self.input.shape for tensor in others)
        return None if same else Reject(f"{name} of tensors of several shapes")


# ---------------------------------------------------------------------------------- cross entropy


def _log_softmax(a: Any, /, dim: int, *, dtype: Any = None) -> tuple[Any, Backward]:
    kind = a.dtype if dtype is None else dtypes.to_dtype(dtype)
    x = wide(as_type(a, kind))
    below = x - ltorch.amax(x, dim, True)
    result = as_type(below - ltorch.log(ltorch.sum(ltorch.exp(below), dim, True)), kind)

    def backward(g: Any) -> Any:
        """g - softmax * sum(g), with the softmax of the rounded result, as in torch."""
        y = wide(result)
        g = as_type(g, y.dtype)
        yield a, g - ltorch.exp(y) * ltorch.sum(g, dim, True)

    return result, backward


def _refuses_log_softmax(a: Any, /, dim: int, *, dtype: Any = None) -> Reject | None:
    if refused := refuses_floats("log_softmax", a):
        return refused
    if dtype is not None and not dtypes.is_float_dtype(dtypes.to_dtype(dtype)):
        return Reject("log_softmax in a type other than floats")
    known = a.ndim and isinstance(dim, int)
    return None if known else Reject("log_softmax of a 0-dim tensor, or along a computed dimension")


class RowSum(NamedTuple):
    """The values of each row that the backward reads: log(sum(exp(x))), and the weights.

    The logarithm is kept in two parts, `most` + `log_sum`: their rounded sum would lack digits
    that exp(x - sum) needs.
    """

    most: Any
    log_sum: Any
    of_target: Any = None  # [N]
    of_all: Any = None  # 0-dim


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """A call of cross_entropy: its parameters, with logits [N, C], target [N], weight [C].

    classes: their number, where the logits are those of some columns.
    """

    logits: TensorProxy
    target: TensorProxy
    weight: TensorProxy | None = None
    size_average: Any = None
    ignore_index: int = -100
    reduce: Any = None
    reduction: str = "mean"
    label_smoothing: float = 0.0
    classes: int | None = None

    def counted(self) -> Any:
        """[N], False for rows that are ignored."""
        return self.target != self.ignore_index

    @property
    def all_classes(self) -> int:
        return self.classes or int(self.logits._shape[1])

    @property
    def shift(self) -> float:
        """The share of the target that label smoothing moves to each class."""
        return self.label_smoothing / self.all_classes

    def forward(self) -> tuple[Any, Backward]:
        losses, rows = self.losses()
        losses, total = ltorch.where(self.counted(), losses, 0.0), None
        if self.reduction != "none":
            losses = ltorch.sum(losses)
        if self.reduction == "mean":
            total = self.total(rows.of_target, losses.dtype)
            losses = losses / total
        result = as_type(losses, self.logits.dtype)
        return result, lambda g: [(self.logits, self.backward(rows, g, total))]

    def losses(self, at_target: Any = None, bound: float | None = None) -> tuple[Any, RowSum]:
        """log(sum(exp(x))) - x[target] of each row, times the weight of the target.

        at_target: x[target], if the caller has it; bound: with it, a number for each row's maximum.
        """
        x = wide(self.logits)
        most = ltorch.amax(x, 1) if bound is None else ltorch.full_like(at_target, bound)
        below = _column(most) - x
        log_sum = ltorch.log(ltorch.sum(ltorch.exp(-below), 1))
        at_target = picked(x, self.class_read()) if at_target is None else at_target
        return self.losses_of(most, log_sum, at_target, self.smooth(below))

    def class_read(self) -> Any:
        """An ignored row reads class 0; any other target outside the classes raises as an index."""
        return ltorch.where(self.counted(), self.target, 0)

    def smooth(self, below: Any) -> Any:
        """sum(weight * (max(x) - x)) of each row, if labels are smoothed."""
        if not self.label_smoothing:
            return None
        return ltorch.sum(below if self.weight is None else below * wide(self.weight), 1)

    def losses_of(self, most: Any, log_sum: Any, at_target: Any, smooth: Any) -> tuple[Any, RowSum]:
        """The losses of rows with these sums; at_target: x[target]; smooth: as above."""
        rows, losses = RowSum(most, log_sum), most - at_target + log_sum
        if self.weight is not None:
            weight = wide(self.weight)
            of_target = prims.take(weight, self.class_read(), 0)
            rows = RowSum(most, log_sum, of_target, ltorch.sum(weight))
            losses = losses * of_target
        if self.label_smoothing:
            # The losses of all classes together: sum(weight * (log(sum(exp(x))) - x)).
            every = float(self.all_classes) if self.weight is None else rows.of_all
            smooth = (smooth + log_sum * every) * self.shift
            losses = losses * (1.0 - self.label_smoothing) + smooth
        return losses, rows

    def total(self, weights: Any, dtype: Any) -> Any:
        """The divisor of a mean: the sum of the weights, or the number, of the counted rows."""
        if weights is not None:
            return ltorch.sum(ltorch.where(self.counted(), weights, 0.0))
        return as_type(ltorch.sum(as_type(self.counted(), dtypes.int64)), dtype)

    def backward(self, rows: RowSum, g: Any, total: Any) -> Any:
        """[N, C], computed from the logits again, in one pointwise kernel.

        g / total * (softmax(x) - (column is target)), and zero for ignored rows
        """
        g = as_type(g, compute_type(self.logits))
        scale = _column(ltorch.where(self.counted(), g if total is None else g / total, 0.0))
        return self.row_gradient(rows, self.softmax(rows)) * scale

    def softmax(self, rows: RowSum) -> Any:
        """[N, C], computed from the logits again."""
        return ltorch.exp(wide(self.logits) - _column(rows.most) - _column(rows.log_sum))

    def row_gradient(self, rows: RowSum, softmax: Any) -> Any:
        """softmax - (column is target), weighted and smoothed."""
        classes, kept = softmax.shape[1], 1.0 - self.label_smoothing
        kind = dtypes.int32 if self.target.dtype == dtypes.int32 else dtypes.int64
        columns = ltorch.arange(classes, device=softmax.device, dtype=kind)
        hit = columns == _column(self.target)
        if self.weight is None:
            # A where between two numbers would be float32.
            softmax = softmax - as_type(hit, softmax.dtype) * kept
            return softmax - self.shift if self.label_smoothing else softmax
        at_target = _column(rows.of_target * kept)
        pushed, pulled = at_target, ltorch.where(hit, at_target, 0.0)
        if self.label_smoothing:
            pushed = pushed + rows.of_all * self.shift
            pulled = pulled + wide(self.weight) * self.shift
        return softmax * pushed - pulled

    def refuses(self) -> Reject | None:
        """None for logits [N, C] with one class a row, as language models have; else the reason."""
        a, target, weight = self.logits, self.target, self.weight
        numbers = isinstance(self.ignore_index, int), isinstance(self.label_smoothing, (int, float))
        if not all(numbers):
            return Reject("cross_entropy with a number that the program computes")
        if refused := refuses_tensors("cross_entropy", a, target, weight):
            return refused
        if a.ndim != 2 or target.ndim != 1 or data_type(target.dtype) not in INTS:
            return Reject("cross_entropy without logits [N, C] and a class for each row")
        deprecated = (self.size_average, self.reduce) != (None, None)
        known = self.reduction in REDUCTIONS and 0 <= self.label_smoothing <= 1
        if deprecated or not known or a._shape[0] != target._shape[0]:
            return Reject("cross_entropy with arguments that Thunder refuses")
        if weight is not None and (
            weight.dtype != a.dtype or weight.requires_grad or weight._shape != a._shape[1:]
        ):
            return Reject("cross_entropy with a weight of another type or size, or with a gradient")
        return refuses_floats("cross_entropy", a)


def picked(x: Any, columns: Any) -> Any:
    """x[row, columns[row]] of each row."""
    return prims.squeeze(prims.take_along_axis(x, _column(columns), 1), (1,))


def _column(row: Any) -> Any:
    return ltorch.unsqueeze(row, 1)


def _smoothed(  # noqa: PLR0917 - torch's
    input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """cross_entropy(x[N, C, L], target[N, L])  ->  of x[N * L, C] and target[N * L]

    With label smoothing, for then Thunder divides by the wrong number, or raises.
    """
    of_classes = data_type(target.dtype) in INTS and target.ndim == input.ndim - 1
    if not label_smoothing or input.ndim == 2 or not of_classes:
        return NotImplemented
    rows = ltorch.movedim(input, 1, -1) if target.ndim else ltorch.unsqueeze(input, 0)
    losses = ltorch.cross_entropy(
        ltorch.reshape(rows, (-1, rows.shape[-1])), ltorch.reshape(target, (-1,)), weight,
        size_average, ignore_index, reduce, reduction, label_smoothing,
    )  # fmt: skip
    return ltorch.reshape(losses, target.shape) if reduction == "none" else losses


LOSSES: Table = {
    **rewrites(
        "torch.nn.functional.", binary_cross_entropy_with_logits, cosine_similarity,
        hinge_embedding_loss, huber_loss, kl_div, margin_ranking_loss, nll_loss, normalize,
        poisson_nll_loss, smooth_l1_loss,
        l1_loss=_loss(lambda input, target: abs(input - target)),
        pairwise_distance=rounded_once(
            lambda x1, x2, p=2, eps=1e-6, keepdim=False: vector_norm(x1 - x2 + eps, p, -1, keepdim)
        ),
        soft_margin_loss=_loss(lambda input, target: ltorch.log1p(ltorch.exp(-target * input))),
    ),
    "torch.log_softmax": with_gradient(_refuses_log_softmax, _log_softmax),
    "torch.nn.functional.binary_cross_entropy": of_calls(_BinaryCrossEntropy),
    "torch.nn.functional.cross_entropy": replace(of_calls(CrossEntropy), rewrite=_smoothed),
}  # fmt: skip
