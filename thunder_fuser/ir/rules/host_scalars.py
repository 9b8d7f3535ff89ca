# SPDX-License-Identifier: Apache-2.0
"""Scalars that the host knows at a call: arguments, sizes, and values computed from them.

    S2 = mul(S0, size(T1, 0))       as a size: the expression S0*i1
    S3 = cast(truediv(S2, 2.0))     as a size: a symbol of its own, S3, which depends on S0
    S4 = cast(mul(2.5, 7))          as a size: 17

Shapes, pad widths and k may name such scalars. At a call each one is a number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence

from thunder_fuser.errors import DefinitionError
from thunder_fuser.ir.dtypes import DataType, held
from thunder_fuser.ir.record import Literal, Number, Operand, OpRecord
from thunder_fuser.ir.scalar import Scalar, const, symbol

INTEGERS = (DataType.Int, DataType.Int32)


class HostScalars:
    """The scalars of a definition, by name, as far as the host can compute them."""

    def __init__(self) -> None:
        self.sizes: dict[str, Scalar] = {}  # those of type Int or Int32
        self._numbers: dict[str, Number] = {}
        self._arguments: dict[str, frozenset[str]] = {}  # those that each one is computed from

    def add_argument(self, name: str, dtype: DataType) -> None:
        """A scalar that each call gives."""
        self._arguments[name] = frozenset([name])
        if dtype in INTEGERS:
            self.sizes[name] = symbol(name, lo=0)

    def add_size(self, name: str, size: Scalar) -> None:
        """The size of an axis."""
        self._arguments[name] = frozenset()
        self._keep(name, size)

    def add(self, name: str, record: OpRecord, dtype: DataType) -> None:
        """A scalar that an op computes. Nothing is kept if the host cannot compute it."""
        read = [o for o in record.inputs if isinstance(o, str)]
        if record.op not in _FUNCTIONS or not self._arguments.keys() >= {*read}:
            return
        self._arguments[name] = frozenset().union(*map(self._arguments.__getitem__, read))
        operands = [_number(o, self._numbers) for o in record.inputs]
        value = computed(record, operands, dtype)
        if value is not None:
            self._numbers[name] = value
        if dtype in INTEGERS:
            size = const(int(value)) if value is not None else self._expression(record)
            self._keep(name, symbol(name) if size is None else size)

    def arguments_of(self, name: str) -> frozenset[str]:
        """The arguments of a scalar's computation; DefinitionError if the host does not know it."""
        if name not in self._arguments:
            expected = "a scalar computed from sizes and arguments"
            raise DefinitionError(f"scalar {name}", expected=expected, got="another value")
        return self._arguments[name]

    def arguments_of_size(self, size: Scalar) -> frozenset[str]:
        """The arguments, and the symbols of axes, that a size is computed from."""
        return frozenset().union(*(self._arguments.get(s, {s}) for s in size.symbols))

    def number(self, operand: Operand) -> Number | None:
        """The number that an operand is in every call, if it is one."""
        return _number(operand, self._numbers)

    def _keep(self, name: str, size: Scalar) -> None:
        self.sizes[name] = size
        if size.is_const:
            self._numbers[name] = size.value

    def _expression(self, record: OpRecord) -> Scalar | None:
        """The result in the symbols of its operands; None if Scalars do not have the op."""
        parts = [
            const(int(o.value)) if isinstance(o, Literal) else self.sizes.get(o)
            for o in record.inputs
        ]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        if record.op == "cast":  # to the type of sizes, which are below 2**31 if they are Int32
            return known[0] if record.attr("dtype") is DataType.Int else None
        rule = _EXPRESSIONS.get(record.op)
        if rule is operator.floordiv and known[1].is_const and known[1].value < 1:
            return None  # Scalars do not divide by it
        return rule and rule(*known)


_EXPRESSIONS: Mapping[str, Callable[[Scalar, Scalar], Scalar]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.floordiv,
}


