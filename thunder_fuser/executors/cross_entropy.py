# SPDX-License-Identifier: Apache-2.0
"""Cross entropies, forward and backward.

    cross_entropy(logits[N, C], target[N])      what the backward reads
->  Thunder:  log_softmax, take_along_axis      log-softmax[N, C], target[N]
    here:     rows, each reduced in one pass    logits[N, C], target[N], two numbers a row

    binary_cross_entropy(x, t)                  where x is 0 or 1
->  Thunder:  the gradient of its pieces        NaN
    here:     (x - t) / max(x (1 - x), 1e-12)   torch's
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes, prims
from thunder.core.proxies import TensorProxy

from thunder_fuser.executors.types import (
    INTS,
    are_floats,
    as_type,
    compute_type,
    data_type,
    refuses_tensors,
)
from thunder_fuser.trace.op import Reject

_REDUCTIONS = ("none", "sum", "mean")


@dataclass(frozen=True, slots=True)
class _Loss:
    """A call of cross_entropy: its parameters, with logits [N, C], target [N], weight [C]."""

    logits: TensorProxy
    target: TensorProxy
    weight: TensorProxy | None = None
    size_average: Any = None
    ignore_index: int = -100
    reduce: Any = None
    reduction: str = "mean"
    label_smoothing: float = 0.0

    @property
    def classes(self) -> int:
        return int(self.logits._shape[1])

    @property
    def shift(self) -> float:
        """What label smoothing moves from the target to each class."""
        return self.label_smoothing / self.classes

    def wide(self) -> Any:
        """The logits in the type the loss is computed in."""
        return as_type(self.logits, compute_type(self.logits))

    def wide_weight(self) -> Any:
        return as_type(self.weight, compute_type(self.logits))

    def at_target(self) -> Any:
        """[N, C], True where the column is the target."""
        columns = ltorch.arange(self.classes, device=self.logits.device, dtype=dtypes.int64)
        return ltorch.eq(columns, _column(self.target))

    def counted(self) -> Any:
        """[N], False for rows that are ignored."""
        return ltorch.ne(self.target, self.ignore_index)


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the backward reads of each row: log(sum(exp(x))), and the weights.

    The logarithm is kept in two parts, `most` + `log_sum`: their sum would round off the digits
    that exp(x - it) needs.
    """

    most: Any
    log_sum: Any
    weight: Any = None  # of the target, [N]
    weights: Any = None  # of all classes, 0-dim


def _column(row: Any) -> Any:
    return ltorch.unsqueeze(row, 1)


def cross_entropy(*args: Any, **kwargs: Any) -> Any:
    loss = _Loss(*args, **kwargs)
    return _reduced(loss, *_losses(loss))[0]


def cross_entropy_gradient(*args: Any, **kwargs: Any) -> Any:
    loss = _Loss(*args, **kwargs)
    losses, rows = _losses(loss)
    result, total = _reduced(loss, losses, rows)
    prims.put_grad(loss.logits, _backward(loss, rows, prims.get_grad(result), total))
    return result


def _losses(loss: _Loss) -> tuple[Any, _Rows]:
    """The loss of each row, zero if ignored.

    log(sum(exp(x))) - x[target], times the weight of the target
    """
    x = loss.wide()
    most = ltorch.amax(x, 1)
    below = ltorch.sub(_column(most), x)
    log_sum = ltorch.log(ltorch.sum(ltorch.exp(ltorch.neg(below)), 1))
    # An ignored row reads class 0; any other that is no class is an index out of range.
    target = ltorch.where(loss.counted(), loss.target, 0)
    picked = prims.squeeze(prims.take_along_axis(x, _column(target), 1), (1,))
    nll = ltorch.add(ltorch.sub(most, picked), log_sum)
    rows = _Rows(most, log_sum)
    if loss.weight is not None:
        weight = loss.wide_weight()
        rows = _Rows(most, log_sum, prims.take(weight, target, 0), ltorch.sum(weight))
        nll = ltorch.mul(nll, rows.weight)
    if loss.label_smoothing:
        smooth = ltorch.mul(_smooth(loss, below, rows), loss.shift)
        nll = ltorch.add(ltorch.mul(nll, 1.0 - loss.label_smoothing), smooth)
    return ltorch.where(loss.counted(), nll, 0.0), rows


