# SPDX-License-Identifier: Apache-2.0
"""A copy of an argument with new slices, which replaces the argument: only the slices are stored.

    T9 = index_copy(T0, T1, T2, dim=2); add_output(T9, alias_input=T0); add_output(T9)
->  T9 = index_store(T2, T1, dim=2, size=512); add_output(T9, alias_input=T0); add_output(T0)

So the kernel that computes a token's keys writes them into the cache of all keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.rules.indexed import indexed_axis
from thunder_fuser.presegment.rewrite import RewriteRule


def index_stores(fusion: Fusion) -> RewriteRule:
    """Stores the slices that replace those of a donated argument, which nothing else reads."""
    written = {o.name: o.alias for o in fusion.outputs if o.alias in fusion.donated}
    targets = {
        copy: target for copy in fusion.exprs if copy.op == "index_copy"
        if (target := written.get(copy.outputs[0])) and _may_store(fusion, copy, target)
    }  # fmt: skip
    rule: dict[OpRecord, Iterable[OpRecord]] = {}
    for copy, target in targets.items():
        view = fusion.tensors[target]
        axis = indexed_axis(copy, len(view.shape))
        attrs = (("dim", axis), ("size", view.sizes[axis]))
        inputs = (copy.inputs[2], copy.inputs[1])
        rule[copy] = [replace(copy, op="index_store", inputs=inputs, attrs=attrs)]
    results = {copy.outputs[0]: target for copy, target in targets.items()}
    outputs = (r for r in fusion.definition if r.op == "add_output" and not r.attr("alias"))
    for record in outputs:
        if target := results.get(str(record.inputs[0])):
            rule[record] = [replace(record, inputs=(target,))]
    return rule


def _may_store(fusion: Fusion, copy: OpRecord, target: str) -> bool:
    """True if the copy is of the argument that it replaces, and both are read nowhere else."""
    whole, index, slices = views = [fusion.tensors[name] for name in names_of(copy)]
    results = [o for o in fusion.outputs if o.name in (target, copy.outputs[0])]
    return (
        copy.inputs[0] == target != copy.inputs[1]
        and fusion.uses[target] == (copy,)
        and not any(o.stride_order or o.shape is not None or o.apart for o in results)
        and not fusion.uses[copy.outputs[0]]
        and not any(view.mesh is not None or view.by_value or 0 in view.sizes for view in views)
        and len(whole.shape) == len(slices.shape)
        and len(index.shape) == 1
        and slices.name in fusion.producer
        and whole.dtype is slices.dtype
    )
