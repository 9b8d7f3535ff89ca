# SPDX-License-Identifier: Apache-2.0
"""A plan -> the same, in which the weights of convolutions change their order many at a time.

    y = conv2d_last(x, w); z = conv2d_last(y, v)
->  w1, v1 = fusion(w, v); y = conv2d_last(x, w1); z = conv2d_last(y, v1)

A convolution in channels-last order copies a row-major weight, in each step: it may have changed in
a way that nobody sees. Torch's kernel takes several times as long as the fuser's for such a copy,
and one after another each is a call of Python. The backward copies again what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from thunder.core import prims
from thunder.core.devices import DeviceType
from thunder.core.proxies import TensorProxy, variableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.regions.region import Item, Region
from thunder_fuser.executors.stride_orders.convolutions import (
    is_changed,
    is_convolution,
    weight_of,
)
from thunder_fuser.executors.stride_orders.orders import FORMATS, last_order
from thunder_fuser.executors.stride_orders.simulate import arguments_of
from thunder_fuser.source.lines import line_of

MOST_BYTES = 32 << 20  # of copies that wait for their convolutions
_DEVICES = (DeviceType.CUDA,)


class _Weight(NamedTuple):
    """An argument, and the places of the convolutions of a phase that would copy it."""

    proxy: TensorProxy
    places: list[int]

    @property
    def bytes(self) -> int:
        return int(self.proxy.numel * self.proxy.dtype.bytes)


def copy_weights_together(plan: Plan) -> Plan:
    """Brings the weights of convolutions into channels-last order by one fusion for many."""
    items: list[list[Item]] = [[item] for item in plan.items]
    for phase in _weights(plan):
        for group in _groups(phase):
            first = group[0].places[0]
            copies = _copies(plan.trace, plan.items[first], [weight.proxy for weight in group])
            for (weight, places), copy in zip(group, copies.outputs, strict=True):
                for at in places:
                    items[at][-1] = _swapped(items[at][-1], weight, copy)
            items[first].insert(0, copies)
    return plan.with_items(chain.from_iterable(items))


# ----------------------------------------------------------------------------------- which weights


def _weights(plan: Plan) -> list[Iterable[_Weight]]:
    """The arguments that are copied in the forward, and in the backward."""
    phases: tuple[dict[str, _Weight], ...] = ({}, {})
    users = [
        (at, item) for at, item in enumerate(plan.items)
        if is_convolution(item) and is_changed(item)
    ]  # fmt: skip
    values = arguments_of(plan.trace) if users else {}
    # What the trace writes must be copied when its convolution comes.
    copied = {name for name, value in values.items() if _is_copied(value)} - plan.flow.written
    for at, item in users:
        weights = phases[BoundSymbolTag.BACKWARD in item.tags]
        for proxy in weight_of(item):
            if proxy.name in copied and type(proxy) is TensorProxy and _is_on_gpu(proxy):
                weights.setdefault(proxy.name, _Weight(proxy, [])).places.append(at)
    return [phase.values() for phase in phases]


def _is_copied(value: object) -> bool:
    """True for a row-major tensor that is not in channels-last order too."""
    if not isinstance(value, torch.Tensor) or value.ndim not in FORMATS:
        return False
    is_last = value.is_contiguous(memory_format=FORMATS[value.ndim])
    return value.is_contiguous() and not is_last


def _is_on_gpu(proxy: TensorProxy) -> bool:
    return proxy.device.devicetype in _DEVICES


def _groups(weights: Iterable[_Weight]) -> Iterator[Sequence[_Weight]]:
    """The weights in order, as many together as have MOST_BYTES."""
    group: list[_Weight] = []
    for weight in weights:
        if group and sum(each.bytes for each in (*group, weight)) > MOST_BYTES:
            yield group
            group = []
        group.append(weight)
    if group:
        yield group


# ------------------------------------------------------------------------------------- the copies


def _copies(trace: TraceCtx, user: Item, weights: Sequence[TensorProxy]) -> Region:
    """The region that copies the weights, before their first user."""
    with tracectx(trace):
        copies = tuple(TensorProxy(like=weight) for weight in weights)
    leaves = tuple(
        prims.stride_order.bind(weight, last_order(weight.ndim), output=copy)
        for weight, copy in zip(weights, copies, strict=True)
    )
    assert isinstance(user, BoundSymbol)
    is_backward = BoundSymbolTag.BACKWARD in user.tags
    return Region(leaves, tuple(weights), copies, is_backward, line_of(user))


def _swapped(item: Item, weight: TensorProxy, copy: TensorProxy) -> BoundSymbol:
    """The convolution, which reads the copy."""
    assert isinstance(item, BoundSymbol)
    swapped = item.from_bsym_swap_proxies({variableify(weight): copy})
    swapped._call_ctx = item._call_ctx
    return swapped
