# SPDX-License-Identifier: Apache-2.0
"""log_softmax and cross entropy, forward and backward.

    log_softmax(x)                     of [1e8, 1e8] and of [1, inf]
->  Thunder:  x - (max + log(sum))     [0, 0] and [-inf, NaN]
    here:     x - max - log(sum)       [-0.69, -0.69] and NaN, as in torch

    cross_entropy(x[N, C], target[N])  what the backward reads
->  Thunder:  log_softmax, a lookup    log-softmax[N, C], target[N]
    here:     one pass over each row   x[N, C], target[N], two numbers a row
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import thunder.torch as ltorch
from thunder.core import dtypes, prims
from thunder.core.proxies import TensorProxy

from thunder_fuser.executors.functions.define import (
    Backward,
    Composite,
    of_calls,
    refuses_floats,
    wide,
    with_gradient,
)
from thunder_fuser.executors.types import (
    INTS,
    Reject,
    as_type,
    compute_type,
    data_type,
    refuses_tensors,
)


def _log_softmax(a: Any, /, dim: int, *, dtype: Any = None) -> tuple[Any, Backward]:
    kind = a.dtype if dtype is None else dtypes.to_dtype(dtype)
    x = wide(as_type(a, kind))
    below = x - ltorch.amax(x, dim, True)
    result = as_type(below - ltorch.log(ltorch.sum(ltorch.exp(below), dim, True)), kind)

    def backward(g: Any) -> Any:
        """g - softmax * sum(g), of the result as it was rounded, as in torch."""
        y = wide(result)
        g = as_type(g, y.dtype)
        yield a, as_type(g - ltorch.exp(y) * ltorch.sum(g, dim, True), a.dtype)

    return result, backward


def _refuses_log_softmax(a: Any, /, dim: int, *, dtype: Any = None) -> Reject | None:
    if refused := refuses_floats("log_softmax", a):
        return refused
    if dtype is not None and not dtypes.is_float_dtype(dtypes.to_dtype(dtype)):
        return Reject("log_softmax in a type that is none of floats")
    known = a.ndim and isinstance(dim, int)
    return None if known else Reject("log_softmax of a 0-dim tensor, or along a computed dimension")


class _Rows(NamedTuple):
    """What the backward reads of each row: log(sum(exp(x))), and the weights.

    The logarithm is kept in two parts, `most` + `log_sum`: their sum would round off the digits
    that exp(x - it) needs.
    """

    most: Any
    log_sum: Any
    of_target: Any = None  # [N]
    of_all: Any = None  # 0-dim


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

    def counted(self) -> Any:
        """[N], False for rows that are ignored."""
        return self.target != self.ignore_index

    def wide_weight(self) -> Any:
        return as_type(self.weight, compute_type(self.logits))

    @property
    def shift(self) -> float:
        """What label smoothing moves from the target to each class."""
        return self.label_smoothing / int(self.logits._shape[1])

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

    def losses(self) -> tuple[Any, _Rows]:
        """log(sum(exp(x))) - x[target] of each row, times the weight of the target."""
        x = wide(self.logits)
        most = ltorch.amax(x, 1)
        below = _column(most) - x
        rows = _Rows(most, ltorch.log(ltorch.sum(ltorch.exp(-below), 1)))
        # An ignored row reads class 0; any other that is no class is an index out of range.
        target = ltorch.where(self.counted(), self.target, 0)
        picked = prims.squeeze(prims.take_along_axis(x, _column(target), 1), (1,))
        losses = most - picked + rows.log_sum
        if self.weight is not None:
            weight = self.wide_weight()
            rows = _Rows(*rows[:2], prims.take(weight, target, 0), ltorch.sum(weight))
            losses = losses * rows.of_target
        if self.label_smoothing:
            smooth = self.smooth(below, rows) * self.shift
            losses = losses * (1.0 - self.label_smoothing) + smooth
        return losses, rows

    def smooth(self, below: Any, rows: _Rows) -> Any:
        """The losses of all classes together: sum(weight * (log(sum(exp(x))) - x))."""
        if self.weight is None:
            return ltorch.sum(below, 1) + rows.log_sum * float(self.logits._shape[1])
        return ltorch.sum(below * self.wide_weight(), 1) + rows.log_sum * rows.of_all

    def total(self, weights: Any, dtype: Any) -> Any:
        """What a mean divides by: the weights, or the number, of rows that are counted."""
        if weights is not None:
            return ltorch.sum(ltorch.where(self.counted(), weights, 0.0))
        return as_type(ltorch.sum(as_type(self.counted(), dtypes.int64)), dtype)

    def backward(self, rows: _Rows, g: Any, total: Any) -> Any:
        """[N, C] from the logits anew, one pointwise kernel.

        g / total * (softmax(x) - (column is target)), and zero for rows that are ignored
        """
        x = wide(self.logits)
        g = as_type(g, x.dtype)
        scale = _column(ltorch.where(self.counted(), g if total is None else g / total, 0.0))
        softmax = ltorch.exp(x - _column(rows.most) - _column(rows.log_sum))
        return as_type(self.row_gradient(rows, softmax) * scale, self.logits.dtype)

    def row_gradient(self, rows: _Rows, softmax: Any) -> Any:
        """softmax - (column is target), weighted and smoothed."""
        classes, kept = softmax.shape[1], 1.0 - self.label_smoothing
        columns = ltorch.arange(classes, device=softmax.device, dtype=dtypes.int64)
        hit = columns == _column(self.target)
        if self.weight is None:
            # A choice between two numbers would be one of float32.
            found = softmax - as_type(hit, softmax.dtype) * kept
            return found - self.shift if self.label_smoothing else found
        at_target = _column(rows.of_target * kept)
        pushed, pulled = at_target, ltorch.where(hit, at_target, 0.0)
        if self.label_smoothing:
            pushed = pushed + rows.of_all * self.shift
            pulled = pulled + self.wide_weight() * self.shift
        return softmax * pushed - pulled

    def refuses(self) -> Reject | None:
        """Taken: [N, C] with one class a row, which is what language models have."""
        a, target, weight = self.logits, self.target, self.weight
        numbers = isinstance(self.ignore_index, int), isinstance(self.label_smoothing, (int, float))
        if not all(numbers):
            return Reject("cross_entropy with a computed number")
        if refused := refuses_tensors("cross_entropy", (a, target, weight)):
            return refused
        if a.ndim != 2 or target.ndim != 1 or data_type(target.dtype) not in INTS:
            return Reject("cross_entropy of other than logits [N, C] and a class for each row")
        deprecated = (self.size_average, self.reduce) != (None, None)
        known = self.reduction in ("none", "sum", "mean") and 0 <= self.label_smoothing <= 1
        if deprecated or not known or a._shape[0] != target._shape[0]:
            return Reject("cross_entropy with arguments that Thunder refuses")
        if weight is not None and (
            weight.dtype != a.dtype or weight.requires_grad or weight._shape != a._shape[1:]
        ):
            return Reject("cross_entropy with a weight of another type or size, or with a gradient")
        return refuses_floats("cross_entropy", a)


def _column(row: Any) -> Any:
    return ltorch.unsqueeze(row, 1)


CROSS_ENTROPY: dict[str, Composite] = {
    "torch.log_softmax": with_gradient(_refuses_log_softmax, _log_softmax),
    "torch.nn.functional.cross_entropy": of_calls(_Loss),
}
