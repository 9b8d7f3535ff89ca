# SPDX-License-Identifier: Apache-2.0
"""A result that is a reshape of an argument -> a view of the argument, where its layout allows one.

    T1 = reshape(T0: f32[i0{4}, i1{6}], new_shape=[24]); add_output(T1, shares=True)
->  add_output(T0, shape=[24], shares=True)

nvFuser returns such views, so a FusionDefinition asks for them. In a trace, Thunder decides what
shares memory, and nothing here asks.
"""

from __future__ import annotations

from thunder_fuser.ir.build import define
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import LAYOUT, OpRecord
from thunder_fuser.ir.strides import contiguous_strides


def share_results(fusion: Fusion) -> Fusion:
    """The fusion in which results that may share an argument's memory name the argument."""
    if not any(record.attr("shares") for record in fusion.definition):
        return fusion
    whole = _whole_arguments(fusion)
    records = tuple(_shared(record, fusion, whole) for record in fusion.definition)
    return fusion if records == fusion.definition else define(records)


def _whole_arguments(fusion: Fusion) -> set[str]:
    """Tensors that lie in memory in row-major order, without gaps, and are not written."""
    laid = {name for r in fusion.definition if r.op in LAYOUT for name in r.inputs}
    written = {output.alias for output in fusion.outputs}
    return {
        record.outputs[0] for record in fusion.definition
        if record.op == "define_tensor" and not record.attr("is_cpu")
        and record.attr("strides") == contiguous_strides(record.ints("shape"))
        and record.outputs[0] not in laid | written
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
