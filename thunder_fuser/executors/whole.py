# SPDX-License-Identifier: Apache-2.0
"""A composite that Thunder takes apart into less than torch computes -> a Reject.

    logsumexp(i8 x, 0)         into a subtraction of int8, which wraps
    clamp(f32 x, max=nan)      into a comparison with NaN; to torch, a bound of NaN alone is none
    add(i32 x, u8 y, alpha=2)  into a product of uint8, which wraps before it is an int32

torch has it whole. What differs in its type alone needs no rule here, see mistyped.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from thunder.core.dtypes import to_torch_dtype
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.rows import refuse_number
from thunder_fuser.executors.types import EXACT, FLOATS, data_type, is_known_number
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.trace.op import Reject

_OF_FLOATS = ("logsumexp", "log_softmax", "softmax")
_ACTIVATIONS = (
    *(f"torch.{name}" for name in ("celu", "hardshrink", "hardswish", "relu6", "rrelu", "selu")),
    "torch.threshold",
    *(
        f"torch.nn.functional.{name}"
        for name in (
            "elu", "gelu", "hardsigmoid", "hardtanh", "leaky_relu", "logsigmoid", "mish", "silu",
            "softplus", "softshrink",
        )
    ),
)  # fmt: skip
_COPYING = ("abs", "ceil", "floor", "round", "trunc")
_LOST = 2.0**-150  # rounds to 0 in float32, as what is smaller does
_SHORT = frozenset({DataType.Half, DataType.BFloat16})


def refuse_composite(bsym: BoundSymbol) -> Reject | None:
    """A Reject for what torch must have whole; None for what may be taken apart."""
    why = _RULES.get(bsym.sym.id, _nothing)(bsym)
    if why:
        return Reject(f"{bsym.sym.name}: {why}")
    return next(filter(None, (refuse_number(one, DataType.Int) for one in bsym.args)), None)


def _nothing(bsym: BoundSymbol) -> str:
    return ""


def _copy(bsym: BoundSymbol) -> str:
    """Of integers: into its argument, of which torch makes a copy."""
    copies = bsym.subsymbols[-1].sym.id is PrimIDs.SHALLOW_COPY
    return "a copy, which torch makes" if copies else ""


def _view(bsym: BoundSymbol) -> str:
    """Into a gather."""
    return "a view, which torch makes without a kernel"


def _of_integers(bsym: BoundSymbol) -> str:
    return "of integers" if _types(bsym) & EXACT else ""


def _activation(bsym: BoundSymbol) -> str:
    """Into floats, where torch keeps integers or refuses them."""
    return "" if data_type(bsym.args[0].dtype) in FLOATS else "of other than floats"


def _of_bool(bsym: BoundSymbol) -> str:
    """Into what takes bool, or makes int64 of it."""
    number = any(isinstance(one, bool) for one in _numbers(bsym))
    return "of bool" if number or DataType.Bool in _types(bsym) else ""


def _difference(bsym: BoundSymbol) -> str:
    return "of bool" if DataType.Bool in _types(bsym) else _scaled(bsym)


def _scaled(bsym: BoundSymbol) -> str:
    """Into a product in the type of the second operand, which torch brings to the common one."""
    alpha = bsym.kwargs.get("alpha", 1)
    scaled = isinstance(alpha, TensorProxy) or alpha != 1
    return "alpha beside integers" if scaled and _types(bsym) & EXACT else ""


def _short_sum(bsym: BoundSymbol) -> str:
    """Into a cast to the short type, in which large integers are infinite, and a sum of that."""
    dtype = bsym.kwargs.get("dtype")
    short = dtype is not None and data_type(dtype) in _SHORT
    return "of integers in 16-bit floats" if short and _types(bsym) & EXACT else ""


def _mean(bsym: BoundSymbol) -> str:
    """Into a sum that is cast to the type, for which torch must raise if it has no fractions."""
    dtype = bsym.kwargs.get("dtype")
    exact = dtype is not None and data_type(dtype) in EXACT
    return "in a type of integers" if exact else _short_sum(bsym)


def _bounded(bsym: BoundSymbol) -> str:
    """Into comparisons with NaN, or of integers with floats; a bound of NaN alone is none."""
    floats = [one for one in _numbers(bsym) if isinstance(one, float)]
    if any(map(math.isnan, floats)):
        return "a bound of NaN"
    return "integers between floats" if floats and _types(bsym) & EXACT else ""


def _of_one_kind(bsym: BoundSymbol) -> str:
    """Into the primitive, which has the shape of the first; torch refuses several types."""
    shapes = {tuple(one._shape) for one in _tensors(bsym)}
    several = len(shapes) > 1 or len(_types(bsym)) > 1
    return "tensors of several shapes or types" if several else ""


def _by_number(bsym: BoundSymbol) -> str:
    """Into a comparison with 0 of the number as Python has it; to torch, 1e-50 is 0 in float32."""
    divisor = _numbers(bsym)[1]
    lost = isinstance(divisor, float) and divisor != 0 and abs(divisor) <= _LOST
    return "a divisor that float32 does not hold" if lost else ""


def _remainder(bsym: BoundSymbol) -> str:
    """Into a remainder in float32, by a number that torch has rounded to 16 bits."""
    short = [one for one in _tensors(bsym) if data_type(one.dtype) in _SHORT]
    rounded = any(_rounds(one, short[0]) for one in _numbers(bsym) if short)
    return "a number that a 16-bit float does not hold" if rounded else ""


def _rounds(number: Any, beside: TensorProxy) -> bool:
    if not isinstance(number, (int, float)):
        return False
    held = torch.tensor(float(number), dtype=torch.float64).to(to_torch_dtype(beside.dtype))
    return float(held) != number


def _beyond_first(bsym: BoundSymbol) -> str:
    """Into exp of a large logarithm, where a float loses a digit."""
    return "exp of a logarithm" if bsym.args[0] != 0 else ""


_RULES: dict[Any, Callable[[BoundSymbol], str]] = {
    **dict.fromkeys((f"torch.{name}" for name in _COPYING), _copy),
    **dict.fromkeys((f"torch.{name}" for name in _OF_FLOATS), _of_integers),
    **dict.fromkeys(_ACTIVATIONS, _activation),
    "torch.add": _scaled,
    "torch.clamp": _bounded,
    "torch.diagonal": _view,
    "torch.floor_divide": _by_number,
    "torch.fmod": _remainder,
    "torch.lerp": _of_one_kind,
    "torch.mean": _mean,
    "torch.polygamma": _beyond_first,
    "torch.pow": _of_bool,
    "torch.remainder": _remainder,
    "torch.sub": _difference,
    "torch.sum": _short_sum,
}


def _flat(bsym: BoundSymbol) -> Iterator[Any]:
    yield from tree_flatten((bsym.args, bsym.kwargs))[0]


def _tensors(bsym: BoundSymbol) -> list[TensorProxy]:
    return [one for one in _flat(bsym) if isinstance(one, TensorProxy)]


def _types(bsym: BoundSymbol) -> set[DataType | None]:
    return {data_type(one.dtype) for one in _tensors(bsym)}


def _numbers(bsym: BoundSymbol) -> list[Any]:
    return [one.value if is_known_number(one) else one for one in _flat(bsym)]
