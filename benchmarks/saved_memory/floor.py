# SPDX-License-Identifier: Apache-2.0
"""A forward -> the fewest bytes that any policy could keep, and of whose results.

    y = sdpa(q, k, v)    never recomputed: y is kept, or what is made of it
    h = gelu(y)          recomputed from y, or kept in place of it, whatever has fewer bytes

The floor is the minimum cut in bytes with everything recomputed that may be, matrix products and
chains of any length among it, so it is below what `memory` keeps, which bounds them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from thunder_fuser.rematerialization.forward import Forward
from thunder_fuser.rematerialization.plan import Machine, plan
from thunder_fuser.rematerialization.policy import FREE, Policy
from thunder_fuser.target import CPU

# The policy `memory` without checkpoints in chains.
_UNBOUNDED = Policy("unbounded()", lambda *_: FREE, stages=1 << 30, share=0.0)


def floor(forward: Forward) -> dict[str, int]:
    """Bytes kept in any case, by the operations, never recomputed, of whose results they are."""
    operations = (
        replace(op, refusal="", product=0) if op.product else op for op in forward.operations
    )
    forward = replace(forward, operations=tuple(operations))
    origins = _origins(forward)
    found: Counter[str] = Counter()
    for name in plan(forward, _UNBOUNDED, Machine.of(CPU)).kept:
        found[" + ".join(sorted(origins[name]))] += forward.values[name].bytes
    return dict(found.most_common())


def _origins(forward: Forward) -> dict[str, frozenset[str]]:
    """For each value the operations, never recomputed, that it can be made of without another."""
    found: dict[str, frozenset[str]] = {}
    for op in forward.operations:
        own = [frozenset({op.name})] if op.refusal else [found.get(x, _NONE) for x in op.inputs]
        found |= dict.fromkeys((value.name for value in op.outputs), _NONE.union(*own))
    return found


_NONE: frozenset[str] = frozenset()
