# SPDX-License-Identifier: Apache-2.0
"""A plan -> the fused trace: each region becomes one bound symbol that calls it.

    Region(t1: mul, exp -> t3)  ->  [t3] = thunderFusion0(t1)
    Region(t3: transpose -> t4) ->  [t4] = fuserViews0(t3)       launches nothing: it is no fusion
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any

from thunder.core.compile_data import get_compile_data
from thunder.core.proxies import unvariableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, Symbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace
from thunder.core.transform_common import Transform
from thunder.extend import FusionExecutor

from thunder_fuser.executors.regions.comments import Comments
from thunder_fuser.executors.regions.plan import NO_MEMORY, Plan, RegionMemory
from thunder_fuser.executors.regions.region import Item, Region
from thunder_fuser.executors.run.region_callable import RegionCallable, bind_callable, callable_of
from thunder_fuser.executors.support.check import leaves_of
from thunder_fuser.options import OptionValue, option
from thunder_fuser.rematerialization.apply import Recomputation
from thunder_fuser.trace.proxies import makes, reads

_VIEWS = "fuserViews"  # never the prefix of fusions, by which Thunder's tools know them


def bind_plan(
    plan: Plan, recomputation: Recomputation | None, options: Mapping[str, OptionValue]
) -> TraceCtx:
    """The trace with the regions of a plan as bound symbols. options: those of thunder.jit."""
    if recomputation is not None:  # a recomputed value must have the bits of the forward's
        options = {"repeatable": True, **options}
    executor, comments = plan.options.executor, Comments(recomputation)
    bind = partial(executor.fuse, options=options)
    fusions, views = count(), count()

    def bound(item: Item) -> BoundSymbol:
        if not isinstance(item, Region):
            return item
        if item.makes_views:
            return bind(item, next(views))
        memory, comment = plan.memory.of(item), comments.of(item)
        return bind(item, next(fusions), memory=memory, comment=comment)

    fused = from_trace(plan.trace)
    fused.bound_symbols = [*map(bound, plan.items)]
    # Our passes make bound symbols without tags: what reads gradients is tagged, as Thunder does.
    # An executor that fuses after us joins what has no tag to the forward.
    names: set[str] = set()
    for bsym in fused.bound_symbols[:-1]:
        if BoundSymbolTag.BACKWARD in bsym.tags or any(read.name in names for read in reads(bsym)):
            bsym.tags.add(BoundSymbolTag.BACKWARD)
            names.update(result.name for result in makes(bsym))
    number = sum(bsym.sym.is_fusion for bsym in fused.bound_symbols)
    fused.set_provenance(TraceProvenance(f"Fusion by {executor.name}: {number} fusions"))
    return fused


def bind_region(
    region: Region,
    number: int,
    executor: Any,
    *,
    options: Mapping[str, OptionValue],
    memory: RegionMemory = NO_MEMORY,
    comment: str = "",
) -> BoundSymbol:
    """The bound symbol of a region, with a comment above it.

    number: among the fusions, or among the views; Thunder reads it back out of the name. executor:
    the ThunderFuser that owns the symbol and compiles it.
    """
    prefix = str(options.get("name_prefix") or option("name_prefix"))
    name = f"{_VIEWS if region.makes_views else prefix}{number}"
    call = RegionCallable(name, region, memory, executor.compile_region, options)
    symbol = Symbol(
        name, call.meta, is_fusion=not region.makes_views, executor=executor,
        _bind_postprocess=bind_callable,
    )  # fmt: skip
    bsym = BoundSymbol(symbol, region.inputs, {}, [*region.outputs], region.leaves, header=comment)
    bind_callable(bsym)
    if region.is_backward:
        bsym.tags.add(BoundSymbolTag.BACKWARD)
    return bsym


# --------------------------- whether Thunder, or another executor, changes the trace after our pass


def may_be_edited(bsym: BoundSymbol) -> bool:
    """True for a fusion of another executor, or of one that lets Thunder edit its regions.

    Thunder moves ops between fusions and builds each again from its ops, which do not say all of
    what our policy decided. A region that writes in place is never built again.
    """
    if not bsym.sym.is_fusion:
        return False
    ours = callable_of(bsym)
    return ours is None or (bsym.sym.executor.is_editable and not ours.memory.writes)


def unwrapped(region: Any) -> Region:
    """Thunder's region, whose inputs and outputs are wrapped proxies, as ours; ours as it is."""
    if isinstance(region, Region):
        return region
    bsyms = tuple(region.bound_symbols)
    leaves = tuple(leaf for bsym in bsyms for leaf in leaves_of(bsym))
    inputs, outputs = tuple(map(unvariableify, region.inputs)), map(unvariableify, region.outputs)
    is_backward = any(BoundSymbolTag.BACKWARD in bsym.tags for bsym in bsyms)
    return Region(leaves, inputs, tuple(outputs), is_backward)


def keeps_order(executor: FusionExecutor) -> bool:
    """Whether nothing but the split, and collectives, will move or repeat calls of the trace.

    Another fusion executor after this one sorts the trace again, and knows of no order but that of
    values. So a region must not write over memory that an operation before it reads.
    """
    data, kept = get_compile_data(), Transform.transform_trace_post_optimization
    executors, transforms = getattr(data, "executors_list", ()), getattr(data, "transforms", ())
    fusing = [each for each in executors if isinstance(each, FusionExecutor)]
    return (executor not in fusing or fusing[-1] == executor) and all(
        type(each).transform_trace_post_optimization is kept or getattr(each, "keeps_order", False)
        for each in transforms
    )
