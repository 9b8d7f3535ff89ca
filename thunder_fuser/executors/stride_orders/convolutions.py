# SPDX-License-Identifier: Apache-2.0
"""A convolution of a trace: which operands decide its stride order, and whether it may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch
from thunder.core.devices import DeviceType
from thunder.core.dtypes import bfloat16, float16, float32
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from torch.fx import Graph, GraphModule

from thunder_fuser.executors.regions.region import Item
from thunder_fuser.executors.stride_orders.orders import FORMATS
from thunder_fuser.functions.kernels import reached
from thunder_fuser.trace.proxies import makes, reads

_aten = torch.ops.aten
CHANGED = "_last"  # the suffix of a convolution's name if it copies its operands
# {aten operator: (its number of tensor operands, the place of `groups` among its arguments)}
CONVOLVED = {_aten.convolution.default: (2, 8), _aten.convolution_backward.default: (3, 9)}
# The types of images that a device's kernels read in this order.
_DTYPES = {DeviceType.CUDA: (bfloat16, float16), DeviceType.CPU: (float32,)}


def is_convolution(item: Item) -> TypeGuard[BoundSymbol]:
    """True for a convolution of torch, or a part of its gradient."""
    return isinstance(item, BoundSymbol) and str(item.sym.id).split("_")[0] in ("conv2d", "conv3d")


def is_changed(item: BoundSymbol) -> bool:
    """True for one whose image, or image's gradient, is channels last whatever the operands are."""
    return item.sym.name.endswith(CHANGED) and not makes_weights(item)


def can_run_channels_last(convolutions: Sequence[BoundSymbol]) -> bool:
    """True if all convolutions of a trace, of which there are any, may run channels last."""
    return bool(convolutions) and all(map(_may_run_last, convolutions))


def makes_weights(item: BoundSymbol) -> bool:
    """True for the gradient of a convolution's weight and bias."""
    return "_backward1_" in str(item.sym.id)


def order_operands(item: BoundSymbol) -> list[Proxy]:
    """The operands of a convolution that decide in which order eager torch runs it.

    For an image's gradient these are the image and the weight: torch copies the result's gradient
    into their order.
    """
    graph = graph_of(item)
    return reads(item) if graph is None else _sources(item, graph, 2)


def weight_of(item: BoundSymbol) -> list[Proxy]:
    """The operand that a convolution's weight is, or is a view of."""
    graph = graph_of(item)
    return reads(item)[1:2] if graph is None else _sources(item, graph, 1)


def _sources(item: BoundSymbol, graph: Graph, last: int) -> list[Proxy]:
    """The operands that the last tensors which are convolved come from: image and weight."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    convolved = [node for node in graph.nodes if node.target in CONVOLVED]
    ends = [(node.args, CONVOLVED[node.target][0]) for node in convolved]
    tensors = [tensor for args, end in ends for tensor in args[end - last : end]]
    needed = reached(tensors, lambda node: node.all_input_nodes)
    operands = zip(placeholders, reads(item), strict=True)
    return [operand for node, operand in operands if node in needed]


def _may_run_last(item: BoundSymbol) -> bool:
    tensors = [proxy for proxy in (*reads(item), *makes(item)) if isinstance(proxy, TensorProxy)]
    images = [tensor for tensor in tensors if tensor.ndim in FORMATS]
    known = all(image.dtype in _DTYPES.get(image.device.devicetype, ()) for image in images)
    return len(images) > 1 and known and _groups(item) == 1


def _groups(item: BoundSymbol) -> int:
    graph = graph_of(item)
    if graph is None:
        args = (*item.args, *item.kwargs.values())
        return int(item.kwargs.get("groups", args[6] if len(args) > 6 else 1))
    convolved = (node for node in graph.nodes if node.target in CONVOLVED)
    return max(int(node.args[CONVOLVED[node.target][1]]) for node in convolved)


def graph_of(item: BoundSymbol) -> Graph | None:
    """The graph that a part of a traced convolution runs; None for torch's own function."""
    function = (item._call_ctx or {}).get(item.sym.name)
    owner = getattr(function, "__self__", None)
    return owner.graph if isinstance(owner, GraphModule) else None
