# SPDX-License-Identifier: Apache-2.0
"""A plan -> the same, with copies of images that the user sees, in eager's stride order.

    y = conv2d(x, w); z = fusion(y); u = conv2d(z, v); r = fusion(u)     returned: r
->  the same,  r1 = image_in_order0(r, x, w, v)                          returned: r1

A user who sees an image's strides sees the order in which the convolutions before it ran. Without
such a copy, none of these could run in channels-last order. With it all can, and the order changes
twice instead of twice for each convolution. A pointwise region writes the copy's order itself, so
that nothing is copied, if eager torch makes the image row-major for the traced arguments. A norm
would write that order element by element, and leaves it to the copy.

Thunder does not guard strides. So each call computes the order from the strides of the arguments
that decide it, by running eager torch's operations on meta tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

import torch
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import TensorProxy, variableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, has_tags
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser.executors.regions.plan import Plan, RegionMemory
from thunder_fuser.executors.regions.region import (
    Item,
    Region,
    is_backward,
    made_by,
    only,
    read_by,
)
from thunder_fuser.executors.stride_orders.convolutions import (
    can_run_channels_last,
    is_convolution,
    makes_weights,
)
from thunder_fuser.executors.stride_orders.orders import FORMATS, in_memory_of, origins
from thunder_fuser.executors.stride_orders.simulate import (
    Values,
    arguments_of,
    results_of,
    value_of,
)
from thunder_fuser.executors.stride_orders.visible import (
    IN_ORDER,
    convolutions_of,
    deciding,
    hidden_convolutions,
    visible_results,
)
from thunder_fuser.functions.kernels import kernel
from thunder_fuser.ir.strides import contiguous_strides
from thunder_fuser.trace.proxies import TORCH_KERNELS, VIEWS, is_product

Strides = tuple[int, ...]

MIN_GAIN = 2  # convolutions; a single one copies its image in and out in any case
_USERS = frozenset({PrimIDs.RETURN, PrimIDs.GET_GRAD})


@dataclass(frozen=True, slots=True)
class _Image:
    """A result that the user sees. models: the arguments of the trace whose strides decide its own
    in eager torch; steps: the items from the models to it, in order, with the memory of each."""

    proxy: TensorProxy
    maker: Item
    steps: tuple[tuple[Item, RegionMemory], ...]
    models: tuple[TensorProxy, ...]

    def strides(self, strides_of_models: Sequence[Strides]) -> Strides | None:
        """Its strides in eager torch, for models with these; None if meta tensors cannot tell."""
        values: Values = {
            model.name: value_of(model).as_strided(model._shape, strides)
            for model, strides in zip(self.models, strides_of_models, strict=True)
        }
        try:
            for item, memory in self.steps:
                for proxy in read_by(item):  # unknown operands count as contiguous
                    values.setdefault(proxy.name, value_of(proxy))
                names = [proxy.name for proxy in made_by(item)]
                results = results_of(item, memory, values)
                if len(results) != len(names):
                    return None
                values |= zip(names, results, strict=True)
        except (RuntimeError, NotImplementedError):  # from operations that need memory
            return None
        strides: Strides = values[self.proxy.name].stride()
        return strides

    def is_row_major(self, arguments: Values) -> bool:
        """True if it is row-major in eager torch, for these arguments."""
        strides = [arguments.get(model.name, value_of(model)).stride() for model in self.models]
        return self.strides(strides) == contiguous_strides(self.proxy._shape)


def copy_to_eager_order(plan: Plan) -> Plan:
    """Copies visible images to eager's order where that frees enough convolutions to change it."""
    candidates = [*_images(plan)] if can_run_channels_last(convolutions_of(plan.items)) else []
    if not candidates:
        return plan
    arguments = arguments_of(plan.trace)
    images = {image.proxy.name: image for image in candidates if image.is_row_major(arguments)}
    for name in _worth(plan, images):
        plan = _with_copy(plan, images[name])
    return plan


def _worth(plan: Plan, images: Mapping[str, _Image]) -> list[str]:
    """The images to copy: together they let MIN_GAIN convolutions change their order, and each lets
    at least one."""

    def changed(copied: Set[str]) -> int:
        return len(hidden_convolutions(plan.items, visible_results(plan, copied)))

    chosen = set(images)
    if not chosen or changed(chosen) - changed(set()) < MIN_GAIN:
        return []
    for name in images:
        if changed(chosen) == changed(chosen - {name}):
            chosen.remove(name)
    return [name for name in images if name in chosen]


# --------------------------------------------------------------------------------- which images


def _images(plan: Plan) -> Iterator[_Image]:
    """The returned images that are computed from convolutions' images, if their order is known."""
    returned = {
        proxy.name: proxy
        for proxy in plan.returned if isinstance(proxy, TensorProxy) and proxy.ndim in FORMATS
    }  # fmt: skip
    convolved = set[str]()
    for item in plan.items:
        ordered = _made_of_images(item, convolved)
        convolved |= ordered
        has_memory = is_convolution(item) or (isinstance(item, Region) and not item.moves_only)
        for proxy in made_by(item) if has_memory else ():
            if proxy.name in ordered & returned.keys():
                image = _image(plan, item, returned[proxy.name])
                if image is not None:
                    yield image


