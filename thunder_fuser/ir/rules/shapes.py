# SPDX-License-Identifier: Apache-2.0
"""Shape rules: the logical axes of operands -> the logical axes of a result.

An axis keeps its name through every op that keeps its elements in place. So equal names mean equal
axes, and DomainMap joins the others. `fresh` numbers new axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import takewhile, zip_longest
from operator import add
from typing import TypeVar

from thunder_fuser.errors import DefinitionError
from thunder_fuser.ir.domain import Domain, IterDomain, IterType
from thunder_fuser.ir.op_schema import DtypeRule
from thunder_fuser.ir.record import AttrValue, OpRecord
from thunder_fuser.ir.scalar import Scalar, ceil_div, const, product

Fresh = Callable[[Scalar], IterDomain]
SizesOf = Callable[[AttrValue], tuple[Scalar, ...]]
Width = TypeVar("Width", int, Scalar)


def normalise_axis(axis: AttrValue, rank: int, op: str) -> int:
    """The axis as a non-negative number; DefinitionError if it is out of range."""
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise DefinitionError(
            f"{op}: axis {axis}",
            expected=f"an axis from {-rank} to {rank - 1}" if rank else "none, as the rank is 0",
            got=str(axis),
        )
    return axis % rank


def normalise_axes(axes: AttrValue, rank: int, op: str) -> tuple[int, ...]:
    """Distinct non-negative axes; None means all of them."""
    if axes is None:
        return tuple(range(rank))
    listed = (axes,) if isinstance(axes, int) else axes
    normalised = tuple(normalise_axis(axis, rank, op) for axis in listed)  # type: ignore[union-attr]
    if len(set(normalised)) != len(normalised):
        raise DefinitionError(f"{op}: axes", expected="each axis once", got=str(axes))
    return normalised


def pointwise(operands: Sequence[Domain], op: str, fresh: Fresh) -> Domain:
    """Each axis is that of the first operand without a broadcast there; sizes must agree.

    [i0{4}, b1{1}], [b2{1}, i3{8}]  ->  [i0{4}, i3{8}]
    [i0{4}, b1{1}], [b2{1}, i0{4}]  ->  [i0{4}, i4{4}]: a result never has one axis twice
    """
    columns = enumerate(zip(*operands, strict=True))
    return distinct([joined(column, at, op) for at, column in columns], fresh)


def distinct(axes: Sequence[IterDomain], fresh: Fresh) -> Domain:
    """The axes, with a new axis for each repeated one."""
    seen: dict[str, IterDomain] = {}
    for axis in axes:
        axis = fresh(axis.extent) if axis.name in seen else axis
        seen[axis.name] = axis
    return tuple(seen.values())


def joined(column: Sequence[IterDomain], at: int, op: str) -> IterDomain:
    """The axis of a result from those of the operands at one position: the first non-broadcast."""
    real = [axis for axis in column if not axis.is_broadcast]
    sizes = {axis.extent for axis in real if axis.extent.is_const}
    if len(sizes) > 1:
        listed = ", ".join(str(axis.extent) for axis in column)
        raise DefinitionError(f"{op}: axis {at}", expected="equal sizes", got=listed)
    if not real:
        return column[0]
    return replace(real[0], extent=next(iter(sizes), real[0].extent))


def reduction(domain: Domain, record: OpRecord, fresh: Fresh) -> Domain:
    """[i0, i1] summed over 1 -> [i0, r1], with keepdim [i0, r1, b2].

    With chunk=4 and i1 of 10 elements: [i2{3}, i0, r1], partial results over 4, 4 and 2 of them.
    """
    dims = normalise_axes(record.attr("dims"), len(domain), record.op)
    empty = [at for at in dims if domain[at].extent is const(0)]
    if empty and record.row.rule is not DtypeRule.ACCUMULATE:  # a sum of no elements is 0
        raise record.error(f"axis {empty[0]}", "at least one element", "size 0")
    out: list[IterDomain] = []
    if record.attr("chunk") is not None:
        out.append(fresh(_chunks([domain[at].extent for at in dims], record)))
    for at, axis in enumerate(domain):
        if at not in dims:
            out.append(axis)
            continue
        out.append(replace(axis, name="r" + axis.name[1:], kind=IterType.REDUCTION))
        if record.attr("keepdim"):
            out.append(fresh(const(1)))
    return tuple(out)


def _chunks(extents: Sequence[Scalar], record: OpRecord) -> Scalar:
    """The number of runs of `chunk` elements in the reduced axes."""
    chunk = record.integer("chunk")
    if chunk < 1 or record.attr("keepdim"):
        raise record.error("chunk", "a positive number, and keepdim=False", chunk)
    return (product(extents) + (chunk - 1)) // chunk


def movement(operands: Sequence[Domain], record: OpRecord, sizes: SizesOf, fresh: Fresh) -> Domain:
    """The axes of a movement op's result, by the table below."""
    if record.op == "cat":
        return _cat(operands, record, fresh)
    if record.op in ("set", "segment_set"):
        return operands[0]
    return _RULES[record.op](operands[0], record, sizes, fresh)


