# SPDX-License-Identifier: Apache-2.0
"""Rewrites that replace an expression by a cheaper one, or by a value that exists already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from thunder_fuser.ir.dtypes import fits, of_number
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import (
    LAYOUT,
    NAMED_ATTRS,
    Literal,
    Number,
    Operand,
    OpRecord,
    names_of,
)
from thunder_fuser.ir.rules.host_scalars import computed
from thunder_fuser.ir.rules.type_rules import ValueType, types_of
from thunder_fuser.ir.strides import contiguous_strides
from thunder_fuser.presegment.rewrite import RewriteRule

_UNIT = frozenset([Literal.of(1), Literal.of(1.0)])


def share_results(fusion: Fusion) -> RewriteRule:
    """A result that is a reshape of an argument becomes a view of it, if its layout allows one.

        T1 = reshape(T0: f32[i0{4}, i1{6}], new_shape=[24]); add_output(T1, shares=True)
    ->  add_output(T0, shape=[24], shares=True)

    nvFuser returns such views, so a FusionDefinition asks for them (`shares`). In a trace, Thunder
    decides what shares memory, and nothing here asks for views.
    """
    if not any(record.attr("shares") for record in fusion.definition):
        return {}
    whole = _whole_arguments(fusion)
    return lambda record: _shared(record, fusion, whole)


def _whole_arguments(fusion: Fusion) -> set[str]:
    """The arguments that are row-major in memory, without gaps, and are not overwritten."""
    with_layout = {name for r in fusion.definition if r.op in LAYOUT for name in r.inputs}
    written = {output.alias for output in fusion.outputs}
    return {
        record.outputs[0] for record in fusion.definition
        if record.op == "define_tensor" and not record.attr("is_cpu")
        and record.attr("strides") == contiguous_strides(record.ints("shape"))
        and record.outputs[0] not in with_layout | written
    }  # fmt: skip


def _shared(record: OpRecord, fusion: Fusion, whole: set[str]) -> OpRecord:
    if not record.attr("shares") or record.attr("shape") is not None:
        return record
    name = source = str(record.inputs[0])
    while source in fusion.producer and fusion.producer[source].op == "reshape":
        source = str(fusion.producer[source].inputs[0])
    if source == name or source not in whole:
        return record
    attrs = (("shape", fusion.tensors[name].sizes), ("shares", True))
    return OpRecord("add_output", (source,), (), attrs)


def fold_scalars(fusion: Fusion) -> RewriteRule:
    """Sizes, casts and arithmetic of literals become literals. Results stay computed.

        S1 = size(T0: f32[i0{8}], dim=0); T2 = cast(S1, Float); T3 = truediv(T9, T2)
    ->  T3 = truediv(T9, 8.0)
    """

    known: dict[str, Number] = {}
    for record in fusion.exprs:
        value = _value(record, fusion, known)
        if value is not None and record.outputs[0] not in fusion.results:
            known[record.outputs[0]] = value

    def rule(record: OpRecord) -> OpRecord | Operand:
        name = record.outputs[0]
        if name not in known:
            return record
        value = Literal.of(known[name])
        attrs = (("dtype", fusion.tensors[name].dtype),)
        typed = replace(record, op="cast", inputs=(value,), attrs=attrs)
        return value if _may_stand_for(name, known, fusion) else typed

    return rule


def _value(record: OpRecord, fusion: Fusion, known: Mapping[str, Number]) -> Number | None:
    view = fusion.tensors[record.outputs[0]]
    if record.op == "size":
        extent = fusion.tensors[str(record.inputs[0])].shape[record.integer("dim")]
        return extent.value if extent.is_const else None
    numbers = [o.value if isinstance(o, Literal) else known.get(o) for o in record.inputs]
    return computed(record, numbers, view.dtype) if view.is_scalar else None


def _may_stand_for(name: str, known: Mapping[str, Number], fusion: Fusion) -> bool:
    """Whether every op that reads a scalar takes its number instead, and computes in the same
    types. An op whose result is known reads nothing.

    Not in where(T0, S1: f32, S2: f32), where the scalars decide the type of the result, and not
    300 in mul(T0: i8, S1: i64), which is no number of the tensor's type.
    """
    value, number = known[name], ValueType(of_number(known[name]), is_scalar=True)
    for record in fusion.uses[name]:
        if record.outputs[0] in known:
            continue
        views = [
            ValueType(of_number(o.value), is_scalar=True) if isinstance(o, Literal)
            else fusion.tensors[o] for o in record.inputs
        ]  # fmt: skip
        plain = [number if o == name else v for o, v in zip(record.inputs, views, strict=True)]
        types = types_of(record, plain)
        into = [wanted for o, wanted in zip((*record.inputs, ""), types, strict=True) if o == name]
        if types != types_of(record, views) or not all(fits(value, wanted) for wanted in into):
            return False
    return True


def remove_empty(fusion: Fusion) -> RewriteRule:
    """A pad of an empty tensor becomes its value, and a cat drops operands without elements.

    T1 = pad(T0: f32[i0{8}, i1{0}], [0, 4, 0, 0], 2.0)               ->  T1 = full([8, 4], 2.0)
    T2 = cat([T0: f32[i0{8}, i1{4}], T1: f32[i2{8}, i3{0}]], dim=1)  ->  T0 replaces T2

    A rotary embedding over all elements of a head slices off the rest, which is empty.
    """

    def rule(record: OpRecord) -> OpRecord | Operand:
        name, named = record.outputs[0], names_of(record)
        empty = {operand for operand in named if _is_empty(operand, fusion)}
        if not empty or _is_empty(name, fusion):
            return record
        if record.op == "pad":
            attrs = (("shape", fusion.tensors[name].sizes), ("dtype", fusion.tensors[name].dtype))
            value = Literal.of(record.attr("value") or 0)  # type: ignore[arg-type]
            return replace(record, op="full", inputs=(value,), attrs=attrs)
        kept = tuple(operand for operand in record.inputs if operand not in empty)
        if len(kept) > 1:
            return replace(record, inputs=kept)
        is_result = name in fusion.results
        return replace(record, op="set", inputs=kept, attrs=()) if is_result else kept[0]

    return rule


def _is_empty(name: str, fusion: Fusion) -> bool:
    return any(size.is_const and size.value == 0 for size in fusion.tensors[name].shape)


def remove_trivial_reductions(fusion: Fusion) -> RewriteRule:
    """Reductions and scans over axes of size 1, and reductions over none, compute nothing.

    T1 = sum(T0: f32[i0{8}, b1{1}], dims=[1])                 ->  T1 = squeeze(T0, dims=[1])
    T1 = sum(T0: f32[i0{8}, b1{1}], dims=[1], keepdim=True)   ->  T0 replaces T1
    T1 = cumsum(T0: f32[i0{8}, b1{1}], dim=1)                 ->  T0 replaces T1
    """

    def rule(record: OpRecord) -> OpRecord | Operand:
        logical = fusion.tensors[record.outputs[0]].domain.logical
        if record.row.kind is OpKind.SCAN:
            reduced = [logical[record.integer("dim")]]
        else:
            reduced = [axis for axis in logical if axis.is_reduction]
        if any(not a.extent.is_const or a.extent.value != 1 for a in reduced):
            return record
        if record.row.kind is OpKind.REDUCTION and reduced and not record.attr("keepdim"):
            return replace(record, op="squeeze", attrs=(("dims", record.attr("dims")),))
        if record.outputs[0] in fusion.results:
            return replace(record, op="set", attrs=())
        return record.inputs[0]

    return rule


def remove_round_trips(fusion: Fusion) -> RewriteRule:
    """Removes casts that change nothing, exact round trips, and `set`s that are no results.

    T1 = cast(T0: bf16, Float); T2 = cast(T1, BFloat16)     ->  T0 replaces T2
    T1 = set(T0); T2 = exp(T1)                              ->  T2 = exp(T0)

    A cast that rounds stays, because the user may want the rounding. A result is replaced too, if
    the other value is computed here and is no result yet: both would be stored.
    """
    widened: dict[str, str] = {}  # {cast to a wider float: its operand}
    results = set(fusion.results)

    def rule(record: OpRecord) -> OpRecord | Operand:
        if not isinstance(record.inputs[0], str):
            return record
        source, name = record.inputs[0], record.outputs[0]
        before, after = fusion.tensors[source].dtype, fusion.tensors[name].dtype
        origin = widened.get(source, "")
        is_back = origin != "" and fusion.tensors[origin].dtype is after
        if name not in fusion.results:
            if before is after:
                return source
            if is_back:
                return origin
        elif is_back and origin not in results and _is_free(fusion, origin):
            results.add(origin)
            return origin
        if before.is_float and after.is_float and before.bytes < after.bytes:
            widened[name] = source
        return record

    return rule


def _is_free(fusion: Fusion, name: str) -> bool:
    """True if a value's order is free: pointwise work computes it, perhaps with reshapes after."""
    record = fusion.producer.get(name) if fusion.tensors[name].domain.is_row_major else None
    while record is not None and record.op == "reshape":
        record = fusion.producer.get(names_of(record)[0])
    return record is not None and record.row.kind is OpKind.POINTWISE


