# SPDX-License-Identifier: Apache-2.0
"""4-bit floats: ops count numbers, as nvFuser's do, memory holds pairs of them along one axis.

reshape(T0: e2m1x2[m, k/2], [k, m])  ->  T0 taken apart: e2m1[m, k]; then reshape to e2m1[k, m]
add_output(T1: e2m1[k, m])           ->  every second number packed with the next: e2m1x2[k, m/2]

Pairs that are only permuted, returned or multiplied stay together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from thunder_fuser.errors import DefinitionError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.kinds import F, Owner
from thunder_fuser.ir.op_methods import OpMethods
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.strides import allocation_of, check_stride_order, stride_order_of
from thunder_fuser.ir.values import Tensor

NUMBERS, PAIRS = DataType.Float4_e2m1fn, DataType.Float4_e2m1fn_x2


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


def as_row(name: str) -> Callable[[F], F]:
    """Decorates a composite that stands for a row: it keeps the row's signature and docstring."""
    return wraps(getattr(OpMethods, name))  # type: ignore[return-value]


def in_memory(
    along: int, shape: Sequence[int], strides: Sequence[int] | None
) -> tuple[list[int], list[int] | None]:
    """The sizes and strides of pairs, the fastest of which lie along an axis.

    [4, 6] numbers, strides [6, 1]  ->  [4, 3] pairs, strides [3, 1]
    """
    sizes = [
        _half(size, "define_tensor", at) if at == along and size > 0 else size
        for at, size in enumerate(shape)
    ]
    halved = None if strides is None else [
        stride if at == along else stride // 2 for at, stride in enumerate(strides)
    ]  # fmt: skip
    return sizes, halved


def _half(size: int, call: str, axis: int) -> int:
    if size % 2:
        what = f"{call}: axis {axis} of 4-bit floats, along which memory holds pairs"
        do = "pad the axis to an even size, or cast the tensor to a wider type"
        raise DefinitionError(what, expected="an even size", got=str(size), do=do)
    return size // 2


class Packing(OpMethods):
    """The ops that take 4-bit floats apart and pack them."""

    _fd: Owner

    @as_row("cast")
    def cast(self, *args: Any, **kwargs: Any) -> Any:
        """As the row of the table; Float4_e2m1fn_x2 is another name of its numbers' type."""
        bound = OPS["cast"].bind(args, kwargs)
        if bound["dtype"] is PAIRS:
            bound["dtype"] = NUMBERS
        is_same = bound["dtype"] is NUMBERS and isinstance(bound["arg"], Packed)
        return bound["arg"] if is_same else super().cast(**bound)

    def along_sums(self, call: str, matrices: Sequence[Any]) -> list[Any]:
        """The matrices of a product, 4-bit floats in pairs along the axis that it sums over."""
        return [
            self.pairs_of(one, axis % one.ndim, call) if _is_numbers(one) and one.ndim > 1 else one
            for one, axis in zip(matrices, (-1, -2), strict=True)
        ]

    def numbers_of(self, packed: Packed) -> Tensor:
        """e2m1x2[m, k/2]  ->  e2m1[m, k]: each pair, then the places in it."""
        is_place = [at == packed.along + 1 for at in range(packed.ndim + 1)]
        pairs = self.broadcast(packed.pairs, is_place)
        places = self.iota(2, 0, 1, DataType.Int32)
        places = self.broadcast(places, [not flag for flag in is_place])
        sizes: list[Any] = [*packed.pairs.shape()]
        sizes[packed.along] = self.mul(sizes[packed.along], 2)
        return self.reshape(self.unpack_e2m1(pairs, places), sizes)

    def pairs_of(self, numbers: Tensor, axis: int, call: str) -> Tensor:
        """e2m1[m, k]  ->  e2m1x2[m, k/2], in pairs along an axis."""
        if isinstance(numbers, Packed) and numbers.along == axis:
            return numbers.pairs
        name = self._fd.operand(numbers, call, "4-bit floats")
        made = next(record for record in self._fd.records if name in record.outputs)
        if made.op == "cast":  # pack_e2m1 rounds as that cast does
            wide = Tensor(str(made.inputs[0]), self._fd)
        else:
            wide = self.cast(Tensor(str(name), self._fd), DataType.Float)
        size = self._fd.view_of(wide.name).shape[axis]
        if size.is_const:
            _half(size.value, call, axis)
        else:  # a reshape that changes no even size, and refuses an odd one at the call
            sizes: list[Any] = [*wide.shape()]
            sizes[axis] = self.mul(self.div(sizes[axis], 2), 2)
            wide = self.reshape(wide, sizes)
        return self.pack_e2m1(*self._halves(wide, axis))

    def _halves(self, x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Elements 0, 2, ... and 1, 3, ... of an axis."""
        sizes, steps = x.shape(), [1 + (at == axis) for at in range(x.ndim)]
        low, high = (
            self.slice(x, [at * (step - 1) for step in steps], sizes, steps) for at in (0, 1)
        )
        return low, high

    def result_of(
        self, output: Any, alias: Any, order: Sequence[int] | None
    ) -> tuple[Any, Sequence[int] | None]:
        """A result as its pairs along the fastest axis of its memory, and its stride order."""
        if not _is_numbers(output):
            return output, order
        view = self._fd.view_of((output if alias is None else alias).name)
        memory = view.domain.allocation
        if order:
            memory = allocation_of(check_stride_order(order, len(memory)))
        elif not (alias or isinstance(output, Packed) or view.domain.is_row_major):
            order = stride_order_of(memory)
        if not memory:
            what, expected = "add_output: 4-bit floats", "a tensor with an axis, for pairs"
            raise DefinitionError(what, expected=expected, got=str(view))
        return self.pairs_of(output, memory[-1], "add_output"), order


def _is_numbers(value: Any) -> bool:
    try:
        return isinstance(value, Tensor) and value.dtype() is NUMBERS
    except DefinitionError:  # raised where the definition ends
        return False
