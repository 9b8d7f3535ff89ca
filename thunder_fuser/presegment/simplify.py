# SPDX-License-Identifier: Apache-2.0
"""Passes that replace one expression by a cheaper one, or by a value that is there already.

fold_scalars               size(T0: f32[i0{8}], dim=0)                 ->  8
remove_empty               pad(T0: f32[i0{8}, i1{0}], [0, 4, 0, 0])  ->  full([8, 4], 0.0)
remove_trivial_reductions  sum(T0: f32[i0{8}, b1{1}], dims=[1])        ->  squeeze(T0, dims=[1])
remove_round_trips         cast(cast(T0: bf16, Float), BFloat16)       ->  T0
remove_common              add(exp(T0), exp(T0))                       ->  T1 = exp(T0); add(T1, T1)
join_one_plus_tanh         add(1.0, tanh(T0))                          ->  one_plus_tanh(T0)
remove_dead                sin(T0), which no result needs              ->  nothing
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace

from thunder_fuser.ir.build import define
from thunder_fuser.ir.dtypes import DataType, fits, of_number
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import NAMED_ATTRS, Literal, Number, Operand, OpRecord, names_of
from thunder_fuser.presegment.rewrite import rewrite

_FOLD: dict[str, Callable[[Number, Number], Number]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "maximum": max,
    "minimum": min,
}
_ONE = frozenset([Literal.of(1), Literal.of(1.0)])


def _results(fusion: Fusion) -> set[str]:
    return {output.name for output in fusion.outputs}


def fold_scalars(fusion: Fusion) -> Fusion:
    """Sizes, and sums and products of literals, become literals. Results stay computed.

        S1 = size(T0: f32[i0{8}], dim=0); T2 = cast(S1, Float); T3 = truediv(T9, T2)
    ->  T3 = truediv(T9, 8.0)
    """
    results = _results(fusion)

    def rule(record: OpRecord) -> OpRecord | Operand:
        if record.outputs[0] in results or not fusion.tensors[record.outputs[0]].is_scalar:
            return record
        value = _value(record, fusion)
        return record if value is None else Literal.of(value)

    return rewrite(fusion, rule)


def _value(record: OpRecord, fusion: Fusion) -> Number | None:
    if record.op == "size":
        shape = fusion.tensors[str(record.inputs[0])].shape
        extent = shape[record.attr("dim")]  # type: ignore[index]
        return extent.value if extent.is_const else None
    literals = [o.value for o in record.inputs if isinstance(o, Literal)]
    if len(literals) != len(record.inputs):
        return None
    if record.op == "cast":
        return _converted(literals[0], record.attr("dtype"))
    if record.op in _FOLD:
        value = _FOLD[record.op](*literals)
        return value if fits(value, of_number(value)) else None  # kernels wrap around
    return None


def _converted(value: Number, dtype: object) -> Number | None:
    if dtype in (DataType.Float, DataType.Double):
        return float(value)
    return int(value) if dtype is DataType.Int and float(value).is_integer() else None


def remove_empty(fusion: Fusion) -> Fusion:
    """A pad of nothing becomes its value, and a cat leaves out operands without elements.

    T1 = pad(T0: f32[i0{8}, i1{0}], [0, 4, 0, 0], 2.0)               ->  T1 = full([8, 4], 2.0)
    T2 = cat([T0: f32[i0{8}, i1{4}], T1: f32[i2{8}, i3{0}]], dim=1)  ->  T0 stands for T2

    A rotary embedding of all of a head's elements slices off the rest, of which there is nothing.
    """
    results = _results(fusion)

    def rule(record: OpRecord) -> OpRecord | Operand:
        name, named = record.outputs[0], names_of(record)
        empty = {one for one in named if _is_empty(one, fusion)}
        if not empty or _is_empty(name, fusion):
            return record
        if record.op == "pad":
            attrs = (("shape", fusion.tensors[name].sizes), ("dtype", fusion.tensors[name].dtype))
            value = Literal.of(record.attr("value") or 0)  # type: ignore[arg-type]
            return replace(record, op="full", inputs=(value,), attrs=attrs)
        if record.op != "cat":
            return record
        kept = tuple(one for one in record.inputs if one not in empty)
        if len(kept) > 1:
            return replace(record, inputs=kept)
        return replace(record, op="set", inputs=kept, attrs=()) if name in results else kept[0]

    return rewrite(fusion, rule)


def _is_empty(name: str, fusion: Fusion) -> bool:
    return any(size.is_const and size.value == 0 for size in fusion.tensors[name].shape)


def remove_trivial_reductions(fusion: Fusion) -> Fusion:
    """Reductions and scans over axes of size 1, and reductions over none, compute nothing.

    T1 = sum(T0: f32[i0{8}, b1{1}], dims=[1])                 ->  T1 = squeeze(T0, dims=[1])
    T1 = sum(T0: f32[i0{8}, b1{1}], dims=[1], keepdim=True)   ->  T0 stands for T1
    T1 = cumsum(T0: f32[i0{8}, b1{1}], dim=1)                 ->  T0 stands for T1
    """
    results = _results(fusion)

    def rule(record: OpRecord) -> OpRecord | Operand:
        logical = fusion.tensors[record.outputs[0]].domain.logical
        if record.row.kind is OpKind.SCAN:
            reduced = [logical[int(record.attr("dim"))]]  # type: ignore[arg-type]
        elif record.row.kind is OpKind.REDUCTION:
            reduced = [axis for axis in logical if axis.is_reduction]
        else:
            return record
        if any(not a.extent.is_const or a.extent.value != 1 for a in reduced):
            return record
        if record.row.kind is OpKind.REDUCTION and reduced and not record.attr("keepdim"):
            return replace(record, op="squeeze", attrs=(("dims", record.attr("dims")),))
        if record.outputs[0] in results:
            return replace(record, op="set", attrs=())
        return record.inputs[0]

    return rewrite(fusion, rule)


def remove_round_trips(fusion: Fusion) -> Fusion:
    """Casts that change nothing, exact round trips, and `set`s that are no results go away.

    T1 = cast(T0: bf16, Float); T2 = cast(T1, BFloat16)     ->  T0 stands for T2
    T1 = set(T0); T2 = exp(T1)                              ->  T2 = exp(T0)

    A cast that rounds stays: whoever wrote it may mean it.
    """
    results = _results(fusion)
    widened: dict[str, str] = {}  # casts to a wider float, and what they cast

    def rule(record: OpRecord) -> OpRecord | Operand:
        if record.op not in ("cast", "set") or not isinstance(record.inputs[0], str):
            return record
        source, name = record.inputs[0], record.outputs[0]
        before, after = fusion.tensors[source].dtype, fusion.tensors[name].dtype
        if name not in results:
            origin = widened.get(source)
            if before is after:
                return source
            if origin is not None and fusion.tensors[origin].dtype is after:
                return origin
        if before.is_float and after.is_float and before.bytes < after.bytes:
            widened[name] = source
        return record

    return rewrite(fusion, rule)


def remove_common(fusion: Fusion) -> Fusion:
    """Of expressions with equal op, operands and attributes only the first is computed.

    T1 = exp(T0); T2 = exp(T0); T3 = add(T1, T2)  ->  T1 = exp(T0); T3 = add(T1, T1)

    Results are tensors of their own: of two equal ones the second is a copy.
    """
    results = _results(fusion)
    first: dict[tuple[object, ...], str] = {}

    def rule(record: OpRecord) -> OpRecord | Operand:
        name = record.outputs[0]
        if record.op == "segment_set" or (record.op == "set" and name in results):
            return record
        if len(record.outputs) > 1:  # a pass replaces one result by one value
            return record
        same = first.setdefault(record.computes, name)
        if same == name:
            return record
        is_copied = same in results and name in results
        if name in results:
            results.add(same)  # it stands for this result, and so for no other
        return replace(record, op="set", inputs=(same,), attrs=()) if is_copied else same

    return rewrite(fusion, rule)


def join_one_plus_tanh(fusion: Fusion) -> Fusion:
    """1 + tanh(x), the expensive part of gelu's tanh form, becomes one operation.

    T1 = tanh(T0); T2 = add(1.0, T1)    ->  T2 = one_plus_tanh(T0)

    It equals 2 / (1 + exp(-2 x)): cheaper than tanh, and closer, as for x below 0 the sum cancels.
    A tanh that something else reads as well is made anyway, and stays.

    The result depends on what else reads the tanh, so this pass does not run under the option
    `repeatable`; there trace/approximate.py says which are approximate.
    """
    results = _results(fusion)

    def rule(record: OpRecord) -> OpRecord:
        if record.op != "add" or _ONE.isdisjoint(record.inputs):
            return record
        for name in names_of(record):
            tanh = fusion.producer.get(name)
            is_alone = name not in results and len(fusion.uses[name]) == 1
            if tanh is not None and tanh.op == "tanh" and is_alone:
                return replace(record, op="one_plus_tanh", inputs=tanh.inputs)
        return record

    return rewrite(fusion, rule)


def remove_dead(fusion: Fusion) -> Fusion:
    """Expressions that no result needs go away; inputs stay, since callers pass them.

    T1 = exp(T0); T2 = sin(T0); add_output(T2)  ->  T2 = sin(T0); add_output(T2)
    """
    needed: set[str] = set()
    kept: list[OpRecord] = []
    for record in reversed(fusion.definition):
        is_kept = record.op in ("define_tensor", "define_scalar", "add_output")
        if is_kept or not needed.isdisjoint(record.outputs):
            kept.append(record)
            needed |= _read_names(record)
    return fusion if len(kept) == len(fusion.definition) else define(tuple(reversed(kept)))


def _read_names(record: OpRecord) -> set[str]:
    """Every value that a record reads, in operands and in shapes."""
    sizes = [value for key, value in record.attrs if key in NAMED_ATTRS]
    flat = [item for one in sizes for item in (one if isinstance(one, tuple) else (one,))]
    return {word for word in (*record.inputs, *flat) if isinstance(word, str)}
