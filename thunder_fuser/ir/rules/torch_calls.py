# SPDX-License-Identifier: Apache-2.0
"""Shape rules of torch calls, whose results have new axes, because no kernel spans a call.

    topk(T0[8, 50], k=4)                                              ->  [8, 4], [8, 4]
    scatter(T0[m, n], T1[k, n], T2[k, n], dim=0)                      ->  [m, n]
    grouped_mm(T0[m, k], T1[g, k, n], T2[g])                          ->  [m, n]
    sdpfa_fwd(T0[n, h, l, e], T1[n, h, s, e], T2[n, h, s, v])  ->  [n, h, l, v], [n, h, l], [2], []
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thunder_fuser.errors import DtypeError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.record import Literal, OpRecord
from thunder_fuser.ir.rules.indexed import (
    INDEX_TYPES,
    Extents,
    check_at_most,
    check_index,
    check_rank,
)
from thunder_fuser.ir.rules.shapes import SizesOf, matmul, may_be_equal, normalise_axis
from thunder_fuser.ir.rules.type_rules import check_literals
from thunder_fuser.ir.scalar import Scalar, const

_ATTENDS = (DataType.Half, DataType.BFloat16, DataType.Float)


def result_sizes(record: OpRecord, operands: list[TensorView], sizes: SizesOf) -> list[Extents]:
    """The sizes of each result; DefinitionError or DtypeError names the operand that does not fit.

    Operands are tensors, except that the source of `scatter` may be a number.
    """
    if record.op == "sdpfa_fwd":
        return _attention(record, operands)
    if record.op == "sdpfa_bwd":
        return _attention_backward(record, operands)
    if record.op == "topk":
        extents = _topk(record, operands[0], *sizes((record.attr("k"),)))
    else:
        extents = _CALLS[record.op](record, operands)
    return [extents] * len(record.row.results)


def _product(record: OpRecord, operands: list[TensorView]) -> Extents:
    _check_one_type(record, operands)
    return matmul(record, [view.shape for view in operands])


def _called_axis(record: OpRecord, shape: Extents) -> int:
    """The axis of a torch call, for which a tensor of rank 0 has one axis."""
    return normalise_axis(record.attr("dim"), max(len(shape), 1), record.op)


def _sorted(record: OpRecord, operands: list[TensorView]) -> Extents:
    """sort, argsort: the sizes of the operand."""
    _check_ordered(record, operands[0])
    _called_axis(record, operands[0].shape)
    return operands[0].shape


def _topk(record: OpRecord, view: TensorView, k: Scalar) -> Extents:
    shape = view.shape
    dim = _called_axis(record, shape)
    _check_ordered(record, view)
    if view.dtype is DataType.Bool:
        raise DtypeError("ops.topk", expected="numbers", got="Bool", do="cast to DataType.Int")
    longest = shape[dim] if shape else const(1)
    if k.is_const and (k.value < 0 or (longest.is_const and k.value > longest.value)):
        raise record.error("k", f"0 to {longest}", k)
    return _with_size(shape, dim, k)


def _with_size(shape: Extents, dim: int, size: Scalar) -> Extents:
    return tuple(size if at == dim else extent for at, extent in enumerate(shape))


def _check_ordered(record: OpRecord, view: TensorView) -> None:
    """DtypeError for complex numbers, which have no order, and for 8-bit floats."""
    if view.dtype.is_complex or view.dtype.is_float8:
        expected = "real numbers of a type with arithmetic"
        raise DtypeError(f"ops.{record.op}: arg", expected=expected, got=view.dtype.name)


def _write(record: OpRecord, operands: list[TensorView]) -> Extents:
    """Ops that write into a copy of the first operand: its sizes. The source has its dtype."""
    target, index, source = operands
    check_index(record, index)
    check_literals(record, record.inputs[2:], [target.dtype])
    if source.dtype is not target.dtype and not isinstance(record.inputs[2], Literal):
        wanted, got = target.dtype.name, source.dtype.name
        raise DtypeError(f"{record.op}: src", expected=wanted, got=got, do="cast it first")
    if record.attr("dim") is None:
        _check_put(record, target.shape, index.shape, source.shape)
    elif record.op.startswith("scatter"):
        _check_scatter(record, target.shape, index.shape, source.shape)
    else:
        _check_slices(record, target.shape, index.shape, source.shape)
    return target.shape


def _check_scatter(record: OpRecord, target: Extents, index: Extents, source: Extents) -> None:
    """Equal ranks; an index no longer than the source and, but along dim, the target."""
    dim = _called_axis(record, target)
    check_rank(record, "index", index, len(target))
    check_at_most(record, index, target, free=dim)
    if source or not target:  # not one number for all places
        check_rank(record, "index", index, len(source))
        check_at_most(record, index, source, free=None)


def _check_slices(record: OpRecord, target: Extents, index: Extents, source: Extents) -> None:
    """index_add, index_copy: the source has one slice for each element of the index."""
    dim = _called_axis(record, target)
    check_rank(record, "index", index, 0, 1)
    _check_shape(record, "src", source, _with_size(target, dim, index[0] if index else const(1)))


def _check_put(record: OpRecord, target: Extents, index: Extents, source: Extents) -> None:
    """index_put: the sizes of the index replace the first size of the target."""
    if not target:
        raise record.error("", "a tensor with axes", "rank 0")
    _check_shape(record, "src", source, (*index, *target[1:]))


def _embedding_backward(record: OpRecord, operands: list[TensorView]) -> Extents:
    (grad, indices), count = operands, record.integer("num_weights")
    check_index(record, indices)
    if count < 0:
        raise record.error("num_weights", "a size >= 0", count)
    if not grad.dtype.is_float:
        raise DtypeError("embedding_backward: grad", expected="a float", got=grad.dtype.name)
    if not grad.shape or not may_be_equal(grad.shape[:-1], indices.shape):
        got = " and ".join(_text(view.shape) for view in operands)
        raise record.error("grad", "the sizes of the indices and one more axis", got)
    return (const(count), grad.shape[-1])


# ---- grouped products


def _grouped_mm(record: OpRecord, operands: list[TensorView]) -> Extents:
    """A product for each group of rows of mat1, of columns of mat2, or of summed elements."""
    a, b, offsets = (view.shape for view in operands)
    _check_one_type(record, operands[:2])
    if operands[2].dtype not in INDEX_TYPES:
        got = operands[2].dtype.name
        raise DtypeError("grouped_mm: offsets", expected="Int or Int32", got=got)
    if (len(a), len(b)) not in ((2, 3), (3, 2), (2, 2)) or len(offsets) != 1:
        expected = "matrices, one of them with an axis of groups, or none, and a vector"
        raise record.error("", expected, f"ranks {len(a)}, {len(b)}, {len(offsets)}")
    if not may_be_equal(a[-1:], b[-2:-1]):
        raise record.error("summed axis", "equal sizes", f"{a[-1]}, {b[-2]}")
    groups = b[0] if len(b) == 3 else a[0] if len(a) == 3 else offsets[0]
    _check_shape(record, "offsets", offsets, [groups])
    return (groups,) * (len(a) == len(b)) + (a[-2], b[-1])


# ---- attention


def _attention(record: OpRecord, operands: list[TensorView]) -> list[Extents]:
    _check_attention(record, operands[:3])
    _check_mask(record, operands[3:], operands)
    query, value = operands[0].shape, operands[2].shape
    return [(*query[:-1], value[-1]), query[:-1], (const(2),), ()]


def _attention_backward(record: OpRecord, operands: list[TensorView]) -> list[Extents]:
    grad, *inputs = operands[:4]
    _check_attention(record, [*inputs, grad, operands[4]])
    output = (*inputs[0].shape[:-1], inputs[2].shape[-1])
    for name, view in (("grad_output", grad), ("output", operands[4])):
        _check_shape(record, name, view.shape, output)
    _check_shape(record, "logsumexp", operands[5].shape, output[:-1])
    _check_mask(record, operands[8:], inputs)
    return [view.shape for view in inputs]


def _check_mask(
    record: OpRecord, mask: Sequence[TensorView], operands: Sequence[TensorView]
) -> None:
    """A mask, if there is one, has the type of the query and sizes that can be scores' sizes."""
    query, key = operands[0].shape, operands[1].shape
    for view in mask:
        _check_one_type(record, [operands[0], view])
        scores = (*query[:-1], key[-2])[len(query) - len(view.shape) :]
        expanded = [b if a is const(1) else a for a, b in zip(view.shape, scores, strict=False)]
        sizes = expanded if len(expanded) == len(view.shape) else view.shape
        _check_shape(record, "attn_mask", sizes, scores)


