# SPDX-License-Identifier: Apache-2.0
"""Parts of a tensor that are written in place -> one call that writes them, as eager torch does.

    t9 = index_copy(t8, 1, i, k)     all of t8 is copied         t10 = index_copy_(t8, 1, i, k)
    t10 = copy_(t9, t8)              and copied back       ->

So an update of a key-value cache moves only the written bytes, not four times the whole cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.extend import OperatorExecutor

from thunder_fuser.trace.dataflow import DataFlow
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import COPIES, overwritten, renamed_by

IN_PLACE = OperatorExecutor("thunder_fuser_in_place")


def _of(name: str, function: Callable[..., Any]) -> Symbol:
    def write(a: torch.Tensor, *args: Any, grad_enabled: bool = True) -> torch.Tensor:
        if grad_enabled and a.is_leaf and a.requires_grad:
            raise RuntimeError(f"{name}: a leaf that requires grad cannot be written in place")
        function(a, *args)
        return a

    def result(a: TensorProxy, *args: Any, grad_enabled: bool = True) -> TensorProxy:
        return TensorProxy(like=a)

    return IN_PLACE.register_operator(name, meta=result, fn=write, tags=(OpTags.DONT_DCE,))


# {a symbol that copies its first operand and writes to the copy: one that writes to the operand}
_WRITES = {
    "copy_with_setitem_impl": _of("setitem_", torch.Tensor.__setitem__),
    "torch.index_copy": _of("index_copy_", torch.Tensor.index_copy_),
    "torch.index_add": _of("index_add_", torch.Tensor.index_add_),
    "torch.scatter_add": _of("scatter_add_", torch.Tensor.scatter_add_),
}


def write_in_place(prepared: Prepared) -> Prepared:
    """Writes a part of a tensor by one call, instead of copying the tensor there and back."""
    if not any(op.only(COPIES) for op in prepared.ops):
        return prepared
    calls = dict(_pairs(prepared.flow))
    if not calls:
        return prepared
    gone = {*calls.values()}
    return prepared.with_ops(
        prepared.rules.op(_written(prepared.ops[calls[at]].bsym, op.bsym)) if at in calls else op
        for at, op in enumerate(prepared.ops) if at not in gone
    )  # fmt: skip


def _pairs(flow: DataFlow) -> Iterator[tuple[int, int]]:
    """The place of each in-place copy that is the only reader of a call, and that call's place.

    The call may move to the copy if nothing is written in place between them, and if no other
    operand shares the memory of its first one: torch refuses to write what it also reads.
    """
    ops, users = flow.ops, flow.readers
    memory = flow.without(_WRITES).memory
    last_write = -1
    makers: dict[str, int] = {}
    for at, op in enumerate(ops):
        if op.only(COPIES):
            ((source, _),), (target,) = renamed_by(op.bsym), overwritten(op.bsym)
            call = makers.get(source.name, -1)
            if call > last_write and users[source.name] == [at]:
                first, *others = ops[call].read_names
                places = [memory.of(name) for name in (first, *others)]
                if first == target.name and places.count(places[0]) == 1:
                    yield at, call
        if op.kinds & COPIES:
            last_write = at
        elif op.bsym.sym.id in _WRITES:
            makers[op.makes[0].name] = at


def _written(call: BoundSymbol, copy: BoundSymbol) -> BoundSymbol:
    """One bound symbol for both, which are its parts."""
    enabled = copy.kwargs.get("grad_enabled", True)
    both = _WRITES[call.sym.id].bind(
        *call.args, grad_enabled=enabled, output=copy.output, subsymbols=(call, copy)
    )
    both.tags |= copy.tags
    both.header = call.header
    return both
