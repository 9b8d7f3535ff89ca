# SPDX-License-Identifier: Apache-2.0
"""4-bit floats: ops count numbers, as nvFuser's do, memory holds pairs of them along one axis.

reshape(T0: e2m1x2[m, k/2], [k, m])  ->  T0 taken apart: e2m1[m, k]; then reshape to e2m1[k, m]
add_output(T1: e2m1[k, m])           ->  every second number packed with the next: e2m1x2[k, m/2]

Pairs that are only permuted, returned or multiplied stay together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thunder_fuser.errors import DefinitionError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.strides import allocation_of, check_stride_order, stride_order_of

FLOAT4 = NUMBERS, PAIRS = DataType.Float4_e2m1fn, DataType.Float4_e2m1fn_x2


@dataclass(frozen=True, slots=True, repr=False)
class Packed(Tensor):
    """4-bit floats that memory holds in pairs along an axis: [m, k] is e2m1x2[m, k/2].

    The calls of a Tensor that set its layout are of the pairs.
    """

    along: int

    def dtype(self) -> DataType:
        """The type of the numbers."""
        return NUMBERS

    @property
    def pairs(self) -> Tensor:
        """The tensor in memory, whose sizes count pairs."""
        return Tensor(self.name, self.owner)

    def permuted(self, moved: Tensor) -> Packed:
        """The tensor after the last call permuted its pairs. The definition's end refuses axes
        that are no permutation."""
        order = [dim % self.ndim for dim in self.owner.records[-1].ints("dims")]
        return Packed(moved.name, self.owner, order.index(self.along) if self.along in order else 0)


def in_memory(
    along: int, shape: Sequence[int], strides: Sequence[int] | None
) -> tuple[list[int], list[int] | None]:
    """The sizes and strides of pairs, the fastest of which lie along an axis.

    [4, 6] numbers, strides [6, 1]  ->  [4, 3] pairs, strides [3, 1]
    """
    parts = [2 if at == along else 1 for at in range(len(shape))]
    if shape[along] > 0:
        _check_even(shape[along], "define_tensor", along)
    sizes = [size if size < 0 else size // part for size, part in zip(shape, parts, strict=True)]
    if strides is None:
        return sizes, None
    return sizes, [stride * part // 2 for stride, part in zip(strides, parts, strict=True)]


def _check_even(size: int, call: str, axis: int) -> None:
    if size % 2:
        what = f"{call}: axis {axis} of 4-bit floats, along which memory holds pairs"
        do = "pad the axis to an even size, or cast the tensor to a wider type"
        raise DefinitionError(what, expected="an even size", got=str(size), do=do)


def numbers_of(packed: Packed) -> Tensor:
    """e2m1x2[m, k/2]  ->  e2m1[m, k]: each pair, then the places in it."""
    ops, is_place = packed.owner.ops, [at == packed.along + 1 for at in range(packed.ndim + 1)]
    pairs = ops.broadcast(packed.pairs, is_place)
    places = ops.broadcast(ops.iota(2, 0, 1, DataType.Int32), [not flag for flag in is_place])
    sizes = ops.shape(packed.pairs)
    sizes[packed.along] = ops.mul(sizes[packed.along], 2)
    return ops.reshape(ops.unpack_e2m1(pairs, places), sizes)  # type: ignore[no-any-return]


def pairs_of(numbers: Tensor, axis: int, call: str) -> Tensor:
    """e2m1[m, k]  ->  e2m1x2[m, k/2], in pairs along an axis."""
    if isinstance(numbers, Packed) and numbers.along == axis:
        return numbers.pairs
    wide, ops = _unrounded(numbers, call), numbers.owner.ops
    size = numbers.owner.view_of(wide.name).shape[axis]
    if size.is_const:
        _check_even(size.value, call, axis)
    else:  # a reshape that changes no even size, and refuses an odd one at the call
        sizes = ops.shape(wide)
        sizes[axis] = ops.mul(ops.div(sizes[axis], 2), 2)
        wide = ops.reshape(wide, sizes)
    return ops.pack_e2m1(*halves(wide, axis))  # type: ignore[no-any-return]


def _unrounded(numbers: Tensor, call: str) -> Tensor:
    """What was cast to the numbers, which pack_e2m1 rounds alike, or else the numbers as Float."""
    owner = numbers.owner
    name = owner.operand(numbers, call, "4-bit floats")
    producer = next(record for record in owner.records if name in record.outputs)
    source = Tensor(str(producer.inputs[0]), owner)
    is_cast = producer.op == "cast" and not source.dtype().is_stored
    return source if is_cast else owner.ops.cast(Tensor(str(name), owner), DataType.Float)


def halves(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Elements 0, 2, ... and 1, 3, ... of an axis."""
    ops, sizes, rank = x.owner.ops, x.shape(), range(x.ndim)
    steps = [1 + (at == axis) for at in rank]
    low, high = (
        ops.slice(x, [start if at == axis else 0 for at in rank], sizes, steps)
        for start in (0, ops.minimum(sizes[axis], 1))  # an empty axis has no element 1
    )
    return low, high


def along_sums(call: str, matrices: Sequence[Any]) -> list[Any]:
    """The matrices of a product, 4-bit floats in pairs along the axis that it sums over."""
    return [
        pairs_of(x, axis % x.ndim, call) if _is_numbers(x) and x.ndim > 1 else x
        for x, axis in zip(matrices, (-1, -2), strict=True)
    ]


def result_of(
    output: Any, alias: Any, order: Sequence[int] | None
) -> tuple[Any, Sequence[int] | None]:
    """A result as its pairs along the fastest axis of its memory, and its stride order."""
    if not _is_numbers(output):
        return output, order
    target = output if alias is None else alias
    view = target.owner.view_of(target.name)
    memory = view.domain.allocation
    if not memory:
        what, expected = "add_output: 4-bit floats", "a tensor with an axis, for pairs"
        raise DefinitionError(what, expected=expected, got=str(view))
    if order:
        memory = allocation_of(check_stride_order(order, len(memory)))
    elif alias is None and not (isinstance(output, Packed) or view.domain.is_row_major):
        order = stride_order_of(memory)
    return pairs_of(output, memory[-1], "add_output"), order


def _is_numbers(value: Any) -> bool:
    try:
        return isinstance(value, Tensor) and value.dtype() is NUMBERS
    except DefinitionError:  # raised where the definition ends
        return False
