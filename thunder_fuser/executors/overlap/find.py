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
communication/products.py decides whether it is a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any

import torch
from thunder.core.dtypes import to_torch_dtype
from thunder.core.prims import PrimIDs as Primitives
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, Symbol
from thunder.distributed.prims import DistributedReduceOps, PrimIDs

from thunder_fuser.communication.products import PRODUCTS, foreseen, of_rows
from thunder_fuser.executors.overlap.backward_products import Consumer, GatheredCallable, consumed
from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.regions.region import Item, Region, made_by, read_by
from thunder_fuser.executors.run.region_callable import bind_callable
from thunder_fuser.executors.support.dtypes import data_type
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.multi_device import LowerParams
from thunder_fuser.trace.dataflow import Memory
from thunder_fuser.trace.proxies import is_product, makes, overwritten, parts, reads

# With gradients, torch's executor has already claimed them; without, they are still primitives.
_GATHER, _SCATTER, _REDUCE, _WAIT = (
    (prim, f"torch_{prim.name.lower()}_prim_impl")
    for prim in (PrimIDs.ALL_GATHER, PrimIDs.REDUCE_SCATTER, PrimIDs.ALL_REDUCE, PrimIDs.WAIT)
)
_DTYPES = (DataType.Half, DataType.BFloat16, DataType.Float, DataType.Double)