def _stride_order(domain: Domain, record: OpRecord, sizes: SizesOf, fresh: Fresh) -> Domain:
    _check_rank(record, "stride_order", len(domain))
    return domain


def _broadcast(domain: Domain, record: OpRecord, sizes: SizesOf, fresh: Fresh) -> Domain:
    """[i0], is_broadcast_dim=[False, True] -> [i0, b1]"""
    flags = record.ints("is_broadcast_dim")
    if sum(not flag for flag in flags) != len(domain):
        raise record.error("is_broadcast_dim", f"{len(domain)} times False", flags)
    rest = iter(domain)
    return tuple(fresh(const(1)) if flag else next(rest) for flag in flags)


def _broadcast_in_dim(domain: Domain, record: OpRecord, sizes: SizesOf, fresh: Fresh) -> Domain:
    """[i0{4}], shape=[2, 4], broadcast_dims=[1] -> [i1{2}, i0{4}]"""
    shape = sizes(record.attr("shape"))
    dims = record.ints("broadcast_dims")
    if len(dims) != len(domain) or sorted(set(dims)) != list(dims):
        expected = f"{len(domain)} increasing axes of the result"
        raise record.error("broadcast_dims", expected, dims)
    places = (normalise_axis(dim, len(shape), record.op) for dim in dims)
    source = dict(zip(places, domain, strict=True))
    return tuple(_stretched(source.get(at), size, record, fresh) for at, size in enumerate(shape))


def _expand(domain: Domain, record: OpRecord, sizes: SizesOf, fresh: Fresh) -> Domain:
    shape = sizes(record.attr("shape"))
    _check_rank(record, "shape", len(domain))
    minus_one = const(-1)
    wanted = [axis.extent if s is minus_one else s for axis, s in zip(domain, shape, strict=True)]
    return tuple(_stretched(a, s, record, fresh) for a, s in zip(domain, wanted, strict=True))


def _stretched(axis: IterDomain | None, size: Scalar, record: OpRecord, fresh: Fresh) -> IterDomain:
    """The axis itself if it has the size; a new one for a broadcast or a missing axis."""
    if axis is None or (axis.is_broadcast and size is not const(1)):
        return fresh(size)
    if axis.extent.is_const and size.is_const and axis.extent is not size:
        raise record.error(f"axis {axis.name}", f"size {axis.extent} (or 1)", size)
    return axis


def _squeeze(domain: Domain, record: OpRecord, sizes: SizesOf, fresh: Fresh) -> Domain:
    """[i0, b1] squeezed at 1 -> [i0]"""
    dims = normalise_axes(record.attr("dims"), len(domain), record.op)
    for at in dims:
        if domain[at].extent.is_const and domain[at].extent.value != 1:
            raise record.error(f"axis {at}", "size 1", f"size {domain[at].extent}")
    return tuple(axis for at, axis in enumerate(domain) if at not in dims)


def _permute(domain: Domain, record: OpRecord, sizes: SizesOf, fresh: Fresh) -> Domain:
    """[i0, i1] permuted by [1, 0] -> [i1, i0]"""
    dims = normalise_axes(record.attr("dims"), len(domain), record.op)
    if len(dims) != len(domain):
        raise record.error("dims", f"{len(domain)} axes", dims)
    return tuple(domain[at] for at in dims)


