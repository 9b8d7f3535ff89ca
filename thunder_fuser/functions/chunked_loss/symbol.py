# SPDX-License-Identifier: Apache-2.0
"""The loss as one symbol of a trace, and what it becomes where gradients are taken.

    loss = loss_in_chunks(h, w, b, target, ...)  ->  loss, dh0, dw0 = chunkedLoss0(h, w, b, target)
                                                     dh = dh0 * g, dw = dw0 * g

    losses = loss_in_chunks(..., "none")         ->  losses = chunkedLoss0(h, w, b, target)
                                                     dh, dw = chunkedLoss1(h, w, b, target, g)
"""

from __future__ import annotations

import itertools
from typing import Any

from thunder.core import dtypes
from thunder.core.prims import OpTags, get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol

from thunder_fuser.executors.support.check import CHUNKED_LOSS as CALLED
from thunder_fuser.functions.chunked_loss.loop import ChunkedLoss, NeedsGradient
from thunder_fuser.functions.chunked_loss.rows import Options, Steps
from thunder_fuser.functions.define import Composite, Table, as_type, compute_type
from thunder_fuser.functions.kernels import KERNELS
from thunder_fuser.source.jit_options import options_of_jit

_NAME = "thunder_fuser.loss_in_chunks"
_TAGS = (OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD, OpTags.MATMUL_OP)
_numbers = itertools.count()


def _meta(  # noqa: PLR0917 - a symbol's arguments
    h: Any, w: Any, b: Any, target: Any, weight: Any, steps: Steps, ignore_index: int,
    reduction: str, label_smoothing: float, with_sums: bool, rows: int, needs: NeedsGradient,
    where: str,
) -> Any:  # fmt: skip
    """The loss and, if asked for, the rows' logsumexp, in the type in which they are computed."""
    loss, *sums = _results_like(h, reduction, with_sums)
    return (loss, *sums) if sums else loss


def _results_like(h: Any, reduction: str, with_sums: bool) -> list[TensorProxy]:
    shapes = [h.shape[:1] if reduction == "none" else (), *[h.shape[:1]] * with_sums]
    return [TensorProxy(like=h, shape=shape, dtype=compute_type(h)) for shape in shapes]


loss_in_chunks = Symbol("loss_in_chunks", _meta, id=_NAME, is_prim=True, _module=None)


def recomputes(reduction: str, with_sums: bool, dtype: Any) -> bool:
    """True if the backward computes the logits again."""
    return reduction == "none" or with_sums or dtypes.to_strong_dtype(dtype) is dtypes.float16


def _called(args: Any, needs: NeedsGradient, *g: TensorProxy) -> tuple[TensorProxy, ...]:
    """The results of the symbol that computes the loss, or with its gradient `g` only gradients."""
    *tensors, steps, ignore_index, reduction, smoothing, with_sums, rows, _, where = args
    options = Options(steps, ignore_index, reduction, smoothing, with_sums)
    call = ChunkedLoss(options, rows, needs, options_of_jit(), where)
    name = f"{CALLED}{next(_numbers)}"

    def meta(h: Any, w: Any, b: Any, *others: Any) -> Any:
        like = [x for x, needed in zip((h, w, b), needs, strict=True) if needed]
        results = [] if g else _results_like(h, reduction, with_sums)
        return *results, *(TensorProxy(like=x, dtype=h.dtype) for x in like)

    def bind(bsym: BoundSymbol) -> None:
        bsym._call_ctx = {name: call}
        bsym.header = f"{rows} rows of the logits at a time"

    symbol = Symbol(
        name, meta, id=name, is_prim=True, tags=_TAGS, executor=KERNELS, _bind_postprocess=bind
    )
    return symbol(*tensors, *g)  # type: ignore[no-any-return]


def _without_gradient(*args: Any) -> Any:
    loss, *sums = _called(args, (False, False, False))
    return (loss, *sums) if sums else loss


def _gradient(*args: Any) -> Any:
    h, reduction, with_sums, needs = args[0], args[7], args[9], args[-2]
    tensors = [x for x, needed in zip(args[:3], needs, strict=True) if needed]
    if recomputes(reduction, with_sums, h.dtype):
        results = _called(args, (False, False, False))
        of_results = [get_grad(result) for result in results]
        gradients = _called(args, needs, *of_results) if tensors else ()
    else:
        loss, *parts = _called(args, needs)
        results, g = (loss,), get_grad(loss)
        gradients = tuple(as_type(part, g.dtype) * g for part in parts)
    for tensor, gradient in zip(tensors, gradients, strict=True):
        put_grad(tensor, as_type(gradient, tensor.dtype))
    return results if with_sums else results[0]


CHUNKED_LOSS: Table = {_NAME: Composite(lambda *_: None, _without_gradient, _gradient)}