def _made_of_images(item: Item, images: Set[str]) -> Set[str]:
    """The results of an item that may have the order of such images."""
    names = {proxy.name for proxy in made_by(item)}
    if isinstance(item, Region):
        sources = origins(item.leaves, item.inputs)
        return {name for name in names if not images.isdisjoint(sources[name])}
    if is_convolution(item):
        return set() if makes_weights(item) else names
    reads_image = not images.isdisjoint(proxy.name for proxy in read_by(item))
    return names if reads_image and not is_product(item) else set()


def _image(plan: Plan, maker: Item, proxy: TensorProxy) -> _Image | None:
    """The image; None if it is unknown what decides its order, or if the backward lacks that."""
    items, names = plan.items, deciding(plan.items, {proxy.name})
    arguments = {proxy.name: proxy for item in items if _unpacks(item) for proxy in made_by(item)}
    # Arguments do not decide, nor does a product, whose result is contiguous.
    parts = tuple(
        item for item in items
        if any(proxy.name in names for proxy in made_by(item))
        and (isinstance(item, Region) or not (_unpacks(item) or is_product(item)))
    )  # fmt: skip
    read = {proxy.name for item in items if _is_backward(item) for proxy in read_by(item)}
    kept = read if _is_backward(maker) else arguments.keys()
    models = [  # numbers and vectors decide no order
        proxy
        for name, proxy in arguments.items()
        if name in names and isinstance(proxy, TensorProxy) and proxy.ndim > 1
    ]
    proxies = [proxy for part in parts for proxy in (*read_by(part), *made_by(part))]
    tensors = [proxy for proxy in (*proxies, *models) if isinstance(proxy, TensorProxy)]
    is_plain = {type(tensor) for tensor in tensors} <= {TensorProxy} and all(
        type(size) is int for tensor in tensors for size in tensor._shape
    )
    is_known = all(  # the order of its results follows without running it on data
        isinstance(part, Region) or is_convolution(part) or only(part, VIEWS)
        or part.sym.executor is TORCH_KERNELS
        for part in parts
    )
    if not (is_plain and is_known and all(proxy.name in kept for proxy in models)):
        return None
    steps = tuple((part, plan.memory.of(part)) for part in parts)
    return _Image(proxy, maker, steps, tuple(models))


def _unpacks(item: Item) -> bool:
    return isinstance(item, BoundSymbol) and item.sym.id is PrimIDs.UNPACK_TRIVIAL


def _is_backward(item: Item) -> bool:
    return is_backward(item) and (isinstance(item, Region) or item.sym.id not in _USERS)


# ---------------------------------------------------------------------------------- the copies


def _with_copy(plan: Plan, image: _Image) -> Plan:
    """The plan with the copy, which is returned instead of the image."""
    name, copy = image.proxy.name, _copy(plan.trace, image)
    users = {variableify(image.proxy): copy.output}
    convolved = {
        proxy.name for item in plan.items if is_convolution(item) for proxy in read_by(item)
    }  # fmt: skip
    items: list[Item] = []
    for item in plan.items:
        if isinstance(item, BoundSymbol) and item.sym.id in _USERS:
            item = item.from_bsym_swap_proxies(users)
        items.append(item)
        if all(proxy.name != name for proxy in made_by(item)):
            continue
        items.append(copy)
        if not isinstance(item, Region) or name in convolved:
            continue
        if not any(has_tags(leaf, {OpTags.REDUCTION_OP}) for leaf in item.leaves):
            row_major = (*plan.memory.of(item).row_major, name)
            plan = plan.noting({item.number: {"row_major": row_major}})
    return plan.with_items(items)


def _copy(trace: TraceCtx, image: _Image) -> BoundSymbol:
    with tracectx(trace):
        copied = TensorProxy(like=image.proxy)
    symbol = kernel(f"{IN_ORDER}{image.proxy.name}", _in_order(image), lambda *tensors: copied)
    bsym = symbol.bind(image.proxy, *image.models, output=copied)
    if _is_backward(image.maker):
        bsym.tags.add(BoundSymbolTag.BACKWARD)
    return bsym


def _in_order(image: _Image) -> Callable[..., torch.Tensor]:
    row_major = contiguous_strides(image.proxy._shape)

    @lru_cache(maxsize=256)
    def strides(*strides_of_models: Strides) -> Strides:
        return image.strides(strides_of_models) or row_major

    def call(image: torch.Tensor, *models: torch.Tensor) -> torch.Tensor:
        wanted = strides(*(model.stride() for model in models))
        seen = in_memory_of(image, wanted)
        return image.new_empty_strided(image.shape, wanted).copy_(image) if seen is None else seen

    return call
