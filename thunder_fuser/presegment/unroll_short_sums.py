# SPDX-License-Identifier: Apache-2.0
"""Turns a short sum into additions, if a kernel would read it at other places than its own.

    T1 = sum(T0: f32[8, 4, 1024], dims=[1]); T2 = slice(T1, ...)
->  T3 = slice(T0, [0, 0, 0], [8, 1, 1024]); T4 = squeeze(T3, dims=[1]); ... four of each
    T1 = add(add(add(T4, T6), T8), T10); T2 = slice(T1, ...)

If the operand is a cast, each piece is cast instead.

No kernel reads the result of a reduction at other places than its own, so the sum would be stored
and loaded again. Additions are computed wherever they are needed. An example is the gradient of a
repeated head, which a rotary embedding slices. Sums over the last axis stay, since their elements
are neighbours in memory. So do integers, which `sum` adds in another type.

Under the option `repeatable` the bits of a sum may not depend on its readers. Then another pass,
`unroll_middle_sums`, takes all short sums over an axis between two others, such as copies of a
head. Sums over the first axis stay: they are gradients of biases, which share a kernel with much
other work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.presegment.rewrite import Chain, RewriteRule

MOST = 8  # elements of a short sum
_ELSEWHERE = ("slice", "pad", "cat", "flip")  # ops that read at other places than they write


def unroll_short_sums(fusion: Fusion) -> RewriteRule:
    """Turns short sums that are read at other places than their own into additions."""
    moved = _moved(fusion)
    return _unrolled(fusion, lambda name: name in moved)


def unroll_middle_sums(fusion: Fusion) -> RewriteRule:
    """Turns short sums over an axis between two others into additions."""
    return _unrolled(fusion, lambda name: _is_between(fusion, name))


def _unrolled(fusion: Fusion, is_meant: Callable[[str], bool]) -> RewriteRule:
    """Turns short sums into additions if the predicate is true for their names."""

    def rule(record: OpRecord) -> OpRecord | list[OpRecord]:
        axis = _short_axis(fusion, record)
        if axis is None or not is_meant(record.outputs[0]):
            return record
        return [*_additions(fusion, record, axis)]

    return rule


def _moved(fusion: Fusion) -> set[str]:
    """The values that a slice, pad, cat or flip reads, directly or through pointwise work."""
    moved: set[str] = set()
    for record in reversed(fusion.exprs):
        names = names_of(record)
        if record.op in _ELSEWHERE or (
            record.row.kind in (OpKind.POINTWISE, OpKind.MOVEMENT)
            and not moved.isdisjoint(record.outputs)
        ):
            moved.update(names)
    return moved


def _short_axis(fusion: Fusion, record: OpRecord) -> int | None:
    """The one axis of several elements that a sum reduces, if it is short and not the last."""
    operand, result = fusion.tensors[names_of(record)[0]], fusion.tensors[record.outputs[0]]
    if operand.dtype is not result.dtype or not operand.dtype.is_float or record.attr("chunk"):
        return None
    if not all(extent.is_const for extent in operand.shape):
        return None
    sizes = operand.sizes
    long = [at for at in record.ints("dims") if sizes[at] != 1]
    if len(long) != 1 or not 1 < sizes[long[0]] <= MOST:
        return None
    is_last = all(size == 1 for size in sizes[long[0] + 1 :])
    return None if is_last else long[0]


def _is_between(fusion: Fusion, name: str) -> bool:
    """True if a kept axis comes before the reduced one."""
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
            result = name if at == size - 1 else f"{name}.sum{at}"
            yield OpRecord("add", (total, piece.last), (result,))
        total = result if at else piece.last


def _piece(fusion: Fusion, record: OpRecord, axis: int, at: int) -> Chain:
    """The elements at one place of the axis, in the shape of the sum."""
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
