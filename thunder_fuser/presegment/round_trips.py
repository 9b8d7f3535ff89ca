# SPDX-License-Identifier: Apache-2.0
"""Casts that undo each other, casts to the same type and copies nobody keeps go away.

    T1 = cast(T0: bf16, Float); T2 = cast(T1, BFloat16)     ->  T0 stands for T2
    T1 = set(T0); T2 = exp(T1)                              ->  T2 = exp(T0)

A cast that rounds stays: whoever wrote it may mean it.
"""

from __future__ import annotations

from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import Operand, OpRecord
from thunder_fuser.presegment.rewrite import rewrite


def remove_round_trips(fusion: Fusion) -> Fusion:
    """Drops casts that change nothing, exact round trips, and `set`s that are no results."""
    kept = {output.name for output in fusion.outputs}
    casts: dict[str, str] = {}

    def rule(record: OpRecord) -> OpRecord | Operand:
        name, source = record.outputs[0], record.inputs[0] if record.inputs else None
        if not isinstance(source, str) or name in kept:
            return _remember(record, fusion, casts)
        if record.op == "set":
            return source
        if record.op != "cast":
            return record
        dtype = fusion.tensors[name].dtype
        if fusion.tensors[source].dtype is dtype:
            return source
        origin = casts.get(source)
        if origin is not None and fusion.tensors[origin].dtype is dtype:
            return origin
        return _remember(record, fusion, casts)

    return rewrite(fusion, rule)


def _remember(record: OpRecord, fusion: Fusion, casts: dict[str, str]) -> OpRecord:
    """Notes casts to a wider float, whose source a later cast may go back to."""
    source = record.inputs[0] if record.inputs else None
    if record.op == "cast" and isinstance(source, str):
        narrow, wide = fusion.tensors[source].dtype, fusion.tensors[record.outputs[0]].dtype
        if narrow.is_float and wide.is_float and narrow.bytes < wide.bytes:
            casts[record.outputs[0]] = source
    return record
