# SPDX-License-Identifier: Apache-2.0
"""All passes over a trace of Thunder, in order: over its ops, then over the regions of them.

Before the partition an op has no region. After it, every fusible op has the region that it will run
in. Between the two tables, the policy decides what the backward recomputes
(rematerialization/apply.py), and regions are claimed (regions/claim.py). The option dump writes
what each pass changed; the option skip_passes leaves passes out, to find the one that is wrong.
"""

from __future__ import annotations

from thunder.core.compile_data import get_compile_option
from thunder.core.devices import DeviceType
from thunder.core.trace import TraceCtx
from thunder.extend import FusionExecutor

from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.executors.overlap.find import overlap_products
from thunder_fuser.executors.record.result_dtypes import where_types_agree
from thunder_fuser.executors.regions.dead_views import drop_dead_views, drop_identity_views
from thunder_fuser.executors.regions.donation import donate_last_reads
from thunder_fuser.executors.regions.plan import Plan, PlanOptions
from thunder_fuser.executors.regions.stores import store_in_regions
from thunder_fuser.executors.regions.writes import (
    join_across_writes,
    refuse_stale_reads,
    write_in_place,
)
from thunder_fuser.executors.run.bind import keeps_order
from thunder_fuser.executors.stride_orders.channels_last import run_channels_last
from thunder_fuser.executors.stride_orders.eager_order import copy_to_eager_order
from thunder_fuser.executors.stride_orders.operands import copy_images_once, copy_weights_together
from thunder_fuser.executors.stride_orders.results import (
    find_visible_results,
    keep_row_major,
    order_hidden_results,
)
from thunder_fuser.executors.support.check import device_of, leaves_of, support
from thunder_fuser.executors.support.dtensor import mesh_of_call
from thunder_fuser.executors.support.random import without_state
from thunder_fuser.functions import why_apart
from thunder_fuser.options import option
from thunder_fuser.presegment import NEEDED
from thunder_fuser.runtime.torch_types import target_of_device
from thunder_fuser.target import CPU, Target
from thunder_fuser.trace.op import Rules
from thunder_fuser.trace.prepared import Pass, Prepared
from thunder_fuser.trace.rewrites.activations import fuse_activations
from thunder_fuser.trace.rewrites.approximate import tag_approximate
from thunder_fuser.trace.rewrites.casts import drop_roundings, expand_casts, recompute_casts
from thunder_fuser.trace.rewrites.embedding_gradients import sum_embedding_rows
from thunder_fuser.trace.rewrites.functionalize import (
    functionalize,
    leave_written_views,
    save_before_writes,
)
from thunder_fuser.trace.rewrites.permutations import take_in_old_order
from thunder_fuser.trace.rewrites.reorder_matmuls import reorder_matmuls
from thunder_fuser.trace.rewrites.rfactor import rfactor_sums
from thunder_fuser.trace.rewrites.split_regions import partition

_IN_PLACE_HELP = (
    "Skip the check for tensors that are read by a fusion after they were written in place."
)
_ALIASES = "without it, a region would read or return memory that a write has changed"

TRACE_PASSES: tuple[Pass[Prepared], ...] = (
    Pass(write_in_place),
    Pass(functionalize),
    Pass(fuse_activations),
    Pass(take_in_old_order),
    Pass(sum_embedding_rows),
    Pass(save_before_writes, needed=_ALIASES),
    Pass(without_state, needed="regions can draw no numbers from torch's generator"),
    Pass(leave_written_views, needed=_ALIASES),
    Pass(expand_casts),
    Pass(reorder_matmuls),
    Pass(partition, needed="it makes the regions"),
    Pass(recompute_casts),
    Pass(drop_roundings),
    Pass(tag_approximate),
    Pass(rfactor_sums),
)

REGION_PASSES: tuple[Pass[Plan], ...] = (
    Pass(drop_identity_views),
    Pass(drop_dead_views),
    Pass(keep_row_major, needed="torch refuses views of results in another order"),
    Pass(donate_last_reads),
    Pass(refuse_stale_reads, needed="it is a check"),
    Pass(join_across_writes),
    Pass(store_in_regions),
    Pass(copy_to_eager_order),
    Pass(find_visible_results, needed="without it, every stride would count as hidden"),
    Pass(order_hidden_results),
    Pass(run_channels_last),
    Pass(copy_images_once),
    Pass(copy_weights_together),
    Pass(overlap_products),
)


NEEDED.update((each.name, each.needed) for each in TRACE_PASSES)
NEEDED.update((each.name, each.needed) for each in REGION_PASSES)


def passes_text() -> str:
    """A line for each pass, in order: its name, and what it returns."""
    rows = [(each.name, each.run.__doc__ or "") for each in TRACE_PASSES]
    rows += [(each.name, each.run.__doc__ or "") for each in REGION_PASSES]
    return "\n".join(f"{name:22} {text.splitlines()[0]}" for name, text in rows)


def read_trace(trace: TraceCtx, target: Target, options: CompileOptions) -> Prepared:
    """The trace before the passes."""
    agreed = where_types_agree(trace.bound_symbols, support)
    rules = Rules(
        lambda bsym: agreed(bsym) or why_apart(bsym),
        leaves_of,
        lambda bsym: (device_of(bsym), mesh_of_call(bsym)),
    )
    return Prepared(trace, tuple(map(rules.op, trace.bound_symbols)), rules, target, options)


def plan_options(executor: FusionExecutor) -> PlanOptions:
    """What the passes over regions may do in the running compilation."""
    keeps, in_graphs = keeps_order(executor), bool(option("cuda_graphs"))
    return PlanOptions(
        donation=bool(option("donation")) and keeps and not in_graphs,
        joins_writes=keeps,
        in_graphs=in_graphs,
        checks_reads=not get_compile_option("disable_inplace_copy_check", _IN_PLACE_HELP),
        prefix=str(option("name_prefix")),
        lower=option("multi_device").lower,  # type: ignore[union-attr, arg-type]
        executor=executor,
    )


def target_of(trace: TraceCtx) -> Target:
    """The target of the first tensor on a GPU; else the CPU."""
    for bsym in trace.bound_symbols:
        device = device_of(bsym)
        if device is not None and device.devicetype is DeviceType.CUDA:
            return target_of_device(device.index or 0)
    return CPU
