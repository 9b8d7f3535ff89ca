# SPDX-License-Identifier: Apache-2.0
"""Reductions and scans over axes of size 1 are none.

T1 = sum(T0: f32[i0{8}, b1{1}], dims=[1])                 ->  T1 = squeeze(T0, dims=[1])
T1 = sum(T0: f32[i0{8}, b1{1}], dims=[1], keepdim=True)   ->  T0 stands for T1
T1 = cumsum(T0: f32[i0{8}, b1{1}], dim=1)                 ->  T0 stands for T1
"""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import Operand, OpRecord
from thunder_fuser.presegment.rewrite import rewrite


def remove_trivial_reductions(fusion: Fusion) -> Fusion:
    """Replaces reductions whose reduced axes all have size 1, or that reduce no axis; and scans."""
    results = {output.name for output in fusion.outputs}

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
