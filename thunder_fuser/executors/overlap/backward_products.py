# SPDX-License-Identifier: Apache-2.0
"""All products of a backward with one gathered tensor, as one call that gathers it in parts.

    f = all_gather(dy); g = wait(f)
    dx = matmul(g, w)                       ->  dx, dw = all_gather_products(dy, w, x)
    v = transpose(g); dw = matmul(v, x)

The views between the gather and its products become part of the call. If any other op of the
backward reads the gathered tensor, nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from thunder.core.dtypes import to_torch_dtype
from thunder.core.prims import PrimIDs as Primitives
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.communication.products.products import (
    all_gather_products,
    foreseen,
    products_sizes,
)
from thunder_fuser.executors.regions.region import Item, Region, made_by, read_by
from thunder_fuser.multi_device import LowerParams
from thunder_fuser.trace.proxies import parts


@dataclass(frozen=True, slots=True)
class Consumer:
    """A product with a gathered tensor G, at a place of the items.

    kind: rows (G @ other), columns (other @ G.T), left (G.T @ other) or right (other @ G).
    transposed: the trace has the transpose of the other operand.
    """

    at: int
    kind: str
    other: TensorProxy
    transposed: bool
    output: TensorProxy


def consumed(
    items: Sequence[Item], readers: Mapping[str, Sequence[int]], starts: Sequence[int],
    whole: str, is_product: Callable[[BoundSymbol], bool],
) -> tuple[list[Consumer], list[int]] | None:  # fmt: skip
    """The readers of a gathered tensor, from the items at `starts` on, in order, and the places of
    the views between; None if any reader is not a product."""
    turned = {whole: False}  # {a view of it: whether it is transposed}
    consumers: list[Consumer] = []
    views: list[int] = []
    line = list(dict.fromkeys(starts))
    for at in line:
        item = items[at]
        if isinstance(item, BoundSymbol) and is_product(item):
            consumer = _consumer(at, item, turned)
            if consumer is None:
                return None
            consumers.append(consumer)
            continue
        results = _views(item, turned)
        if results is None:
            return None
        views.append(at)
        turned |= results
        line += (
            reader for name in results for reader in readers.get(name, ()) if reader not in line
        )
    return sorted(consumers, key=lambda product: product.at), views


def _views(item: Item, turned: Mapping[str, bool]) -> dict[str, bool] | None:
    """The results of an item, if all are views of the gathered tensor as a matrix."""
    leaves = item.leaves if isinstance(item, Region) else tuple(parts(item))
    known, results = dict(turned), dict[str, bool]()
    if any(proxy.name not in turned for proxy in read_by(item)):
        return None
    for leaf in leaves:
        source = leaf.args[0] if leaf.args else None
        flips = _flips(leaf)
        if not isinstance(source, TensorProxy) or source.name not in known or flips is None:
            return None
        if leaf.sym.id is Primitives.RESHAPE and known[source.name] and source.ndim != 2:
            return None
        known[leaf.output.name] = known[source.name] ^ flips
    for proxy in made_by(item):
        if proxy.name not in known:
            return None
        results[proxy.name] = known[proxy.name]
    return results


def _flips(leaf: BoundSymbol) -> bool | None:
    """True if a view transposes a matrix, False if it keeps the rows, None if it does neither."""
    if leaf.sym.id is Primitives.TRANSPOSE:
        return True if tuple(leaf.args[1]) == (1, 0) else None
    if leaf.sym.id is Primitives.SHALLOW_COPY:
        return False
    is_same = leaf.sym.id is Primitives.RESHAPE and (
        leaf.args[0]._shape[-1:] == leaf.output._shape[-1:]
    )
    return False if is_same else None


def _consumer(at: int, item: BoundSymbol, turned: Mapping[str, bool]) -> Consumer | None:
    """The product, if exactly one of its operands is a view of the gathered tensor.

    The second operand is a matrix, so a view with more axes is the first one.
    """
    a, b = item.args[:2]
    is_linear = item.sym.name == "linear"
    if (a.name in turned) == (b.name in turned):
        return None
    if a.name in turned:
        return Consumer(at, "left" if turned[a.name] else "rows", b, is_linear, item.output)
    kind = "right" if turned[b.name] == is_linear else "columns"
    return Consumer(at, kind, a, False, item.output)


class GatheredCallable:
    """The callable of a gather with its products; it returns their results in order."""

    name = "all_gather_products"

    def __init__(
        self, symbol: str, group: Any, lower: LowerParams, consumers: Sequence[Consumer]
    ) -> None:
        self.group, self.lower = group, lower
        self.kinds = tuple((consumer.kind, consumer.transposed) for consumer in consumers)
        self.outputs = tuple(consumer.output for consumer in consumers)
        self.shapes = [tuple(output._shape) for output in self.outputs]
        self.context: dict[str, Callable[..., Any]] = {symbol: self.call}

    def meta(self, *args: Any) -> tuple[Proxy, ...]:
        """The proxies of the results, for Thunder."""
        return self.outputs

    def call(self, shard: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The results of the products. Leading axes of an operand are rows of a matrix."""
        matrices = (other.reshape(-1, other.shape[-1]) for other in others)
        wanted = [
            (kind, matrix.t() if transposed else matrix)
            for (kind, transposed), matrix in zip(self.kinds, matrices, strict=True)
        ]
        rows = shard.reshape(-1, shard.shape[-1])
        results = all_gather_products(rows, wanted, self.group, self.lower)
        return tuple(result.view(shape) for result, shape in zip(results, self.shapes, strict=True))

    def decision(self, shard: TensorProxy, *others: TensorProxy) -> str:
        """The cost model's decision for operands of these shapes, with its numbers."""
        wanted = []
        for (kind, transposed), other in zip(self.kinds, others, strict=True):
            shape = (prod(other._shape[:-1]), other._shape[-1])
            wanted.append((kind, shape[::-1] if transposed else shape))
        rows = (prod(shard._shape[:-1]), shard._shape[-1])
        return foreseen(
            "all_gather_matmul", shard._shape, products_sizes(rows, wanted),
            str(to_torch_dtype(shard.dtype)).removeprefix("torch."),
            world=self.group.size(), device=shard.device.type, lower=self.lower,
        )  # fmt: skip
