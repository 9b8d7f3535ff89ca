# SPDX-License-Identifier: Apache-2.0
"""A plan -> the same, in which a convolution's gradients are one call of torch.

    (dx,) = conv2d_backward0_3(x, w, dy); (dw,) = conv2d_backward1_3(x, w, dy)
->  (dx, dw) = conv2d_backward_3(x, w, dy)

They are traced apart, for a model's input image needs none (functions/kernels.py). Each call has
the host look for cuDNN's kernels, one call for both at once. In a CUDA graph that costs nothing,
and what one call makes lies in one memory: they stay apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from torch.fx import Graph, GraphModule, Node

from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.regions.region import Item
from thunder_fuser.executors.stride_orders.convolutions import is_convolution, makes_weights
from thunder_fuser.functions.kernels import kernel
from thunder_fuser.options import option
from thunder_fuser.trace.proxies import makes, reads

_backward = torch.ops.aten.convolution_backward.default
_IMAGE, _BIAS, _MASK = 1, 3, 10  # places among its arguments
_OPERANDS = 3  # image, weight, and the result's gradient
_PARTS = ("_backward0_", "_backward1_")  # in the names: of an image, of weights and bias


def join_gradients(plan: Plan) -> Plan:
    """Joins the gradients of a convolution's image and of its weights into one call."""
    return plan if option("cuda_graphs") else plan.with_items(_joined(plan.items))


def _joined(items: tuple[Item, ...]) -> Iterator[Item]:
    image: BoundSymbol | None = None  # a gradient that waits for that of its weights
    for item in items:
        if isinstance(item, BoundSymbol) and image is not None and _belong_together(image, item):
            yield _in_one_call(image, item)
            image = None
            continue
        if image is not None:
            yield image
        image = item if isinstance(item, BoundSymbol) and _is_of_image(item) else None
        if image is None:
            yield item
    if image is not None:
        yield image


def _is_of_image(item: BoundSymbol) -> bool:
    return is_convolution(item) and _PARTS[0] in item.sym.name


def _belong_together(image: BoundSymbol, weights: BoundSymbol) -> bool:
    """True if the second item makes the gradients of weights whose image's the first makes."""
    if not is_convolution(weights) or not makes_weights(weights):
        return False
    if image.sym.name.replace(*_PARTS) != weights.sym.name:
        return False
    of_image, of_weights = ([proxy.name for proxy in reads(item)] for item in (image, weights))
    both = len(of_image) == len(of_weights) == _OPERANDS
    return both and all(of_image[at] == of_weights[at] for at in (0, 2))


def _in_one_call(image: BoundSymbol, weights: BoundSymbol) -> BoundSymbol:
    """Its operands are those of the weights' gradient, then that of the image's own weight."""
    functions = (item._call_ctx[item.sym.name] for item in (image, weights))
    function = _both(*functions)  # type: ignore[misc]
    results = (*makes(image), *makes(weights))
    name = image.sym.name.replace(_PARTS[0], "_backward_")
    symbol = kernel(name, function, lambda *tensors: results)
    bsym = symbol.bind(*reads(weights), reads(image)[1], output=results)
    bsym.tags.add(BoundSymbolTag.BACKWARD)
    return bsym


@lru_cache(maxsize=4096)
def _both(of_image: Callable[..., Any], of_weights: Callable[..., Any]) -> Callable[..., Any]:
    """The function of both: image, weight, gradient, and the weight as the image's gradient
    reads it  ->  their results."""
    graph = Graph()
    image, weight, gradient, read = map(graph.placeholder, ("image", "weight", "gradient", "read"))
    parts = [
        _Subgraph(graph, of_image.__self__.graph, (image, read, gradient)),  # type: ignore[attr-defined]
        _Subgraph(graph, of_weights.__self__.graph, (image, weight, gradient)),  # type: ignore[attr-defined]
    ]
    first, second = (part.call_arguments() for part in parts)
    mask = [a or b for a, b in zip(first[_MASK], second[_MASK], strict=True)]
    args = [*first[:_IMAGE], second[_IMAGE], first[2], second[_BIAS], *first[_BIAS + 1 : _MASK]]
    call = graph.call_function(_backward, (*args, mask))
    graph.output(tuple(result for part in parts for result in part.results(call)))
    graph.eliminate_dead_code()
    return GraphModule({}, graph).forward


class _Subgraph:
    """One of the two graphs, copied into that of both."""

    def __init__(self, graph: Graph, part: Graph, operands: tuple[Node, ...]) -> None:
        self.graph, self.nodes = graph, [*part.nodes]
        places = [node for node in self.nodes if node.op == "placeholder"]
        self.copies = dict(zip(places, operands, strict=True))
        self.call = next(node for node in self.nodes if node.target is _backward)

    def call_arguments(self) -> list[Any]:
        """Those of its call, for which it copies what comes before."""
        for node in self.nodes[: self.nodes.index(self.call)]:
            if node not in self.copies:
                self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
        return [self.copies.get(each, each) if isinstance(each, Node) else each
                for each in self.call.args]  # fmt: skip

    def results(self, call: Node) -> list[Node]:
        """Its results, which are computed from the call of both."""
        self.copies[self.call] = call
        *nodes, output = self.nodes[self.nodes.index(self.call) + 1 :]
        for node in nodes:
            self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
        return [self.copies[result] for result in output.args[0]]
