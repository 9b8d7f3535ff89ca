# SPDX-License-Identifier: Apache-2.0
"""A composite of Thunder -> None, or why torch runs it whole: its parts compute something else.

    floor of integers    the argument, of which torch makes a copy
    diagonal             a gather, where torch makes a view
    sub                  takes bool, which torch refuses
    silu, hardtanh, ...  computes integers as floats; torch refuses them, or keeps their type
    logsumexp            a subtraction of its dtype, which wraps below zero where that is unsigned
    polygamma            exp of a large logarithm, where a float loses a digit
"""

from __future__ import annotations

from typing import Any

from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.literals import refuse_number
from thunder_fuser.executors.types import FLOATS, Reject, data_type
from thunder_fuser.ir.dtypes import DataType

_COPYING = {"torch.abs", "torch.ceil", "torch.floor", "torch.round", "torch.trunc"}
_OF_FLOATS = {
    "torch.celu", "torch.hardshrink", "torch.hardswish", "torch.relu6", "torch.rrelu",
    "torch.selu", "torch.threshold",
    *(
        f"torch.nn.functional.{name}"
        for name in (
            "elu", "gelu", "hardsigmoid", "hardtanh", "leaky_relu", "logsigmoid", "mish", "silu",
            "softplus", "softshrink",
        )
    ),
}  # fmt: skip


def refuse_whole(bsym: BoundSymbol) -> Reject | None:
    """What Thunder takes apart into something else than torch computes."""
    name = bsym.sym.id
    if name in _COPYING and bsym.subsymbols[-1].sym.id is PrimIDs.SHALLOW_COPY:
        return Reject("a copy, which torch makes")
    if name == "torch.diagonal":
        return Reject("a view, which torch makes without a kernel")
    if name in _OF_FLOATS and data_type(bsym.args[0].dtype) not in FLOATS:
        return Reject("an activation of other than floats")
    if name == "torch.logsumexp" and data_type(bsym.args[0].dtype) is DataType.UInt8:
        return Reject("logsumexp of an unsigned type")
    if name == "torch.sub" and any(map(_is_bool, bsym.args)):
        return Reject("subtraction of bool")
    if name == "torch.polygamma" and bsym.args[0] != 0:
        return Reject("polygamma as exp of a logarithm")
    return next(filter(None, (refuse_number(one, DataType.Int) for one in bsym.args)), None)


def _is_bool(value: Any) -> bool:
    return isinstance(value, TensorProxy) and data_type(value.dtype) is DataType.Bool
