# SPDX-License-Identifier: Apache-2.0
"""Shape rules of ops that read at indices.

    index_select(T0[i0, i1], T1[i2], dim=0)       ->  [i2, i1]
    take_along_axis(T0[i0, i1], T1[i0, i2], 1)    ->  [i0, i2]
    embedding_fwd(T0[i0, i1], T1[i2, i3])         ->  [i0, i1, i3]
    index_store(T0[i0, i1], T1[i2], dim=0, size)  ->  [i0, i1]

The axes that are not indexed keep their names, so a kernel loops over them as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from thunder_fuser.errors import DtypeError
from thunder_fuser.ir.domain import Domain
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.record import Literal, OpRecord, names_of
from thunder_fuser.ir.rules.shapes import Fresh, distinct, joined, normalise_axis
from thunder_fuser.ir.scalar import Scalar, const

INDEX_TYPES = (DataType.Int, DataType.Int32)

Extents = Sequence[Scalar]


def axes(record: OpRecord, operands: list[TensorView], fresh: Fresh) -> Domain:
    """The axes of the result; DefinitionError or DtypeError names the operand that does not fit.

    Operands are tensors, except that an index may be a number.
    """
    source, index = operands[record.row.source], operands[1 - record.row.source]
    check_index(record, index)
    indexed_axis(record, len(source.shape))
    domains = source.domain.no_reductions, index.domain.no_reductions
    return distinct(_READS[record.op](record, *domains, fresh), fresh)


def indexed_axis(record: OpRecord, rank: int) -> int:
    """The axis of the source that is indexed."""
    dim = 0 if record.op == "embedding_fwd" else record.attr("dim")
    return normalise_axis(dim, rank, record.op)


def indexed_size(record: OpRecord, source: TensorView) -> int:
    """The number of elements along the indexed axis, which an index is below."""
    if record.op == "index_store":
        return record.integer("size")
    return source.sizes[indexed_axis(record, len(source.shape))]


def check_index(record: OpRecord, index: TensorView) -> None:
    """DtypeError unless the tensor holds integers of 32 or 64 bits."""
    if index.dtype not in INDEX_TYPES:
        what, do = f"{record.op}: index", "cast it to DataType.Int"
        raise DtypeError(what, expected="Int or Int32", got=index.dtype.name, do=do)


def check_rank(record: OpRecord, name: str, axes: Sequence[object], *ranks: int) -> None:
    if len(axes) not in ranks:
        expected = f"rank {' or '.join(map(str, ranks))}"
        raise record.error(name, expected, f"rank {len(axes)}")


def _index_select(record: OpRecord, source: Domain, index: Domain, fresh: Fresh) -> Domain:
    """[i0, i1] at dim 0 by [i2] -> [i2, i1]. A single index gives an axis of size 1."""
    check_rank(record, "index", index, 0, 1)
    dim = indexed_axis(record, len(source))
    number, size = record.inputs[1], source[dim].extent
    if isinstance(number, Literal) and size.is_const and not 0 <= number.value < size.value:
        expected = f"0 to {size.value - 1}, on axis {dim}"
        raise record.error("index", expected, int(number.value))
    place = index or (fresh(const(1)),)
    return (*source[:dim], *place, *source[dim + 1 :])


def _take_along_axis(record: OpRecord, source: Domain, index: Domain, fresh: Fresh) -> Domain:
    """Sizes of axes that are not indexed must be equal or 1."""
    check_rank(record, "index", index, len(source))
    dim = indexed_axis(record, len(source))
    columns = enumerate(zip(source, index, strict=True))
    return tuple(
        column[1] if at == dim else joined(column, at, record.op) for at, column in columns
    )


def _gather(record: OpRecord, source: Domain, index: Domain, fresh: Fresh) -> Domain:
    """The index may be shorter than the source along axes that are not indexed."""
    check_rank(record, "index", index, len(source))
    extents, most = ([axis.extent for axis in domain] for domain in (index, source))
    check_at_most(record, extents, most, free=indexed_axis(record, len(source)))
    return index


def check_at_most(record: OpRecord, index: Extents, most: Extents, free: int | None) -> None:
    """DefinitionError if the index is certainly longer along an axis that is not `free`."""
    for at, (size, limit) in enumerate(zip(index, most, strict=True)):
        if at != free and size.is_const and limit.is_const and size.value > limit.value:
            raise record.error(f"axis {at} of the index", f"at most {limit}", size)


def _embedding_fwd(record: OpRecord, source: Domain, index: Domain, fresh: Fresh) -> Domain:
    if (max_norm := record.attr("max_norm")) is not None:
        do = "let torch.embedding_renorm_ scale the weight first"
        raise record.error("max_norm", "None", max_norm, do)
    check_rank(record, "weight", source, 2)
    return (*index, source[1])


def _index_store(record: OpRecord, source: Domain, index: Domain, fresh: Fresh) -> Domain:
    """An index for each slice of the source."""
    check_rank(record, "index", index, 1)
    slices, count = source[indexed_axis(record, len(source))].extent, index[0].extent
    if slices.is_const and count.is_const and slices.value != count.value:
        raise record.error("index", f"{slices} integers", count)
    return source


def check_stores(records: Iterable[OpRecord]) -> None:
    """DefinitionError unless each result of index_store replaces slices of a donated argument,
    which may be returned, and neither is read: it has no other memory, and no order among reads.
    """
    records = tuple(records)
    for store in records:
        if store.op == "index_store":
            (name,) = store.outputs
            outputs = [r for r in records if r.op == "add_output" and name in names_of(r)]
            target = outputs[0].attr("alias") if len(outputs) == 1 else None
            readers = [r for r in records if {name, target}.intersection(names_of(r))]
            donated = any(target in r.outputs and r.attr("donated") for r in records)
            plain = all(r.op == "add_output" and not _is_laid(r) for r in readers)
            if not (donated and plain):
                expected = "one that replaces a donated argument which nothing reads"
                raise store.error("its result", expected, "another one")


def _is_laid(output: OpRecord) -> bool:
    """True for a result that is returned in another order or shape."""
    return output.attr("stride_order") is not None or output.attr("shape") is not None


_READS: dict[str, Callable[[OpRecord, Domain, Domain, Fresh], Domain]] = {
    "index_select": _index_select,
    "take_along_axis": _take_along_axis,
    "gather": _gather,
    "embedding_fwd": _embedding_fwd,
    "index_store": _index_store,
}
