# SPDX-License-Identifier: Apache-2.0
"""The values of a trace as meta tensors: arguments as the user passed them, results in the order
that torch or a region would give them.

    y = conv2d(x, w)  ->  values["y"]: a meta tensor, channels last if x or w is
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from thunder.common import CompileData
from thunder.core import dtypes
from thunder.core.compile_data import get_compile_data
from thunder.core.prims import OpTags
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.pytree import tree_iter, tree_map
from thunder.core.symbol import BoundSymbol, has_tags
from thunder.core.trace import TraceCtx

from thunder_fuser.executors.record.record import layout_of, orders_of_results
from thunder_fuser.executors.record.torch_function import view_function, views_for
from thunder_fuser.executors.regions.plan import RegionMemory
from thunder_fuser.executors.regions.region import Item, Region, made_by, only
from thunder_fuser.executors.stride_orders.convolutions import (
    is_changed,
    is_convolution,
    order_operands,
)
from thunder_fuser.executors.stride_orders.orders import FORMATS, channels_last
from thunder_fuser.executors.support.check import leaves_of
from thunder_fuser.executors.support.dtypes import data_type
from thunder_fuser.functions import attention
from thunder_fuser.ir.strides import contiguous_strides
from thunder_fuser.runtime.torch_types import to_torch_dtype
from thunder_fuser.trace.proxies import FENCES, TORCH_KERNELS, VIEWS, makes, overwritten, reads

Values = dict[str, Any]  # meta tensors and numbers, by the names of their proxies

# Executors whose functions call aten operators, each of which torch can run on meta tensors.
_RUN_ATEN = (TORCH_KERNELS, attention.KERNELS)
_TORCH = (torch, torch.nn.functional)
_ALIGNMENT = 16  # no kernel asks for more bytes, so none asks for more elements
_META = torch.device("meta")

# {compilation: {id of a proxy's history: (the history, the meta tensor)}}
_NOTED: WeakKeyDictionary[CompileData, dict[int, tuple[Any, torch.Tensor]]] = WeakKeyDictionary()


def note_layout(data: CompileData, history: Any, tensor: torch.Tensor) -> None:
    """Notes the layout and alignment of an argument; contiguous for one without strides. history:
    that of its proxy."""
    sizes, of_type = tensor.shape, {"dtype": tensor.dtype, "device": _META}
    if tensor.layout is torch.strided:
        offset = tensor.storage_offset() % _ALIGNMENT
        steps = zip(sizes, tensor.stride(), strict=True)
        length = offset + 1 + sum(max(size - 1, 0) * stride for size, stride in steps)
        meta = torch.empty(length, **of_type).as_strided(sizes, tensor.stride(), offset)
    else:
        meta = torch.empty(sizes, **of_type)
    _NOTED.setdefault(data, {})[id(history)] = history, meta


def noted_of(trace: TraceCtx, *, forget: bool = False) -> dict[str, torch.Tensor]:
    """The arguments of the traced call whose layouts were noted, as meta tensors.

    forget: drops what was noted for this compilation.
    """
    data = get_compile_data()
    take = _NOTED.pop if forget else _NOTED.get
    noted = take(data, {}) if data is not None else {}
    places = {proxy.name: id(proxy.history) for proxy in _proxies_of(trace)}
    return {name: noted[place][1] for name, place in places.items() if place in noted}


def arguments_of(trace: TraceCtx, *, forget: bool = False) -> Values:
    """All arguments of the traced call; contiguous if no layout was noted."""
    values = {proxy.name: value_of(proxy) for proxy in _proxies_of(trace)}
    return values | noted_of(trace, forget=forget)


def _proxies_of(trace: TraceCtx) -> list[Proxy]:
    """Its arguments, without those that thunder.trace() keeps as they are: "mT" of getattr."""
    return [arg for arg in trace.args or () if isinstance(arg, Proxy)]


def results_of(item: Item, memory: RegionMemory, values: Values) -> list[Any]:
    """The results of an item for meta tensors; none if torch cannot tell. values: those of all
    operands."""
    if not isinstance(item, Region):
        return [*_of_torch(item, values)]
    args = [values[proxy.name] for proxy in item.inputs]
    views = view_function(item) if item.makes_views else None
    if views is None and item.moves_only:
        views = views_for(item, args)
    if views is not None:
        return [*views(*args)]
    layouts = [layout_of(arg) if isinstance(arg, torch.Tensor) else None for arg in args]
    orders = orders_of_results(item, memory, layouts)
    return [value_of(proxy, orders.get(proxy.name)) for proxy in item.outputs]


def guessed_results(item: Item, memory: RegionMemory, values: Values) -> Sequence[Any]:
    """As results_of; contiguous tensors if nothing is known."""
    proxies = made_by(item)
    try:
        results = results_of(item, memory, values)
    except Exception:  # torch cannot run it on meta tensors
        results = []
    shapes = [tuple(value.shape) for value in results if isinstance(value, torch.Tensor)]
    if shapes != [proxy._shape for proxy in proxies if isinstance(proxy, TensorProxy)]:
        return [*map(value_of, proxies)]
    tensors = (value for value in results if isinstance(value, torch.Tensor))
    return [next(tensors) if isinstance(p, TensorProxy) else value_of(p) for p in proxies]


def _of_torch(bsym: BoundSymbol, values: Values) -> Iterator[Any]:
    """The results of a call of torch."""
    read = list({proxy.name: proxy for proxy in reads(bsym)}.values())
    if only(bsym, VIEWS):
        region = Region(tuple(leaves_of(bsym)), tuple(read), tuple(makes(bsym)), is_backward=False)
        yield from view_function(region)(*(values[proxy.name] for proxy in read))
    elif bsym.sym.id in FENCES:
        yield from (values[proxy.name] for proxy in read)
    elif written := [*overwritten(bsym)]:
        yield from (values[proxy.name] for proxy in written)
    elif (function := _function_of(bsym)) is not None:
        args, kwargs = tree_map(
            lambda x: values[x.name] if isinstance(x, Proxy) else x, (bsym.args, bsym.kwargs)
        )
        is_last = is_convolution(bsym) and (
            is_changed(bsym)
            or any(_is_channels_last(values[operand.name]) for operand in order_operands(bsym))
        )
        for at, value in enumerate(tree_iter(function(*args, **kwargs))):
            # Of both gradients, the image's comes first; that of a weight lies as the weight.
            is_image = isinstance(value, torch.Tensor) and not (at and is_changed(bsym))
            yield channels_last(value) if is_last and is_image else value


def _is_channels_last(value: Any) -> bool:
    """True for channels-last images. One among the operands makes a convolution's result channels
    last, but torch forgets this on the meta device."""
    layout = FORMATS.get(value.ndim) if isinstance(value, torch.Tensor) else None
    return bool(layout and value.is_contiguous(memory_format=layout) and not value.is_contiguous())


def _function_of(bsym: BoundSymbol) -> Callable[..., Any] | None:
    """The function that Thunder will call, if torch can run it on meta tensors without effects."""
    symbol = bsym.sym
    if symbol.executor is None or has_tags(bsym, {OpTags.RANDOM_OP}):
        return None
    if symbol.executor in _RUN_ATEN:
        return bsym._call_ctx[symbol.name]  # type: ignore[no-any-return]
    return getattr(symbol.module, symbol.name, None) if symbol.module in _TORCH else None


def value_of(proxy: Proxy, order: Sequence[int] | None = None) -> Any:
    """A meta tensor in this stride order, or the number (0 if it is not known yet)."""
    if isinstance(proxy, TensorProxy):
        known = data_type(proxy.dtype)
        dtype = dtypes.to_torch_dtype(proxy.dtype) if known is None else to_torch_dtype(known)
        strides = contiguous_strides(proxy._shape, order)
        return torch.empty_strided(proxy._shape, strides, dtype=dtype, device=_META)
    if isinstance(proxy, NumberProxy):
        return proxy.python_type() if proxy.value is None else proxy.value
    return None
