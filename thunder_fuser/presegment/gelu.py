# SPDX-License-Identifier: Apache-2.0
"""1 + tanh(x), the expensive part of gelu's tanh form, becomes one operation.

    T1 = tanh(T0); T2 = add(1.0, T1)    ->  T2 = one_plus_tanh(T0)

It equals 2 / (1 + exp(-2 x)): cheaper than tanh, and closer, as for x below 0 the sum cancels. A
tanh that something else reads as well is made anyway, and stays.

The result depends on what else reads the tanh, so this pass does not run under the option
`repeatable`; there trace/approximate.py says which are approximate.
"""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import Literal, Operand, OpRecord
from thunder_fuser.presegment.rewrite import rewrite


def join_one_plus_tanh(fusion: Fusion) -> Fusion:
    """Replaces sums of 1 and a tanh that nothing else needs."""
    kept = {output.name for output in fusion.outputs}

    def rule(record: OpRecord) -> OpRecord:
        name = _other_than_one(record)
        tanh = fusion.producer.get(name) if name is not None and name not in kept else None
        if tanh is None or tanh.op != "tanh" or len(fusion.uses[tanh.outputs[0]]) > 1:
            return record
        return replace(record, op="one_plus_tanh", inputs=tanh.inputs)

    return rewrite(fusion, rule)


def _other_than_one(record: OpRecord) -> str | None:
    """x of add(x, 1) or add(1, x)."""
    if record.op != "add":
        return None
    lhs, rhs = record.inputs
    for one, other in ((lhs, rhs), (rhs, lhs)):
        if isinstance(other, str) and _is_one(one):
            return other
    return None


def _is_one(operand: Operand) -> bool:
    if not isinstance(operand, Literal) or isinstance(operand.value, bool):
        return False
    return operand.value == 1
