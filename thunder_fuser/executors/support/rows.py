# SPDX-License-Identifier: Apache-2.0
"""Rows of the support table: a primitive -> the ops that record it, and the operands it takes.

A row's `record` writes the primitive in the fuser's own language. The translator casts the result
to the type of the trace, so rows need not promote types. Primitives that read or write at indices
are in index_rows.py, those on DTensors in dtensor.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from thunder.core.devices import DeviceType
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, TensorProxy

from thunder_fuser.errors import DefinitionError
from thunder_fuser.executors.support.dtypes import (
    ANY,
    ARITHMETIC,
    COMPLEX,
    EXACT,
    FLOATS,
    INTS,
    MATH,
    NUMBERS,
    STORED,
    data_type,
    is_known_number,
    known_type,
)
from thunder_fuser.ir.dtypes import DataType, fits, integer_range, promote
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.trace.op import Reject

OpCheck = Callable[..., "Reject | None"]
Record = Callable[..., Any]
MAX_RANK = 8


@dataclass(frozen=True, slots=True)
class Row:
    """A primitive: how it is recorded, the types that it is taken in, and a check of its arguments.

    is_call: a region runs it by one torch call, so it is taken only between fused ops.
    """

    id: PrimIDs | str
    record: Record
    dtypes: frozenset[DataType] = ANY
    check: OpCheck | None = None
    is_call: bool = False

    @property
    def name(self) -> str:
        """Its name in messages: `add` for PrimIDs.ADD, `cumsum` for "torch.cumsum"."""
        name = self.id if isinstance(self.id, str) else self.id.name.lower()
        return name.removeprefix("torch.")

    @property
    def computes(self) -> bool:
        """True for a pointwise primitive: numbers among its arguments are operands, not sizes."""
        return self.name in OPS and OPS[self.name].kind is OpKind.POINTWISE


def rows(
    names: str, dtypes: frozenset[DataType], check: OpCheck | None = None, is_call: bool = False
) -> Iterator[Row]:
    """A row for each of these primitives, recorded as the op with the same name."""
    for name in names.split():
        yield Row(PrimIDs[name.upper()], op(name), dtypes, check, is_call)


def flat(value: Any) -> list[Any]:
    """The leaves of nested arguments."""
    if isinstance(value, dict):
        return flat([*value.values()])
    if not isinstance(value, (tuple, list)):
        return [value]
    nested = tuple, list, dict
    return [x for item in value for x in (flat(item) if isinstance(item, nested) else (item,))]


# ------------------------------------------------------------------------------ numbers and sizes


def refuse_numbers(operands: Sequence[Any], tensors: Sequence[TensorProxy]) -> Reject | None:
    """A Reject if a number does not fit the type of the integer tensors (int64 if there is none).

        mul(i64 x, 10**30), where(p, u8 x, 300), floor_divide(u8 x, -2)

    For such a number some torch functions raise, others wrap it. Our primitives would always wrap
    it, so the steps of a composite would compute with other numbers than torch.
    """
    kinds = [kind for t in tensors if (kind := data_type(t.dtype)) is not None and kind.is_int]
    kind = promote(*kinds) if kinds else DataType.Int
    return next(filter(None, (refuse_number(operand, kind) for operand in operands)), None)


def refuse_number(operand: Any, dtype: DataType) -> Reject | None:
    """A Reject for an integer that an integer type cannot hold."""
    number = operand.value if is_known_number(operand) else operand
    if type(number) is not int or not dtype.is_int:
        return None
    least, most = integer_range(dtype)
    held = least <= number <= most
    return None if held else Reject(f"the number {number}, which {dtype} cannot hold")


def check_sizes(*sizes: Any) -> Reject | None:
    """A Reject for sizes that are known only at the call."""
    return None if all(type(x) is int for x in flat(sizes)) else Reject("symbolic size")


def check_shape(shape: Sequence[Any]) -> Reject | None:
    """A Reject for the shape of a result with too many axes, or symbolic ones."""
    if len(shape) > MAX_RANK:
        return Reject(f"rank {len(shape)} is over {MAX_RANK}")
    return check_sizes(shape)


def no_computed(why: str) -> OpCheck:
    """A check that refuses numbers, after the first argument, that are known only at the call."""

    def check(a: Any, *args: Any, **kwargs: Any) -> Reject | None:
        computed = any(isinstance(x, NumberProxy) for x in flat((args, kwargs)))
        return Reject(why) if computed else None

    return check


def needs_tensor(tensors: Sequence[TensorProxy]) -> Reject | None:
    """A Reject for a primitive that computes only with numbers."""
    return None if tensors else Reject("its result is a number")


# --------------------------------------------------------------------------- checks of one row


def _check_broadcast(a: TensorProxy, shape: Sequence[Any], dims: Sequence[int]) -> Reject | None:
    """Raises DefinitionError for a gradient that Thunder did not sum.

    A 0-dim tensor that multiplied a larger one has the sum of that one's gradient.
    """
    if len(dims) == a.ndim:
        return check_shape(shape)
    if all(size == 1 for size in a._shape):
        return Reject("a broadcast gradient that Thunder has not summed")
    raise DefinitionError(
        f"gradient {a.name} of a {len(dims)}-dim tensor",
        expected=f"{len(dims)} axes", got=f"{list(a._shape)}, which Thunder has not summed",
        do="reduce with keepdim=True, so that no 0-dim tensor is broadcast",
    )


def _check_random(shape: Any, *rest: Any, device: Any, dtype: Any, **stream: Any) -> Reject | None:
    if data_type(dtype) not in FLOATS:
        return Reject(f"random numbers of dtype {dtype}")
    return check_sizes(shape)


def _check_slice(a: TensorProxy, starts: Any, ends: Any, strides: Any = None) -> Reject | None:
    return check_sizes(starts, ends, strides or ())


def _check_pad(a: TensorProxy, padding_value: Any, config: Any) -> Reject | None:
    if any(dilation and not size for size, (_, _, dilation) in zip(a._shape, config, strict=True)):
        return Reject("pad between the elements of an empty axis")
    return check_sizes(config) or no_computed("pad with a computed number")(a, padding_value)


def _check_clone(a: TensorProxy, **kwargs: Any) -> Reject | None:
    asked = [name for name, value in kwargs.items() if value is not None]
    return Reject(f"clone with {', '.join(asked)}") if asked else None


LOST = 2.0**-150  # this and smaller numbers are 0 in float32


def _check_pow(a: Any, b: Any) -> Reject | None:
    tensors = [x for x in (a, b) if isinstance(x, TensorProxy)]
    exact = bool(tensors) and all(data_type(t.dtype) in EXACT for t in tensors)
    if exact and isinstance(b, (int, float)) and b < 0:
        return Reject("an integer to a negative power")  # torch raises, and so it should
    if type(b) is float and 0 < abs(b) <= LOST:
        return Reject(f"an exponent of {b}, which is 0 in float32")  # 0 ** b is 0, and 0 ** 0 is 1
    return needs_tensor(tensors)


def _check_divisor(a: Any, b: Any) -> Reject | None:
    """A Reject for integers on a CPU, unless they are divided by a known number other than 0.

    For a division by 0, torch then raises a RuntimeError (ZeroDivisionError), and a kernel cannot.
    On a GPU torch does not raise either.
    """
    tensors = [x for x in (a, b) if isinstance(x, TensorProxy)]
    on_cpu = all(t.device.devicetype is DeviceType.CPU for t in tensors)
    if not tensors or not on_cpu or not all(data_type(t.dtype) in EXACT for t in tensors):
        return needs_tensor(tensors)
    divisor = b.value if is_known_number(b) else b
    known = isinstance(divisor, (int, float)) and divisor != 0
    return None if known else Reject("division of integers by a value that may be 0: torch raises")


_EMPTY = Reject("amax, amin, argmax or argmin over an empty dimension")


def _check_extremum(a: TensorProxy, dims: Sequence[int]) -> Reject | None:
    """Refuses an empty axis, for which torch raises."""
    return _EMPTY if a.ndim and any(a._shape[dim] == 0 for dim in dims) else None


def _check_place(a: TensorProxy, dim: int | None) -> Reject | None:
    if not a.ndim:
        return Reject("argmax or argmin of a 0-dim tensor")
    return _EMPTY if 0 in a._shape else None


def _check_cumsum(a: TensorProxy, dim: int, *, dtype: Any = None) -> Reject | None:
    """Refuses a 0-dim tensor, of which torch takes axis 0, and sums in bool: torch raises."""
    if not a.ndim:
        return Reject("cumsum of a 0-dim tensor")
    is_bool = dtype is not None and data_type(dtype) is DataType.Bool
    return Reject("cumsum with a bool result") if is_bool else None


# ---------------------------------------------------------------------------- how rows record


def op(name: str) -> Record:
    """Records the op of this name with the arguments as they are."""
    return lambda fd, *args, **more: getattr(fd.ops, name)(*args, **more)


def _full(fd: Recorder, shape: Any, fill_value: Any, *, device: Any, dtype: Any) -> Any:
    beyond = type(fill_value) is int and not fits(fill_value, DataType.Int)
    # A literal has 64 bits; a larger integer becomes the nearest float.
    return fd.ops.full(shape, float(fill_value) if beyond else fill_value, known_type(dtype))


def _iota(fd: Recorder, length: int, *, start: Any, step: Any, device: Any, dtype: Any) -> Any:
    """Counts in a type that holds every value; then a cast rounds once, as torch.arange does."""
    wanted = known_type(dtype)
    wide = wanted.compute if wanted.is_float else DataType.Int
    return fd.ops.cast(fd.ops.iota(length, start, step, wide), wanted)


def _random(name: str) -> Record:
    """A random primitive, with or without a stream; see executors/support/random.py."""

    def record(
        fd: Recorder, shape: Any, first: Any = 0.0, second: Any = 1.0, stream: Any = None,
        *, device: Any, dtype: Any, seed: Any = None, offset: Any = None,
    ) -> Any:  # fmt: skip
        if stream is not None:
            seed, start, number = stream
            offset = fd.ops.add(start, number) if number else start
        state = () if seed is None else (seed, offset)
        return getattr(fd.ops, name)(first, second, shape, known_type(dtype), *state)

    return record


_POWERS: dict[float, Callable[[Any, Any], Any]] = {
    0.5: lambda ops, x: ops.sqrt(x),
    -0.5: lambda ops, x: ops.rsqrt(x),
    -1.0: lambda ops, x: ops.reciprocal(x),
    2.0: lambda ops, x: ops.mul(x, x),
    -2.0: lambda ops, x: ops.reciprocal(ops.mul(x, x)),
    3.0: lambda ops, x: ops.mul(ops.mul(x, x), x),
}


def _power(fd: Any, x: Any, exponent: Any) -> Any:
    """A power of floats with a known exponent, computed as torch does, without pow if it can.

    x ** 0.5  ->  sqrt(x)      of -infinity: NaN (pow: infinity); of -0.0: -0.0 (pow: 0.0)
    """
    known = isinstance(exponent, (int, float)) and fd.dtype_of(x).is_float
    power = _POWERS.get(float(exponent)) if known else None
    return fd.ops.pow(x, exponent) if power is None else power(fd.ops, x)


def _padded(fd: Recorder, a: Any, padding_value: Any, config: Any) -> Any:
    """Records prims.pad, with (low, high, dilation) of each axis, as pads and reshapes.

    pad([1, 2], 0, [(1, 2, 1)])  ->  [0, 1, 0, 2, 0, 0]
    """
    ends = []
    for axis, (low, high, dilation) in enumerate(config):
        if dilation:
            a = _spread(fd, a, padding_value, axis, config)
        ends.append((low, high - dilation))
    return fd.ops.pad(a, widths(ends), padding_value)


def widths(ends: Sequence[tuple[int, int]]) -> list[int]:
    """The widths from the last axis to the first, as torch.nn.functional.pad takes them."""
    return [width for low, high in reversed(ends) for width in (low, high)]


def _spread(fd: Recorder, a: Any, value: Any, axis: int, config: Any) -> Any:
    """An axis with values after each element: [1, 2], dilation 1  ->  [1, v, 2, v]."""
    rank, dilation = len(config), config[axis][2]
    sizes: list[Any] = [fd.ops.size(a, at) for at in range(rank)]
    columns = fd.ops.broadcast(a, [at == axis + 1 for at in range(rank + 1)])
    ends = [(0, dilation if at == axis + 1 else 0) for at in range(rank + 1)]
    sizes[axis] = fd.ops.mul(sizes[axis], dilation + 1)
    return fd.ops.reshape(fd.ops.pad(columns, widths(ends), value), sizes)


# ---------------------------------------------------------------------------------- the table

_P = PrimIDs
_variance = no_computed("variance with a computed correction")
PRIMITIVES = (
    # ---- casts, copies
    Row(_P.CONVERT_ELEMENT_TYPE, lambda fd, a, dtype: fd.ops.cast(a, known_type(dtype)), STORED),
    Row(_P.SHALLOW_COPY, lambda fd, a: a, STORED),
    Row(_P.CLONE, lambda fd, a, **_: fd.ops.set(a), STORED, _check_clone),
    # ---- factories
    Row(
        _P.FULL, _full,
        check=lambda shape, fill_value, *, device, dtype: (
            check_shape(shape) or refuse_number(fill_value, known_type(dtype))
        ),
    ),
    Row(_P.IOTA, _iota, check=lambda length, **_: check_sizes(length)),
    # ---- random numbers; executors/support/random.py replaces the first two by the last two
    Row(_P.UNIFORM, _random("uniform"), check=_check_random),
    Row(_P.RANDN, _random("normal"), check=_check_random),
    Row(_P.UNIFORM_PHILOX, _random("uniform"), check=_check_random),
    Row("random_uniform", _random("uniform"), check=_check_random),
    Row("random_normal", _random("normal"), check=_check_random),
    # ---- movement
    *rows("broadcast_in_dim", STORED, _check_broadcast),
    *rows("reshape", STORED, lambda a, shape: check_shape(shape)),
    *rows("squeeze stride_order cat", STORED),
    *rows("slice", STORED, _check_slice),
    *rows("flip", ANY | COMPLEX),  # torch has no flip of 8-bit floats
    Row(_P.TRANSPOSE, op("permute"), STORED),
    Row(_P.PAD, _padded, STORED, _check_pad),
    # ---- pointwise
    *rows("exp log log2 sin cos tan tanh sqrt rsqrt reciprocal", MATH | COMPLEX),
    *rows("asin acos atan sinh cosh asinh acosh atanh", MATH | COMPLEX),
    *rows("exp2 expm1 log10 log1p", MATH),
    *rows("erf erfc erfinv erfcinv lgamma digamma ndtri atan2 zeta lerp trunc round", MATH),
    *rows("nextafter", MATH),  # the next 16-bit float is not the rounded next 32-bit one
    *rows("ceil floor", FLOATS),
    *rows("isfinite", FLOATS | COMPLEX),
    *rows("abs neg", NUMBERS | COMPLEX),
    *rows("real imag", COMPLEX),
    *rows("add mul", ARITHMETIC | COMPLEX | {DataType.Bool}),
    *rows("sub", ARITHMETIC | COMPLEX),
    *rows("div", ARITHMETIC | COMPLEX, _check_divisor),
    *rows("fmod remainder", ARITHMETIC, _check_divisor),
    *rows("eq ne where", ANY | COMPLEX),
    *rows("sign signbit maximum minimum lt le gt ge", ANY),
    *rows("bitwise_and bitwise_or bitwise_xor", EXACT),
    *rows("bitwise_left_shift bitwise_right_shift", INTS),
    Row(
        _P.BITWISE_NOT,  # C promotes a bool to int first, and ~1 is not false
        lambda fd, a: (
            fd.ops.logical_not(a) if fd.dtype_of(a) is DataType.Bool else fd.ops.bitwise_not(a)
        ),
        EXACT,
    ),
    Row(_P.POW, _power, ARITHMETIC, _check_pow),
    # Thunder takes it apart into where(a > 0, a, 0), which would lose NaN.
    Row(
        "torch.relu", lambda fd, a, inplace=False: fd.ops.relu(a), NUMBERS,
        check=lambda a, inplace=False: Reject("relu in place") if inplace else None,
    ),
    # ---- reductions and scans
    *rows("sum prod", NUMBERS | COMPLEX),
    *rows("var var_mean", FLOATS, _variance),
    Row(_P.STD, lambda fd, *of, **how: fd.ops.sqrt(fd.ops.var(*of, **how)), FLOATS, _variance),
    Row(_P.AMAX, op("max"), check=_check_extremum),
    Row(_P.AMIN, op("min"), check=_check_extremum),
    *rows("argmax argmin", NUMBERS, _check_place),
    Row(
        "torch.cumsum",
        lambda fd, a, dim, *, dtype=None: fd.ops.cumsum(
            a if dtype is None else fd.ops.cast(a, known_type(dtype)), dim
        ),
        check=_check_cumsum,
    ),
)
