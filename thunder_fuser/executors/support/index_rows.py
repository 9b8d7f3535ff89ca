# SPDX-License-Identifier: Apache-2.0
"""Rows of the support table for reads and writes at tensors of indices, and for sorts.

Reads are fused. Writes and sorts are one torch call each; a region takes them between fused ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy

from thunder_fuser.executors.support.dtypes import ANY, NUMBERS, data_type
from thunder_fuser.executors.support.rows import Record, Row, no_computed, op, rows
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.rules.indexed import INDEX_TYPES
from thunder_fuser.trace.op import Reject

# ------------------------------------------------------------------------------------------ checks


def _check_index(a: TensorProxy, index: TensorProxy, *rest: Any) -> Reject | None:
    """Refuses other integers as indices: torch takes them in some of these ops, else it raises."""
    if data_type(index.dtype) not in INDEX_TYPES:
        return Reject(f"an index of {str(index.dtype).removeprefix('thunder.dtypes.')}")
    return None if a.ndim else Reject("an index into a 0-dim tensor")


def _check_scatter(a: TensorProxy, index: TensorProxy, src: Any, dim: int) -> Reject | None:
    return no_computed("scatter of a computed number")(a, src) or _check_index(a, index)


def _check_put(
    a: TensorProxy, indices: Sequence[TensorProxy], values: TensorProxy, accumulate: Any
) -> Reject | None:
    if len(indices) != 1:
        return Reject(f"index_put by {len(indices)} tensors of indices")
    return _check_index(a, indices[0])


def _check_embedding(a: TensorProxy, weight: TensorProxy, **rest: Any) -> Reject | None:
    if rest.get("max_norm") is not None:
        return Reject("embedding with max_norm")
    return _check_index(weight, a)


def _check_embedding_backward(
    grad: TensorProxy, indices: TensorProxy, num_weights: Any, padding_idx: Any, *flags: Any
) -> Reject | None:
    if flags[1]:
        return Reject("a sparse gradient")
    known = type(num_weights) is int and type(padding_idx) is int
    return _check_index(grad, indices) if known else Reject("symbolic size")


def _check_sort(a: TensorProxy, *rest: Any, **more: Any) -> Reject | None:
    computed = no_computed("sort by a computed number")(a, *rest, **more)
    return computed or (None if a.ndim else Reject("sort of a 0-dim tensor"))


# ------------------------------------------------------------------------------------------ records


def _index_put(fd: Recorder, a: Any, indices: Any, values: Any, accumulate: Any) -> Any:
    put = fd.ops.index_put_accumulate if accumulate else fd.ops.index_put
    return put(a, indices[0], values)


def _embedding_backward(fd: Recorder, grad: Any, indices: Any, *sizes_and_flags: Any) -> Any:
    num_weights, padding_idx, by_frequency, _ = sizes_and_flags
    return fd.ops.embedding_backward(grad, indices, num_weights, padding_idx, bool(by_frequency))


def _nll_loss_backward(fd: Recorder, g: Any, a: Any, target: Any, *rest: Any) -> Any:
    """-weight[c] * g where c is the row's target and is not ignored; else 0.

    This scatter of one element a row is written as a comparison, so that it fuses with its readers.
    """
    weight, reduction, ignore_index, total_weight = rest
    sizes = fd.ops.shape(a)
    dim = 1 if len(sizes) > 1 else 0
    is_new = [at == dim for at in range(len(sizes))]
    classes = fd.ops.iota(sizes[dim], 0, 1, DataType.Int)
    target = fd.ops.broadcast(target, is_new)
    picked = fd.ops.eq(fd.ops.broadcast_in_dim(classes, sizes, [dim]), target)
    picked = fd.ops.logical_and(picked, fd.ops.ne(target, ignore_index))
    if reduction == "none":
        g = fd.ops.broadcast(g, is_new)
    elif reduction == "mean":
        g = fd.ops.truediv(g, total_weight)
    if weight is not None:
        g = fd.ops.mul(g, fd.ops.broadcast_in_dim(weight, sizes, [dim]))
    return fd.ops.where(picked, fd.ops.neg(g), 0.0)


def _with_flags(name: str) -> Record:
    """sort(a, dim, descending, stable), topk(a, k, dim, largest, sorted)"""
    return lambda fd, *args: getattr(fd.ops, name)(*args[:-2], *map(bool, args[-2:]))


_P = PrimIDs
INDEXING = (
    # ---- fused
    Row(_P.TAKE, op("index_select"), check=_check_index),
    *rows("take_along_axis gather", ANY, _check_index),
    Row(  # the other arguments matter only for the gradient
        _P.EMBEDDING, lambda fd, a, weight, **rest: fd.ops.embedding_fwd(a, weight),
        check=_check_embedding,
    ),
    Row(
        "nll_loss_backward", _nll_loss_backward,
        check=lambda g, a, target, weight, reduction, ignore_index, total_weight: (
            no_computed("a computed ignore_index")(g, ignore_index)
        ),
    ),
    # ---- torch calls
    *rows("scatter", ANY, _check_scatter, is_call=True),
    # In bfloat16 Thunder's torch executor adds casts, and nobody claims them after the fusion pass.
    *rows("scatter_add", ANY - {DataType.BFloat16}, _check_index, is_call=True),
    *rows("index_add index_copy", ANY, _check_index, is_call=True),
    Row(_P.INDEX_PUT, _index_put, check=_check_put, is_call=True),
    Row(_P.EMBEDDING_BACKWARD, _embedding_backward, check=_check_embedding_backward, is_call=True),
    Row(_P.SORT, _with_flags("sort"), check=_check_sort, is_call=True),
    Row(_P.TOPK, _with_flags("topk"), NUMBERS, check=_check_sort, is_call=True),
    Row(
        "torch.argsort",
        lambda fd, a, dim=-1, descending=False, stable=False: fd.ops.argsort(
            a, -1 if dim is None else dim, descending, stable
        ),
        check=_check_sort, is_call=True,
    ),
)
CALLS = frozenset(row.id for row in INDEXING if row.is_call)
# What takes indices that may be out of range.
AT_INDICES = frozenset(row.id for row in INDEXING[:-3]) - {"nll_loss_backward"}