def _reshape(domain: Domain, record: OpRecord, sizes: SizesOf, fresh: Fresh) -> Domain:
    """[i0{4}, i1{6}] to (4, 2, 3) -> [i0{4}, i2{2}, i3{3}]: leading equal axes keep their names."""
    shape = _with_inferred_size(record, sizes(record.attr("new_shape")), domain)
    total, wanted = product(axis.extent for axis in domain), product(shape)
    if total.is_const and wanted.is_const and total is not wanted:
        raise record.error("", f"{total} elements", f"{wanted} from {list(shape)}")
    front = _common(domain, shape)
    back = _common(domain[front:][::-1], shape[front:][::-1])
    middle = [fresh(size) for size in shape[front : len(shape) - back]]
    return (*domain[:front], *middle, *domain[len(domain) - back :])


def _common(domain: Domain, shape: Sequence[Scalar]) -> int:
    """The number of leading axes that a reshape keeps."""
    equal = (axis.extent is size for axis, size in zip(domain, shape, strict=False))
    return sum(takewhile(bool, equal))


def _with_inferred_size(
    record: OpRecord, shape: tuple[Scalar, ...], domain: Domain
) -> tuple[Scalar, ...]:
    minus_one = const(-1)
    if minus_one not in shape:
        return shape
    if shape.count(minus_one) > 1:
        raise record.error("", "at most one -1", list(shape))
    known = product(s for s in shape if s is not minus_one)
    if known is const(0):
        raise record.error("", "no -1 beside a size 0", list(shape))
    rest = product(axis.extent for axis in domain) // known
    return tuple(rest if s is minus_one else s for s in shape)


def _slice(domain: Domain, record: OpRecord, sizes: SizesOf, fresh: Fresh) -> Domain:
    """[i0{8}], start [2], end [6] -> [i1{4}]; with strides [3] -> [i1{2}].

    An axis that is taken whole keeps its name.
    """
    _check_slice(record, len(domain))
    starts, ends = sizes(record.attr("start_indices")), sizes(record.attr("end_indices"))
    out = []
    steps = slice_strides(record, len(domain))
    for axis, start, end, step in zip(domain, starts, ends, steps, strict=True):
        start, end = clip_slice(axis.extent, start, end)
        length = ceil_div(end - start, step)
        out.append(axis if length is axis.extent and not axis.is_broadcast else fresh(length))
    return tuple(out)


def clip_slice(extent: Scalar, start: Scalar, end: Scalar) -> tuple[Scalar, Scalar]:
    """Start and end, clipped as by Python's slice if all are constants."""
    if not (extent.is_const and start.is_const and end.is_const):
        return start, end
    first, last, _ = slice(start.value, end.value).indices(extent.value)
    return const(first), const(max(first, last))


def slice_strides(record: OpRecord, rank: int) -> tuple[int, ...]:
    """The step along each axis."""
    strides = record.attr("strides")
    return (1,) * rank if strides is None else strides  # type: ignore[return-value]


def _check_slice(record: OpRecord, rank: int) -> None:
    for key in ("start_indices", "end_indices"):
        _check_rank(record, key, rank)
    strides = record.attr("strides")
    if strides is not None:
        _check_rank(record, "strides", rank)
        if any(step < 1 for step in record.ints("strides")):
            raise record.error("strides", "numbers >= 1", strides)
    starts, ends = record.ints("start_indices"), record.ints("end_indices")
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if isinstance(start, int) and (start < 0 or (isinstance(end, int) and end < start)):
            raise record.error(f"axis {at}", "0 <= start <= end", f"{start}:{end}")


def _flip(domain: Domain, record: OpRecord, sizes: SizesOf, fresh: Fresh) -> Domain:
    """[i0, i1] flipped over 1 -> [i0, i2]"""
    dims = normalise_axes(record.attr("dims"), len(domain), record.op)
    return tuple(fresh(axis.extent) if at in dims else axis for at, axis in enumerate(domain))


