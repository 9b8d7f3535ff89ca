# SPDX-License-Identifier: Apache-2.0
"""Whether Thunder, or another executor, changes the trace after our pass.

Thunder would move ops between fusions and build each again, from its ops alone. What a region saves
or recomputes was decided by our policy, and its ops do not say all of it. So Thunder moves ops only
between fusions of others, or of an executor with `is_editable` (thunder_patches/hooks.py).
"""

from __future__ import annotations

from typing import Any

from thunder.core.compile_data import get_compile_data
from thunder.core.proxies import unvariableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.core.transform_common import Transform
from thunder.extend import FusionExecutor

from thunder_fuser.executors.regions.region import Region
from thunder_fuser.executors.run.region_callable import callable_of
from thunder_fuser.executors.support.check import leaves_of


def may_be_edited(bsym: BoundSymbol) -> bool:
    """True for a fusion of another executor, or of one that lets Thunder edit its regions. A region
    that writes in place is never built again from its ops alone."""
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
        type(each).transform_trace_post_optimization is kept for each in transforms
    )
