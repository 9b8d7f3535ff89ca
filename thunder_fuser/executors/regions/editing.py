# SPDX-License-Identifier: Apache-2.0
"""Whether Thunder, or another executor, changes the trace after our pass.

Thunder would move ops between fusions and build each again, from its ops alone. What a region saves
or recomputes was decided by our policy, and its ops do not say all of it. So Thunder moves ops only
between fusions of others, or of an executor with `is_editable` (thunder_patches/hooks.py).
"""

from __future__ import annotations

from thunder.core.compile_data import get_compile_data
from thunder.core.symbol import BoundSymbol
from thunder.extend import FusionExecutor

from thunder_fuser.executors.run.region_callable import callable_of


def may_be_edited(bsym: BoundSymbol) -> bool:
    """True for a fusion of another executor, or of one that lets Thunder edit its regions. A region
    that writes in place is never built again from its ops alone."""
    if not bsym.sym.is_fusion:
        return False
    ours = callable_of(bsym)
    return ours is None or (bsym.sym.executor.is_editable and not ours.memory.writes)


def fuses_last(executor: FusionExecutor) -> bool:
    """Whether no other fusion executor runs after this one, which would sort the trace again.

    It knows of no order but that of values. So a region must not write over memory that an
    operation before it reads.
    """
    executors = getattr(get_compile_data(), "executors_list", ())
    fusing = [one for one in executors if isinstance(one, FusionExecutor)]
    return executor not in fusing or fusing[-1] == executor