def _check_attention(record: OpRecord, operands: Sequence[TensorView]) -> None:
    """One type; one rank; equal batches and heads, lengths of key and value, and sizes of E."""
    _check_one_type(record, operands, _ATTENDS)
    shapes = [view.shape for view in operands]
    ranks = [len(shape) for shape in shapes]
    if len({*ranks}) > 1 or ranks[0] < 4:
        got = f"ranks {', '.join(map(str, ranks))}"
        raise record.error("", "tensors of rank 4, or all of one larger rank", got)
    query, key, value = shapes[:3]
    _check_shape(record, "key", key, (*query[:-2], key[-2], query[-1]))
    _check_shape(record, "value", value, (*key[:-1], value[-1]))


def _check_one_type(
    record: OpRecord, views: Sequence[TensorView], allowed: Sequence[DataType] = ()
) -> None:
    types = {view.dtype for view in views}
    if len(types) > 1 or (allowed and not types <= set(allowed)):
        names = " or ".join(dtype.name for dtype in allowed)
        got = ", ".join(view.dtype.name for view in views)
        raise DtypeError(record.op, expected=f"one type {names}".strip(), got=got)


def _check_shape(record: OpRecord, name: str, shape: Extents, wanted: Extents) -> None:
    if not may_be_equal(shape, wanted):
        raise record.error(name, f"sizes {_text(wanted)}", _text(shape))


def _text(shape: Extents) -> str:
    return f"[{', '.join(map(str, shape))}]"


_CALLS: dict[str, Callable[[OpRecord, list[TensorView]], Extents]] = {
    "matmul": _product,
    "linear": _product,
    "grouped_mm": _grouped_mm,
    **dict.fromkeys(("scatter", "scatter_add"), _write),
    **dict.fromkeys(("index_add", "index_copy", "index_put", "index_put_accumulate"), _write),
    "embedding_backward": _embedding_backward,
    "argsort": _sorted,
    "sort": _sorted,
}
