# SPDX-License-Identifier: Apache-2.0
"""The order in which results of a region lie in memory: that of its inputs, as in eager torch.

    x: [N, C, H, W], channels last          y = mul(x, bias); z = relu(y)
->  {x: (3, 0, 2, 1), y: (3, 0, 2, 1), z: (3, 0, 2, 1)}        (stride orders, see ir/strides.py)

Without it the next convolution would get a contiguous image, and so run in another order or copy.
A result lies as its first operand of the same rank does, if both have the same axes. What views
make in a region lies nowhere yet, and results of it are contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.trace.proxies import VIEWS, makes, reads

Orders = Mapping[str, tuple[int, ...]]

_OTHER_SIZES = frozenset({PrimIDs.PAD, PrimIDs.SLICE, PrimIDs.CAT})
_OF_OTHER_AXES = VIEWS - {PrimIDs.SHALLOW_COPY, PrimIDs.SLICE, PrimIDs.REAL, PrimIDs.IMAG}


def result_orders(leaves: Sequence[BoundSymbol], inputs: Orders) -> Orders:
    """The stride orders of the inputs, and of what primitives make of them.

    inputs: none of numbers, nor of tensors that were expanded along an axis.
    """
    if all(order == tuple(sorted(order, reverse=True)) for order in inputs.values()):
        return {}
    known = dict(inputs)
    for leaf in leaves:
        for made in makes(leaf):
            order = _order(leaf, made, known) if isinstance(made, TensorProxy) else None
            if order is not None:
                known[made.name] = order
    return known


def _order(leaf: BoundSymbol, made: TensorProxy, known: Orders) -> tuple[int, ...] | None:
    if leaf.sym.id in _OF_OTHER_AXES:
        return None
    if leaf.sym.id is PrimIDs.STRIDE_ORDER:
        return tuple(leaf.args[1])
    for operand in reads(leaf):
        if operand.name in known and _has_axes_of(operand, made, leaf):
            return known[operand.name]
    return None


def _has_axes_of(operand: Proxy, made: TensorProxy, leaf: BoundSymbol) -> bool:
    if not isinstance(operand, TensorProxy) or operand.ndim != made.ndim:
        return False
    return leaf.sym.id in _OTHER_SIZES or operand._shape == made._shape