def _smooth(loss: _Loss, below: Any, rows: _Rows) -> Any:
    """The losses of all classes together: sum(weight * (log(sum(exp(x))) - x))."""
    if loss.weight is None:
        return ltorch.add(ltorch.sum(below, 1), ltorch.mul(rows.log_sum, float(loss.classes)))
    weighted = ltorch.sum(ltorch.mul(below, loss.wide_weight()), 1)
    return ltorch.add(weighted, ltorch.mul(rows.log_sum, rows.weights))


def _reduced(loss: _Loss, losses: Any, rows: _Rows) -> tuple[Any, Any]:
    """(the result in the type of the logits, what a mean divides by)."""
    total = None
    if loss.reduction != "none":
        losses = ltorch.sum(losses)
    if loss.reduction == "mean":
        counted = loss.counted()
        if rows.weight is None:
            total = as_type(ltorch.sum(as_type(counted, dtypes.int64)), losses.dtype)
        else:
            total = ltorch.sum(ltorch.where(counted, rows.weight, 0.0))
        losses = ltorch.true_divide(losses, total)
    return as_type(losses, loss.logits.dtype), total


def _backward(loss: _Loss, rows: _Rows, gradient: Any, total: Any) -> Any:
    """[N, C] from the logits anew, one pointwise kernel.

    gradient / total * (softmax(x) - (column is target)), and zero for rows that are ignored
    """
    x = loss.wide()
    gradient = as_type(gradient, x.dtype)
    if total is not None:
        gradient = ltorch.true_divide(gradient, total)
    scale = _column(ltorch.where(loss.counted(), gradient, 0.0))
    softmax = ltorch.exp(
        ltorch.sub(ltorch.sub(x, _column(rows.most)), _column(rows.log_sum))
    )
    result = ltorch.mul(_pull(loss, rows, softmax), scale)
    return as_type(result, loss.logits.dtype)


def _pull(loss: _Loss, rows: _Rows, softmax: Any) -> Any:
    """The gradient of one row's loss: softmax - (column is target), weighted and smoothed."""
    hit, kept = loss.at_target(), 1.0 - loss.label_smoothing
    if loss.weight is None:
        # A choice between two numbers would be one of float32.
        pulled = ltorch.sub(softmax, ltorch.mul(as_type(hit, softmax.dtype), kept))
        return ltorch.sub(pulled, loss.shift) if loss.label_smoothing else pulled
    at_target = _column(ltorch.mul(rows.weight, kept))
    pushed, pulled = at_target, ltorch.where(hit, at_target, 0.0)
    if loss.label_smoothing:
        pushed = ltorch.add(pushed, ltorch.mul(rows.weights, loss.shift))
        pulled = ltorch.add(pulled, ltorch.mul(loss.wide_weight(), loss.shift))
    return ltorch.sub(ltorch.mul(softmax, pushed), pulled)


def refuses_cross_entropy(*args: Any, **kwargs: Any) -> Reject | None:
    """Taken: [N, C] with one class a row, which is what language models have."""
    loss = _Loss(*args, **kwargs)
    a, target = loss.logits, loss.target
    if (loss.size_average, loss.reduce) != (None, None) or loss.reduction not in _REDUCTIONS:
        return Reject("cross_entropy with arguments that Thunder refuses")
    if not isinstance(loss.ignore_index, int) or not isinstance(loss.label_smoothing, (int, float)):
        return Reject("cross_entropy with a computed number")
    if refused := refuses_tensors("cross_entropy", (a, target, loss.weight)):
        return refused
    if a.ndim != 2 or target.ndim != 1 or data_type(target.dtype) not in INTS:
        return Reject("cross_entropy of other than logits [N, C] and a class for each row")
    if a._shape[0] != target._shape[0] or not 0 <= loss.label_smoothing <= 1:
        return Reject("cross_entropy with arguments that Thunder refuses")
    if not are_floats(a) or 0 in a._shape:
        return Reject("cross_entropy of no elements, or of other than floats")
    return _refuses_weight(a, loss.weight)


