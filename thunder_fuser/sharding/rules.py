# SPDX-License-Identifier: Apache-2.0
"""What each kind of op does to shardings, as a table: which axes are in step, and which are whole.

    T2 = mul(T0, T1)                 axis 0 of T0, of T1 and of T2 are in step; and so are axes 1
    T2 = slice(T0, [0, 2], [8, 6])   axis 0 of T0 and of T2 are in step; axes 1 are whole

Axes in step are sharded alike. A whole axis has all its elements on every device. But of an axis
that an op sums, each device may sum a part: then the result is Partial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from thunder_fuser.analysis.index_map import ZERO, accesses
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.rules import shapes
from thunder_fuser.ir.scalar import Scalar, symbol
from thunder_fuser.ir.strides import nontrivial_groups

TensorAxis = tuple[str, int]  # a tensor and one of its axes
Tensors = Mapping[str, TensorView]  # without broadcast axes: size 1 may be on one device
# Two axes that the op walks in step; an axis and None: it must be whole on every device.
AxisFacts = Iterator[tuple[TensorAxis, TensorAxis | None]]


@dataclass(frozen=True, slots=True)
class AxisRule:
    """A row of the table. summed: the axes of the first operand that the op sums."""

    facts: Callable[[OpRecord, Tensors], AxisFacts]
    summed: Callable[[OpRecord, Tensors], Sequence[int]] = lambda expr, tensors: ()


def rule_of(expr: OpRecord) -> AxisRule:
    """The row of an op, or else that of its kind."""
    return RULES.get(expr.op) or RULES[expr.row.kind]


def _rank(tensors: Tensors, name: str) -> int:
    return len(tensors[name].shape)


def _by_index(expr: OpRecord, tensors: Tensors) -> AxisFacts:
    """An axis that is read at an index of the result is in step with it; other axes must be whole,
    and so must the axes of the result in their index.

    T1 = slice(T0, [0, 2], [8, 6]);  T1[x, y] reads T0[x, y + 2]
    T0[i0@mesh_x, i1]  ->  T1[i0@mesh_x, i1]                         x is in step, y is whole
    """
    reduced = (ZERO,) * max((_rank(tensors, name) for name in names_of(expr)), default=0)
    for out in expr.outputs:
        index = tuple(symbol(str(at)) for at in range(_rank(tensors, out)))
        for access in accesses(expr, index, tensors, reduced):
            yield from (((out, int(at)), None) for at in access.condition.symbols)
            for at, read in enumerate(access.index):
                yield from _read(tensors, out, (access.name, at), read)


def _read(tensors: Tensors, out: str, node: TensorAxis, read: Scalar) -> AxisFacts:
    """The facts that follow from the index at which one axis of an operand is read."""
    size = tensors[node[0]].sizes[node[1]]
    # If the index is an element of another tensor, the read of that tensor gives the facts.
    ours = [] if read.op == "element" else [(out, int(name)) for name in read.symbols]
    if read.op == "sym" and tensors[out].sizes[ours[0][1]] == size:
        yield ours[0], node
    elif read.op == "sym" and size == 1:
        yield node, None  # it is broadcast
    else:
        yield from ((axis, None) for axis in (node, *ours))


def _reduced(expr: OpRecord, tensors: Tensors) -> Sequence[int]:
    """The axes of a reduction: sum(T0[i0@mesh_x, i1], [0])  ->  T1[i1], Partial(sum) on mesh_x."""
    return () if expr.attr("chunk") is not None else expr.ints("dims")


def _along(expr: OpRecord, tensors: Tensors) -> AxisFacts:
    """The scanned or sorted axis must be whole.

    cumsum(T0[i0@mesh_x, i1], 1)  ->  T1[i0@mesh_x, i1]
    """
    yield from _by_index(expr, tensors)
    rank = _rank(tensors, expr.outputs[0])
    if rank:
        dim = shapes.normalise_axis(expr.attr("dim"), rank, expr.op)
        yield from (((name, dim), None) for name in (*names_of(expr), *expr.outputs))


def _reshape(expr: OpRecord, tensors: Tensors) -> AxisFacts:
    """In each group of axes with equal products, the outermost ones are in step.

    reshape(T0[i0{4}@mesh_x, i1{6}], [24])  ->  T1[i0{24}@mesh_x]
    """
    source, out = names_of(expr)[0], expr.outputs[0]
    for before, after in nontrivial_groups(tensors[source].sizes, tensors[out].sizes):
        if before and after:
            yield (out, after[0]), (source, before[0])
        yield from (((source, at), None) for at in before[1:])
        yield from (((out, at), None) for at in after[1:])


def _product(expr: OpRecord, tensors: Tensors) -> AxisFacts:
    """The axis that a product sums must be whole.

    matmul  [.., m, k], [.., k, n] -> [.., m, n]
    linear  [.., k], [n, k], [n] -> [.., n]
    """
    names, out = names_of(expr), expr.outputs[0]
    a, b = names[:2]
    left, right, rank = (_rank(tensors, name) for name in (a, b, out))
    summed, other = max(right - 2, 0), right - 1
    if expr.op == "linear":
        summed, other = other, summed
    yield (a, left - 1), (b, summed)
    yield (a, left - 1), None
    if expr.attr("streams") is not None and len(expr.ints("streams")) == 2:
        yield (out, expr.ints("streams")[0]), None  # each device has all pieces
    if left > 1:
        yield (out, rank - 1 - (right > 1)), (a, left - 2)
    if right > 1:
        yield (out, rank - 1), (b, other)
        yield from (((out, rank - 1), (c, 0)) for c in names[2:] if _rank(tensors, c))
    for name, operand_rank in ((a, left), (b, right)):
        for back in range(3, operand_rank + 1):
            yield from _read(tensors, out, (name, operand_rank - back), symbol(str(rank - back)))


def _last(expr: OpRecord, tensors: Tensors) -> Sequence[int]:
    """The summed axis of a product: [m, k@mesh_x], [k@mesh_x, n]  ->  [m, n], Partial(sum)."""
    return [_rank(tensors, names_of(expr)[0]) - 1]


def _all_whole(expr: OpRecord, tensors: Tensors) -> AxisFacts:
    """A torch call whose elements may depend on all elements of its operands.

    scatter(T0, T1, T2, 0)  ->  each device has T0, T1, T2 and computes all of T3
    """
    for name in (*names_of(expr), *expr.outputs):
        yield from (((name, at), None) for at in range(_rank(tensors, name)))


RULES: dict[OpKind | str, AxisRule] = {
    OpKind.POINTWISE: AxisRule(_by_index),
    OpKind.MOVEMENT: AxisRule(_by_index),
    OpKind.INDEX: AxisRule(_by_index),
    OpKind.REDUCTION: AxisRule(_by_index, _reduced),
    OpKind.SCAN: AxisRule(_along),
    OpKind.FACTORY: AxisRule(_by_index),
    OpKind.RANDOM: AxisRule(_by_index),
    OpKind.SCALAR: AxisRule(_by_index),
    OpKind.EXTERNAL: AxisRule(_all_whole),
    OpKind.COMMUNICATION: AxisRule(_by_index),
    "reshape": AxisRule(_reshape),
    "linear": AxisRule(_product, _last),
    "matmul": AxisRule(_product, _last),
    "sort": AxisRule(_along),
    "argsort": AxisRule(_along),
    "topk": AxisRule(_along),
}
