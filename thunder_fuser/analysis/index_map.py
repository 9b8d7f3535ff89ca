# SPDX-License-Identifier: Apache-2.0
"""The index rules of all ops: the elements of operands that one element of a result reads.

T1 = permute(T0, [1, 0]);  T1[x, y]      reads T0[y, x]
T1 = slice(T0, [2], [6]);  T1[x]         reads T0[x + 2]
T1 = pad(T0, [1, 1]);      T1[x]         reads T0[x - 1] where 0 <= x - 1 < size
T1 = reshape(T0, [6]);     T1[x]         reads T0[x // 3, x % 3]
T2 = gather(T0, T1, 1);    T2[x, y]      reads T1[x, y] and T0[x, T1[x, y]]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import Literal, OpRecord, names_of
from thunder_fuser.ir.rules import shapes
from thunder_fuser.ir.rules.indexed import indexed_axis, indexed_size
from thunder_fuser.ir.scalar import Scalar, ScalarLike, conjunction, const, element, product

Index = tuple[Scalar, ...]
ZERO, TRUE = const(0), const(1)


@dataclass(frozen=True, slots=True)
class Point:
    """A value at an index, which is needed where the condition is true."""

    name: str
    index: Index
    condition: Scalar = TRUE  # always

    @property
    def symbols(self) -> frozenset[str]:
        """Every symbol of the index and the condition."""
        return self.condition.symbols.union(*(at.symbols for at in self.index))

    @property
    def plain(self) -> Point:
        """The point with numbers in place of the sizes of a call."""
        return Point(self.name, tuple(at.plain for at in self.index), self.condition.plain)

    def walks(self, axes: Collection[str]) -> bool:
        """True if the index depends on one of the axes."""
        return any(not at.symbols.isdisjoint(axes) for at in self.index)


def accesses(
    record: OpRecord, index: Index, tensors: Mapping[str, TensorView], reduced: Index = (),
    condition: Scalar = TRUE,
) -> list[Point]:  # fmt: skip
    """The reads for element `index` of the record's result, in operand order, without literals.

    reduced: the index along the axes that a reduction reduces. condition: where the element is
    needed; an index that is itself read from memory keeps it.
    """
    kind, names = record.row.kind, names_of(record)
    if kind is OpKind.SCALAR:
        return []
    if kind is OpKind.INDEX:
        return _looked_up(record, index, condition, tensors)
    if kind is OpKind.REDUCTION:
        rank = len(tensors[names[0]].shape)
        return [Point(names[0], _reduction_index(record, index, reduced, rank))]
    if record.op == "cat":
        return _cat(record, index, tensors)
    if record.op not in _RULES:
        return [Point(name, _masked(tensors[name], index)) for name in names]
    view = tensors[names[0]]
    moved = _RULES[record.op](record, index, view.shape, tensors[record.outputs[0]].shape)
    inside = _unpadded(record, moved, view.shape) if record.op == "pad" else TRUE
    return [Point(view.name, _masked(view, moved), inside)]


def _reduction_index(record: OpRecord, kept: Index, reduced: Index, rank: int) -> Index:
    """The operand's index, from the indices of kept and reduced axes.

    sum(T0, dims=[1]) at [x], reducing y  ->  T0[x, y]
    """
    dims = record.ints("dims")
    if record.attr("chunk") is not None:
        kept = kept[1:]  # the reduced indices determine the chunk
    if record.attr("keepdim"):
        kept = tuple(x for at, x in enumerate(kept) if at not in dims)
    keep, rest = iter(kept), iter(reduced)
    return tuple(next(rest) if at in dims else next(keep) for at in range(rank))


def _masked(view: TensorView, index: Index) -> Index:
    """The index with zero on broadcast axes; empty for rank 0."""
    axes = view.domain.no_reductions
    if not axes:
        return ()
    return tuple(ZERO if a.is_broadcast else x for a, x in zip(axes, index, strict=True))


def _broadcast(record: OpRecord, index: Index, shape: Index, result: Index) -> Index:
    flags = record.ints("is_broadcast_dim")
    return tuple(x for x, flag in zip(index, flags, strict=True) if not flag)


def _broadcast_in_dim(record: OpRecord, index: Index, shape: Index, result: Index) -> Index:
    return tuple(index[dim] for dim in record.ints("broadcast_dims"))


def _squeeze(record: OpRecord, index: Index, shape: Index, result: Index) -> Index:
    dims = shapes.normalise_axes(record.attr("dims"), len(shape), "squeeze")
    rest = iter(index)
    return tuple(ZERO if at in dims else next(rest) for at in range(len(shape)))


def _permute(record: OpRecord, index: Index, shape: Index, result: Index) -> Index:
    dims = shapes.normalise_axes(record.attr("dims"), len(shape), "permute")
    return tuple(index[dims.index(at)] for at in range(len(dims)))


def _reshape(record: OpRecord, index: Index, shape: Index, result: Index) -> Index:
    """Goes through the linear position, so simplification removes unneeded // and %."""
    return unravel(linear(index, result), shape)


