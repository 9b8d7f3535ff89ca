# SPDX-License-Identifier: Apache-2.0
"""Casts that undo each other, casts to the same type and copies nobody keeps go away.

    T1 = cast(T0: f32, BFloat16); T2 = cast(T1, Float); T3 = exp(T2)    ->  T3 = exp(T0)
    T1 = cast(T0: bf16, Float);   T2 = cast(T1, BFloat16)               ->  T0 stands for T2
    T1 = set(T0); T2 = exp(T1)                                          ->  T2 = exp(T0)

The first one skips a rounding, as torch.compile does: values inside a kernel keep the precision
they are computed in, and only what leaves it is rounded.
"""

from __future__ import annotations

from thunder_fuser.ir.fusion import Fusion, Operand, OpRecord
from thunder_fuser.presegment.rewrite import rewrite


def remove_round_trips(fusion: Fusion) -> Fusion:
    """Drops casts that change nothing, float round trips, and `set`s that are no results."""
    kept = {output.name for output in fusion.outputs}
    casts: dict[str, str] = {}

    def rule(record: OpRecord) -> OpRecord | Operand:
        name, source = record.outputs[0], record.inputs[0] if record.inputs else None
        if not isinstance(source, str) or name in kept:
            return _remember(record, casts)
        if record.op == "set":
            return source
        if record.op != "cast":
            return record
        dtype = fusion.tensors[name].dtype
        if fusion.tensors[source].dtype is dtype:
            return source
        origin = casts.get(source)
        if origin is not None and fusion.tensors[origin].dtype is dtype and dtype.is_float:
            return origin
        return _remember(record, casts)

    return rewrite(fusion, rule)


def _remember(record: OpRecord, casts: dict[str, str]) -> OpRecord:
    """Notes float casts, whose source a later cast may go back to."""
    if record.op == "cast" and isinstance(record.inputs[0], str):
        dtype = record.attr("dtype")
        if getattr(dtype, "is_float", False):
            casts[record.outputs[0]] = record.inputs[0]
    return record
