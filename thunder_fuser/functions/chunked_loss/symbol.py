# SPDX-License-Identifier: Apache-2.0
"""The loss as one symbol of a trace, and what it becomes where gradients are taken.

    loss = loss_in_chunks(h, w, b, target, ...)
->  loss, dh0, dw0, db0 = chunkedLoss0(h, w, b, target)
    dh = dh0 * g, dw = dw0 * g, db = db0 * g                 g: the gradient of the loss

    loss = loss_in_chunks(h, w, ..., ranks)                  w: the part of one rank
->  loss, dh0, dw0 = chunkedLossAcrossRanks0(h, w, ...)      dh0: to be summed over the ranks

    losses = loss_in_chunks(..., "none")
->  losses, t0, t1 = chunkedLoss0(h, w, b, target)           t0, t1: the statistics of the rows
    dh, dw, db = chunkedLoss1(h, w, b, target, t0, t1, g)
"""

from __future__ import annotations

import itertools
from typing import Any

from thunder.core import dtypes
from thunder.core.prims import OpTags, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol

from thunder_fuser.executors.support.check import ACROSS_RANKS
from thunder_fuser.executors.support.check import CHUNKED_LOSS as CALLED
from thunder_fuser.functions.chunked_loss.loop import (
    ChunkedLoss,
    NeedsGradient,
    has_wide_sums,
)
from thunder_fuser.functions.chunked_loss.rows import Options, Steps
from thunder_fuser.functions.define import Composite, Table, as_type, compute_type
from thunder_fuser.source.jit_options import options_of_jit
from thunder_fuser.trace.proxies import TORCH_KERNELS

_NAME = "thunder_fuser.loss_in_chunks"
_TAGS = (OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD, OpTags.MATMUL_OP)
_numbers = itertools.count()


def _meta(  # noqa: PLR0917 - a symbol's arguments
    h: Any, w: Any, b: Any, target: Any, weight: Any, steps: Steps, ignore_index: int,
    reduction: str, label_smoothing: float, with_sums: bool, rows: int, ranks: Any,
    needs: NeedsGradient, where: str,
) -> Any:  # fmt: skip
    """The loss and, if asked for, the rows' logsumexp, in the type in which they are computed."""
    loss, *sums = _results_like(h, reduction, with_sums)
    return (loss, *sums) if sums else loss


def _results_like(h: Any, reduction: str, with_sums: bool, *kept: Any) -> list[TensorProxy]:
    shapes = [h.shape[:1] if reduction == "none" else (), *[h.shape[:1]] * with_sums, *kept]
    return [TensorProxy(like=h, shape=shape, dtype=compute_type(h)) for shape in shapes]


loss_in_chunks = Symbol("loss_in_chunks", _meta, id=_NAME, is_prim=True, _module=None)


def recomputes(reduction: str, with_sums: bool, dtype: Any, needs: NeedsGradient) -> bool:
    """True if the backward computes the logits again: where it alone knows the gradient of a row,
    or where half lacks the range for one without a scale."""
    by_row = reduction == "none" or with_sums or dtypes.to_strong_dtype(dtype) is dtypes.float16
    return by_row and any(needs)


class _LossCall:
    """One call of the symbol: what it becomes, as symbols that run `ChunkedLoss`."""

    def __init__(self, args: Any, needs: NeedsGradient) -> None:
        self.tensors, (h, w, *_) = args[:5], args
        steps, ignore_index, reduction, smoothing, with_sums, rows, ranks, _, where = args[5:]
        size, rank = (1, 0) if ranks is None else (ranks.size(), ranks.rank())
        options = Options(
            w.shape[0] * size, steps, ignore_index, reduction, smoothing, with_sums,
            first=w.shape[0] * rank,
        )  # fmt: skip
        again = recomputes(reduction, with_sums, h.dtype, needs)
        self.run = ChunkedLoss(options, rows, needs, again, options_of_jit(), where, ranks)

    def losses(self) -> tuple[TensorProxy, ...]:
        """The loss; the logsumexp, if asked for; then the statistics or the gradients."""

        def meta(h: Any, w: Any, b: Any, target: Any, weight: Any) -> Any:
            run, rows = self.run, h.shape[:1]
            shapes = [rows, rows] if weight is None else [rows, rows, rows, ()]
            wide = compute_type(h)
            kinds = h.dtype, wide if has_wide_sums(h.shape[0], run.rows) else h.dtype, wide
            gradients = [
                TensorProxy(like=x, dtype=kind)
                for x, kind, needed in zip((h, w, b), kinds, run.needs, strict=True) if needed
            ]
            options, kept = run.options, shapes * run.recomputes
            results = _results_like(h, options.reduction, options.with_sums, *kept)
            return *results, *(gradients * (not run.recomputes))

        name = CALLED if self.run.ranks is None else ACROSS_RANKS
        return self._call(name, meta, self.run.losses, *self.tensors)

    def gradients(self, *others: TensorProxy) -> tuple[TensorProxy, ...]:
        """Those of the hidden state, the weight and the bias, as far as they have some."""

        def meta(*tensors: Any) -> Any:
            return tuple(TensorProxy(like=x) for x in self.of(tensors))

        return self._call(CALLED, meta, self.run.gradients, *self.tensors, *others)

    def of(self, tensors: Any) -> list[Any]:
        """Those of the first three that have gradients."""
        return [x for x, needed in zip(tensors, self.run.needs, strict=False) if needed]

    def _call(self, kind: str, meta: Any, run: Any, *args: Any) -> tuple[TensorProxy, ...]:
        name = f"{kind}{next(_numbers)}"

        def bind(bsym: BoundSymbol) -> None:
            bsym._call_ctx = {name: run}
            bsym.header = f"{self.run.rows} rows of the logits at a time"

        symbol = Symbol(
            name, meta, id=name, is_prim=True, tags=_TAGS, executor=TORCH_KERNELS,
            _bind_postprocess=bind,
        )
        return symbol(*args)  # type: ignore[no-any-return]


def _without_gradient(*args: Any) -> Any:
    loss, *sums = _LossCall(args, (False, False, False)).losses()
    return (loss, *sums) if sums else loss


def _gradient(*args: Any) -> Any:
    call = _LossCall(args, args[-2])
    loss, *kept = call.losses()
    sums = [kept.pop(0)] if call.run.options.with_sums else []
    of_results = [get_grad(result) for result in (loss, *sums)]
    if call.run.recomputes:
        gradients = call.gradients(*kept, *of_results)
    else:
        gradients = tuple(as_type(x, loss.dtype) * of_results[0] for x in kept)
    for tensor, gradient in zip(call.of(args), gradients, strict=True):
        put_grad(tensor, as_type(gradient, tensor.dtype))
    return (loss, *sums) if sums else loss


CHUNKED_LOSS: Table = {_NAME: Composite(lambda *_: None, _without_gradient, _gradient)}
