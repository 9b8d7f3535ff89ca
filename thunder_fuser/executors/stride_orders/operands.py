# SPDX-License-Identifier: Apache-2.0
"""A plan -> the same, in which the fuser's kernels bring operands of convolutions into order.

    y = conv2d_last(x, w); z = conv2d_last(y, v)
->  w1, v1 = fusion(w, v); y = conv2d_last(x, w1); z = conv2d_last(y, v1)

A convolution in channels-last order copies a row-major weight, in each step: it may have changed in
a way that nobody sees. Torch's kernel takes several times as long as the fuser's for such a copy,
and one after another each is a call of Python. The backward copies again what it reads.

    t = fusion0(x); y = conv2d_last(t, w);                    dw = conv2d_backward1_last(t, w, dy)
->  t = fusion0(x); t1 = fusion1(t); y = conv2d_last(t1, w);  dw = conv2d_backward1_last(t1, w, dy)

A norm of a row-major image has a row-major result, for it would write another order element by
element. It is copied once, and the backward saves the copy instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import chain
from typing import NamedTuple, TypeGuard

import torch
from thunder.core import prims
from thunder.core.devices import DeviceType
from thunder.core.proxies import Proxy, TensorProxy, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.regions.region import Item, Region, is_backward, made_by, read_by
from thunder_fuser.executors.stride_orders.convolutions import (
    CHANGED,
    is_changed,
    is_convolution,
    weight_of,
)
from thunder_fuser.executors.stride_orders.orders import FORMATS, last_order
from thunder_fuser.executors.stride_orders.simulate import (
    Values,
    arguments_of,
    guessed_results,
    value_of,
)

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
            user = plan.items[first]
            copies = _copies(plan.trace, is_backward(user), [weight.proxy for weight in group])
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
        weights = phases[is_backward(item)]
        for proxy in weight_of(item):
            if proxy.name in copied and type(proxy) is TensorProxy and _is_on_gpu(proxy):
                weights.setdefault(proxy.name, _Weight(proxy, [])).places.append(at)
    return [phase.values() for phase in phases]


def _is_copied(value: object) -> bool:
    """True for a row-major tensor that is not in channels-last order too."""
    if not isinstance(value, torch.Tensor) or value.ndim not in FORMATS:
        return False
    return value.is_contiguous() and not value.is_contiguous(memory_format=FORMATS[value.ndim])


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


# ------------------------------------------------------------------------------------------ images


def copy_images_once(plan: Plan) -> Plan:
    """Brings an image that lies otherwise into channels-last order once for all convolutions."""
    images = [*_images(plan)]
    if not images:
        return plan
    lying = _lying_otherwise(plan, {image.name for _, image in images})
    items: list[list[Item]] = [[item] for item in plan.items]
    for at, image in images:
        if image.name not in lying:
            continue
        copies = _copies(plan.trace, is_backward(plan.items[at]), [image])
        items[at].append(copies)
        for user in plan.readers[image.name]:
            items[user][0] = _swapped(items[user][0], image, copies.outputs[0])
    return plan.with_items(chain.from_iterable(items))


def _images(plan: Plan) -> Iterator[tuple[int, TensorProxy]]:
    """The results of regions that only convolutions in channels-last order read, with the places
    of the regions. A region that reads such an image makes such images."""
    last = set[str]()
    for at, item in enumerate(plan.items):
        operands = [proxy.name in last for proxy in read_by(item) if _is_image(proxy)]
        enough = any if isinstance(item, Region) else all
        if _runs_last(item) or (operands and enough(operands)):
            last.update(proxy.name for proxy in made_by(item))
            continue
        for proxy in made_by(item) if isinstance(item, Region) else ():
            users = [plan.items[user] for user in plan.readers.get(proxy.name, ())]
            is_read = bool(users) and all(map(_runs_last, users))
            if is_read and _is_image(proxy) and _is_on_gpu(proxy):
                yield at, proxy


def _is_image(proxy: Proxy) -> TypeGuard[TensorProxy]:
    return type(proxy) is TensorProxy and proxy.ndim in FORMATS


def _runs_last(item: Item) -> bool:
    return is_convolution(item) and item.sym.name.endswith(CHANGED)


def _lying_otherwise(plan: Plan, names: Set[str]) -> set[str]:
    """Those of the values that will not be channels last, if arguments are as in the first call."""
    values, lying = arguments_of(plan.trace), set[str]()
    for item in plan.items:
        for proxy in read_by(item):
            values.setdefault(proxy.name, value_of(proxy))
        for proxy, value in zip(made_by(item), _results(plan, item, values), strict=True):
            values.setdefault(proxy.name, value)
            if proxy.name in names and _is_copied(value):
                lying.add(proxy.name)
    return lying


def _results(plan: Plan, item: Item, values: Values) -> Sequence[object]:
    """The results of an item as meta tensors."""
    if _runs_last(item):  # without running it; a gradient of weights is read by no convolution
        orders = ((p, last_order(p.ndim) if p.ndim in FORMATS else None) for p in made_by(item))
        return [value_of(proxy, order) for proxy, order in orders]
    return guessed_results(item, plan.memory.of(item), values)


# ------------------------------------------------------------------------------------- the copies


def _copies(trace: TraceCtx, is_backward: bool, tensors: Sequence[TensorProxy]) -> Region:
    """The region that copies tensors into channels-last order."""
    with tracectx(trace):
        copies = tuple(TensorProxy(like=tensor) for tensor in tensors)
    leaves = tuple(
        prims.stride_order.bind(tensor, last_order(tensor.ndim), output=copy)
        for tensor, copy in zip(tensors, copies, strict=True)
    )
    return Region(leaves, tuple(tensors), copies, is_backward)


def _swapped(item: Item, tensor: Proxy, copy: Proxy) -> BoundSymbol:
    """The convolution, which reads the copy."""
    assert isinstance(item, BoundSymbol)
    swapped = item.from_bsym_swap_proxies({variableify(tensor): copy})
    swapped._call_ctx = item._call_ctx
    return swapped
