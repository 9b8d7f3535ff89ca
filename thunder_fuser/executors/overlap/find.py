# SPDX-License-Identifier: Apache-2.0
"""A plan -> the same, with products and their communication as one call each.

    f = all_gather(x, group); g = wait(f); y = linear(g, w)    ->  y = all_gather_matmul(x, w)
    p = linear(a, w); f = reduce_scatter(p); y = wait(f)       ->  y = matmul_reduce_scatter(a, w)
    p = linear(a, w); f = all_reduce(p); y = wait(f)           ->  y = matmul_all_reduce(a, w)

If the backward reads the gathered tensor too, it gathers it again, so that only the shard is saved;
all its products with it are one call (backward_products.py). Three cases keep the collective as it
is: other ops of the forward read the gathered tensor (several products of one input); it is a
weight of FSDP, which Thunder's passes gather while earlier products run; other products run beside
it. The setting lower.overlap=always turns the last two into calls too. When a call runs,
communication/products/products.py decides whether it is a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import torch
from thunder.core.dtypes import to_torch_dtype
from thunder.core.prims import PrimIDs as Primitives
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, Symbol
from thunder.distributed.prims import DistributedReduceOps, PrimIDs

from thunder_fuser.communication.products.pairs import (
    MatrixProduct,
    ProductPair,
    SumOverDevices,
    pairs_of,
)
from thunder_fuser.communication.products.products import PRODUCTS, foreseen, of_rows
from thunder_fuser.executors.overlap.backward_products import Consumer, GatheredCallable, consumed
from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.regions.region import Item, Region, is_backward, made_by, read_by
from thunder_fuser.executors.run.region_callable import bind_callable
from thunder_fuser.executors.support.dtypes import data_type
from thunder_fuser.multi_device import LowerParams
from thunder_fuser.trace.dataflow import Memory
from thunder_fuser.trace.proxies import is_product, makes, overwritten, parts, reads

# With gradients, torch's executor has already claimed them; without, they are still primitives.
_GATHER, _SCATTER, _REDUCE, _WAIT = (
    (prim, f"torch_{prim.name.lower()}_prim_impl")
    for prim in (PrimIDs.ALL_GATHER, PrimIDs.REDUCE_SCATTER, PrimIDs.ALL_REDUCE, PrimIDs.WAIT)
)


@dataclass(frozen=True, slots=True)
class _Joined:
    """A call at the place `at` that replaces the items at the places `gone`."""

    at: int
    gone: tuple[int, ...]
    bsym: BoundSymbol


class _Replaced(NamedTuple):
    """A collective and its wait. at: where the call stands that replaces them; gone: the places of
    the items that go."""

    at: int
    gone: tuple[int, ...]
    symbols: tuple[BoundSymbol, BoundSymbol]
    group: Any


def overlap_products(plan: Plan) -> Plan:
    """Joins matrix products and their communication into calls that overlap the two.

    On GPUs unless the setting lower.overlap is never; elsewhere if it is always.
    """
    if plan.options.lower.overlap == "never":
        return plan
    separate = plan.with_items(_views_apart(plan.items))
    new: dict[int, Item] = {}
    gone: set[int] = set()
    for call in Finder(separate).calls():
        if gone.isdisjoint(call.gone) and call.at not in new:
            new[call.at] = call.bsym
            gone.update(call.gone)
    if not new:
        return plan
    return plan.with_items(
        new.get(at, item)
        for at, item in enumerate(separate.items) if at not in gone or at in new
    )  # fmt: skip


def _views_apart(items: Sequence[Item]) -> Iterator[Item]:
    """The items; a region with views of unrelated tensors becomes one region for each tensor.

        v, u = views(dy, x)     ->      v = views(dy); u = views(x)
    """
    for item in items:
        if not isinstance(item, Region) or not item.makes_views or len(item.inputs) < 2:
            yield item
            continue
        memory = Memory(
            tuple(proxy.name for proxy in (*makes(leaf), *reads(leaf))) for leaf in item.leaves
        )
        groups: dict[str, list[str]] = {}
        for output in item.outputs:
            groups.setdefault(memory.of(output.name), []).append(output.name)
        yield from map(item.narrowed, groups.values())


class Finder:
    """Finds the calls, by the makers and the readers of each value of the plan."""

    def __init__(self, plan: Plan) -> None:
        self.items, self.maker, self.readers = plan.items, plan.makers, plan.readers
        self.lower, self.executor = plan.options.lower, plan.options.executor
        self.numbers = count()

    def calls(self) -> Iterator[_Joined]:
        calls = [(at, bsym) for at, bsym in enumerate(self.items) if isinstance(bsym, BoundSymbol)]
        pairs = ((at, bsym, self._pair(bsym)) for at, bsym in calls)
        waits = ((at, bsym) for at, bsym in calls if bsym.sym.id in _WAIT)
        yield from (self._joined(at, bsym, pair) for at, bsym, pair in pairs if pair is not None)
        yield from filter(None, (self._gathered_again(at, wait) for at, wait in waits))

    def _pair(self, item: BoundSymbol) -> ProductPair | None:
        product = self._product(item)
        pairs = () if product is None else pairs_of(product, self.gather_of, self.reduction_of)
        return next(iter(pairs), None)

    def _product(self, item: BoundSymbol) -> MatrixProduct | None:
        """A product of two plain tensors, without a bias."""
        if not is_product(item) or item.sym.name not in ("linear", "matmul"):
            return None
        tensors = [proxy for proxy in (*item.args, item.output) if isinstance(proxy, TensorProxy)]
        if len(tensors) != 3 or not all(map(self._is_plain, tensors)):
            return None
        sizes, dtypes = (tuple(t._shape) for t in tensors), (data_type(t.dtype) for t in tensors)
        return MatrixProduct(item, item.sym.name == "linear", tuple(sizes), tuple(dtypes))

    def _is_taken(self, item: BoundSymbol) -> bool:
        product = self._product(item)
        return product is not None and product.is_supported

    def _is_plain(self, tensor: TensorProxy) -> bool:
        known = all(type(size) is int and size for size in tensor._shape)
        on = tensor.device.devicetype.name == "CUDA" or self.lower.overlap == "always"
        return type(tensor) is TensorProxy and known and on

    # ---- a gather before a product

    def gather_of(self, product: MatrixProduct, place: int) -> _Replaced | None:
        """The gather of an operand. None if other ops of the same direction read the gathered
        tensor, and for a weight unless overlap is "always": Thunder's passes hide its gather."""
        at = self.maker[product.op.output.name]
        whole = product.op.args[place]
        is_asked = place == 0 or self.lower.overlap == "always"
        wait = self._item(whole.name, _WAIT) if is_asked else None
        gather = self._item(wait.args[0].name, _GATHER) if wait is not None else None
        if wait is None or gather is None or gather.args[3] not in (None, 0):
            return None
        shard, group = gather.args[:2]
        others = [reader for reader in self.readers[whole.name] if reader != at]
        places = (self.maker[gather.output.name], self.maker[whole.name])
        is_alone = place == 1 or is_backward(self.items[at])
        if others and (is_alone or not all(is_backward(self.items[at]) for at in others)):
            return None
        if type(shard) is not TensorProxy or self._is_written(shard, places[0], at):
            return None
        return _Replaced(at, () if others else places, (gather, wait), group)

    def _gathered_again(self, at: int, wait: BoundSymbol) -> _Joined | None:
        """One call for all products of the backward with a gathered tensor. None if another op
        there reads it, or if the forward needs the whole tensor in any case."""
        whole = wait.output
        gather = self._item(wait.args[0].name, _GATHER)
        if gather is None or gather.args[3] not in (None, 0) or type(whole) is not TensorProxy:
            return None
        readers = self.readers.get(whole.name, [])
        before = [reader for reader in readers if not is_backward(self.items[reader])]
        back = [reader for reader in readers if reader not in before]
        if before and (len(before) > 1 or not self._is_joined(before[0])):
            return None
        readings = consumed(self.items, self.readers, back, whole.name, self._is_taken)
        post = self.maker[gather.output.name]
        shard, is_asked = gather.args[0], self.lower.overlap == "always"
        if readings is None or not readings[0] or self._is_hidden(post, at):
            return None
        consumers, views = readings
        first = consumers[0].at
        is_weight = any(product.kind == "columns" for product in consumers)
        late = (self.maker.get(product.other.name, -1) > first for product in consumers)
        written = any(self._is_written(product.other, first, product.at) for product in consumers)
        if (is_weight and not is_asked) or any(late) or written:
            return None
        if type(shard) is not TensorProxy or self._is_written(shard, post, first):
            return None
        gone = (post, at, *views, *(product.at for product in consumers))
        return self._products(gone, consumers, (gather, wait))

    def _is_joined(self, at: int) -> bool:
        """True if the product will be one call with its gather."""
        item = self.items[at]
        pair = self._pair(item) if isinstance(item, BoundSymbol) else None
        return pair is not None and pair.place is not None

    def _products(
        self, gone: tuple[int, ...], consumers: Sequence[Consumer],
        gather: tuple[BoundSymbol, BoundSymbol],
    ) -> _Joined:  # fmt: skip
        shard, group = gather[0].args[:2]
        name = f"{GatheredCallable.name}{next(self.numbers)}"
        call = GatheredCallable(name, group, self.lower, consumers)
        symbol = Symbol(name, call.meta, executor=self.executor, _bind_postprocess=bind_callable)
        parts_of = (*gather, *(self.items[product.at] for product in consumers))
        operands = (shard, *(product.other for product in consumers))
        bsym = symbol.bind(*operands, output=call.outputs, subsymbols=parts_of)
        bsym.tags.add(BoundSymbolTag.BACKWARD)
        return _Joined(consumers[0].at, gone, bsym)

    # ---- a reduction behind a product

    def reduction_of(self, product: MatrixProduct) -> SumOverDevices | None:
        """The reduction behind a product. None if it is awaited elsewhere, or hidden."""
        at = self.maker[product.op.output.name]
        *copies, post_at = self._only_readers(product.op.output)
        post = self.items[post_at]
        if not isinstance(post, BoundSymbol) or post.sym.id not in (*_SCATTER, *_REDUCE):
            return None
        op, group, is_async, dim = [*post.args, None][1:5]
        is_scatter = post.sym.id in _SCATTER
        if op is not DistributedReduceOps.SUM or (is_scatter and dim not in (None, 0)):
            return None
        waits = self.readers.get(post.output.name, [])
        if not is_async or len(waits) != 1 or self._is_hidden(post_at, waits[0]):
            return None
        if any(self._is_written(operand, at, post_at) for operand in product.op.args[:2]):
            return None
        gone, symbols = (at, *copies, post_at, *waits), (post, self.items[waits[0]])
        kind = "reduce_scatter" if is_scatter else "all_reduce"
        return SumOverDevices(kind, group.size(), _Replaced(post_at, gone, symbols, group))

    def _only_readers(self, product: TensorProxy) -> list[int]:
        """The only reader of a value, preceded by the items that pass on its rows unchanged."""
        places: list[int] = []
        name = product.name
        while len(readers := self.readers.get(name, [])) == 1:
            places += readers
            item = self.items[readers[0]]
            if not _keeps_rows(item):
                break
            name = made_by(item)[0].name
        return places or [self.maker[product.name]]

    def _is_hidden(self, post: int, wait: int) -> bool:
        """True if other products run between the collective and its wait; False with "always".

            dx = matmul(dy, w); f = all_reduce(dx); dw = matmul(dy.T, x); wait(f)

        Most collectives of a backward are hidden so: Thunder's passes move independent ops there.
        """
        between = self.items[post:wait]
        is_asked = self.lower.overlap == "always"
        return not is_asked and any(isinstance(i, BoundSymbol) and is_product(i) for i in between)

    # ---- both

    def _item(self, name: str, wanted: tuple[object, ...]) -> BoundSymbol | None:
        """The bound symbol of one of these ids that makes a value."""
        maker = self.items[self.maker[name]] if name in self.maker else None
        is_it = isinstance(maker, BoundSymbol) and maker.sym.id in wanted
        return maker if is_it else None  # type: ignore[return-value]

    def _is_written(self, tensor: TensorProxy, start: int, end: int) -> bool:
        """True if a value is written in place between two items."""
        between = (item for item in self.items[start:end] if isinstance(item, BoundSymbol))
        return any(tensor.name == other.name for item in between for other in overwritten(item))

    def _joined(self, at: int, item: BoundSymbol, pair: ProductPair) -> _Joined:
        """The call. Its parts are the symbols that it replaces; the collectives among them keep it
        out of CUDA graphs."""
        replaced: _Replaced = pair.collective
        first, second = replaced.symbols
        operands, parts, result = [*item.args[:2]], (item, first, second), second
        if pair.place is not None:
            operands[pair.place] = first.args[0]
            parts, result = (first, second, item), item
        name = f"{pair.name}{next(self.numbers)}"  # a trace has one function of each name
        call = ProductCallable(
            pair.name, name, replaced.group, self.lower, pair.transposed, result.output
        )
        symbol = Symbol(name, call.meta, executor=self.executor, _bind_postprocess=bind_callable)
        bsym = symbol.bind(*operands, output=result.output, subsymbols=parts)
        bsym.tags.update(result.tags)
        return _Joined(replaced.at, replaced.gone, bsym)


