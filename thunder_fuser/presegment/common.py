# SPDX-License-Identifier: Apache-2.0
"""Equal expressions become one.

T1 = exp(T0); T2 = exp(T0); T3 = add(T1, T2)  ->  T1 = exp(T0); T3 = add(T1, T1)
"""

from __future__ import annotations

from thunder_fuser.ir.fusion import Fusion, Operand, OpRecord
from thunder_fuser.presegment.rewrite import rewrite


def remove_common(fusion: Fusion) -> Fusion:
    """Keeps the first of expressions with equal op, operands and attributes."""
    first: dict[tuple[object, ...], str] = {}

    def rule(record: OpRecord) -> OpRecord | Operand:
        if record.op == "segment_set":
            return record
        key = (record.op, record.inputs, record.attrs)
        if key in first:
            return first[key]
        first[key] = record.outputs[0]
        return record

    return rewrite(fusion, rule)
