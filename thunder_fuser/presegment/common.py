# SPDX-License-Identifier: Apache-2.0
"""Equal expressions become one.

T1 = exp(T0); T2 = exp(T0); T3 = add(T1, T2)  ->  T1 = exp(T0); T3 = add(T1, T1)
"""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import Operand, OpRecord
from thunder_fuser.presegment.rewrite import rewrite


def remove_common(fusion: Fusion) -> Fusion:
    """Keeps the first of expressions with equal op, operands and attributes."""
    results = {output.name for output in fusion.outputs}
    first: dict[tuple[object, ...], str] = {}

    def rule(record: OpRecord) -> OpRecord | Operand:
        name = record.outputs[0]
        if record.op == "segment_set" or (record.op == "set" and name in results):
            return record
        if len(record.outputs) > 1:  # a pass replaces one result by one value
            return record
        key = record.computes
        if key in first and first[key] in results and name in results:
            return replace(record, op="set", inputs=(first[key],), attrs=())
        if key in first:
            return first[key]
        first[key] = name
        return record

    return rewrite(fusion, rule)
