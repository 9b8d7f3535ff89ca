# SPDX-License-Identifier: Apache-2.0
"""Thunder bound symbol -> None, or the Reject that says why it is not fused.

One row for each Thunder primitive, and for cumsum, which is one to Thunder's torch executor.
Composites (softmax, layer_norm, ...) have no row: one is taken if each of its primitives is.
A row's `record` writes the primitive in the fuser's own language; the translator casts its result
to the type of the trace, so rows need not care for promotion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from thunder.core.devices import Device, DeviceType
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.torch.experimental.dtensor_proxy import DTensorProxy

from thunder_fuser.errors import DefinitionError
from thunder_fuser.executors.dtensor import refuse_placements
from thunder_fuser.executors.dtensor_prims import DTENSOR
from thunder_fuser.executors.indexing import INDEXING
from thunder_fuser.executors.random import STATELESS, recorded
from thunder_fuser.executors.rows import Row, padded, power
from thunder_fuser.executors.torch_only import (
    check_divisor,
    refuse_composite,
    refuse_number,
    refuse_numbers,
)
from thunder_fuser.executors.types import (
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
    known_type,
)
from thunder_fuser.ir.dtypes import DataType, fits
from thunder_fuser.ir.language import Recorder
from thunder_fuser.trace.op import Reject
from thunder_fuser.trace.proxies import makes, reads

MAX_RANK = 8

_SUMS = frozenset({PrimIDs.SUM, PrimIDs.PROD, PrimIDs.VAR, PrimIDs.STD, PrimIDs.VAR_MEAN})
_REDUCTIONS = _SUMS | {PrimIDs.AMAX, PrimIDs.AMIN}
_NEVER = {
    "copy_": Reject("an in-place copy, which torch makes"),
    "update_aliases": Reject("the fence of in-place copies"),
}


def support(bsym: BoundSymbol) -> Reject | None:
    """None if the bound symbol can be part of a fusion."""
    if bsym.sym.is_fusion:
        return Reject("a fusion already")
    row = row_of(bsym)
    if row is not None:
        return accepts(row, bsym.args, bsym.kwargs) or refuse_placements(bsym, row)
    if not bsym.subsymbols:
        return _NEVER.get(bsym.sym.name) or Reject(f"no rule for {bsym.sym.name}")
    if bsym.sym.executor is not None:
        return Reject(_why_claimed(bsym))
    return refuse_composite(bsym) or next(filter(None, map(support, bsym.subsymbols)), None)


def row_of(bsym: BoundSymbol) -> Row | None:
    """The row of a primitive that no other executor has claimed."""
    return ROWS.get(bsym.sym.id) if bsym.sym.executor in (None, STATELESS) else None


def accepts(row: Row, args: Sequence[Any], kwargs: dict[str, Any]) -> Reject | None:
    """What holds for every row, then the row's own check."""
    tensors = [arg for arg in _flat(args) if isinstance(arg, TensorProxy)]
    return (
        next(filter(None, (_refuse_value(arg) for arg in _flat((args, kwargs)))), None)
        or _refuse_dtypes(row, tensors)
        or _refuse_devices(tensors)
        or refuse_numbers(row.id, args, tensors)
        or (row.check(*args, **kwargs) if row.check is not None else _needs_tensor(tensors))
    )


def leaves_of(bsym: BoundSymbol) -> Iterator[BoundSymbol]:
    """The primitives a supported bound symbol is made of, in order."""
    if row_of(bsym) is not None:
        yield bsym
        return
    for part in bsym.subsymbols:
        yield from leaves_of(part)


def arguments_of(leaf: BoundSymbol) -> tuple[Any, ...]:
    """What a row records. Thunder reduces axis 0 of a 0-dim tensor, as torch does; it has none."""
    if leaf.sym.id not in _REDUCTIONS or leaf.args[0].ndim:
        return tuple(leaf.args)
    return (leaf.args[0], ())


def device_of(bsym: BoundSymbol) -> Device | None:
    """Where it computes: the device of its tensors; 0-dim CPU tensors count as numbers."""
    cpu = None
    for proxy in (*makes(bsym), *reads(bsym)):
        if not isinstance(proxy, TensorProxy):
            continue
        if not _stands_for_a_number(proxy):
            return proxy.device
        cpu = proxy.device
    return cpu


def _stands_for_a_number(tensor: TensorProxy) -> bool:
    return tensor.ndim == 0 and tensor.device.devicetype is DeviceType.CPU


