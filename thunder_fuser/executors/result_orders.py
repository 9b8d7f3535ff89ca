# SPDX-License-Identifier: Apache-2.0
"""The order in which results of a region lie in memory: that of its inputs, as in eager torch.

    x: [N, C, H, W], channels last          y = mul(x, bias); z = relu(y)
->  {x: (3, 0, 2, 1), y: (3, 0, 2, 1), z: (3, 0, 2, 1)}        (stride orders, see ir/strides.py)

Without it the next convolution would get a contiguous image, and so run in another order or copy.
A result lies as its first operand of the same rank does, if both have the same axes. What views
make in a region lies nowhere yet, and results of it are contiguous.

A result whose strides the user never sees is contiguous where operands of different orders meet,
and where a product reads it, which would copy it: a transposed image that enters a transformer's
residual stream would else turn every layer's kernels into transposes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, has_tags

from thunder_fuser.executors.regions import Item, Region, read_by
from thunder_fuser.trace.proxies import VIEWS, makes, parts, reads

Orders = Mapping[str, tuple[int, ...]]

_OTHER_SIZES = frozenset({PrimIDs.PAD, PrimIDs.SLICE, PrimIDs.CAT})
_OF_OTHER_AXES = VIEWS - {PrimIDs.SHALLOW_COPY, PrimIDs.SLICE, PrimIDs.REAL, PrimIDs.IMAG}
_LOOKUPS = frozenset({PrimIDs.EMBEDDING, PrimIDs.EMBEDDING_BACKWARD})


def result_orders(
    leaves: Sequence[BoundSymbol], inputs: Orders, *, seen: bool = True
) -> dict[str, tuple[int, ...]]:
    """The stride orders of the inputs, and of what primitives make of them.

    inputs: none of numbers, nor of tensors that were expanded along an axis. seen: as the user
    sees them in eager torch; else what meets in different orders is contiguous.
    """
    if all(map(_is_contiguous, inputs.values())):
        return {}
    known = dict(inputs)
    for leaf in leaves:
        for made in makes(leaf):
            found = _orders_of(leaf, made, known) if isinstance(made, TensorProxy) else ()
            if found and (seen or len(set(found)) == 1):
                known[made.name] = found[0]
            elif found:
                known[made.name] = tuple(sorted(found[0], reverse=True))
    return known


def orders_in(region: Region, inputs: Orders) -> Orders:
    """The stride orders of a region's results, for inputs in these; contiguous where there is none."""
    eager = result_orders(region.leaves, inputs)
    if not eager:
        return {}
    free = result_orders(region.leaves, inputs, seen=False)
    unseen = {name: free[name] for name in region.unseen if name in free}
    found = {**eager, **unseen}
    return {name: found[name] for name in found if name not in region.of_products}


def with_unseen(items: Sequence[Item]) -> list[Item]:
    """The items, each region with the names of its results whose strides the user never sees.

    Seen are results of the trace, and what those get their strides from. Products and embeddings
    make contiguous results of anything.
    """
    seen, read = set[str](), set[str]()
    found: list[Item] = []
    for item in reversed(items):
        if isinstance(item, Region):
            unseen = {out.name for out in item.outputs if out.name not in seen}
            origins = _origins(item)
            seen.update(*(origins[out.name] for out in item.outputs if out.name in seen))
            names = tuple(out.name for out in item.outputs if out.name in unseen)
            product = tuple(name for name in names if name in read)
            item = replace(item, unseen=names, of_products=product)
        elif item.sym.id is PrimIDs.RETURN or _passes_on(item, seen):
            seen.update(proxy.name for proxy in read_by(item))
        elif _is_product(item):
            read.update(proxy.name for proxy in read_by(item))
        found.append(item)
    return found[::-1]


def _is_contiguous(order: tuple[int, ...]) -> bool:
    return order == tuple(sorted(order, reverse=True))


def _orders_of(
    leaf: BoundSymbol, made: TensorProxy, known: Orders
) -> Sequence[tuple[int, ...]]:
    """Of the operands that a result may lie like; the first is the one that eager takes."""
    if leaf.sym.id is PrimIDs.STRIDE_ORDER:
        return [tuple(leaf.args[1])]
    return [known[one.name] for one in _models(leaf, made) if one.name in known]


def _models(leaf: BoundSymbol, made: TensorProxy) -> Iterable[Proxy]:
    """The operands that a result may lie like."""
    if leaf.sym.id in _OF_OTHER_AXES:
        return []
    return [one for one in reads(leaf) if _has_axes_of(one, made, leaf)]


def _has_axes_of(operand: Proxy, made: TensorProxy, leaf: BoundSymbol) -> bool:
    if not isinstance(operand, TensorProxy) or operand.ndim != made.ndim or made.ndim < 2:
        return False
    return leaf.sym.id in _OTHER_SIZES or operand._shape == made._shape


def _origins(region: Region) -> Mapping[str, Set[str]]:
    """Each value's name -> the names of the inputs that it may lie like."""
    found: dict[str, set[str]] = {one.name: {one.name} for one in region.inputs}
    for leaf in region.leaves:
        for made in makes(leaf):
            models = _models(leaf, made) if isinstance(made, TensorProxy) else ()
            found[made.name] = set[str]().union(*(found[one.name] for one in models))
    return found


def _passes_on(item: BoundSymbol, seen: Set[str]) -> bool:
    """True for an op of torch that makes a seen result, whose strides its operands may decide."""
    if not any(made.name in seen for made in makes(item)):
        return False
    return not _is_product(item) and not all(one.sym.id in _LOOKUPS for one in parts(item))


def _is_product(item: BoundSymbol) -> bool:
    return all(has_tags(one, {OpTags.MATMUL_OP}) for one in parts(item))
