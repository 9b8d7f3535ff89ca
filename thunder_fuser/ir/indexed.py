# SPDX-License-Identifier: Apache-2.0
"""Shape rules of ops whose operands differ in role: reads and writes at indices, torch calls.

    index_select(T0[i0, i1], T1[i2], dim=0)       ->  [i2, i1]
    take_along_axis(T0[i0, i1], T1[i0, i2], 1)    ->  [i0, i2]
    embedding_fwd(T0[i0, i1], T1[i2, i3])         ->  [i0, i1, i3]
    topk(T0[i0{8}, i1{50}], k=4)                  ->  [i2{8}, i3{4}], [i4{8}, i5{4}]

In a read, the axes that are not indexed keep their names, so a kernel loops over them as usual.
The results of a torch call have new axes, because no kernel spans the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thunder_fuser.errors import DtypeError
from thunder_fuser.ir.attention import ATTENTION
from thunder_fuser.ir.domain import Domain
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.products import grouped_mm, scaled_grouped_product, scaled_product
from thunder_fuser.ir.record import Literal, OpRecord
from thunder_fuser.ir.scalar import Scalar, const
from thunder_fuser.ir.shapes import (
    Fresh,
    Sizes,
    distinct,
    joined,
    matmul,
    may_be_equal,
    normalise_axis,
)
from thunder_fuser.ir.type_rules import check_literals

INDEX_TYPES = (DataType.Int, DataType.Int32)

Extents = Sequence[Scalar]


def axes(
    record: OpRecord, operands: list[TensorView], sizes: Sizes, fresh: Fresh
) -> list[Domain]:
    """The axes of each result; DefinitionError or DtypeError names the operand that does not fit.

    Operands are tensors, except that an index, and the source of `scatter`, may be a number.
    """
    if record.row.kind is OpKind.EXTERNAL:
        return [tuple(map(fresh, extents)) for extents in _called(record, operands, sizes)]
    source, index = operands[record.row.source], operands[1 - record.row.source]
    _check_index(record, index)
    indexed_axis(record, len(source.shape))
    domains = source.domain.no_reductions, index.domain.no_reductions
    return [distinct(_READS[record.op](record, *domains, fresh), fresh)]


def indexed_axis(record: OpRecord, rank: int) -> int:
    """The axis of the source that is indexed."""
    dim = 0 if record.op == "embedding_fwd" else record.attr("dim")
    return normalise_axis(dim, rank, record.op)


def _check_index(record: OpRecord, index: TensorView) -> None:
    """DtypeError unless the tensor holds integers of 32 or 64 bits."""
    if index.dtype not in INDEX_TYPES:
        what, do = f"{record.op}: index", "cast it to DataType.Int"
        raise DtypeError(what, expected="Int or Int32", got=index.dtype.name, do=do)


def _check_rank(record: OpRecord, name: str, given: Sequence[object], *ranks: int) -> None:
    if len(given) not in ranks:
        expected = f"rank {' or '.join(map(str, ranks))}"
        raise record.error(name, expected, f"rank {len(given)}")


# ---- reads


def _index_select(record: OpRecord, source: Domain, index: Domain, fresh: Fresh) -> Domain:
    """[i0, i1] at dim 0 by [i2] -> [i2, i1]. A single index gives an axis of size 1."""
    _check_rank(record, "index", index, 0, 1)
    dim = indexed_axis(record, len(source))
    number, size = record.inputs[1], source[dim].extent
    if isinstance(number, Literal) and size.is_const and not 0 <= number.value < size.value:
        expected = f"0 to {size.value - 1}, on axis {dim}"
        raise record.error("index", expected, int(number.value))
    place = index or (fresh(const(1)),)
    return (*source[:dim], *place, *source[dim + 1 :])


def _take_along_axis(record: OpRecord, source: Domain, index: Domain, fresh: Fresh) -> Domain:
    """Sizes of axes that are not indexed must be equal or 1."""
    _check_rank(record, "index", index, len(source))
    dim = indexed_axis(record, len(source))
    columns = enumerate(zip(source, index, strict=True))
    return tuple(
        column[1] if at == dim else joined(column, at, record.op) for at, column in columns
    )


def _gather(record: OpRecord, source: Domain, index: Domain, fresh: Fresh) -> Domain:
    """The index may be shorter than the source along axes that are not indexed."""
    _check_rank(record, "index", index, len(source))
    own, most = ([axis.extent for axis in domain] for domain in (index, source))
    _check_at_most(record, own, most, free=indexed_axis(record, len(source)))
    return index


def _check_at_most(record: OpRecord, index: Extents, most: Extents, free: int | None) -> None:
    """DefinitionError if the index is certainly longer along an axis that is not `free`."""
    for at, (size, limit) in enumerate(zip(index, most, strict=True)):
        if at != free and size.is_const and limit.is_const and size.value > limit.value:
            raise record.error(f"axis {at} of the index", f"at most {limit}", size)


def _embedding_fwd(record: OpRecord, source: Domain, index: Domain, fresh: Fresh) -> Domain:
    if (given := record.attr("max_norm")) is not None:
        do = "let torch.embedding_renorm_ scale the weight first"
        raise record.error("max_norm", "None", given, do)
    _check_rank(record, "weight", source, 2)
    return (*index, source[1])


# ---- torch calls


def _called(record: OpRecord, operands: list[TensorView], sizes: Sizes) -> list[Extents]:
    """The sizes of each result."""
    if record.op in ATTENTION:
        return ATTENTION[record.op](record, operands)
    if record.op == "topk":
        extents = _topk(record, operands[0], *sizes((record.attr("k"),)))
    else:
        extents = _CALLS[record.op](record, operands)
    return [extents] * len(record.row.results)


def _product(record: OpRecord, operands: list[TensorView]) -> Extents:
    if len({view.dtype for view in operands}) != 1:
        listed = ", ".join(view.dtype.name for view in operands)
        raise DtypeError(record.op, expected="one dtype", got=listed)
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
    if view.dtype.is_complex or view.dtype.is_stored:
        expected = "real numbers of a type with arithmetic"
        raise DtypeError(f"ops.{record.op}: arg", expected=expected, got=view.dtype.name)


def _write(record: OpRecord, operands: list[TensorView]) -> Extents:
    """Ops that write into a copy of the first operand: its sizes. The source has its dtype."""
    target, index, source = operands
    _check_index(record, index)
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
    _check_rank(record, "index", index, len(target))
    _check_at_most(record, index, target, free=dim)
    if source or not target:  # not one number for all places
        _check_rank(record, "index", index, len(source))
        _check_at_most(record, index, source, free=None)


def _check_slices(record: OpRecord, target: Extents, index: Extents, source: Extents) -> None:
    """index_add, index_copy: the source has one slice for each element of the index."""
    dim = _called_axis(record, target)
    _check_rank(record, "index", index, 0, 1)
    _check_source(record, source, _with_size(target, dim, index[0] if index else const(1)))


def _check_put(record: OpRecord, target: Extents, index: Extents, source: Extents) -> None:
    """index_put: the sizes of the index replace the first size of the target."""
    if not target:
        raise record.error("", "a tensor with axes", "rank 0")
    _check_source(record, source, (*index, *target[1:]))


def _check_source(record: OpRecord, source: Extents, expected: Extents) -> None:
    if not may_be_equal(source, expected):
        raise record.error("src", f"sizes {list(map(str, expected))}", list(map(str, source)))


def _embedding_backward(record: OpRecord, operands: list[TensorView]) -> Extents:
    (grad, indices), count = operands, record.integer("num_weights")
    _check_index(record, indices)
    if count < 0:
        raise record.error("num_weights", "a size >= 0", count)
    if not grad.dtype.is_float:
        raise DtypeError("embedding_backward: grad", expected="a float", got=grad.dtype.name)
    if not grad.shape or not may_be_equal(grad.shape[:-1], indices.shape):
        got = " and ".join(str(list(map(str, view.shape))) for view in operands)
        raise record.error("grad", "the sizes of the indices and one more axis", got)
    return (const(count), grad.shape[-1])


_READS: dict[str, Callable[[OpRecord, Domain, Domain, Fresh], Domain]] = {
    "index_select": _index_select,
    "take_along_axis": _take_along_axis,
    "gather": _gather,
    "embedding_fwd": _embedding_fwd,
}
_CALLS: dict[str, Callable[[OpRecord, list[TensorView]], Extents]] = {
    "matmul": _product,
    "linear": _product,
    "grouped_mm": grouped_mm,
    "scaled_product": scaled_product,
    "scaled_grouped_product": scaled_grouped_product,
    **dict.fromkeys(("scatter", "scatter_add"), _write),
    **dict.fromkeys(("index_add", "index_copy", "index_put", "index_put_accumulate"), _write),
    "embedding_backward": _embedding_backward,
    "argsort": _sorted,
    "sort": _sorted,
}
