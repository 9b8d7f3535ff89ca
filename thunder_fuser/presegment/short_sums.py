# SPDX-License-Identifier: Apache-2.0
"""A short sum that is read at other places than it is made for is additions.

    T1 = sum(T0: f32[8, 4, 1024], dims=[1]); T2 = slice(T1, ...)
->  T3 = slice(T0, [0, 0, 0], [8, 1, 1024]); T4 = squeeze(T3, dims=[1]); ... four of each
    T1 = add(add(add(T4, T6), T8), T10); T2 = slice(T1, ...)

What was cast to be summed is cast piece by piece.

No kernel reads the result of a reduction at other places, so it would be written to memory and read
again; additions are made wherever their results are wanted. A repeated head's gradient, turned as
rotary embedding does, is such a sum. Elements of one sum must not be neighbours in memory: the last
axis is left alone, as are integers, which sum does not add in their own type.

Under the option `repeatable` the bits of a sum may not depend on what reads it. Then another pass,
`unroll_middle_sums`, takes the sums over an axis between two others, as copies of a head are,
whatever reads them. Sums over the first axis stay: these are gradients of biases, which share a
kernel with much else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.presegment.rewrite import Chain, expand

MOST = 8  # elements of a sum
_ELSEWHERE = ("slice", "pad", "cat", "flip")


def unroll_short_sums(fusion: Fusion) -> Fusion:
    """Short sums that are read at other places than they are made for, as additions."""
    moved = _moved(fusion)
    return _unrolled(fusion, lambda name: name in moved)


def unroll_middle_sums(fusion: Fusion) -> Fusion:
    """Short sums over an axis between two others, as additions."""
    return _unrolled(fusion, lambda name: _is_between(fusion, name))


def _unrolled(fusion: Fusion, is_meant: Callable[[str], bool]) -> Fusion:
    """The fusion with short sums of which this is true as additions."""
    sums = [record for record in fusion.exprs if record.op == "sum"]
    axes = {record: _short_axis(fusion, record) for record in sums}
    return expand(fusion, {
        record: _additions(fusion, record, axis)
        for record, axis in axes.items() if axis is not None and is_meant(record.outputs[0])
    })


def _moved(fusion: Fusion) -> set[str]:
    """The values that a slice, pad, cat or flip reads, directly or through pointwise work."""
    found: set[str] = set()
    for record in reversed(fusion.exprs):
        names = names_of(record)
        if record.op in _ELSEWHERE or (
            record.row.kind in (OpKind.POINTWISE, OpKind.MOVEMENT)
            and not found.isdisjoint(record.outputs)
        ):
            found.update(names)
    return found


def _short_axis(fusion: Fusion, record: OpRecord) -> int | None:
    """The one axis of several elements that a sum reduces, if it is short and not the last."""
    operand, result = fusion.tensors[names_of(record)[0]], fusion.tensors[record.outputs[0]]
    if operand.dtype is not result.dtype or not operand.dtype.is_float or record.attr("chunk"):
        return None
    if not all(extent.is_const for extent in operand.shape):
        return None
    dims: tuple[int, ...] = record.attr("dims")  # type: ignore[assignment]
    sizes = operand.sizes
    long = [at for at in dims if sizes[at] != 1]
    if len(long) != 1 or not 1 < sizes[long[0]] <= MOST:
        return None
    is_last = all(size == 1 for size in sizes[long[0] + 1 :])
    return None if is_last else long[0]


def _is_between(fusion: Fusion, name: str) -> bool:
    """True if the reduced axis has one before it that is kept."""
    logical = fusion.tensors[name].domain.logical
    first = next(axis for axis in logical if axis.extent.value != 1)
    return not first.is_reduction


def _additions(fusion: Fusion, record: OpRecord, axis: int) -> Iterator[OpRecord]:
    (source,), (name,) = names_of(record), record.outputs
    size, total = fusion.tensors[source].sizes[axis], ""
    for at in range(size):
        piece = _piece(fusion, record, axis, at)
        yield from piece.records
        if at:
            made = name if at == size - 1 else f"{name}.sum{at}"
            yield OpRecord("add", (total, piece.last), (made,))
        total = made if at else piece.last


def _piece(fusion: Fusion, record: OpRecord, axis: int, at: int) -> Chain:
    """The elements at one place of the axis, shaped as the sum is."""
    (source,) = names_of(record)
    cast = fusion.producer.get(source)
    if cast is not None and cast.op == "cast":
        (source,) = names_of(cast)
    else:
        cast = None
    sizes = fusion.tensors[source].sizes
    starts = tuple(at if dim == axis else 0 for dim in range(len(sizes)))
    ends = tuple(at + 1 if dim == axis else size for dim, size in enumerate(sizes))
    chain = Chain(source, f"{record.outputs[0]}.piece{at}.")
    chain.add("slice", start_indices=starts, end_indices=ends, strides=(1,) * len(sizes))
    if not record.attr("keepdim"):
        chain.add("squeeze", dims=record.attr("dims"))
    if cast is not None:
        chain.add("cast", **dict(cast.attrs))
    return chain