def numbers_at(
    records: Sequence[OpRecord],
    known: dict[str, Number],
    dtype_of: Callable[[str], DataType],
    size_of: Callable[[OpRecord, Mapping[str, Number]], int | None],
) -> dict[str, Number]:
    """The scalars that the host computes at a call, by name, from those already known.

    size_of: the value of a record `size`, from the scalars before it; None if it is not known.

    S0 is 3; S2 = size(T1 of size 4, 0); S3 = mul(S0, S2)  ->  {S0: 3, S2: 4, S3: 12}
    """
    for record in records:
        name = record.outputs[0]
        if record.op == "size":
            value: Number | None = size_of(record, known)
        else:
            value = computed(record, [_number(o, known) for o in record.inputs], dtype_of(name))
        if value is not None:
            known[name] = value
    return known


def _number(operand: Operand, known: Mapping[str, Number]) -> Number | None:
    return operand.value if isinstance(operand, Literal) else known.get(operand)


def computed(
    record: OpRecord, operands: Sequence[Number | None], dtype: DataType
) -> Number | None:
    """The result of an op on numbers; None if an operand, or the op, is not known."""
    function = _FUNCTIONS.get(record.op)
    is_held = not dtype.is_float8 and not dtype.is_complex
    if function is None or not is_held or any(o is None or math.isnan(o) for o in operands):
        return None
    try:
        known = [held(o, dtype) for o in operands] if dtype.is_float else operands  # type: ignore[arg-type]
        return held(function(*known), dtype)
    except (ArithmeticError, ValueError):  # no number: 1 / 0, the floor of infinity
        return None


def _quotient(a: Number, b: Number) -> Number:
    """Toward zero for integers, as the op `div`."""
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def _remainder_of_c(a: Number, b: Number) -> Number:
    is_float = isinstance(a, float) or isinstance(b, float)
    return math.fmod(a, b) if is_float else int(a) - int(b) * int(_quotient(a, b))


def _power(a: Number, b: Number) -> Number:
    if isinstance(a, float) or isinstance(b, float):
        return math.pow(a, b)
    if b >= 0:
        return pow(int(a), int(b), 1 << 64)  # the same bits after it is wrapped around
    return {1: 1, -1: -1 if b % 2 else 1}.get(int(a), 0)


_MATH = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "atan2", "erf", "erfc",
    "lgamma", "isfinite", "isinf", "isnan",
)  # fmt: skip
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    **{
        name: getattr(operator, name)
        for name in ("add", "sub", "mul", "truediv", "neg", "eq", "ne", "lt", "le", "gt", "ge")
    },
    **{f"bitwise_{name}": getattr(operator, f"{name}_") for name in ("and", "or")},
    **{name: getattr(math, name) for name in ("ceil", "floor", "trunc", "gcd", *_MATH)},
    "cast": lambda a: a,
    "set": lambda a: a,
    "div": _quotient,
    "mod": _remainder_of_c,
    "fmod": _remainder_of_c,
    "remainder": operator.mod,
    "abs": abs,
    "minimum": min,
    "maximum": max,
    "logical_and": lambda a, b: bool(a) and bool(b),
    "logical_or": lambda a, b: bool(a) or bool(b),
    "logical_not": operator.not_,
    "where": lambda condition, a, b: a if condition else b,
    "clamp": lambda x, least, most: min(max(x, least), most),
    "bitwise_xor": operator.xor,
    "bitwise_not": lambda a: not a if isinstance(a, bool) else ~a,
    "bitwise_left_shift": lambda a, count: a << min(count, 64),
    "bitwise_right_shift": operator.rshift,
    "reciprocal": lambda a: 1 / a,
    "rsqrt": lambda a: 1 / math.sqrt(a),
    "sign": lambda a: (a > 0) - (a < 0),
    "signbit": lambda a: math.copysign(1, a) < 0,
    "relu": lambda a: max(a, 0),
    "round": round,
    "frac": lambda a: math.fmod(a, 1),
    "pow": _power,
}
