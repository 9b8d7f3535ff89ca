# SPDX-License-Identifier: Apache-2.0
"""Losses and distances of torch in functions that Thunder knows.

    huber_loss(x, y, delta=1)  ->  mean(where(d < 1, d * d / 2, d - 1/2))  with d = |x - y|

Each is pointwise and then reduced. Arguments that torch has deprecated are not taken, so that such
a call is left to it.
"""

from __future__ import annotations

import math
from typing import Any

import thunder.torch as ltorch

from thunder_fuser.executors.functions.precision import rounded_once
from thunder_fuser.executors.functions.reductions import vector_norm


@rounded_once
def l1_loss(input: Any, target: Any, *, reduction: str = "mean") -> Any:
    return _reduced(_apart(input, target), reduction)


@rounded_once
def smooth_l1_loss(input: Any, target: Any, *, reduction: str = "mean", beta: float = 1.0) -> Any:
    """Quadratic below beta: d * d / (2 beta), above d - beta / 2."""
    if beta < 0:
        return NotImplemented
    apart = _apart(input, target)
    if beta == 0:
        return _reduced(apart, reduction)
    return _reduced(_bent(apart, beta, 0.5 / beta, ltorch.sub(apart, 0.5 * beta)), reduction)


@rounded_once
def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    """Quadratic below delta: d * d / 2, above delta * (d - delta / 2)."""
    if delta <= 0:
        return NotImplemented
    apart = _apart(input, target)
    far = ltorch.mul(ltorch.sub(apart, 0.5 * delta), delta)
    return _reduced(_bent(apart, delta, 0.5, far), reduction)


def _bent(apart: Any, limit: float, scale: float, far: Any) -> Any:
    """scale * d * d below the limit, and for NaN, whose gradient is NaN; far elsewhere.

    What is far is squared as 0: else its gradient there would be 0 times infinity.
    """
    is_far = ltorch.ge(apart, limit)
    near = ltorch.where(is_far, 0.0, apart)
    return ltorch.where(is_far, far, ltorch.mul(ltorch.mul(near, near), scale))


def _apart(input: Any, target: Any) -> Any:
    return ltorch.abs(ltorch.sub(input, target))


@rounded_once
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    """(1 - t) x - (1 + (p - 1) t) logsigmoid(x), in one form that does not overflow."""
    if input.shape != target.shape:
        return NotImplemented
    below = ltorch.neg(ltorch.logsigmoid(input))
    if pos_weight is not None:
        below = ltorch.mul(below, ltorch.add(ltorch.mul(ltorch.sub(pos_weight, 1), target), 1))
    losses = ltorch.add(ltorch.mul(ltorch.sub(1, target), input), below)
    return _reduced(losses if weight is None else ltorch.mul(losses, weight), reduction)


@rounded_once
def kl_div(
    input: Any, target: Any, *, reduction: str = "mean", log_target: bool = False
) -> Any:
    """t (log(t) - x), or exp(t) (t - x); batchmean divides by the first size."""
    if log_target:
        losses = ltorch.mul(ltorch.exp(target), ltorch.sub(target, input))
    else:
        losses = ltorch.sub(ltorch.xlogy(target, target), ltorch.mul(target, input))
    if reduction != "batchmean":
        return _reduced(losses, reduction)
    return ltorch.true_divide(ltorch.sum(losses), input.shape[0]) if input.ndim else NotImplemented