def _keeps_rows(item: Item) -> bool:
    """True if an item makes one tensor from one tensor, with the same rows in the same order.

    That is a copy into row-major order, which a product's result has, or a reshape of leading axes.
    """
    leaves = item.leaves if isinstance(item, Region) else parts(item)
    is_one = len(read_by(item)) == 1 == len(made_by(item))
    return is_one and bool(leaves) and all(map(_is_of_rows, leaves))


def _is_of_rows(leaf: BoundSymbol) -> bool:
    if leaf.sym.id is Primitives.RESHAPE:
        return bool(leaf.args[0]._shape[-1:] == leaf.output._shape[-1:])
    if leaf.sym.id is Primitives.STRIDE_ORDER:
        return tuple(leaf.args[1]) == tuple(range(leaf.args[0].ndim))[::-1]
    return leaf.sym.id is Primitives.SHALLOW_COPY


class ProductCallable:
    """The callable of a product of communication/products/products.py, for tensors of any rank."""

    def __init__(  # noqa: PLR0917
        self, name: str, symbol: str, group: Any, lower: LowerParams, transposed: bool,
        output: Proxy,
    ) -> None:  # fmt: skip
        self.name, self.group, self.lower = name, group, lower
        self.transposed, self.output = transposed, output
        self.shape: tuple[int, ...] = tuple(output._shape)
        self.context: dict[str, Callable[..., torch.Tensor]] = {symbol: self.call}

    def meta(self, *args: Any) -> Proxy:
        """The proxy of the result, for Thunder."""
        return self.output

    def call(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a [.., m, k] with its leading axes as rows; b [k, n], or [n, k] if it is transposed."""
        right = b.t() if self.transposed else b
        return of_rows(PRODUCTS[self.name], a, right, self.group, self.lower, self.shape)

    def decision(self, a: TensorProxy, b: TensorProxy) -> str:
        """The cost model's decision for operands of these shapes, with its numbers."""
        right = b._shape[::-1] if self.transposed else b._shape
        return foreseen(
            self.name, a._shape, right, str(to_torch_dtype(a.dtype)).removeprefix("torch."),
            world=self.group.size(), device=a.device.type, lower=self.lower,
        )  # fmt: skip


def decisions(bsyms: Sequence[BoundSymbol]) -> list[str]:
    """A line for each such call of a trace: its results, its name, and the model's decision."""
    return [
        f"{', '.join(o.name for o in makes(bsym))} = {call.name}: {call.decision(*bsym.args)}"
        for call, bsym in _calls(bsyms)
    ]


def _calls(
    bsyms: Sequence[BoundSymbol],
) -> Iterator[tuple[ProductCallable | GatheredCallable, BoundSymbol]]:
    for bsym in bsyms:
        owner = getattr(bsym.sym.meta, "__self__", None)
        if isinstance(owner, (ProductCallable, GatheredCallable)):
            yield owner, bsym
