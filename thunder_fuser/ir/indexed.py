# SPDX-License-Identifier: Apache-2.0
"""The axes of results of ops that read a tensor through a tensor of indices.

    index_select(T0[i0, i1], T1[i2], dim=0)       ->  [i2, i1]
    take_along_axis(T0[i0, i1], T1[i0, i2], 1)    ->  [i0, i2]
    embedding_fwd(T0[i0, i1], T1[i2, i3])         ->  [i0, i1, i3]

The axes that are not indexed keep their names, so a kernel loops over them as usual.
"""

from __future__ import annotations

from collections.abc import Callable

from thunder_fuser.errors import DefinitionError, DtypeError
from thunder_fuser.ir.domain import Domain
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.record import Literal, OpRecord
from thunder_fuser.ir.scalar import const
from thunder_fuser.ir.shapes import Fresh, distinct, joined, normalise_axis

INDEX_TYPES = (DataType.Int, DataType.Int32)


def axes(record: OpRecord, operands: list[TensorView], fresh: Fresh) -> Domain:
    """The axes of the result; DefinitionError or DtypeError names the operand that does not fit."""
    source, index = operands[record.row.source], operands[1 - record.row.source]
    check_index(record, index)
    indexed_axis(record, len(source.shape))
    domains = source.domain.no_reductions, index.domain.no_reductions
    return distinct(_RULES[record.op](record, *domains, fresh), fresh)


def indexed_axis(record: OpRecord, rank: int) -> int:
    """The axis of the source that is indexed."""
    dim = 0 if record.op == "embedding_fwd" else record.attr("dim")
    return normalise_axis(dim, rank, record.op)


def check_index(record: OpRecord, index: TensorView) -> None:
    """DtypeError unless the tensor holds integers of 32 or 64 bits."""
    if index.dtype not in INDEX_TYPES:
        raise DtypeError(
            f"{record.op}: index", expected="Int or Int32", got=index.dtype.name,
            do="cast it to DataType.Int",
        )  # fmt: skip


def _index_select(record: OpRecord, source: Domain, index: Domain, fresh: Fresh) -> Domain:
    """[i0, i1] at dim 0 by [i2] -> [i2, i1]. A single index gives an axis of size 1."""
    if len(index) > 1:
        raise DefinitionError(
            "index_select: index", expected="rank 0 or 1", got=f"rank {len(index)}"
        )
    dim = indexed_axis(record, len(source))
    number = record.inputs[1]
    if isinstance(number, Literal) and source[dim].extent.is_const:
        _check_number(record, int(number.value), source[dim].extent.value, dim)
    place = index or (fresh(const(1)),)
    return (*source[:dim], *place, *source[dim + 1 :])


def _check_number(record: OpRecord, number: int, size: int, dim: int) -> None:
    if not 0 <= number < size:
        raise DefinitionError(
            f"{record.op}: index", expected=f"0 to {size - 1}, on axis {dim}", got=str(number)
        )


def _take_along_axis(record: OpRecord, source: Domain, index: Domain, fresh: Fresh) -> Domain:
    """Sizes of axes that are not indexed must be equal or 1."""
    dim = _check_ranks(record, source, index)
    columns = enumerate(zip(source, index, strict=True))
    return tuple(
        column[1] if at == dim else joined(column, at, record.op) for at, column in columns
    )


def _gather(record: OpRecord, source: Domain, index: Domain, fresh: Fresh) -> Domain:
    """The index may be shorter than the source along axes that are not indexed."""
    dim = _check_ranks(record, source, index)
    for at, (axis, most) in enumerate(zip(index, source, strict=True)):
        known = axis.extent.is_const and most.extent.is_const
        if at != dim and known and axis.extent.value > most.extent.value:
            raise DefinitionError(
                f"gather: axis {at} of the index", expected=f"at most {most.extent}",
                got=str(axis.extent),
            )  # fmt: skip
    return index


def _check_ranks(record: OpRecord, source: Domain, index: Domain) -> int:
    if len(source) != len(index):
        raise DefinitionError(
            f"{record.op}: index", expected=f"rank {len(source)}", got=f"rank {len(index)}"
        )
    return indexed_axis(record, len(source))


def _embedding_fwd(record: OpRecord, source: Domain, index: Domain, fresh: Fresh) -> Domain:
    if record.attr("max_norm") is not None:
        raise DefinitionError(
            "embedding_fwd: max_norm", expected="None", got=str(record.attr("max_norm")),
            do="let torch.embedding_renorm_ scale the weight first",
        )  # fmt: skip
    if len(source) != 2:
        raise DefinitionError("embedding_fwd: weight", expected="rank 2", got=f"rank {len(source)}")
    return (*index, source[1])


_RULES: dict[str, Callable[[OpRecord, Domain, Domain, Fresh], Domain]] = {
    "index_select": _index_select,
    "take_along_axis": _take_along_axis,
    "gather": _gather,
    "embedding_fwd": _embedding_fwd,
}
