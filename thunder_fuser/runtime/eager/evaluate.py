# SPDX-License-Identifier: Apache-2.0
"""Evaluates a fusion op by op in torch: the reference against which kernels are tested.

With dtype=torch.float64 every float is a double, whatever its type in the fusion. The errors of
kernels and of eager torch are measured against these results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from types import CodeType
from typing import Any, TypeAlias

import torch

from thunder_fuser.analysis.part import Part
from thunder_fuser.errors import (
    CommunicationError,
    OutOfRangeError,
    TorchCallError,
    VerifyError,
)
from thunder_fuser.ir.dtypes import DataType, of_number, promote
from thunder_fuser.ir.fusion import Fusion, Output, TensorView
from thunder_fuser.ir.op_schema import DtypeRule, OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.record import (
    NAMED_ATTRS,
    AttrValue,
    Literal,
    Number,
    Operand,
    OpRecord,
    record_text,
)
from thunder_fuser.ir.rules.communication import devices, is_communication
from thunder_fuser.ir.strides import contiguous_strides, stride_order_of
from thunder_fuser.runtime import random
from thunder_fuser.runtime.eager import torch_calls
from thunder_fuser.runtime.torch_types import coordinate, to_torch_dtype

Input: TypeAlias = "torch.Tensor | Number"


def evaluate(
    fusion: Fusion, inputs: Sequence[Input], dtype: torch.dtype | None = None
) -> list[torch.Tensor]:
    """The outputs. An aliased output is written into its input, and is not in the list.

    dtype: the type of all floats. With it no input is written, and every output is returned.
    """
    values = values_of(fusion, inputs, dtype)
    results = [_result(fusion, output, values[output.name]) for output in fusion.outputs]
    if dtype is not None:
        return results
    targets = dict(zip(fusion.inputs, inputs, strict=True))
    makers = [fusion.producer.get(output.name) for output in fusion.outputs]
    written = [row for row in zip(makers, fusion.outputs, results, strict=True) if row[1].alias]
    written.sort(key=lambda row: row[0] is None or row[0].op != "index_store")  # reads its index
    for maker, output, result in written:
        target = targets[str(output.alias)]
        assert isinstance(target, torch.Tensor)
        if maker is not None and maker.op == "index_store":
            index = values[str(maker.inputs[1])].long()
            target.index_copy_(maker.integer("dim"), index, result)
        else:
            target.copy_(result)
    return [
        targets[memory] if (memory := fusion.memory_of(output)) else result  # type: ignore[misc]
        for output, result in zip(fusion.outputs, results, strict=True) if output.alias is None
    ]


def values_of(
    fusion: Fusion, inputs: Sequence[Input], dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """Every value of a fusion, by name."""
    pairs = zip(fusion.inputs, inputs, strict=True)
    tensors = [x for name, x in pairs if not fusion.tensors[name].is_cpu]
    devices = [x.device for x in tensors if isinstance(x, torch.Tensor)]
    evaluator = Evaluator(fusion.tensors, next(iter(devices), torch.device("cpu")), dtype)
    evaluator.read(fusion.inputs, inputs)
    evaluator.draw(fusion)
    evaluator.run(fusion.exprs)
    return evaluator.values


def evaluate_part(
    part: Part, inputs: Sequence[Input], device: torch.device
) -> list[torch.Tensor]:
    """The outputs of a part, in new memory with the part's strides."""
    evaluator = Evaluator(part.tensors, device)
    evaluator.read(part.inputs, inputs)
    evaluator.run(part.exprs)
    return [_copy(evaluator.values[name], part.strides[name]) for name in part.outputs]


def move(tensor: torch.Tensor, record: OpRecord) -> torch.Tensor:
    """The result of one movement record on a tensor, in torch."""
    names = dict.fromkeys(record.row.parameters.parameters)
    scope = {**names, **{key: record.attr(key) for key, _ in record.attrs}, "a": tensor}
    return eval(_code(record.op), _SCOPE, scope)  # type: ignore[no-any-return]


def _result(fusion: Fusion, output: Output, value: torch.Tensor) -> torch.Tensor:
    """A copy of a value, in the requested stride order, or else in the value's own."""
    order = output.stride_order
    if order is None:
        order = stride_order_of(fusion.tensors[output.name].domain.allocation)
    copy = _copy(value, contiguous_strides(value.shape, order))
    return copy if output.shape is None else copy.view(output.shape)


