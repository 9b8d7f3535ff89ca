# SPDX-License-Identifier: Apache-2.0
"""A plan -> the fused trace: each region becomes one bound symbol that calls it.

    Region(t1: mul, exp -> t3)  ->  [t3] = thunderFusion0(t1)
    Region(t3: transpose -> t4) ->  [t4] = fuserViews0(t3)       launches nothing: it is no fusion
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace

from thunder_fuser.executors.regions.comments import Comments
from thunder_fuser.executors.regions.plan import NO_MEMORY, Plan, RegionMemory
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.executors.run.region_callable import RegionCallable, bind_callable
from thunder_fuser.options import Value, option
from thunder_fuser.rematerialization.apply import Recomputation

_VIEWS = "fuserViews"  # never the prefix of fusions, by which Thunder's tools know them


@dataclass(frozen=True, slots=True)
class Binding:
    """What the regions of a trace have in common.

    executor: the ThunderFuser that owns their symbols and compiles them. options: those of the
    call of thunder.jit. total: how many fusions the trace has; 0 if unknown.
    """

    executor: Any
    options: Mapping[str, Value]
    total: int = 0

    def name(self, region: Region, number: int) -> str:
        """The name of a region's symbol. Thunder reads the number back out of it."""
        prefix = str(self.options.get("name_prefix") or option("name_prefix"))
        return f"{_VIEWS if region.makes_views else prefix}{number}"


def bind_plan(plan: Plan, recomputation: Recomputation | None, binding: Binding) -> TraceCtx:
    """The trace with the regions of a plan as bound symbols."""
    fusions = sum(not region.makes_views for region in plan.regions)
    options = binding.options
    if recomputation is not None:  # a recomputed value must have the bits of the forward's
        options = {"repeatable": True, **options}
    total = sum(not region.makes_views for region in plan.regions)
    binding = replace(binding, options=options, total=total)
    fused = from_trace(plan.trace)
    fused.bound_symbols = [*_bound(plan, Comments(recomputation), binding)]
    fusions = sum(bsym.sym.is_fusion for bsym in fused.bound_symbols)
    fused.set_provenance(TraceProvenance(f"Fusion by {binding.executor.name}: {fusions} fusions"))
    return fused


def _bound(plan: Plan, comments: Comments, binding: Binding) -> Iterator[BoundSymbol]:
    fusions, views = count(), count()
    for item in plan.items:
        if not isinstance(item, Region):
            yield item
        elif item.makes_views:
            yield bind_region(item, next(views), binding)
        else:
            memory, comment = plan.memory.of(item), comments.of(item)
            yield bind_region(item, next(fusions), binding, memory, comment)


def bind_region(
    region: Region,
    number: int,
    binding: Binding,
    memory: RegionMemory = NO_MEMORY,
    comment: str = "",
) -> BoundSymbol:
    """The bound symbol of a region, with a comment above it. number: among the fusions, or among
    the views."""
    name = binding.name(region, number)
    place = f"compiling {number + 1} of {binding.total}" if binding.total else name
    executor, options = binding.executor, binding.options
    call = RegionCallable(name, region, memory, executor.compile_region, options, place=place)
    symbol = Symbol(
        name, call.meta, is_fusion=not region.makes_views, executor=executor,
        _bind_postprocess=bind_callable,
    )  # fmt: skip
    outputs = [*region.outputs]
    bsym = BoundSymbol(symbol, region.inputs, {}, outputs, region.leaves, header=comment)
    bind_callable(bsym)
    return bsym
