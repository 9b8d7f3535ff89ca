# SPDX-License-Identifier: Apache-2.0
"""The stride order of a region's results: that of its inputs, as in eager torch.

    x: [N, C, H, W], channels last          y = mul(x, bias); z = relu(y)
->  {x: (3, 0, 2, 1), y: (3, 0, 2, 1), z: (3, 0, 2, 1)}        (stride orders, see ir/strides.py)

Without this, the next convolution would get a contiguous image, and run in another order or copy
it. A result has the order of its first operand of the same rank, if both have the same axes. The
results of cumsum are contiguous, and those of cat and pad unless all operands are channels last. A
view inside of a region has no memory yet, so results computed from it are contiguous.

If the user never sees a result's strides (visible.py), its order is free: what its reader wishes
for; else, if its operands differ, channels last if one of them is, else contiguous: with a
transposed image in a transformer's residual stream every layer's kernels would transpose. Only
images are joined and padded in their own order. Channels-last images stay so in reshapes that split
or merge their axes without a copy, as [N, G, C / G, H, W]. See also docs/stride-orders.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import torch
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.analysis.part import models_of
from thunder_fuser.executors.regions.plan import Order, RegionMemory
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.executors.support import pooling, upsampling
from thunder_fuser.ir.strides import reshaped_order
from thunder_fuser.trace.proxies import COPIES, FENCES, VIEWS, makes, reads, renamed_by

Orders = Mapping[str, Order]

# By the rank of images and of volumes.
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_OF_IMAGES = (pooling.FORWARD, pooling.BACKWARD, upsampling.FORWARD, upsampling.BACKWARD)
_ONLY_CHANNELS_LAST = frozenset({PrimIDs.PAD, PrimIDs.CAT, *_OF_IMAGES})  # else contiguous
_OTHER_SIZES = _ONLY_CHANNELS_LAST | {PrimIDs.SLICE}
_OF_SAME_AXES = (PrimIDs.SHALLOW_COPY, PrimIDs.SLICE, PrimIDs.REAL, PrimIDs.IMAG)
_WITHOUT_ORDER = {*VIEWS, "torch.cumsum"}.difference(_OF_SAME_AXES)


def orders_in(region: Region, memory: RegionMemory, inputs: Orders) -> Orders:
    """The stride orders of a region's results, for inputs with these; others are contiguous."""
    orders = result_orders(region.leaves, inputs)
    free = result_orders(region.leaves, inputs, seen=False)
    for name, wish in memory.hidden.items():
        orders.pop(name, None)
        if order := wish or free.get(name):
            orders[name] = order
    return {
        name: order
        for name, order in orders.items()
        if name not in memory.row_major and not _is_row_major(order)
    }


def result_orders(
    leaves: Sequence[BoundSymbol], inputs: Orders, *, seen: bool = True
) -> dict[str, Order]:
    """The stride orders of the inputs, and of the values computed from them.

    inputs: without numbers, and without tensors that were expanded along an axis. seen: the orders
    of eager torch; if False, a value whose operands differ may have another one.
    """
    sets_order = any(leaf.sym.id is PrimIDs.STRIDE_ORDER for leaf in leaves)
    if not sets_order and all(map(_is_row_major, inputs.values())):
        return {}
    known = dict(inputs)
    for leaf in leaves:
        for result in makes(leaf):
            orders = _orders_of(leaf, result, known, seen)
            if orders:
                is_known = seen or len(set(orders)) == 1
                of_any = next(filter(_is_last, orders), row_major(len(orders[0])))
                known[result.name] = orders[0] if is_known else of_any
    return known


def origins(leaves: Sequence[BoundSymbol], inputs: Sequence[Proxy]) -> Mapping[str, Set[str]]:
    """{a value's name: the names of the inputs whose order it may have}"""
    origins: dict[str, set[str]] = {proxy.name: {proxy.name} for proxy in inputs}
    for leaf in leaves:
        for result in makes(leaf):
            models = _models(leaf, result)
            origins[result.name] = set().union(*(origins.get(p.name, ()) for p in models))
    return origins


# ------------------------------------------------------------------------------------ single orders


def row_major(rank: int) -> Order:
    """The order of a contiguous tensor."""
    return tuple(range(rank)[::-1])


def _is_row_major(order: Order) -> bool:
    return order == row_major(len(order))


def last_order(rank: int) -> Order:
    """The order of channels-last images and volumes: axis 1 is the innermost."""
    return (rank - 1, 0, *range(rank - 2, 0, -1))


def _is_last(order: Order) -> bool:
    return len(order) in FORMATS and order == last_order(len(order))


def format_of(order: Order) -> torch.memory_format | None:
    """Torch's name of an order; None if it has none."""
    if _is_last(order):
        return FORMATS.get(len(order))
    return torch.contiguous_format if _is_row_major(order) else None


def channels_last(image: torch.Tensor) -> torch.Tensor:
    """The image in channels-last order: itself if it is so already, or no image."""
    form = FORMATS.get(image.ndim)
    return image if form is None else image.contiguous(memory_format=form)


def in_memory_of(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor | None:
    """The tensor seen with these strides; None if its elements lie in another order. The stride of
    an axis of size 1 tells nothing: a weight of 1 x 1 is channels last and row-major. Autograd does
    not take it for a view, which nobody could write in place.

    [64, 32, 1, 1]: (32, 1, 32, 32)  ->  (32, 1, 1, 1)
    """
    if tensor.stride() == strides:
        return tensor
    pairs = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if any(size != 1 and old != new for size, old, new in pairs):
        return None
    return tensor.as_strided(tensor.shape, strides).detach()


# ----------------------------------------------------------------------------- of one primitive


def _orders_of(leaf: BoundSymbol, result: Proxy, known: Orders, seen: bool) -> Sequence[Order]:
    """The orders that a result may have, those of its operands; eager torch takes the first."""
    if not isinstance(result, TensorProxy):
        return []
    if leaf.sym.id is PrimIDs.STRIDE_ORDER:
        return [tuple(leaf.args[1])]
    if leaf.sym.id is PrimIDs.RESHAPE and not seen:
        before = known.get(leaf.args[0].name)
        after = before and reshaped_order(before, leaf.args[0]._shape, result._shape)
        is_image = before and after and (_is_last(before) or _is_last(after))
        return [after] if after and is_image else []
    orders = [known.get(model.name, ()) for model in _models(leaf, result)]
    is_volume = leaf.sym.id == upsampling.BACKWARD and result.ndim > 4  # torch makes it contiguous
    is_last = all(map(_is_last, orders)) and not is_volume
    if (seen or result.ndim not in FORMATS) and leaf.sym.id in _ONLY_CHANNELS_LAST and not is_last:
        return []
    return [*filter(None, orders)]


def _models(leaf: BoundSymbol, result: Proxy) -> Sequence[Proxy]:
    """The operands whose order a result may have."""
    if leaf.sym.id in _WITHOUT_ORDER or not isinstance(result, TensorProxy):
        return []
    if leaf.sym.id in COPIES:
        return reads(leaf)[1:]
    if leaf.sym.id in FENCES:
        return [old for old, renamed in renamed_by(leaf) if renamed.name == result.name]
    if leaf.sym.id == pooling.BACKWARD:
        return [leaf.args[1]]  # its order is that of the image
    tensors = [p for p in reads(leaf) if isinstance(p, TensorProxy) and p.ndim == result.ndim > 1]
    if leaf.sym.id in _OTHER_SIZES:
        return tensors
    return [*models_of(((tensor, tensor._shape) for tensor in tensors), result._shape)]