def _pad(domain: Domain, record: OpRecord, sizes: SizesOf, fresh: Fresh) -> Domain:
    """[i0{4}] padded by (1, 2) -> [i1{7}]; widths start at the last axis, as in torch."""
    none = const(0)
    pairs = _pairs(record, sizes(record.attr("pad_widths")), len(domain), none)
    for at, (axis, pair) in enumerate(zip(domain, pairs, strict=True)):
        removed = -sum(min(width.value, 0) for width in pair if width.is_const)
        if axis.extent.is_const and removed > axis.extent.value:
            raise record.error(f"axis {at}", f"at most its {axis.extent} elements removed", removed)
    return tuple(
        axis if before is after is none else fresh(axis.extent + before + after)
        for axis, (before, after) in zip(domain, pairs, strict=True)
    )


def pad_widths(record: OpRecord, rank: int) -> tuple[tuple[int, int], ...]:
    """(before, after) of each logical axis of a specialised pad."""
    return _pairs(record, record.ints("pad_widths"), rank, 0)


def _pairs(
    record: OpRecord, flat: Sequence[Width], rank: int, none: Width
) -> tuple[tuple[Width, Width], ...]:
    """(before, after) of each logical axis, from the flat list of the call."""
    if len(flat) % 2 or len(flat) > 2 * rank:
        wanted = f"an even number, at most {2 * rank}, of integers"
        raise record.error("pad_widths", wanted, record.attr("pad_widths"))
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return ((none, none),) * (rank - len(flat) // 2) + tuple(pairs)[::-1]


def _cat(operands: Sequence[Domain], record: OpRecord, fresh: Fresh) -> Domain:
    """[i0{2}, i1], [i2{3}, i1] joined along 0 -> [i3{5}, i1]"""
    ranks = [len(domain) for domain in operands]
    if len(set(ranks)) > 1:
        raise record.error("", "operands of equal rank", ranks)
    dim = normalise_axis(record.attr("dim"), ranks[0], "cat")
    if len(operands) == 1:
        return operands[0]
    total = reduce(add, (domain[dim].extent for domain in operands))
    columns = enumerate(zip(*operands, strict=True))
    axes = [fresh(total) if at == dim else joined(column, at, "cat") for at, column in columns]
    return distinct(axes, fresh)


def matmul(record: OpRecord, operands: Sequence[Sequence[Scalar]]) -> list[Scalar]:
    """The extents of the result of torch.matmul or torch.nn.functional.linear."""
    a, b = operands[:2]
    _check_matmul(record, *operands)
    if record.op == "linear" or len(b) == 1:
        return [*a[:-1], *b[:-1]]
    batches = zip_longest(a[-3::-1], b[-3::-1])
    batch = [y if x is None or (y is not None and x is const(1)) else x for x, y in batches]
    return [*batch[::-1], *a[-2:-1], b[-1]]


def _check_matmul(
    record: OpRecord, a: Sequence[Scalar], b: Sequence[Scalar], *bias: Sequence[Scalar]
) -> None:
    linear = record.op == "linear"
    if not a or not b or (linear and len(b) > 2):
        ranks = "rank 1 or 2 for the weight" if linear else "rank 1 or more"
        raise record.error("", ranks, f"ranks {len(a)} and {len(b)}")
    inner = b[-1] if linear or len(b) == 1 else b[-2]
    if not may_be_equal(a[-1:], [inner]):
        raise record.error("summed axis", "equal sizes", f"{a[-1]}, {inner}")
    for shape in bias:
        if shape and not may_be_equal(shape[-1:], b[:1]) and shape[-1] is not const(1):
            raise record.error("bias", f"size {b[0]}", f"size {shape[-1]}")


def may_be_equal(a: Sequence[Scalar], b: Sequence[Scalar]) -> bool:
    """False if the shapes certainly differ."""
    pairs = zip(a, b, strict=False)
    return len(a) == len(b) and all(x is y or not (x.is_const and y.is_const) for x, y in pairs)


def _check_rank(record: OpRecord, key: str, rank: int) -> None:
    if len(record.ints(key)) != rank:
        raise record.error(key, f"{rank} entries", list(record.ints(key)))


_RULES: dict[str, Callable[[Domain, OpRecord, SizesOf, Fresh], Domain]] = {
    "stride_order": _stride_order,
    "broadcast": _broadcast,
    "broadcast_in_dim": _broadcast_in_dim,
    "expand": _expand,
    "squeeze": _squeeze,
    "permute": _permute,
    "reshape": _reshape,
    "slice": _slice,
    "pad": _pad,
    "flip": _flip,
}
