# SPDX-License-Identifier: Apache-2.0
"""The index rule of every op: where one element of a result reads each operand.

T1 = permute(T0, [1, 0]);  T1[x, y]      reads T0[y, x]
T1 = slice(T0, [2], [6]);  T1[x]         reads T0[x + 2]
T1 = pad(T0, [1, 1]);      T1[x]         reads T0[x - 1] where 0 <= x - 1 < size
T1 = reshape(T0, [6]);     T1[x]         reads T0[x // 3, x % 3]
T2 = gather(T0, T1, 1);    T2[x, y]      reads T1[x, y] and T0[x, T1[x, y]]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from thunder_fuser.ir import shapes
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.indexed import indexed_axis
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import Literal, OpRecord
from thunder_fuser.ir.scalar import Scalar, ScalarLike, conjunction, const, element, product

Index = tuple[Scalar, ...]
ZERO, TRUE = const(0), const(1)


@dataclass(frozen=True, slots=True)
class Access:
    """One read: the operand, the index, and the condition (1 = always)."""

    operand: str
    index: Index
    condition: Scalar = TRUE


def accesses(record: OpRecord, index: Index, tensors: Mapping[str, TensorView]) -> list[Access]:
    """The reads for element `index` of the record's result, in operand order, without literals."""
    rule = _RULES.get(record.op, _same_position)
    if record.row.kind is OpKind.REDUCTION:
        raise ValueError(f"{record.op}: a reduction reads many elements; use reduction_index")
    if record.row.kind is OpKind.INDEX:
        raise ValueError(f"{record.op}: where it reads depends on data; use index_accesses")
    return rule(record, index, tensors)


def reduction_index(record: OpRecord, kept: Index, reduced: Index, rank: int) -> Index:
    """The operand's index, from the indices of kept and reduced axes.

    sum(T0, dims=[1]) at [x], reducing y  ->  T0[x, y]
    """
    dims: tuple[int, ...] = record.attr("dims")  # type: ignore[assignment]
    if record.attr("chunk") is not None:
        kept = kept[1:]  # the reduced indices determine the chunk
    keep = iter(_without_keepdim(record, kept, dims))
    rest = iter(reduced)
    return tuple(next(rest) if at in dims else next(keep) for at in range(rank))


def _without_keepdim(record: OpRecord, kept: Index, dims: tuple[int, ...]) -> Index:
    if not record.attr("keepdim"):
        return kept
    return tuple(x for at, x in enumerate(kept) if at not in dims)


def _same_position(
    record: OpRecord, index: Index, tensors: Mapping[str, TensorView]
) -> list[Access]:
    names = [o for o in record.inputs if not isinstance(o, Literal)]
    return [Access(name, _masked(tensors[name], index)) for name in names]


def _masked(view: TensorView, index: Index) -> Index:
    """The index with zero on broadcast axes; empty for rank 0."""
    axes = view.domain.no_reductions
    if not axes:
        return ()
    return tuple(ZERO if a.is_broadcast else x for a, x in zip(axes, index, strict=True))


def _source(record: OpRecord, tensors: Mapping[str, TensorView]) -> TensorView:
    return tensors[str(record.inputs[0])]


def _one(view: TensorView, index: Index, condition: Scalar = TRUE) -> list[Access]:
    return [Access(view.name, _masked(view, index), condition)]


def _broadcast(record: OpRecord, index: Index, tensors: Mapping[str, TensorView]) -> list[Access]:
    flags: tuple[bool, ...] = record.attr("is_broadcast_dim")  # type: ignore[assignment]
    kept = tuple(x for x, flag in zip(index, flags, strict=True) if not flag)
    return _one(_source(record, tensors), kept)


def _broadcast_in_dim(
    record: OpRecord, index: Index, tensors: Mapping[str, TensorView]
) -> list[Access]:
    dims: tuple[int, ...] = record.attr("broadcast_dims")  # type: ignore[assignment]
    return _one(_source(record, tensors), tuple(index[dim] for dim in dims))


def _squeeze(record: OpRecord, index: Index, tensors: Mapping[str, TensorView]) -> list[Access]:
    view = _source(record, tensors)
    dims = shapes.normalise_axes(record.attr("dims"), len(view.shape), "squeeze")
    rest = iter(index)
    return _one(view, tuple(ZERO if at in dims else next(rest) for at in range(len(view.shape))))


def _permute(record: OpRecord, index: Index, tensors: Mapping[str, TensorView]) -> list[Access]:
    view = _source(record, tensors)
    dims = shapes.normalise_axes(record.attr("dims"), len(view.shape), "permute")
    return _one(view, tuple(index[dims.index(at)] for at in range(len(dims))))


def _reshape(record: OpRecord, index: Index, tensors: Mapping[str, TensorView]) -> list[Access]:
    """Goes through the linear position, so simplification removes unneeded // and %."""
    view = _source(record, tensors)
    position = linear(index, tensors[record.outputs[0]].shape)
    return _one(view, unravel(position, view.shape))


