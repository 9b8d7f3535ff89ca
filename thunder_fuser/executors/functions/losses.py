# SPDX-License-Identifier: Apache-2.0
"""Losses and distances: pointwise, then reduced. For cross_entropy see cross_entropy.py.

    huber_loss(x, y, delta=1)      ->  mean(where(d < 1, d * d / 2, d - 1/2))  with d = |x - y|

    binary_cross_entropy(x, t)         its gradient where x is 0 or 1
->  Thunder:  that of its pieces       NaN
    here:     torch's                  (x - t) / max(x (1 - x), 1e-12)

Arguments that torch has deprecated are no parameters here: such a call is left to torch.
"""

from __future__ import annotations

import functools
import inspect
import math
from dataclasses import dataclass
from typing import Any

import thunder.torch as ltorch
from thunder.core.proxies import TensorProxy

from thunder_fuser.executors.functions.define import (
    Backward,
    Function,
    Table,
    of_calls,
    refuses_floats,
    rewrites,
    rounded_once,
)
from thunder_fuser.executors.functions.reductions import vector_norm
from thunder_fuser.executors.types import as_type, compute_type
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

    given = inspect.signature(losses)
    last = inspect.Parameter("reduction", inspect.Parameter.KEYWORD_ONLY, default="mean")
    call.__signature__ = given.replace(parameters=[*given.parameters.values(), last])  # type: ignore[attr-defined]
    return rounded_once(call)


@_loss
def smooth_l1_loss(input: Any, target: Any, *, beta: float = 1.0) -> Any:
    """Quadratic below beta: d * d / (2 beta), above d - beta / 2."""
    if beta < 0:
        return NotImplemented
    apart = abs(input - target)
    return apart if beta == 0 else _bent(apart, beta, 0.5 / beta, apart - 0.5 * beta)


@rounded_once
def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    """Quadratic below delta: d * d / 2, above delta * (d - delta / 2)."""
    if delta <= 0:
        return NotImplemented
    apart = abs(input - target)
    return _reduced(_bent(apart, delta, 0.5, (apart - 0.5 * delta) * delta), reduction)


def _bent(apart: Any, limit: float, scale: float, far: Any) -> Any:
    """scale * d * d below the limit, and for NaN, whose gradient is NaN; far elsewhere.

    What is far is squared as 0: else its gradient there would be 0 times infinity.
    """
    is_far = apart >= limit
    near = ltorch.where(is_far, 0.0, apart)
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
    """Thunder's, which has no such defaults."""
    if (size_average, reduce) != (None, None):
        return NotImplemented
    given = {"weight": weight, "ignore_index": ignore_index, "reduction": reduction}
    return ltorch.nll_loss(input, target, **given)


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
    return _at_least(-target * (input1 - input2) + margin, 0.0) if same else NotImplemented


@_loss
def hinge_embedding_loss(input: Any, target: Any, margin: float = 1.0) -> Any:
    """x where t is 1, max(0, margin - x) where it is -1, both where it is neither."""
    negative = ltorch.where(target != 1, _at_least(margin - input, 0.0), 0.0)
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
    """x / max(|x|, eps), with a gradient at zero."""
    return _unit(input, dim, eps) if p == 2 and out is None else NotImplemented


def _unit(x: Any, dim: int, eps: float) -> Any:
    return x / _at_least(vector_norm(x, 2, dim, True), eps)


@dataclass(frozen=True, slots=True)
class _BinaryCrossEntropy:
    """A call: probabilities, targets and weights of one shape."""

    input: TensorProxy
    target: TensorProxy
    weight: TensorProxy | None = None
    size_average: Any = None
    reduce: Any = None
    reduction: str = "mean"

    def forward(self) -> tuple[Any, Backward]:
        """-t log(x) - (1 - t) log(1 - x), no logarithm below -100."""
        kind = compute_type(self.input)
        x, t = as_type(self.input, kind), as_type(self.target, kind)
        w = None if self.weight is None else as_type(self.weight, kind)
        log, other = _at_least(ltorch.log(x), -100.0), _at_least(ltorch.log1p(-x), -100.0)
        losses = (t - 1.0) * other - t * log
        losses = _reduced(losses if w is None else losses * w, self.reduction)
        result = as_type(losses, self.input.dtype)
        return result, lambda g: self.backward(x, t, w, as_type(g, kind))

    def backward(self, x: Any, t: Any, w: Any, scale: Any) -> Any:
        """Of x: (x - t) / max(x (1 - x), 1e-12); of t: log(1 - x) - log(x)."""
        if self.reduction == "mean":
            scale = scale * (1.0 / self.input.numel)
        scale = scale if w is None else scale * w
        spread = _at_least((1.0 - x) * x, 1e-12)
        yield self.input, as_type(scale * ((x - t) / spread), self.input.dtype)
        yield self.target, as_type(scale * (ltorch.log1p(-x) - ltorch.log(x)), self.target.dtype)

    def refuses(self) -> Reject | None:
        name = "binary_cross_entropy"
        if (self.size_average, self.reduce) != (None, None) or self.reduction not in REDUCTIONS:
            return Reject(f"{name} with arguments that torch has deprecated or refuses")
        if refused := refuses_floats(name, self.input, self.target, self.weight):
            return refused
        others = [one for one in (self.target, self.weight) if one is not None]
        same = all(one.shape == self.input.shape for one in others)
        return None if same else Reject(f"{name} of tensors of several shapes")


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
    "torch.nn.functional.binary_cross_entropy": of_calls(_BinaryCrossEntropy),
}  # fmt: skip