def remove_common(fusion: Fusion) -> RewriteRule:
    """Computes only the first of several expressions with equal op, operands and attributes.

    T1 = exp(T0); T2 = exp(T0); T3 = add(T1, T2)  ->  T1 = exp(T0); T3 = add(T1, T1)

    Two results never share memory, so of two equal results the second is a copy.
    """
    results = set(fusion.results)
    first: dict[tuple[object, ...], str] = {}

    def rule(record: OpRecord) -> OpRecord | Operand:
        name = record.outputs[0]
        is_copy = record.op in ("segment_set", "index_store")
        if is_copy or (record.op == "set" and name in results):
            return record
        if len(record.outputs) > 1:  # a pass replaces one result by one value
            return record
        same = first.setdefault(record.computes, name)
        if same == name:
            return record
        is_copied = same in results and name in results
        if name in results:
            results.add(same)  # it is a result now, so another equal result must be a copy
        return replace(record, op="set", inputs=(same,), attrs=()) if is_copied else same

    return rule


def join_one_plus_tanh(fusion: Fusion) -> RewriteRule:
    """1 + tanh(x), the expensive part of gelu's tanh form, becomes one operation.

    T1 = tanh(T0); T2 = add(1.0, T1)    ->  T2 = one_plus_tanh(T0)

    It equals 2 / (1 + exp(-2 x)), which is cheaper than tanh. It is also more exact, since for x
    below 0 the sum cancels. A tanh with another reader is computed anyway, and stays.

    The bits depend on the readers of the tanh, so this pass does not run under the option
    `repeatable`. Then trace/rewrites/approximate.py decides which ones are approximate.
    """

    def rule(record: OpRecord) -> OpRecord:
        if _UNIT.isdisjoint(record.inputs):
            return record
        for name in names_of(record):
            tanh = fusion.producer.get(name)
            has_one_reader = name not in fusion.results and len(fusion.uses[name]) == 1
            if tanh is not None and tanh.op == "tanh" and has_one_reader:
                return replace(record, op="one_plus_tanh", inputs=tanh.inputs)
        return record

    return rule


def remove_dead(fusion: Fusion) -> RewriteRule:
    """Removes expressions that no result needs. Inputs stay, since callers pass them.

    T1 = exp(T0); T2 = sin(T0); add_output(T2)  ->  T2 = sin(T0); add_output(T2)
    """
    needed: set[str] = set()
    for record in reversed(fusion.definition):
        is_kept = record.op in ("define_tensor", "define_scalar", "add_output")
        if is_kept or not needed.isdisjoint(record.outputs):
            needed |= _read_names(record)
    return lambda record: [] if needed.isdisjoint(record.outputs) else record


def _read_names(record: OpRecord) -> set[str]:
    """Every value that a record reads, in operands and in shapes."""
    sizes = [value for key, value in record.attrs if key in NAMED_ATTRS]
    flat = [item for size in sizes for item in (size if isinstance(size, tuple) else (size,))]
    return {word for word in (*record.inputs, *flat) if isinstance(word, str)}
