# SPDX-License-Identifier: Apache-2.0
"""A number beside tensors of integers -> None, or why torch must have the call.

    mul(i64 x, 10**30), where(p, u8 x, 300), floor_divide(u8 x, -2)

torch raises for a number that the type cannot hold, or takes what is left of it, as the function
has it; a primitive of ours would always do the latter, and compute the steps of a composite with
other numbers than torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy

from thunder_fuser.executors.types import data_type, is_known_number
from thunder_fuser.ir.dtypes import DataType, promote
from thunder_fuser.trace.op import Reject

# Their arguments are operands: the numbers among them are no dimensions or sizes.
_COMPUTING: frozenset[PrimIDs | str] = frozenset(
    {
        PrimIDs.ADD, PrimIDs.SUB, PrimIDs.MUL, PrimIDs.DIV, PrimIDs.FMOD, PrimIDs.REMAINDER,
        PrimIDs.POW, PrimIDs.MAXIMUM, PrimIDs.MINIMUM, PrimIDs.EQ, PrimIDs.NE, PrimIDs.LT,
        PrimIDs.LE, PrimIDs.GT, PrimIDs.GE, PrimIDs.BITWISE_AND, PrimIDs.BITWISE_OR,
        PrimIDs.BITWISE_XOR, PrimIDs.BITWISE_LEFT_SHIFT, PrimIDs.BITWISE_RIGHT_SHIFT,
        PrimIDs.WHERE,
    }
)  # fmt: skip


def refuse_numbers(
    id: PrimIDs | str, operands: Sequence[Any], tensors: Sequence[TensorProxy]
) -> Reject | None:
    """A Reject if one of the numbers is beyond the type of the integers beside it, or int64."""
    if id not in _COMPUTING:
        return None
    kinds = [kind for t in tensors if (kind := data_type(t.dtype)) is not None and kind.is_int]
    kind = promote(*kinds) if kinds else DataType.Int
    return next(filter(None, (refuse_number(one, kind) for one in operands)), None)


def refuse_number(given: Any, dtype: DataType) -> Reject | None:
    """A Reject for a whole number that a type of integers cannot hold."""
    number = given.value if is_known_number(given) else given
    if type(number) is not int or not dtype.is_int:
        return None
    signed = dtype is not DataType.UInt8
    end = 2 ** (8 * dtype.bytes - signed)
    held = -end * signed <= number < end
    return None if held else Reject(f"the number {number}, which {dtype} cannot hold")