def _refuses_weight(a: TensorProxy, weight: TensorProxy | None) -> Reject | None:
    if weight is None:
        return None
    if weight.dtype != a.dtype or weight.requires_grad or weight._shape != a._shape[1:]:
        return Reject("cross_entropy with a weight of another type or size, or with a gradient")
    return None


# -------------------------------------------------------------------------- binary cross entropy


@dataclass(frozen=True, slots=True)
class _Binary:
    """A call of binary_cross_entropy: probabilities, targets and weights of one shape."""

    input: TensorProxy
    target: TensorProxy
    weight: TensorProxy | None = None
    size_average: Any = None
    reduce: Any = None
    reduction: str = "mean"

    def wide(self) -> tuple[Any, Any, Any]:
        tensors = (self.input, self.target, self.weight)
        dtype = compute_type(self.input)
        x, t, w = (None if one is None else as_type(one, dtype) for one in tensors)
        return x, t, w

    def loss(self) -> Any:
        """-t log(x) - (1 - t) log(1 - x), no logarithm below -100."""
        x, t, weight = self.wide()
        log, other = _bounded_log(ltorch.log(x)), _bounded_log(ltorch.log1p(ltorch.neg(x)))
        losses = ltorch.sub(ltorch.mul(ltorch.sub(t, 1.0), other), ltorch.mul(t, log))
        losses = losses if weight is None else ltorch.mul(losses, weight)
        if self.reduction != "none":
            losses = (ltorch.mean if self.reduction == "mean" else ltorch.sum)(losses)
        return as_type(losses, self.input.dtype)

    def gradients(self, gradient: Any) -> tuple[Any, Any]:
        """Of x: (x - t) / max(x (1 - x), 1e-12); of t: log(1 - x) - log(x)."""
        x, t, weight = self.wide()
        gradient = as_type(gradient, x.dtype)
        if self.reduction == "mean":
            gradient = ltorch.mul(gradient, 1.0 / self.input.numel)
        scale = gradient if weight is None else ltorch.mul(gradient, weight)
        spread = ltorch.mul(ltorch.sub(1.0, x), x)
        spread = ltorch.where(ltorch.lt(spread, 1e-12), 1e-12, spread)
        of_x = ltorch.mul(scale, ltorch.true_divide(ltorch.sub(x, t), spread))
        of_t = ltorch.mul(scale, ltorch.sub(ltorch.log1p(ltorch.neg(x)), ltorch.log(x)))
        return as_type(of_x, self.input.dtype), as_type(of_t, self.target.dtype)


def _bounded_log(log: Any) -> Any:
    return ltorch.where(ltorch.lt(log, -100.0), -100.0, log)


def binary_cross_entropy(*args: Any, **kwargs: Any) -> Any:
    return _Binary(*args, **kwargs).loss()


def binary_cross_entropy_gradient(*args: Any, **kwargs: Any) -> Any:
    """Not that of its pieces, which is NaN where a probability is 0 or 1."""
    call = _Binary(*args, **kwargs)
    result = call.loss()
    of_x, of_t = call.gradients(prims.get_grad(result))
    prims.put_grad(call.input, of_x)
    prims.put_grad(call.target, of_t)
    return result


def refuses_binary_cross_entropy(*args: Any, **kwargs: Any) -> Reject | None:
    """Taken: floats of one shape."""
    call = _Binary(*args, **kwargs)
    if (call.size_average, call.reduce) != (None, None) or call.reduction not in _REDUCTIONS:
        return Reject("binary_cross_entropy with arguments that torch has deprecated or refuses")
    tensors = [one for one in (call.input, call.target, call.weight) if one is not None]
    if refused := refuses_tensors("binary_cross_entropy", tensors):
        return refused
    if not are_floats(*tensors) or not call.input.numel:
        return Reject("binary_cross_entropy of no elements, or of other than floats")
    if any(one.shape != call.input.shape for one in tensors):
        return Reject("binary_cross_entropy of tensors of several shapes")
    return None
