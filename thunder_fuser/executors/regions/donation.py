# SPDX-License-Identifier: Apache-2.0
"""A plan -> the same, with regions that may write over operands that nobody reads later.

    t1 = linear(x, w)                   kept for the backward: t1
    t2 = loss(t1)
    t3 = d loss(t1), the last reader    t3 may be written into the memory of t1

A tensor is donated under three conditions. A matrix product made it, so it has memory of its own.
Only views of it may share that memory (trace/dataflow.py), and none of these is written in place,
returned, or read later. The region reads only one tensor in that memory. A tensor that the forward
kept is donated only by calls after which autograd would free it, so not under retain_graph=True. A
user who got hold of it by autograd's hooks sees it change.

The calls must run in the order of the trace. Thunder's split into forward and backward keeps the
order of the backward, but moves ops that only the backward needs out of the forward, so regions of
such a forward get no donations. Nothing is donated either if there are collectives, which Thunder
moves, or transforms of the final trace, which may do anything (CUDA graphs run a backward several
times before it counts), or a fusion executor after ours, which sorts the trace again (run/bind.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from thunder.core.proxies import Proxy, TensorProxy
from thunder.torch.experimental.dtensor_proxy import is_dtensor_proxy

from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.regions.region import Region, read_by
from thunder_fuser.trace.dataflow import DataFlow
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.proxies import VIEWS, is_product


def donate_last_reads(plan: Plan) -> Plan:
    """Notes the inputs that a region is the last to read, so it may write over them."""
    if not plan.options.donation or plan.has_collectives:
        return plan
    trains = any(op.is_backward for op in plan.flow.ops)
    memory = _ProductMemory(plan.flow)
    last = {memory.of(proxy): at for at, item in enumerate(plan.items) for proxy in read_by(item)}
    facts: dict[int, Mapping[str, Any]] = {}
    for at, item in enumerate(plan.items):
        if isinstance(item, Region) and not item.makes_views and item.is_backward == trains:
            ended = [proxy for proxy in memory.alone(item.inputs) if last[memory.of(proxy)] == at]
            kept = [p.name for p in ended if trains and not memory.makers[memory.of(p)].is_backward]
            freed = [p.name for p in ended if p.name not in kept]
            if ended:
                facts[item.number] = {"donated": (*freed,), "donated_if_freed": (*kept,)}
    return plan.noting(facts)


class _ProductMemory:
    """The memory that products made. makers: the product that alone made a memory."""

    def __init__(self, flow: DataFlow) -> None:
        self._memory = flow.memory
        self.makers: dict[str, Op] = {}
        taken = set(map(self._memory.of, flow.written))
        taken |= set(map(self.of, flow.ops[-1].reads))  # what the trace returns
        for op in flow.ops:
            results = set(map(self.of, op.makes))
            if is_product(op.bsym):
                taken |= results & self.makers.keys()
                self.makers.update(dict.fromkeys(results, op))
            elif not op.only(VIEWS):
                taken |= results
        for name in taken:
            self.makers.pop(name, None)

    def of(self, proxy: Proxy) -> str:
        """One name for all that may share the tensor's memory."""
        return self._memory.of(proxy.name)

    def alone(self, proxies: Sequence[Proxy]) -> Iterator[Proxy]:
        """The plain tensors whose memory a product made, and no other of these shares."""
        names = list(map(self.of, proxies))
        for proxy, name in zip(proxies, names, strict=True):
            plain = isinstance(proxy, TensorProxy) and not is_dtensor_proxy(proxy)
            if plain and name in self.makers and names.count(name) == 1:
                yield proxy