def _copy(value: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    memory = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return memory.copy_(value)


class Evaluator:
    """The values of one evaluation, by name. Scalars are tensors of rank 0.

    override: the type of all floats. device: that of the values.
    """

    def __init__(
        self,
        tensors: Mapping[str, TensorView],
        device: torch.device,
        override: torch.dtype | None = None,
    ) -> None:
        self.tensors = tensors
        self.device = device
        self.override = override
        self.values: dict[str, torch.Tensor] = {}

    def read(self, names: Sequence[str], inputs: Sequence[Input]) -> None:
        """Stores the inputs as tensors."""
        for name, value in zip(names, inputs, strict=True):
            dtype = self._dtype(self.tensors[name].dtype)
            self.values[name] = torch.as_tensor(value, dtype=dtype, device=self.device)

    def draw(self, fusion: Fusion) -> None:
        """Draws the values that the fusion draws at each run, as its programs do."""
        numbers = {name: coordinate(mesh, str(word)) for name, mesh, word in fusion.coordinates}
        if fusion.drawn:
            count = sum(at is not None for _, at in fusion.drawn)
            seed, offset = random.draw(self.device, count)
            numbers |= {name: seed if at is None else offset + at for name, at in fusion.drawn}
        for name, value in numbers.items():
            self.values[name] = torch.tensor(value, device=self.device)

    def run(self, records: Iterable[OpRecord]) -> None:
        """Evaluates expressions."""
        for record in records:
            self._run(record)

    def _run(self, record: OpRecord) -> None:
        _check_alone(record)
        operands = [self._operand(o, record) for o in record.inputs]
        try:
            returned = self._call(record, operands)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise _typed(record, operands, error) from error
        results = (returned,) if isinstance(returned, torch.Tensor) else tuple(returned)
        for name, result in zip(record.outputs, results, strict=True):
            expected = self._dtype(self.tensors[name].dtype)
            if result.dtype is not expected:
                raise VerifyError(
                    f"{name} = {record.op}", expected=f"{expected} from torch",
                    got=str(result.dtype),
                )
            self.values[name] = result

    def _call(self, record: OpRecord, operands: list[torch.Tensor]) -> Any:
        names = dict.fromkeys(record.row.parameters.parameters)
        attrs = {key: self._attr(key, value) for key, value in record.attrs}
        if record.row.kind is OpKind.REDUCTION and attrs["dims"] == ():
            return operands[0]  # torch reads an empty list of axes as all axes
        if attrs.get("chunk") is not None:
            return self._chunked(record, operands[0], attrs)
        into = self.tensors[record.outputs[0]].dtype
        letters = dict(zip("abcd", [*operands, None, None, None], strict=False))
        scope = {**names, **attrs, **letters, "operands": operands, "own": to_torch_dtype(into)}
        return eval(_code(record.op), _SCOPE, scope)

    def _chunked(
        self, record: OpRecord, operand: torch.Tensor, attrs: dict[str, object]
    ) -> torch.Tensor:
        """Partial results: merges the reduced axes and reduces each run of them."""
        dims: tuple[int, ...] = attrs["dims"]  # type: ignore[assignment]
        moved = operand.movedim(dims, tuple(range(len(dims)))).flatten(0, len(dims) - 1)
        whole = {"dims": (0,), "keepdim": False}
        pieces = moved.split(attrs["chunk"])  # type: ignore[no-untyped-call]
        parts = [eval(_code(record.op), _SCOPE, {"a": piece, **whole}) for piece in pieces]
        return torch.stack(parts)

    def _operand(self, operand: Operand, record: OpRecord) -> torch.Tensor:
        if isinstance(operand, str):
            return self.values[operand]
        dtype = self._dtype(_literal_dtype(operand, record, self.tensors))
        return torch.tensor(operand.value, dtype=dtype, device=self.device)

    def _attr(self, key: str, value: AttrValue) -> object:
        if isinstance(value, tuple):
            return tuple(self._attr(key, item) for item in value)
        if isinstance(value, Literal):
            return value.value
        if isinstance(value, DataType):
            return self._dtype(value)
        if isinstance(value, str) and key in NAMED_ATTRS:
            return self.values[value].item()
        return value

    def _dtype(self, dtype: DataType) -> torch.dtype:
        if dtype.is_float and self.override is not None:
            return self.override
        if dtype.is_complex and self.override is not None:
            return self.override.to_complex()
        return to_torch_dtype(dtype)


def _check_alone(record: OpRecord) -> None:
    """CommunicationError for a communication between devices, since this is one process."""
    if is_communication(record) and record.op != "redistribute" and devices(record) > 1:
        raise CommunicationError(
            record_text(record), expected="a program that communicates, or a mesh of one device",
            got="an evaluation in one process", do="execute the definition on all ranks",
        )  # fmt: skip


def _typed(
    record: OpRecord, operands: Sequence[torch.Tensor], error: Exception
) -> OutOfRangeError | TorchCallError:
    """torch's error as a typed one, which names the call and the index that is out of range."""
    call = record_text(record)
    names = list(record.row.parameters.parameters)
    if record.row.kind is OpKind.EXTERNAL and "index" in names and operands[1].numel():
        rank, index = operands[0].ndim, operands[1]
        dim = int(record.attr("dim") or 0)  # type: ignore[arg-type]
        most = operands[0].shape[dim] if rank else 1
        least = -most if record.op.startswith("index_put") else 0
        outside = next((i for i in map(int, index.aminmax()) if not least <= i < most), None)
        if outside is not None:
            return OutOfRangeError(
                f"{call}: index", expected=f"numbers from {least} to {most - 1}", got=str(outside)
            )
    operand_types = ", ".join(f"{tuple(operand.shape)} {operand.dtype}" for operand in operands)
    return TorchCallError(
        call, expected="operands that torch accepts", got=f"{operand_types}; torch says: {error}"
    )


def _literal_dtype(
    literal: Literal, record: OpRecord, tensors: Mapping[str, TensorView]
) -> DataType:
    """The type of a number among an op's operands, which follows from the op's tensors."""
    (name,) = record.outputs
    result = tensors[name].dtype
    rule = record.row.rule
    if rule is DtypeRule.LOGICAL or (rule is DtypeRule.SELECT and literal is record.inputs[0]):
        return DataType.Bool
    if record.op == "scatter":
        return result
    if rule is DtypeRule.COMPLEX:
        return result.real
    as_given = record.op == "cast" or record.row.kind is OpKind.RANDOM
    if rule in (DtypeRule.PREDICATE, DtypeRule.KEEP) or as_given:
        return of_number(literal.value)
    if record.op == "iota":
        return result.compute
    if rule is DtypeRule.COMPARE:
        beside = [tensors[o].dtype for o in record.inputs if isinstance(o, str)]
        numbers = [of_number(o.value) for o in record.inputs if isinstance(o, Literal)]
        return beside[0] if beside else promote(*numbers)
    return result


@cache
def _code(op: str) -> CodeType:
    return compile(OPS[op].torch, f"<torch of {op}>", "eval")


# ---- the functions that the op table's torch expressions use beside torch's own


def _logical_right_shift(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Shifts in zeros, also for negative numbers."""
    if not a.dtype.is_signed:
        return torch.bitwise_right_shift(a, b)
    bits = torch.iinfo(a.dtype).bits
    # The first shift clears the sign, so an arithmetic shift does the rest.
    once = torch.bitwise_and(torch.bitwise_right_shift(a, 1), 2 ** (bits - 1) - 1)
    return torch.where(b == 0, a, torch.bitwise_right_shift(once, torch.clamp(b - 1, min=0)))


def _erfcinv(a: torch.Tensor) -> torch.Tensor:
    """Two formulas: 1 - a loses digits of a small a, the normal quantile those of an a near 1."""
    small = torch.special.ndtri(a / 2) / -(2**0.5)
    return torch.where(a < 0.5, small, torch.erfinv(1 - a))


def _broadcast(a: torch.Tensor, is_broadcast_dim: Sequence[bool]) -> torch.Tensor:
    for axis, new in enumerate(is_broadcast_dim):
        a = a.unsqueeze(axis) if new else a
    return a


def _broadcast_in_dim(
    a: torch.Tensor, shape: Sequence[int], broadcast_dims: Sequence[int]
) -> torch.Tensor:
    kept = {axis % len(shape) for axis in broadcast_dims}
    return _broadcast(a, [axis not in kept for axis in range(len(shape))]).expand(shape)


def _slices(
    a: torch.Tensor, starts: Sequence[int], ends: Sequence[int], strides: Sequence[int] | None
) -> tuple[slice, ...]:
    steps = strides or (1,) * a.ndim
    return tuple(slice(*bounds) for bounds in zip(starts, ends, steps, strict=True))


def _iota(
    length: int, start: torch.Tensor, step: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """start + step * position. Rounds once, at the end, since float16 cannot count beyond 2048."""
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    counts = torch.arange(length, device=start.device, dtype=wide)
    return (start.to(wide) + step.to(wide) * counts).to(dtype)


def _prod(a: torch.Tensor, dims: Sequence[int], keepdim: bool) -> torch.Tensor:
    for axis in sorted(dims, reverse=True):
        a = torch.prod(a, axis, keepdim, dtype=a.dtype)
    return a


_SCOPE: dict[str, object] = {
    "torch": torch,
    "uniform": random.uniform,
    "normal": random.normal,
    "is_exact": lambda a: not a.is_floating_point() and not a.is_complex(),
    "trunc_div": partial(torch.div, rounding_mode="trunc"),
    # A number as a tensor with the sizes of `like`; a tensor unchanged.
    "filled": lambda a, like: a.expand(like.shape) if a.ndim == 0 else a,
    "attention": torch_calls.attention,
    "attention_backward": torch_calls.attention_backward,
    "grouped_mm": torch_calls.grouped_mm,
    "logical_right_shift": _logical_right_shift,
    "erfcinv": _erfcinv,
    "broadcast": _broadcast,
    "broadcast_in_dim": _broadcast_in_dim,
    "slices": _slices,
    "iota": _iota,
    "prod": _prod,
}