def _why_claimed(bsym: BoundSymbol) -> str:
    """Another executor has it; the reason lies in what it was made from."""
    why = next(filter(None, map(support, bsym.subsymbols)), None)
    return str(why) if why else f"claimed by the executor {bsym.sym.executor.name}"


# ------------------------------------------------------------------------- checks for every row


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    else:
        yield value


def _refuse_value(value: Any) -> Reject | None:
    if isinstance(value, TensorProxy):
        return _refuse_tensor(value)
    if isinstance(value, NumberProxy) and value.python_type is complex:
        return Reject("complex number")
    if isinstance(value, Proxy) and not isinstance(value, NumberProxy):
        return Reject(f"operand {value.name} is a {type(value).__name__}")
    if isinstance(value, Device) and value.devicetype not in (DeviceType.CPU, DeviceType.CUDA):
        return Reject(f"device {value.device_str()}")
    if isinstance(value, complex) and not isinstance(value, (bool, int, float)):
        return Reject("complex number")
    return None


def _refuse_tensor(tensor: TensorProxy) -> Reject | None:
    # Subclasses but DTensor's, for which see dtensor.py, hold more than one plain tensor.
    if type(tensor) not in (TensorProxy, DTensorProxy):
        return Reject(f"tensor {tensor.name} is a {type(tensor).__name__}")
    if tensor.device.devicetype not in (DeviceType.CPU, DeviceType.CUDA):
        return Reject(f"device {tensor.device.device_str()}")
    if tensor.ndim > MAX_RANK:
        return Reject(f"rank {tensor.ndim} of {tensor.name} is over {MAX_RANK}")
    # `_shape`, for reading `shape` of a symbolic tensor records a bound symbol.
    if not all(type(size) is int for size in tensor._shape):
        return Reject(f"symbolic size of {tensor.name}")
    return None


def _refuse_dtypes(row: Row, tensors: Sequence[TensorProxy]) -> Reject | None:
    for tensor in tensors:
        if data_type(tensor.dtype) not in row.dtypes:
            name = str(tensor.dtype).removeprefix("thunder.dtypes.")
            return Reject(f"{row.name} of {name}")
    return None


def _refuse_devices(tensors: Sequence[TensorProxy]) -> Reject | None:
    found = {t.device.device_str() for t in tensors if not _stands_for_a_number(t)}
    return Reject(f"mixed devices {', '.join(sorted(found))}") if len(found) > 1 else None


def _needs_tensor(tensors: Sequence[TensorProxy]) -> Reject | None:
    return None if tensors else Reject("its result is a number")


# --------------------------------------------------------------------------- checks of one row


def _check_cast(a: Any, dtype: Any) -> Reject | None:
    if not isinstance(a, TensorProxy):
        return Reject("its result is a number")
    return _check_dtype(dtype)


def _check_dtype(dtype: Any) -> Reject | None:
    return None if data_type(dtype) else Reject(f"dtype {dtype}")


def _check_sizes(*sizes: Any) -> Reject | None:
    known = all(type(size) is int for size in _flat(sizes))
    return None if known else Reject("symbolic size")


def _check_shape(a: TensorProxy, shape: Sequence[Any], *rest: Any) -> Reject | None:
    if len(shape) > MAX_RANK:
        return Reject(f"rank {len(shape)} is over {MAX_RANK}")
    return _check_sizes(shape, *rest)


def _check_broadcast(a: TensorProxy, shape: Sequence[Any], dims: Sequence[int]) -> Reject | None:
    """DefinitionError where Thunder's gradient is wrong: that of a 0-dim tensor, by which a larger
    one was multiplied, should be summed before it goes on, and is not."""
    if len(dims) == a.ndim:
        return _check_shape(a, shape)
    if all(size == 1 for size in a._shape):
        return Reject("broadcast of a gradient that was not summed")
    raise DefinitionError(
        f"gradient {a.name} of a {len(dims)}-dim tensor",
        expected=f"{len(dims)} axes", got=f"{list(a._shape)}, which Thunder has not summed",
        do="reduce with keepdim=True, so that no 0-dim tensor is broadcast",
    )


def _check_full(shape: Any, fill_value: Any, *, device: Any, dtype: Any) -> Reject | None:
    if len(shape) > MAX_RANK:
        return Reject(f"rank {len(shape)} is over {MAX_RANK}")
    unknown = _check_dtype(dtype) or _check_sizes(shape)
    return unknown or refuse_number(fill_value, known_type(dtype))