def linear(index: Index, shape: Index) -> Scalar:
    """The row-major position of an index.

    >>> from thunder_fuser.ir.scalar import symbol
    >>> linear((symbol("x"), symbol("y")), (const(4), const(3)))
    3*x + y
    """
    position = ZERO
    for at, extent in zip(index, shape, strict=True):
        position = position * extent + at
    return position


def unravel(position: Scalar, shape: Index) -> Index:
    """The index at a row-major position; the inverse of `linear`."""
    inner = [position // product(shape[at + 1 :]) for at in range(len(shape))]
    return (*inner[:1], *(x % extent for x, extent in zip(inner[1:], shape[1:], strict=True)))


def _slice(record: OpRecord, index: Index, shape: Index, result: Index) -> Index:
    steps, starts = shapes.slice_strides(record, len(index)), record.ints("start_indices")
    return tuple(x * step + start for x, step, start in zip(index, steps, starts, strict=True))


def _flip(record: OpRecord, index: Index, shape: Index, result: Index) -> Index:
    dims = shapes.normalise_axes(record.attr("dims"), len(index), "flip")
    pairs = enumerate(zip(index, shape, strict=True))
    return tuple(size - 1 - x if at in dims else x for at, (x, size) in pairs)


def _pad(record: OpRecord, index: Index, shape: Index, result: Index) -> Index:
    widths = shapes.pad_widths(record, len(index))
    return tuple(x - before for x, (before, _) in zip(index, widths, strict=True))


def _unpadded(record: OpRecord, moved: Index, shape: Index) -> Scalar:
    """1 if the index is in bounds. Tests only axes that may be out of bounds."""
    widths = shapes.pad_widths(record, len(moved))
    rows = zip(moved, shape, widths, strict=True)
    return conjunction([_within(x, extent) for x, extent, width in rows if width != (0, 0)])


def _within(x: Scalar, extent: ScalarLike) -> Scalar:
    """1 if 0 <= x < extent."""
    return conjunction([x.lt(extent), (const(-1) - x).lt(0)])


def _cat(record: OpRecord, index: Index, tensors: Mapping[str, TensorView]) -> list[Point]:
    dim: int = shapes.normalise_axis(record.attr("dim"), len(index), "cat")
    points, start = [], 0
    for view in (tensors[name] for name in names_of(record)):
        x, size = index[dim] - start, view.sizes[dim]
        moved = (*index[:dim], x, *index[dim + 1 :])
        points.append(Point(view.name, _masked(view, moved), _within(x, size)))
        start += size
    return points


# For each op that moves elements of one operand: its index, from the index of the result and the
# shapes of the operand and of the result. Other ops read at the index of the result.
_RULES: dict[str, Callable[[OpRecord, Index, Index, Index], Index]] = {
    "broadcast": _broadcast,
    "broadcast_in_dim": _broadcast_in_dim,
    "squeeze": _squeeze,
    "permute": _permute,
    "reshape": _reshape,
    "slice": _slice,
    "pad": _pad,
    "flip": _flip,
}


# ---- reads through a tensor of indices


def _looked_up(
    record: OpRecord, index: Index, condition: Scalar, tensors: Mapping[str, TensorView]
) -> list[Point]:
    """The read of the tensor of indices, unless it is a number, then that of the source."""
    source = tensors[str(record.inputs[record.row.source])]
    place, others = _places(record, index, tensors)
    at = index_element(record, index, condition, tensors)
    axis = indexed_axis(record, len(source.shape))
    masked = _masked(source, others)
    if record.op != "index_store":
        masked = (*masked[:axis], at, *masked[axis + 1 :])
    element = Point(source.name, masked)
    number = record.inputs[1 - record.row.source]
    return [element] if isinstance(number, Literal) else [Point(number, place), element]


def index_element(
    record: OpRecord, index: Index, condition: Scalar, tensors: Mapping[str, TensorView]
) -> Scalar:
    """The position along the indexed axis that element `index` of the result reads."""
    source = tensors[str(record.inputs[record.row.source])]
    number = record.inputs[1 - record.row.source]
    if isinstance(number, Literal):
        return const(int(number.value))
    place, _ = _places(record, index, tensors)
    return element(number, indexed_size(record, source), condition, place)


def _places(
    record: OpRecord, index: Index, tensors: Mapping[str, TensorView]
) -> tuple[Index, Index]:
    """(index into the tensor of indices, index into the source without the indexed axis)."""
    number = record.inputs[1 - record.row.source]
    place = others = index
    if record.op == "embedding_fwd":
        place, others = index[:-1], (ZERO, *index[-1:])
    elif record.op in ("index_select", "index_store"):
        axis = indexed_axis(record, len(index))
        place = index[axis : axis + 1]
    return (() if isinstance(number, Literal) else _masked(tensors[number], place)), others
