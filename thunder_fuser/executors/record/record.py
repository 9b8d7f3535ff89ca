# SPDX-License-Identifier: Apache-2.0
"""A region's primitives -> Definition, for inputs whose layout is known at the call.

    t2 = prims.mul(t0, 2.0)   # t2: "cpu bf16[4, 8]"
->  T1 = fd.ops.mul(T0, 2.0)                 (computes in, and stays in, Float)
    T2 = fd.ops.cast(T1, DataType.BFloat16)  (the trace's type of t2)

Pure: the same primitives and layouts give the same Definition.

Note [Types of the trace]: the trace calls bool + 1 int8, and sum(bool) bool. Torch makes int64 of
both, and so do Thunder's torch ops, whose results regions read. So an input has the type of the
tensor that comes at the call, and a value that is int8 or bool only by Thunder's rule is Int.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from thunder.core.devices import DeviceType
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.errors import DefinitionError
from thunder_fuser.executors.regions.plan import RegionMemory
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.executors.stride_orders.orders import Orders, orders_in, row_major
from thunder_fuser.executors.support.check import ROWS, arguments_of
from thunder_fuser.executors.support.dtypes import is_known_number, known_type
from thunder_fuser.ir.dtypes import DataType, fits, of_number, wrapped
from thunder_fuser.ir.frontend.kinds import Value
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.op_schema import DtypeRule, OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.record import Definition, Literal, Operand
from thunder_fuser.ir.rules.type_rules import Typed, ValueType, common_type
from thunder_fuser.ir.strides import Contiguity, allocation_of, compute_tensor_descriptor
from thunder_fuser.runtime.torch_types import from_torch_dtype, to_torch_dtype
from thunder_fuser.trace.proxies import RENAMES, makes, reads, renamed_by
from thunder_fuser.trace.rewrites.approximate import Approximation

_HALVES = (DataType.Half, DataType.BFloat16)
_NARROW = (DataType.Int8, DataType.Bool)
_PYTHON_TYPES = {bool: DataType.Bool, int: DataType.Int, float: DataType.Double}


@dataclass(frozen=True, slots=True)
class Layout:
    """The facts on a tensor that a trace lacks: which axes are 1, its strides, its real type.

    >>> layout_of(torch.empty(1, 3, 5).transpose(1, 2)).stride_order
    (2, 0, 1)
    """

    shape: tuple[int, ...]
    contiguity: Contiguity
    stride_order: tuple[int, ...]
    dtype: DataType

    @property
    def is_expanded(self) -> bool:
        """True if it has an axis of several elements and stride 0."""
        flags = zip(allocation_of(self.stride_order), self.contiguity, strict=True)
        return any(flag is None and self.shape[axis] != 1 for axis, flag in flags)


def layout_of(tensor: torch.Tensor) -> Layout:
    """The layout of an argument."""
    contiguity, order = compute_tensor_descriptor(tensor.shape, tensor.stride())
    shape = tuple(1 if size == 1 else -1 for size in tensor.shape)
    return Layout(shape, contiguity, order, from_torch_dtype(tensor.dtype))


def whole_layout(proxy: TensorProxy) -> Layout:
    """The layout of a whole (not local) tensor of known sizes, without any contiguity."""
    shape = tuple(int(size) for size in proxy.shape)
    rank = len(shape)
    contiguity = tuple(None if size == 1 else False for size in shape)
    return Layout(shape, contiguity, row_major(rank), known_type(proxy.dtype))


def record_region(
    region: Region,
    memory: RegionMemory,
    layouts: Sequence[Layout | None],
    donated: Iterable[str] = (),
) -> Definition:
    """The definition of a region; `layouts` has one entry an input, None for numbers.

    donated: the names of inputs that results may be written into.
    """
    inputs, outputs = region.inputs, region.outputs
    on_gpu = any(_is_on_gpu(proxy) for proxy in (*inputs, *outputs))
    targets = {write.target for write in memory.writes}
    fd, env = _recorded(region.leaves, inputs, layouts, {*donated, *targets}, on_gpu)
    operands = {env[proxy.name] for proxy in inputs}
    orders = orders_of_results(region, memory, layouts)
    target_of = {name: write.target for write in memory.writes for name in write.names}
    for write in memory.writes:
        target = env[write.target]
        value = fd.as_type(env[write.value], fd.dtype_of(target))
        fd.add_output(value, alias_input=target)
    for proxy in outputs:
        value = env[proxy.name]
        if proxy.name in target_of:
            fd.add_output(env[target_of[proxy.name]])
            continue
        value = fd.ops.set(value) if value in operands else value
        fd.add_output(value, stride_order=orders.get(proxy.name), apart=bool(targets))
    return fd.definition


def orders_of_results(
    region: Region, memory: RegionMemory, layouts: Sequence[Layout | None]
) -> Orders:
    """The stride orders of a region's results; others are contiguous."""
    inputs = {
        proxy.name: layout.stride_order
        for proxy, layout in zip(region.inputs, layouts, strict=True)
        if layout and not layout.is_expanded
    }
    return orders_in(region, memory, inputs)


def types_of_results(
    leaves: Sequence[BoundSymbol],
    inputs: Sequence[Proxy],
    results: Sequence[Proxy],
    types: Mapping[str, DataType | None],
) -> tuple[DataType, ...]:
    """The types of the results in a region. types: of inputs that do not have the trace's type."""
    layouts = []
    for proxy in inputs:
        layout = whole_layout(proxy) if isinstance(proxy, TensorProxy) else None
        dtype = types.get(proxy.name)
        layouts.append(replace(layout, dtype=dtype) if layout and dtype else layout)
    fd, env = _recorded(leaves, inputs, layouts)
    return tuple(fd.dtype_of(env[proxy.name]) for proxy in results)


