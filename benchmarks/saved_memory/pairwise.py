# SPDX-License-Identifier: Apache-2.0
"""Thunder's own rematerialization over the fuser's regions: what ours is measured against.

    r0: t2 = g(f(x))     r1: t3 = h(t2, dy)         saved: t2
->  r0: t2 = g(f(x))     r1: t3 = h(g(f(x)), dy)    saved: x, if its type has fewer bytes

For each pair of regions of which one reads the other, a minimum cut between the two decides what
passes; a value weighs the bytes of its type, whatever its size. See thunder.core.rematerialization.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import thunder
from thunder.core.rematerialization import rematerialize
from thunder.core.trace import TraceCtx
from thunder.core.transform_common import dce
from thunder.executors.passes import update_fusion_call_ctx

from thunder_fuser.executors.fuser import ThunderFuser
from thunder_fuser.executors.run.region_callable import compile_region


class PairwiseFuser(ThunderFuser):
    """The fuser with policy `none`, after which Thunder cuts its regions pair by pair."""

    is_editable = True

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        """As Thunder's own fusion executors end their passes."""
        fused = super().fusion_pass(trace)
        return update_fusion_call_ctx(dce(rematerialize(fused)))


pairwise = PairwiseFuser("thunder_fuser_pairwise", compile_region)


def jit_pairwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """thunder.jit with the fuser's regions and Thunder's policy."""
    given = {"fuser_strict": True, "fuser_rematerialization": "none"}
    return thunder.jit(function, executors=[pairwise], **given)  # type: ignore[no-any-return]
