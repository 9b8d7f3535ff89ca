# SPDX-License-Identifier: Apache-2.0
"""A composite whose parts in Thunder compute other values than torch -> a Reject: torch runs it.

    logsumexp(i8 x, 0)         becomes a subtraction of int8, which wraps
    clamp(f32 x, max=nan)      becomes a comparison with NaN; torch ignores a single bound of NaN
    add(i32 x, u8 y, alpha=2)  becomes a product of uint8, which wraps before it is an int32

Composites that differ only in the type of the result need no rule: see record/result_dtypes.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from thunder.core.dtypes import to_torch_dtype
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.support.dtypes import EXACT, FLOATS, data_type, is_known_number
from thunder_fuser.executors.support.rows import LOST, flat, refuse_number
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.trace.op import Reject

_SHORT = frozenset({DataType.Half, DataType.BFloat16})


def refuse_composite(bsym: BoundSymbol) -> Reject | None:
    """A Reject for a composite that torch must run whole; None for one that may be taken apart."""
    name = str(bsym.sym.id).removeprefix("torch.")
    for names, why, holds in _TABLE:
        if name in names and holds(bsym):
            return Reject(f"{bsym.sym.name}: {why}")
    return next(filter(None, (refuse_number(arg, DataType.Int) for arg in bsym.args)), None)


def _tensors(bsym: BoundSymbol) -> list[TensorProxy]:
    return [arg for arg in flat((bsym.args, bsym.kwargs)) if isinstance(arg, TensorProxy)]


def _types(bsym: BoundSymbol) -> set[DataType | None]:
    return {data_type(tensor.dtype) for tensor in _tensors(bsym)}


def _numbers(bsym: BoundSymbol) -> list[Any]:
    return [arg.value if is_known_number(arg) else arg for arg in flat((bsym.args, bsym.kwargs))]


def _of_integers(bsym: BoundSymbol) -> bool:
    return bool(_types(bsym) & EXACT)


def _asked_type(bsym: BoundSymbol) -> DataType | None:
    """The type of the argument `dtype`, if given."""
    dtype = bsym.kwargs.get("dtype")
    return None if dtype is None else data_type(dtype)


def _floats(bsym: BoundSymbol) -> list[float]:
    return [number for number in _numbers(bsym) if isinstance(number, float)]


def _has_number_that_rounds(bsym: BoundSymbol) -> bool:
    short = [tensor for tensor in _tensors(bsym) if data_type(tensor.dtype) in _SHORT]
    numbers = [x for x in _numbers(bsym) if isinstance(x, (int, float)) and short]
    exact = torch.tensor([*map(float, numbers)], dtype=torch.float64, device="cpu")
    return bool(short) and exact.to(to_torch_dtype(short[0].dtype)).tolist() != numbers


_ACTIVATIONS = (
    "celu", "hardshrink", "hardswish", "relu6", "rrelu", "selu", "threshold",
    *(
        f"nn.functional.{name}"
        for name in (
            "elu", "gelu", "hardsigmoid", "hardtanh", "leaky_relu", "logsigmoid", "mish", "silu",
            "softplus", "softshrink",
        )
    ),
)  # fmt: skip

# (the functions, why torch must run them whole, when). The comments say what Thunder makes of such
# a call.
_TABLE: tuple[tuple[Sequence[str], str, Callable[[BoundSymbol], bool]], ...] = (
    # for integers, the argument itself; torch makes a copy
    (("abs", "ceil", "floor", "round", "trunc"), "a copy, which torch makes",
     lambda bsym: bsym.subsymbols[-1].sym.id is PrimIDs.SHALLOW_COPY),
    # a gather
    (("diagonal",), "a view, which torch makes without a kernel", lambda bsym: True),
    (("logsumexp", "log_softmax", "softmax"), "of integers", _of_integers),
    # a result of floats; torch keeps integers or refuses them
    (_ACTIVATIONS, "of a type other than floats",
     lambda bsym: data_type(bsym.args[0].dtype) not in FLOATS),
    # an op that takes bool, or turns it into int64
    (("pow", "sub"), "of bool",
     lambda bsym: DataType.Bool in _types(bsym)
     or any(isinstance(number, bool) for number in _numbers(bsym))),
    # comparisons of each with 0; torch casts both to the common type first
    (("logical_and", "logical_or", "logical_xor"), "tensors of several types",
     lambda bsym: len(_types(bsym) - {DataType.Bool}) > 1),
    # a product in the second operand's type; torch casts that operand to the common type first
    (("add", "sub"), "integers with alpha",
     lambda bsym: _of_integers(bsym)
     and (isinstance(alpha := bsym.kwargs.get("alpha", 1), Proxy) or alpha != 1)),
    # a sum that is cast to the type; torch raises for a type without fractions
    (("mean",), "the result has an integer type", lambda bsym: _asked_type(bsym) in EXACT),
    # a sum after a cast to the short type, in which large integers are infinite
    (("mean", "sum"), "of integers, in a 16-bit float type",
     lambda bsym: _asked_type(bsym) in _SHORT and _of_integers(bsym)),
    # comparisons with NaN, or of integers with floats; torch ignores a single bound of NaN
    (("clamp",), "a bound of NaN", lambda bsym: any(map(math.isnan, _floats(bsym)))),
    (("clamp",), "integers with float bounds",
     lambda bsym: bool(_floats(bsym)) and _of_integers(bsym)),
    # the primitive, whose result has the shape of the first; torch refuses several types
    (("lerp",), "tensors of several shapes or types",
     lambda bsym: len({tuple(tensor._shape) for tensor in _tensors(bsym)}) > 1
     or len(_types(bsym)) > 1),
    # a comparison of Python's number with 0; in torch, 1e-50 is 0 in float32
    (("floor_divide",), "a divisor that is 0 in float32",
     lambda bsym: isinstance(divisor := _numbers(bsym)[1], float) and 0 < abs(divisor) <= LOST),
    # a remainder in float32, by a number that torch rounds to 16 bits
    (("fmod", "remainder"), "a number that 16-bit floats round", _has_number_that_rounds),
    # exp of a large logarithm, in which a float loses a digit
    (("polygamma",), "Thunder computes it as exp of a logarithm", lambda bsym: bsym.args[0] != 0),
)  # fmt: skip