def linear(index: Index, shape: tuple[Scalar, ...]) -> Scalar:
    """The row-major position of an index.

    >>> from thunder_fuser.ir.scalar import symbol
    >>> linear((symbol("x"), symbol("y")), (const(4), const(3)))
    3*x + y
    """
    position = ZERO
    for at, extent in zip(index, shape, strict=True):
        position = position * extent + at
    return position


def unravel(position: Scalar, shape: tuple[Scalar, ...]) -> Index:
    """The index at a row-major position; the inverse of `linear`."""
    index = []
    for at in range(len(shape)):
        inner = product(shape[at + 1 :])
        index.append(position // inner if at == 0 else (position // inner) % shape[at])
    return tuple(index)


def _slice(record: OpRecord, index: Index, tensors: Mapping[str, TensorView]) -> list[Access]:
    view = _source(record, tensors)
    starts: tuple[int, ...] = record.attr("start_indices")  # type: ignore[assignment]
    steps = shapes.slice_strides(record, len(index))
    moved = [x * step + start for x, step, start in zip(index, steps, starts, strict=True)]
    return _one(view, tuple(moved))


def _flip(record: OpRecord, index: Index, tensors: Mapping[str, TensorView]) -> list[Access]:
    view = _source(record, tensors)
    dims = shapes.normalise_axes(record.attr("dims"), len(index), "flip")
    pairs = enumerate(zip(index, view.shape, strict=True))
    return _one(view, tuple(size - 1 - x if at in dims else x for at, (x, size) in pairs))


def _pad(record: OpRecord, index: Index, tensors: Mapping[str, TensorView]) -> list[Access]:
    view = _source(record, tensors)
    widths = shapes.pad_widths(record, len(index))
    moved = tuple(x - before for x, (before, _) in zip(index, widths, strict=True))
    return _one(view, moved, _inside(moved, view, [w != (0, 0) for w in widths]))


def _inside(index: Index, view: TensorView, changed: list[bool]) -> Scalar:
    """1 if the index is in bounds. Tests only axes that may be out of bounds."""
    checked = [
        within(x, extent)
        for x, extent, check in zip(index, view.shape, changed, strict=True)
        if check
    ]
    return conjunction(checked)


def within(x: Scalar, extent: ScalarLike) -> Scalar:
    """1 if 0 <= x < extent."""
    return conjunction([x.lt(extent), (const(-1) - x).lt(0)])


def _cat(record: OpRecord, index: Index, tensors: Mapping[str, TensorView]) -> list[Access]:
    dim: int = shapes.normalise_axis(record.attr("dim"), len(index), "cat")
    found, start = [], 0
    for name in record.inputs:
        view = tensors[str(name)]
        size = view.sizes[dim]
        x = index[dim] - start
        moved = tuple(x if at == dim else other for at, other in enumerate(index))
        found.append(Access(view.name, _masked(view, moved), within(x, size)))
        start += size
    return found


def _nothing(record: OpRecord, index: Index, tensors: Mapping[str, TensorView]) -> list[Access]:
    return []


def index_accesses(
    record: OpRecord, index: Index, condition: Scalar, tensors: Mapping[str, TensorView]
) -> list[Access]:
    """The reads of an INDEX op for element `index`: the tensor of indices, if it is one, then the
    source at the index read from it.

    The condition becomes part of that index, and applies to both reads."""
    source = tensors[str(record.inputs[record.row.source])]
    place, others = _places(record, index, tensors)
    at = index_element(record, index, condition, tensors)
    axis = indexed_axis(record, len(source.shape))
    masked = _masked(source, others)
    found = Access(source.name, (*masked[:axis], at, *masked[axis + 1 :]))
    number = record.inputs[1 - record.row.source]
    return [found] if isinstance(number, Literal) else [Access(number, place), found]


def index_element(
    record: OpRecord, index: Index, condition: Scalar, tensors: Mapping[str, TensorView]
) -> Scalar:
    """The position along the indexed axis that element `index` of the result reads."""
    source = tensors[str(record.inputs[record.row.source])]
    number = record.inputs[1 - record.row.source]
    if isinstance(number, Literal):
        return const(int(number.value))
    size = source.sizes[indexed_axis(record, len(source.shape))]
    return element(number, size, condition, _places(record, index, tensors)[0])


def _places(
    record: OpRecord, index: Index, tensors: Mapping[str, TensorView]
) -> tuple[Index, Index]:
    """(index into the tensor of indices, index into the source without the indexed axis)."""
    number = record.inputs[1 - record.row.source]
    place = others = index
    if record.op == "embedding_fwd":
        place, others = index[:-1], (ZERO, *index[-1:])
    elif record.op == "index_select":
        axis = indexed_axis(record, len(index))
        place = index[axis : axis + 1]
    return (() if isinstance(number, Literal) else _masked(tensors[number], place)), others


_Rule = Callable[[OpRecord, Index, Mapping[str, TensorView]], list[Access]]

_RULES: dict[str, _Rule] = {
    "broadcast": _broadcast,
    "broadcast_in_dim": _broadcast_in_dim,
    "squeeze": _squeeze,
    "permute": _permute,
    "reshape": _reshape,
    "slice": _slice,
    "pad": _pad,
    "cat": _cat,
    "flip": _flip,
    "size": _nothing,
}
