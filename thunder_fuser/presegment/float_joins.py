# SPDX-License-Identifier: Apache-2.0
"""Concatenations and pads of rounded values are made in Float, and rounded once.

A GPU rounds two neighbours in one instruction, and chooses between two Floats in one. For 16 bits
it takes one rounding for each, and three instructions to take them out of their words, choose and
put them back. Rotary embeddings concatenate, cat([-x2, x1]) and cat([rotated, rest]), and their
gradients pad.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import Operand, OpRecord, names_of
from thunder_fuser.presegment.rewrite import RewriteRule, makers

_ONE_KERNEL = frozenset({OpKind.POINTWISE, OpKind.MOVEMENT, OpKind.FACTORY, OpKind.SCALAR})
_KEEP_DIGITS = frozenset({"neg", "abs", "cat", "slice", "reshape", "permute", "set"})


def widen_joins(fusion: Fusion) -> RewriteRule:
    """A cat or a pad of rounded values, or of slices of some, is made in Float and rounded.

        T2 = cast(T1: f32, BFloat16); T4 = cat([T2, T3: bf16])
    ->  T5 = cast(T3, Float); T6 = cat([T1, T5]); T4 = cast(T6, BFloat16)

    Not if T1 depends on a reduction: another kernel may compute it, and it would be stored in
    Float. A value that 16 bits hold can be computed again from one that is stored.
    """
    return lambda join: [*_widened(join, fusion)] if _is_worth(join, fusion) else join


def remove_exact_roundings(fusion: Fusion) -> RewriteRule:
    """Removes a rounding to 16 bits, and back, of a value that 16 bits hold.

    T1 = neg(cast(T0: bf16, Float)); T2 = cast(cast(T1, BFloat16), Float)  ->  T1 replaces T2
    """

    def rule(record: OpRecord) -> OpRecord | Operand:
        name = record.outputs[0]
        if fusion.tensors[name].dtype is not DataType.Float:
            return record
        rounded = _rounded(fusion, record.inputs[0])
        if rounded is None or name in fusion.results:
            return record
        return rounded if _holds(fusion, rounded, str(record.inputs[0])) else record

    return rule


def _is_worth(join: OpRecord, fusion: Fusion) -> bool:
    """True if it has a rounded operand, and any kernel can compute each that has more digits."""
    rounded = [r for o in join.inputs if (r := _rounded(fusion, _sliced(fusion, o)[0])) is not None]
    return bool(rounded) and all(
        _holds(fusion, source, join.outputs[0])
        or all(maker.row.kind in _ONE_KERNEL for maker in makers(fusion.producer, source))
        for source in rounded
    )


def _widened(join: OpRecord, fusion: Fusion) -> Iterator[OpRecord]:
    (result,) = join.outputs
    operands: list[Operand] = []
    for n, operand in enumerate(join.inputs):
        source, slices = _sliced(fusion, operand)
        last = _rounded(fusion, source)
        if last is None:
            last, slices = f"{result}.wide{n}", []
            yield OpRecord("cast", (operand,), (last,), (("dtype", DataType.Float),))
        for k, record in enumerate(slices):
            name = f"{result}.slice{n}.{k}"
            yield replace(record, inputs=(last,), outputs=(name,))
            last = name
        operands.append(last)
    yield replace(join, inputs=tuple(operands), outputs=(f"{result}.wide",))
    attrs = (("dtype", fusion.tensors[result].dtype),)
    yield OpRecord("cast", (f"{result}.wide",), (result,), attrs)


def _sliced(fusion: Fusion, operand: Operand) -> tuple[Operand, list[OpRecord]]:
    """What an operand is a slice of, and the slices, the first one first."""
    slices: list[OpRecord] = []
    while isinstance(operand, str) and operand in fusion.producer:
        producer = fusion.producer[operand]
        if producer.op != "slice":
            break
        slices.insert(0, producer)
        operand = producer.inputs[0]
    return operand, slices


def _rounded(fusion: Fusion, operand: Operand) -> str | None:
    """The Float tensor that this 16-bit tensor is rounded from, if it is."""
    producer = fusion.producer.get(operand) if isinstance(operand, str) else None
    if producer is None or producer.op != "cast" or not isinstance(producer.inputs[0], str):
        return None
    source, result = fusion.tensors[producer.inputs[0]], fusion.tensors[producer.outputs[0]]
    fits = source.dtype is DataType.Float and result.dtype.is_half and not source.is_scalar
    return source.name if fits else None


def _holds(fusion: Fusion, name: str, half: str) -> bool:
    """True if the 16-bit type of `half` holds every element of a Float tensor."""
    producer = fusion.producer.get(name)
    if producer is None or not all(isinstance(operand, str) for operand in producer.inputs):
        return False
    if producer.op == "cast":
        return fusion.tensors[str(producer.inputs[0])].dtype is fusion.tensors[half].dtype
    keeps = producer.op in _KEEP_DIGITS or (producer.op == "pad" and producer.attr("value") == 0)
    return keeps and all(_holds(fusion, source, half) for source in names_of(producer))