class TypedRecorder(Recorder):
    """A Recorder that knows the type of each value, so that only needed casts are recorded."""

    def call(self, op: str, inputs: tuple[Operand, ...], attrs: dict[str, Any]) -> Any:
        """Appends one op. Numbers wrap to the integer type of the tensors, as in torch. Those
        compared with 16-bit floats, or chosen in place of one, are rounded to their type.
        """
        row = OPS[op]
        if row.kind is OpKind.POINTWISE and row.rule is not DtypeRule.ATTRIBUTE:
            operands = inputs[1:] if row.rule is DtypeRule.SELECT else inputs
            dtype = common_type([self._typed(operand) for operand in operands])
            inputs = tuple(_wrapped(operand, dtype) for operand in inputs)
            if row.rule in (DtypeRule.COMPARE, DtypeRule.SELECT) and dtype in _HALVES:
                inputs = tuple(_rounded(operand, dtype) for operand in inputs)
        return super().call(op, inputs, attrs)

    def dtype_of(self, value: Any) -> DataType:
        """The type of a value, or of a number."""
        return self.view_of(value.name).dtype if isinstance(value, Value) else of_number(value)

    def as_type(self, value: Value, dtype: DataType) -> Value:
        """The value in the given type."""
        return value if self.dtype_of(value) is dtype else self.ops.cast(value, dtype)

    def _typed(self, operand: Operand) -> Typed:
        if isinstance(operand, Literal):
            return ValueType(of_number(operand.value), is_scalar=True)
        return self.view_of(operand)


def _wrapped(operand: Operand, dtype: DataType) -> Operand:
    if not isinstance(operand, Literal) or operand.kind != "int" or not dtype.is_int:
        return operand
    value = int(operand.value)
    return operand if fits(value, dtype) else Literal.of(wrapped(value, dtype))


def _rounded(operand: Operand, dtype: DataType) -> Operand:
    """bf16 x == 0.1  ->  x == 0.10009765625, which an element may be; none is 0.1."""
    if not isinstance(operand, Literal) or operand.kind == "bool":
        return operand
    return Literal.of(torch.tensor(float(operand.value)).to(to_torch_dtype(dtype)).item())


def _is_on_gpu(proxy: Proxy) -> bool:
    return isinstance(proxy, TensorProxy) and proxy.device.devicetype is DeviceType.CUDA


def _recorded(
    leaves: Sequence[BoundSymbol],
    inputs: Sequence[Proxy],
    layouts: Sequence[Layout | None],
    donated: Container[str] = (),
    on_gpu: bool = False,
) -> tuple[TypedRecorder, dict[str, Any]]:
    """(the recorder with the primitives' ops, {name of a proxy: its value})"""
    fd = TypedRecorder()
    env: dict[str, Any] = {}
    for proxy, layout in zip(inputs, layouts, strict=True):
        name = proxy.name
        if isinstance(proxy, NumberProxy):
            env[name] = fd.define_scalar(dtype=_PYTHON_TYPES[proxy.python_type])
        elif layout is not None and isinstance(proxy, TensorProxy):
            is_cpu = on_gpu and not _is_on_gpu(proxy)
            env[name] = fd.define_tensor(**asdict(layout), is_cpu=is_cpu, donated=name in donated)
        else:
            raise DefinitionError(
                f"region input {name}", expected="a tensor or a number", got=type(proxy).__name__
            )
    for bsym in leaves:
        if bsym.sym.id in RENAMES:
            env.update((new.name, env[old.name]) for old, new in renamed_by(bsym))
        else:
            _record(fd, env, bsym)
    return fd, env


def _record(fd: TypedRecorder, env: dict[str, Any], bsym: BoundSymbol) -> None:
    """Records one primitive, with its results in the types of the trace."""
    args = _resolve(arguments_of(bsym), env)
    kwargs = {name: _resolve(value, env) for name, value in bsym.kwargs.items()}
    if Approximation.APPROXIMATE in bsym.tags:
        kwargs["short"] = True
    result = ROWS[bsym.sym.id].record(fd, *args, **kwargs)
    values = result if isinstance(result, tuple) else (result,)
    for value, proxy in zip(values, makes(bsym), strict=True):
        wanted = known_type(proxy.dtype)
        is_narrowed = wanted in _NARROW and fd.dtype_of(value) is DataType.Int
        if not (is_narrowed and _stays_wide(fd, env, bsym)):
            value = fd.as_type(value, wanted)
        env[proxy.name] = value


def _stays_wide(fd: TypedRecorder, env: dict[str, Any], bsym: BoundSymbol) -> bool:
    """True for a result that is int64 in torch but not in Thunder: of a cast, or of an op that
    reads int64; see Note [Types of the trace]. A sum of int8 wraps, also in torch."""
    operands = (env[arg.name] for arg in reads(bsym) if arg.name in env)
    return bsym.sym.id is PrimIDs.CONVERT_ELEMENT_TYPE or any(
        fd.dtype_of(operand) is DataType.Int for operand in operands
    )


def _resolve(value: Any, env: dict[str, Any]) -> Any:
    """The arguments, with values of the definition in place of proxies."""
    if isinstance(value, (tuple, list)):
        return type(value)(_resolve(item, env) for item in value)
    if is_known_number(value):
        return value.value
    return env[value.name] if isinstance(value, Proxy) else value
