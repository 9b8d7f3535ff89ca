# SPDX-License-Identifier: Apache-2.0
"""A trace of Thunder -> a prepared one, and the passes over it, each checked after it has run.

Before the partition an op has no region. After it, every fusible op has the region that it will run
in. After all passes, rematerialization/apply.py decides what the backward recomputes.
"""

from __future__ import annotations

from collections.abc import Hashable

from thunder.core.devices import DeviceType
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.executors.dtensor import mesh_of_call
from thunder_fuser.executors.functions import why_apart
from thunder_fuser.executors.in_place import write_in_place
from thunder_fuser.executors.mistyped import where_types_agree
from thunder_fuser.executors.random import without_state
from thunder_fuser.executors.support import device_of, leaves_of, support
from thunder_fuser.runtime.torch_types import target_of_device
from thunder_fuser.target import CPU, Target
from thunder_fuser.trace.approximate import tag_approximate
from thunder_fuser.trace.casts import drop_roundings, expand_casts, recompute_casts
from thunder_fuser.trace.functionalize import functionalize
from thunder_fuser.trace.join_across_copies import join_across_copies
from thunder_fuser.trace.memory import leave_written_views, save_before_writes
from thunder_fuser.trace.op import Rules
from thunder_fuser.trace.permutations import take_in_old_order
from thunder_fuser.trace.prepared import Pass, Prepared
from thunder_fuser.trace.reorder_matmuls import reorder_matmuls
from thunder_fuser.trace.split_regions import partition
from thunder_fuser.trace.two_stage_sums import sum_in_two_stages

TRACE_PASSES: tuple[Pass, ...] = (
    write_in_place,
    functionalize,
    take_in_old_order,
    save_before_writes,
    without_state,
    leave_written_views,
    expand_casts,
    reorder_matmuls,
    join_across_copies,
    partition,
    recompute_casts,
    drop_roundings,
    tag_approximate,
    sum_in_two_stages,
)


def read_trace(trace: TraceCtx, target: Target, options: CompileOptions) -> Prepared:
    """The trace before the passes."""
    agreed = where_types_agree(trace.bound_symbols, support)
    rules = Rules(lambda bsym: agreed(bsym) or why_apart(bsym), leaves_of, _place)
    return Prepared(trace, tuple(map(rules.op, trace.bound_symbols)), rules, target, options)


def _place(bsym: BoundSymbol) -> Hashable:
    return device_of(bsym), mesh_of_call(bsym)


def target_of(trace: TraceCtx) -> Target:
    """The target of the first tensor on a GPU; else the CPU."""
    for bsym in trace.bound_symbols:
        device = device_of(bsym)
        if device is not None and device.devicetype is DeviceType.CUDA:
            return target_of_device(device.index or 0)
    return CPU