def _check_iota(length: Any, *, start: Any, step: Any, device: Any, dtype: Any) -> Reject | None:
    return _check_dtype(dtype) or _check_sizes(length)


def _check_random(shape: Any, *given: Any, device: Any, dtype: Any, **stream: Any) -> Reject | None:
    if data_type(dtype) not in FLOATS:
        return Reject(f"random numbers of dtype {dtype}")
    return _check_sizes(shape)


def _check_slice(a: TensorProxy, starts: Any, ends: Any, strides: Any = None) -> Reject | None:
    return _check_sizes(starts, ends, strides or ())


def _check_pad(a: TensorProxy, padding_value: Any, config: Any) -> Reject | None:
    if any(dilation and not size for size, (_, _, dilation) in zip(a._shape, config, strict=True)):
        return Reject("pad between the elements of an empty axis")
    return _check_sizes(config) or (
        Reject("pad with a computed number") if isinstance(padding_value, NumberProxy) else None
    )


def _check_clone(a: TensorProxy, **kwargs: Any) -> Reject | None:
    asked = {name: value for name, value in kwargs.items() if value is not None}
    return Reject(f"clone with {', '.join(asked)}") if asked else None


def _check_relu(a: Any, inplace: bool = False) -> Reject | None:
    return Reject("relu in place") if inplace else None


def _check_pow(a: Any, b: Any) -> Reject | None:
    tensors = [x for x in (a, b) if isinstance(x, TensorProxy)]
    exact = bool(tensors) and all(data_type(t.dtype) in EXACT for t in tensors)
    if exact and isinstance(b, (int, float)) and b < 0:
        return Reject("integer to a negative power")  # torch raises, and so it should
    return _needs_tensor(tensors)


def _check_extremum(a: TensorProxy, dims: Sequence[int]) -> Reject | None:
    """torch raises where there is nothing to choose from."""
    empty = bool(a.ndim) and any(a._shape[dim] == 0 for dim in dims)
    return Reject("extremum over an empty axis") if empty else None


def _check_place(a: TensorProxy, dim: int | None) -> Reject | None:
    if not a.ndim:
        return Reject("place of an extremum in a 0-dim tensor")
    return Reject("extremum over an empty axis") if 0 in a._shape else None


def _check_variance(a: TensorProxy, dims: Sequence[int], *, correction: Any) -> Reject | None:
    computed = isinstance(correction, NumberProxy)
    return Reject("variance with a computed correction") if computed else None


def _check_cumsum(a: TensorProxy, dim: int, *, dtype: Any = None) -> Reject | None:
    """torch sums a 0-dim tensor along its axis 0; it has none."""
    if not a.ndim:
        return Reject("cumsum of a 0-dim tensor")
    if dtype is None:
        return None
    # torch raises, and so it should.
    return Reject("cumsum in bool") if data_type(dtype) is DataType.Bool else _check_dtype(dtype)


# ---------------------------------------------------------------------------- how rows record


def _op(name: str) -> Callable[..., Any]:
    """Recorded as the op of that name, arguments as they are."""
    return lambda fd, *args, **more: getattr(fd.ops, name)(*args, **more)


def _reduce(name: str) -> Callable[..., Any]:
    return lambda fd, a, dims: getattr(fd.ops, name)(a, list(dims))


def _cast(fd: Recorder, a: Any, dtype: Any) -> Any:
    return fd.ops.cast(a, known_type(dtype))


def _bitwise_not(fd: Any, a: Any) -> Any:
    # C promotes a bool to int first, and ~1 is not false.
    is_bool = fd.dtype_of(a) is DataType.Bool
    return fd.ops.logical_not(a) if is_bool else fd.ops.bitwise_not(a)


def _full(fd: Recorder, shape: Any, fill_value: Any, *, device: Any, dtype: Any) -> Any:
    wanted = known_type(dtype)
    beyond = type(fill_value) is int and not fits(fill_value, DataType.Int)
    # A literal has 64 bits; to a type of floats it is the nearest float.
    return fd.ops.full(list(shape), float(fill_value) if beyond else fill_value, wanted)


def _iota(fd: Recorder, length: int, *, start: Any, step: Any, device: Any, dtype: Any) -> Any:
    """Counted in a type that holds every value; the cast rounds once, as torch.arange does."""
    wanted = known_type(dtype)
    wide = wanted.compute if wanted.is_float else DataType.Int
    return fd.ops.cast(fd.ops.iota(length, start, step, wide), wanted)


