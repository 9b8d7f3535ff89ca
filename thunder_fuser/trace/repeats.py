# SPDX-License-Identifier: Apache-2.0
"""A trace -> how often kernels of the backward would compute each value that they recompute.

    forward     cos = cos(freqs); c = broadcast(cos: [1, t, d], (h, t, d)); y = mul(q, c)
    backward    dq = mul(g, c)      a kernel over [h, t, d], so cos is computed h times

A value that one region stores for another is read there, so its own region alone counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.symbol import BoundSymbol

from thunder_fuser.analysis.repeats import outer_repeats
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.proxies import makes, reads


def repeats_of(ops: Sequence[Op]) -> dict[str, int]:
    """How often each element of a value is computed in the largest loop that reads it, for what
    the backward reads, and what that is computed from."""
    region = {name: op.region for op in ops if op.in_backward for name in op.made_names}
    repeats: dict[str, int] = {}
    for op in reversed(ops):
        if not (op.is_fusible and (op.in_backward or op.makes_any(repeats.keys()))):
            continue
        for leaf in reversed(op.leaves):
            times = max((repeats.get(out.name, 1) for out in makes(leaf)), default=1)
            times = _of_operands(leaf, times)
            for proxy in reads(leaf):
                if region.get(proxy.name, op.region) == op.region:
                    repeats[proxy.name] = max(repeats.get(proxy.name, 1), times)
    return repeats


def _of_operands(leaf: BoundSymbol, times: int) -> int:
    """How often an operand is computed for a result that is computed so many times."""
    if OpTags.REDUCTION_OP in (leaf.sym.tags or ()):
        return 1
    if leaf.sym.id is not PrimIDs.BROADCAST_IN_DIM:
        return times
    source, shape, dims = leaf.args
    sizes = [1] * len(shape)
    for dim, size in zip(dims, source.shape, strict=True):
        sizes[dim] = int(size)
    return times * outer_repeats(sizes, [int(size) for size in shape])