def nll_loss(  # noqa: PLR0917 - torch's
    input: Any, target: Any, weight: Any = None, size_average: None = None,
    ignore_index: int = -100, reduce: None = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """Thunder's, which has no such defaults."""
    if (size_average, reduce) != (None, None):
        return NotImplemented
    return ltorch.nll_loss(
        input, target, weight=weight, ignore_index=ignore_index, reduction=reduction
    )


@rounded_once
def poisson_nll_loss(
    input: Any, target: Any, log_input: bool = True, full: bool = False, *, eps: float = 1e-8,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    """exp(x) - t x, or x - t log(x + eps); full adds Stirling's formula where t > 1."""
    if log_input:
        losses = ltorch.sub(ltorch.exp(input), ltorch.mul(target, input))
    else:
        losses = ltorch.sub(input, ltorch.mul(target, ltorch.log(ltorch.add(input, eps))))
    if full:
        losses = ltorch.add(losses, _stirling(target))
    return _reduced(losses, reduction)


def _stirling(t: Any) -> Any:
    """log(t!) about: t log(t) - t + log(2 pi t) / 2 for t > 1, else 0."""
    above = ltorch.gt(t, 1)
    t = ltorch.where(above, t, 1)
    log = ltorch.log(t)
    half = ltorch.mul(ltorch.log(ltorch.mul(t, 2 * math.pi)), 0.5)
    return ltorch.where(above, ltorch.add(ltorch.sub(ltorch.mul(t, log), t), half), 0.0)


@rounded_once
def soft_margin_loss(input: Any, target: Any, *, reduction: str = "mean") -> Any:
    """log(1 + exp(-t x))."""
    losses = ltorch.log1p(ltorch.exp(ltorch.mul(ltorch.neg(target), input)))
    return _reduced(losses, reduction)


@rounded_once
def margin_ranking_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0, *, reduction: str = "mean"
) -> Any:
    """max(0, margin - t (x - y))."""
    if not input1.ndim == input2.ndim == target.ndim:
        return NotImplemented
    over = ltorch.add(ltorch.mul(ltorch.neg(target), ltorch.sub(input1, input2)), margin)
    return _reduced(_positive(over), reduction)


@rounded_once
def hinge_embedding_loss(
    input: Any, target: Any, margin: float = 1.0, *, reduction: str = "mean"
) -> Any:
    """x where t is 1, max(0, margin - x) where it is -1, both where it is neither."""
    negative = ltorch.where(ltorch.ne(target, 1), _positive(ltorch.sub(margin, input)), 0.0)
    positive = ltorch.where(ltorch.ne(target, -1), input, 0.0)
    return _reduced(ltorch.add(negative, positive), reduction)


def _positive(x: Any) -> Any:
    return ltorch.where(ltorch.lt(x, 0), 0.0, x)


@rounded_once
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """sum(x / max(|x|, eps) * y / max(|y|, eps)) along a dimension that both have."""
    if x1.ndim != x2.ndim or not x1.ndim or x1.shape[dim] != x2.shape[dim]:
        return NotImplemented
    unit1, unit2 = (_unit(x, dim, eps) for x in (x1, x2))
    return ltorch.sum(ltorch.mul(unit1, unit2), dim)


def _unit(x: Any, dim: int, eps: float) -> Any:
    norm = vector_norm(x, 2, dim, True)
    return ltorch.true_divide(x, ltorch.where(ltorch.lt(norm, eps), eps, norm))


@rounded_once
def normalize(
    input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: None = None
) -> Any:
    """x / max(|x|, eps), with a gradient at zero."""
    return NotImplemented if out is not None or p != 2 else _unit(input, dim, eps)


@rounded_once
def pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    """|x - y + eps| along the last dimension."""
    return vector_norm(ltorch.add(ltorch.sub(x1, x2), eps), p, -1, keepdim)


def _reduced(losses: Any, reduction: str) -> Any:
    if reduction == "mean":
        return ltorch.mean(losses)
    if reduction == "sum":
        return ltorch.sum(losses)
    return losses if reduction == "none" else NotImplemented


LOSSES = {
    "torch.nn.functional.binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    "torch.nn.functional.cosine_similarity": cosine_similarity,
    "torch.nn.functional.hinge_embedding_loss": hinge_embedding_loss,
    "torch.nn.functional.huber_loss": huber_loss,
    "torch.nn.functional.kl_div": kl_div,
    "torch.nn.functional.l1_loss": l1_loss,
    "torch.nn.functional.margin_ranking_loss": margin_ranking_loss,
    "torch.nn.functional.nll_loss": nll_loss,
    "torch.nn.functional.normalize": normalize,
    "torch.nn.functional.pairwise_distance": pairwise_distance,
    "torch.nn.functional.poisson_nll_loss": poisson_nll_loss,
    "torch.nn.functional.smooth_l1_loss": smooth_l1_loss,
    "torch.nn.functional.soft_margin_loss": soft_margin_loss,
}
