# SPDX-License-Identifier: Apache-2.0
"""The stride order of a region's results: that of its inputs, as in eager torch.

    x: [N, C, H, W], channels last          y = mul(x, bias); z = relu(y)
->  {x: (3, 0, 2, 1), y: (3, 0, 2, 1), z: (3, 0, 2, 1)}        (stride orders, see ir/strides.py)

Without this, the next convolution would get a contiguous image, and run in another order or copy
it. A result has the order of its first operand of the same rank, if both have the same axes. The
results of cat and pad are contiguous, unless all operands are channels last. A view inside of a
region has no memory yet, so results computed from it are contiguous.

If the user never sees a result's strides (see stride_orders/), its order is free: what its reader
wishes for; else, if its operands differ, channels last if one of them is, else contiguous.
Otherwise a transposed image in a transformer's residual stream would turn every layer's kernels
into transposes. Channels-last images stay so through reshapes that split or merge their axes
without a copy, as in a group norm: [N, G, C / G, H, W].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.regions.plan import RegionMemory
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.ir.strides import reshaped_order
from thunder_fuser.trace.proxies import COPIES, FENCES, VIEWS, makes, reads, renamed_by

Orders = Mapping[str, tuple[int, ...]]

_OTHER_SIZES = frozenset({PrimIDs.PAD, PrimIDs.SLICE, PrimIDs.CAT})
_ONLY_CHANNELS_LAST = frozenset({PrimIDs.PAD, PrimIDs.CAT})  # else eager's result is contiguous
_OF_OTHER_AXES = VIEWS - {PrimIDs.SHALLOW_COPY, PrimIDs.SLICE, PrimIDs.REAL, PrimIDs.IMAG}


def result_orders(
    leaves: Sequence[BoundSymbol], inputs: Orders, *, seen: bool = True
) -> dict[str, tuple[int, ...]]:
    """The stride orders of the inputs, and of the values computed from them.

    inputs: without numbers, and without tensors that were expanded along an axis. seen: the orders
    of eager torch; if False, a value whose operands differ may have another one.
    """
    if all(map(_is_row_major, inputs.values())):
        return {}
    known = dict(inputs)
    for leaf in leaves:
        for made in makes(leaf):
            found = _orders_of(leaf, made, known, seen) if isinstance(made, TensorProxy) else ()
            if found and (seen or len(set(found)) == 1):
                known[made.name] = found[0]
            elif found:
                known[made.name] = _order_of_mixed(found)
    return known


def orders_in(region: Region, memory: RegionMemory, inputs: Orders) -> Orders:
    """The stride orders of a region's results, for inputs with these; others are contiguous."""
    found = result_orders(region.leaves, inputs)
    free = result_orders(region.leaves, inputs, seen=False)
    for name, wish in memory.hidden.items():
        found.pop(name, None)
        if order := wish or free.get(name):
            found[name] = order
    return {
        name: order
        for name, order in found.items()
        if name not in memory.row_major and not _is_row_major(order)
    }


def _is_row_major(order: tuple[int, ...]) -> bool:
    return order == tuple(sorted(order, reverse=True))


def _order_of_mixed(orders: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The order of a result whose operands have different ones."""
    return next(filter(_is_last, orders), tuple(sorted(orders[0], reverse=True)))


def _is_last(order: tuple[int, ...]) -> bool:
    """True for channels-last images and volumes: axis 1 is the innermost."""
    rank = len(order)
    return rank > 3 and order == (rank - 1, 0, *range(rank - 2, 0, -1))


def _orders_of(
    leaf: BoundSymbol, made: TensorProxy, known: Orders, seen: bool
) -> Sequence[tuple[int, ...]]:
    """The orders that a result may have, those of its operands; eager torch takes the first."""
    if leaf.sym.id is PrimIDs.STRIDE_ORDER:
        return [tuple(leaf.args[1])]
    if leaf.sym.id is PrimIDs.RESHAPE and not seen:
        return [*_through_reshape(leaf.args[0], made, known)]
    found = [known.get(one.name, ()) for one in _models(leaf, made)]
    if seen and leaf.sym.id in _ONLY_CHANNELS_LAST and not all(map(_is_last, found)):
        return []
    return [*filter(None, found)]


def _through_reshape(
    operand: TensorProxy, made: TensorProxy, known: Orders
) -> Iterator[tuple[int, ...]]:
    """The order of the reshaped operand, if it is channels last before or after; else nothing."""
    if operand.name in known:
        before = known[operand.name]
        after = reshaped_order(before, operand._shape, made._shape)
        if after is not None and (_is_last(before) or _is_last(after)):
            yield after


def _models(leaf: BoundSymbol, made: TensorProxy) -> Iterable[Proxy]:
    """The operands whose order a result may have."""
    if leaf.sym.id in _OF_OTHER_AXES:
        return []
    if leaf.sym.id in COPIES:
        return reads(leaf)[1:]
    if leaf.sym.id in FENCES:
        return [one for one, renamed in renamed_by(leaf) if renamed.name == made.name]
    return [one for one in reads(leaf) if _has_axes_of(one, made, leaf)]


def _has_axes_of(operand: Proxy, made: TensorProxy, leaf: BoundSymbol) -> bool:
    if not isinstance(operand, TensorProxy) or operand.ndim != made.ndim or made.ndim < 2:
        return False
    return leaf.sym.id in _OTHER_SIZES or operand._shape == made._shape


def origins(leaves: Sequence[BoundSymbol], inputs: Sequence[Proxy]) -> Mapping[str, Set[str]]:
    """{a value's name: the names of the inputs whose order it may have}"""
    found: dict[str, set[str]] = {one.name: {one.name} for one in inputs}
    for leaf in leaves:
        for made in makes(leaf):
            models = _models(leaf, made) if isinstance(made, TensorProxy) else ()
            found[made.name] = set[str]().union(*(found.get(one.name, ()) for one in models))
    return found