def _relu(fd: Recorder, a: Any, inplace: bool = False) -> Any:
    return fd.ops.relu(a)


def _same(fd: Recorder, a: Any) -> Any:
    return a


def _set(fd: Recorder, a: Any, **kwargs: Any) -> Any:
    return fd.ops.set(a)


def _slice(fd: Recorder, a: Any, starts: Any, ends: Any, strides: Any = None) -> Any:
    return fd.ops.slice(a, list(starts), list(ends), None if strides is None else list(strides))


def _var(fd: Recorder, a: Any, dims: Any, *, correction: Any) -> Any:
    return fd.ops.var(a, list(dims), correction)


def _std(fd: Recorder, a: Any, dims: Any, *, correction: Any) -> Any:
    return fd.ops.sqrt(fd.ops.var(a, list(dims), correction))


def _var_mean(fd: Recorder, a: Any, dims: Any, *, correction: Any) -> Any:
    return fd.ops.var_mean(a, list(dims), correction)


def _cumsum(fd: Recorder, a: Any, dim: int, *, dtype: Any = None) -> Any:
    return fd.ops.cumsum(a if dtype is None else _cast(fd, a, dtype), dim)


# ---------------------------------------------------------------------------------- the table

_P = PrimIDs
_TABLE = (
    # ---- casts, copies
    Row(_P.CONVERT_ELEMENT_TYPE, _cast, STORED, _check_cast),
    Row(_P.SHALLOW_COPY, _same, STORED),
    Row(_P.CLONE, _set, STORED, _check_clone),
    # ---- factories
    Row(_P.FULL, _full, check=_check_full),
    Row(_P.IOTA, _iota, check=_check_iota),
    # ---- random numbers; executors/random.py makes the last two of the first two
    Row(_P.UNIFORM, recorded("uniform"), check=_check_random),
    Row(_P.RANDN, recorded("normal"), check=_check_random),
    Row(_P.UNIFORM_PHILOX, recorded("uniform"), check=_check_random),
    Row("random_uniform", recorded("uniform"), check=_check_random),
    Row("random_normal", recorded("normal"), check=_check_random),
    # ---- movement
    Row(_P.BROADCAST_IN_DIM, _op("broadcast_in_dim"), STORED, _check_broadcast),
    Row(_P.RESHAPE, _op("reshape"), STORED, _check_shape),
    Row(_P.SQUEEZE, _op("squeeze"), STORED),
    Row(_P.TRANSPOSE, _op("permute"), STORED),
    Row(_P.STRIDE_ORDER, _op("stride_order"), STORED),
    Row(_P.SLICE, _slice, STORED, _check_slice),
    Row(_P.PAD, padded, STORED, _check_pad),
    Row(_P.CAT, _op("cat"), STORED),
    Row(_P.FLIP, _op("flip"), ANY | COMPLEX),  # torch has no flip of 8-bit floats
    # ---- unary
    Row(_P.ABS, _op("abs"), NUMBERS | COMPLEX),
    Row(_P.NEG, _op("neg"), NUMBERS | COMPLEX),
    Row(_P.SIGN, _op("sign")),
    Row(_P.CEIL, _op("ceil"), FLOATS),
    Row(_P.FLOOR, _op("floor"), FLOATS),
    Row(_P.TRUNC, _op("trunc"), MATH),
    Row(_P.ROUND, _op("round"), MATH),
    Row(_P.EXP, _op("exp"), MATH | COMPLEX),
    Row(_P.EXP2, _op("exp2"), MATH),
    Row(_P.EXPM1, _op("expm1"), MATH),
    Row(_P.LOG, _op("log"), MATH | COMPLEX),
    Row(_P.LOG2, _op("log2"), MATH),
    Row(_P.LOG10, _op("log10"), MATH),
    Row(_P.LOG1P, _op("log1p"), MATH),
    Row(_P.SIN, _op("sin"), MATH | COMPLEX),
    Row(_P.COS, _op("cos"), MATH | COMPLEX),
    Row(_P.TAN, _op("tan"), MATH | COMPLEX),
    Row(_P.ASIN, _op("asin"), MATH),
    Row(_P.ACOS, _op("acos"), MATH),
    Row(_P.ATAN, _op("atan"), MATH),
    Row(_P.SINH, _op("sinh"), MATH),
    Row(_P.COSH, _op("cosh"), MATH),
    Row(_P.TANH, _op("tanh"), MATH | COMPLEX),
    Row(_P.ASINH, _op("asinh"), MATH),
    Row(_P.ACOSH, _op("acosh"), MATH),
    Row(_P.ATANH, _op("atanh"), MATH),
    Row(_P.ERF, _op("erf"), MATH),
    Row(_P.ERFC, _op("erfc"), MATH),
    Row(_P.ERFINV, _op("erfinv"), MATH),
    Row(_P.ERFCINV, _op("erfcinv"), MATH),
    Row(_P.LGAMMA, _op("lgamma"), MATH),
    Row(_P.DIGAMMA, _op("digamma"), MATH),
    Row(_P.NDTRI, _op("ndtri"), MATH),
    # As where(a > 0, a, 0), which Thunder makes of it, it would lose NaN.
    Row("torch.relu", _relu, NUMBERS, _check_relu),
    Row(_P.REAL, _op("real"), COMPLEX),
    Row(_P.IMAG, _op("imag"), COMPLEX),
    Row(_P.SQRT, _op("sqrt"), MATH | COMPLEX),
    Row(_P.RSQRT, _op("rsqrt"), MATH | COMPLEX),
    Row(_P.RECIPROCAL, _op("reciprocal"), MATH | COMPLEX),
    Row(_P.ISFINITE, _op("isfinite"), FLOATS),
    Row(_P.SIGNBIT, _op("signbit")),
    Row(_P.BITWISE_NOT, _bitwise_not, EXACT),
    # ---- binary
    Row(_P.ADD, _op("add"), ARITHMETIC | COMPLEX | {DataType.Bool}),
    Row(_P.SUB, _op("sub"), ARITHMETIC | COMPLEX),
    Row(_P.MUL, _op("mul"), ARITHMETIC | COMPLEX | {DataType.Bool}),
    Row(_P.DIV, _op("div"), ARITHMETIC | COMPLEX, check_divisor),
    Row(_P.FMOD, _op("fmod"), ARITHMETIC, check_divisor),
    Row(_P.REMAINDER, _op("remainder"), ARITHMETIC, check_divisor),
    Row(_P.POW, power, ARITHMETIC, _check_pow),
    Row(_P.ATAN2, _op("atan2"), MATH),
    Row(_P.ZETA, _op("zeta"), MATH),
    # The next 16-bit float is not the rounded next 32-bit one.
    Row(_P.NEXTAFTER, _op("nextafter"), MATH),
    Row(_P.MAXIMUM, _op("maximum")),
    Row(_P.MINIMUM, _op("minimum")),
    Row(_P.EQ, _op("eq"), ANY | COMPLEX),
    Row(_P.NE, _op("ne"), ANY | COMPLEX),
    Row(_P.LT, _op("lt")),
    Row(_P.LE, _op("le")),
    Row(_P.GT, _op("gt")),
    Row(_P.GE, _op("ge")),
    Row(_P.BITWISE_AND, _op("bitwise_and"), EXACT),
    Row(_P.BITWISE_OR, _op("bitwise_or"), EXACT),
    Row(_P.BITWISE_XOR, _op("bitwise_xor"), EXACT),
    Row(_P.BITWISE_LEFT_SHIFT, _op("bitwise_left_shift"), INTS),
    Row(_P.BITWISE_RIGHT_SHIFT, _op("bitwise_right_shift"), INTS),
    # ---- ternary
    Row(_P.WHERE, _op("where"), ANY | COMPLEX),
    Row(_P.LERP, _op("lerp"), MATH),
    # ---- reductions
    Row(_P.AMAX, _reduce("max"), check=_check_extremum),
    Row(_P.AMIN, _reduce("min"), check=_check_extremum),
    Row(_P.SUM, _reduce("sum"), NUMBERS | COMPLEX),
    Row(_P.PROD, _reduce("prod"), NUMBERS | COMPLEX),
    Row(_P.VAR, _var, FLOATS, _check_variance),
    Row(_P.STD, _std, FLOATS, _check_variance),
    Row(_P.VAR_MEAN, _var_mean, FLOATS, _check_variance),
    Row(_P.ARGMAX, _op("argmax"), NUMBERS, _check_place),
    Row(_P.ARGMIN, _op("argmin"), NUMBERS, _check_place),
    # ---- scans
    Row("torch.cumsum", _cumsum, check=_check_cumsum),
    *INDEXING,
    *DTENSOR,
)

ROWS = {row.id: row for row in _TABLE}
assert len(ROWS) == len(_TABLE), "a primitive is listed twice"