@dataclass(frozen=True, slots=True)
class _Joined:
    """A call at the place `at` that replaces the items at the places `gone`."""

    at: int
    gone: tuple[int, ...]
    bsym: BoundSymbol


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
        calls = [(at, one) for at, one in enumerate(self.items) if isinstance(one, BoundSymbol)]
        products = ((at, one) for at, one in calls if self._is_taken(one))
        waits = ((at, one) for at, one in calls if one.sym.id in _WAIT)
        yield from filter(None, (self._gathered(*one) or self._reduced(*one) for one in products))
        yield from filter(None, (self._gathered_again(*one) for one in waits))

    def _is_taken(self, item: BoundSymbol) -> bool:
        """True for a product of two plain float tensors without a bias; the second is 2-dim."""
        if not is_product(item) or item.sym.name not in ("linear", "matmul"):
            return False
        tensors = [one for one in (*item.args, item.output) if isinstance(one, TensorProxy)]
        if len(tensors) != 3 or not all(self._is_plain(one) for one in tensors):
            return False
        a, b, _ = tensors
        return a.ndim >= 2 and b.ndim == 2 and a.dtype == b.dtype

    def _is_plain(self, one: TensorProxy) -> bool:
        known = all(type(size) is int and size for size in one._shape)
        on = one.device.devicetype.name == "CUDA" or self.lower.overlap == "always"
        return type(one) is TensorProxy and known and on and data_type(one.dtype) in _DTYPES

    # ---- a gather before a product

    def _gathered(self, at: int, item: BoundSymbol) -> _Joined | None:
        a, b = item.args[:2]
        transposed = item.sym.name == "linear"
        if (source := self._gather_of(a, at)) is not None:
            gather, gone = source
            shard, group = gather[0].args[:2]
            return self._call(
                "all_gather_matmul", at, gone, item, (shard, b), group, transposed, [*gather, item]
            )
        is_asked = self.lower.overlap == "always" and transposed and a.ndim == 2
        if is_asked and (source := self._gather_of(b, at)) is not None and source[1]:
            gather, gone = source
            shard, group = gather[0].args[:2]
            return self._call(
                "all_gather_linear", at, gone, item, (a, shard), group, False, [*gather, item]
            )
        return None

    def _gather_of(
        self, whole: TensorProxy, product: int
    ) -> tuple[tuple[BoundSymbol, BoundSymbol], tuple[int, ...]] | None:
        """(the gather and the wait of a gathered operand, the items that go). None if the operand
        is not gathered, or if other ops of the same direction read it."""
        wait = self._item(whole.name, _WAIT)
        gather = self._item(wait.args[0].name, _GATHER) if wait is not None else None
        if wait is None or gather is None or gather.args[3] not in (None, 0):
            return None
        shard = gather.args[0]
        others = [at for at in self.readers[whole.name] if at != product]
        places = (self.maker[gather.output.name], self.maker[whole.name])
        is_back = _is_backward(self.items[product])
        if others and (is_back or not all(_is_backward(self.items[at]) for at in others)):
            return None
        if type(shard) is not TensorProxy or self._is_written(shard, places[0], product):
            return None
        return (gather, wait), () if others else places

    def _gathered_again(self, at: int, wait: BoundSymbol) -> _Joined | None:
        """One call for all products of the backward with a gathered tensor. None if another op
        there reads it, or if the forward needs the whole tensor in any case."""
        whole = wait.output
        gather = self._item(wait.args[0].name, _GATHER)
        if gather is None or gather.args[3] not in (None, 0) or type(whole) is not TensorProxy:
            return None
        readers = self.readers.get(whole.name, [])
        before = [one for one in readers if not _is_backward(self.items[one])]
        back = [one for one in readers if one not in before]
        if before and (len(before) > 1 or not self._is_joined(before[0])):
            return None
        found = consumed(self.items, self.readers, back, whole.name, self._is_taken)
        post = self.maker[gather.output.name]
        shard, is_asked = gather.args[0], self.lower.overlap == "always"
        if found is None or not found.consumers or self._is_hidden(post, at):
            return None
        consumers, first = found.consumers, found.consumers[0].at
        is_weight = any(one.kind == "columns" for one in consumers)
        late = (self.maker.get(one.other.name, -1) > first for one in consumers)
        written = any(self._is_written(one.other, first, one.at) for one in consumers)
        if (is_weight and not is_asked) or any(late) or written:
            return None
        if type(shard) is not TensorProxy or self._is_written(shard, post, first):
            return None
        gone = (post, at, *found.views, *(one.at for one in consumers))
        return self._products(gone, consumers, (gather, wait))

    def _is_joined(self, at: int) -> bool:
        """True if the product will be one call with its gather."""
        item = self.items[at]
        is_taken = isinstance(item, BoundSymbol) and self._is_taken(item)
        return is_taken and self._gathered(at, item) is not None  # type: ignore[arg-type]

    def _products(
        self, gone: tuple[int, ...], consumers: Sequence[Consumer],
        gather: tuple[BoundSymbol, BoundSymbol],
    ) -> _Joined:  # fmt: skip
        shard, group = gather[0].args[:2]
        name = f"{GatheredCallable.name}{next(self.numbers)}"
        call = GatheredCallable(name, group, self.lower, consumers)
        symbol = Symbol(name, call.meta, executor=self.executor, _bind_postprocess=bind_callable)
        parts_of = (*gather, *(self.items[one.at] for one in consumers))
        operands = (shard, *(one.other for one in consumers))
        bsym = symbol.bind(*operands, output=call.outputs, subsymbols=parts_of)
        bsym.tags.add(BoundSymbolTag.BACKWARD)
        return _Joined(consumers[0].at, gone, bsym)

    # ---- a reduction behind a product

    def _reduced(self, at: int, item: BoundSymbol) -> _Joined | None:
        product = item.output
        *copies, post_at = self._only_readers(product)
        post = self.items[post_at]
        if not isinstance(post, BoundSymbol) or post.sym.id not in (*_SCATTER, *_REDUCE):
            return None
        op, group, is_async, dim = [*post.args, None][1:5]
        is_scatter = post.sym.id in _SCATTER
        given = post.args[0]._shape
        rows = given[0] if is_scatter else prod(given[:-1])
        is_first = not is_scatter or dim in (None, 0)
        if op is not DistributedReduceOps.SUM or not is_first or rows % group.size():
            return None
        waits = self.readers.get(post.output.name, [])
        if not is_async or len(waits) != 1 or self._is_hidden(post_at, waits[0]):
            return None
        wait_at = waits[0]
        if any(self._is_written(one, at, post_at) for one in item.args[:2]):
            return None
        name = "matmul_reduce_scatter" if is_scatter else "matmul_all_reduce"
        wait = self.items[wait_at]
        assert isinstance(wait, BoundSymbol)  # nothing else reads a future
        transposed = item.sym.name == "linear"
        return self._call(
            name, post_at, (at, *copies, post_at, wait_at), wait, item.args[:2], group, transposed,
            [item, post, wait],
        )

    def _only_readers(self, product: TensorProxy) -> list[int]:
        """The only reader of a value, preceded by the items that pass on its rows unchanged."""
        found: list[int] = []
        name = product.name
        while len(readers := self.readers.get(name, [])) == 1:
            found += readers
            item = self.items[readers[0]]
            if not _keeps_rows(item):
                break
            name = made_by(item)[0].name
        return found or [self.maker[product.name]]

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
        found = self.items[self.maker[name]] if name in self.maker else None
        is_it = isinstance(found, BoundSymbol) and found.sym.id in wanted
        return found if is_it else None  # type: ignore[return-value]

    def _is_written(self, one: TensorProxy, start: int, end: int) -> bool:
        """True if a value is written in place between two items."""
        between = (item for item in self.items[start:end] if isinstance(item, BoundSymbol))
        return any(one.name == other.name for item in between for other in overwritten(item))

    def _call(  # noqa: PLR0917
        self, name: str, at: int, gone: tuple[int, ...], result: BoundSymbol,
        operands: Sequence[TensorProxy], group: Any, transposed: bool,
        parts: Sequence[BoundSymbol],
    ) -> _Joined:  # fmt: skip
        """The call. parts: the symbols that it replaces; the collectives among them keep it out of
        CUDA graphs."""
        own = f"{name}{next(self.numbers)}"  # a trace has one function of each name
        call = ProductCallable(name, own, group, self.lower, transposed, result.output)
        symbol = Symbol(own, call.meta, executor=self.executor, _bind_postprocess=bind_callable)
        bsym = symbol.bind(*operands, output=result.output, subsymbols=tuple(parts))
        bsym.tags.update(result.tags)
        return _Joined(at, gone, bsym)


def _is_backward(item: Item) -> bool:
    if isinstance(item, Region):
        return item.is_backward
    return BoundSymbolTag.BACKWARD in item.tags


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
    """The callable of a product of communication/products.py, for tensors of any rank."""

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
        rows = (prod(a._shape[:-1]), a._shape[-1])
        right = b._shape[::-1] if self.transposed else b._shape
        return foreseen(
            self.name, rows, right, str(to_torch_dtype(a.dtype)).removeprefix("torch."),
            world=self.group.size(), device=a.device.type, lower=self.lower,
        )  # fmt: skip


def decisions(bsyms: Sequence[BoundSymbol]) -> list[str]:
    """A line for each such call of a trace: its results, its name, and the model's decision."""
    return [
        f"{', '.join(o.name for o in makes(bsym))} = {one.name}: {one.decision(*bsym.args)}"
        for one, bsym in _calls(bsyms)
    ]


def _calls(
    bsyms: Sequence[BoundSymbol],
) -> Iterator[tuple[ProductCallable | GatheredCallable, BoundSymbol]]:
    for bsym in bsyms:
        owner = getattr(bsym.sym.meta, "__self__", None)
        if isinstance(owner, (ProductCallable, GatheredCallable)):
            yield owner, bsym
