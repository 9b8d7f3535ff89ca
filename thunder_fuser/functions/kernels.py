# SPDX-License-Identifier: Apache-2.0
"""Functions that torch runs, with torch's own gradients.

    y = max_pool3d(x, 3)
->  Thunder:  y = convolution(pad(x), ...), and a gradient of convolutions, flips and pads
    here:     y, indices = max_pool3d_forward_0(x)             aten.max_pool3d_with_indices
              dx = max_pool3d_backward_0(dy, x, indices)       its gradient in torch

Thunder takes a convolution's gradient apart into convolutions whose kernels are as large as images.
Other functions it calls a second time in the backward, to differentiate them there. Here, torch's
autograd is traced on fake tensors, once for the sizes of a call. The ops that do not depend on a
result's gradient run in the forward, all others in the backward.

The gradient of the first tensor is an op of its own, so that it can be dropped: a model's input
image needs no gradient. Interpolation that repeats pixels 2 or 3 times, and max pooling of images
by small windows, are no ops of torch, but of regions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.devices import DeviceType, to_device, to_torch_device
from thunder.core.dtypes import to_dtype, to_torch_dtype
from thunder.core.prims import OpTags, get_grad, put_grad
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.pytree import tree_flatten, tree_map, tree_unflatten
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.executors.torchex import ex as torch_executor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from thunder_fuser.base.threads import make_reentrant_lock
from thunder_fuser.executors.support import pooling, upsampling
from thunder_fuser.executors.support.dtypes import FLOATS, data_type
from thunder_fuser.functions.define import (
    Backward,
    Composite,
    Rewrite,
    Table,
    as_type,
    refuses_tensors,
    with_gradient,
)
from thunder_fuser.trace.op import Reject
from thunder_fuser.trace.proxies import TORCH_KERNELS

# Names in torch.nn.functional. Convolutions keep Thunder's symbols, for its rules under autocast.
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
# Thunder refuses some arguments of these that torch takes, such as align_corners and ceil_mode.
OTHERS = (
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "interpolate", "grid_sample", "fold", "unfold",
)  # fmt: skip
# For these, Thunder has its own messages on calls that torch refuses.
_CHECKED = ("adaptive_avg_pool2d", "interpolate")
_aten = torch.ops.aten
# A backward recomputes these from the tensors that they view, which are kept in any case.
_VIEWS = (_aten.unsqueeze.default, _aten.squeeze.dim, _aten.reshape.default, _aten.detach.default)


@dataclass(frozen=True, slots=True)
class _TensorSpec:
    """The shape, type and device of a tensor argument."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(proxy: TensorProxy) -> _TensorSpec:
        device = to_torch_device(proxy.device)
        return _TensorSpec(tuple(proxy._shape), to_torch_dtype(proxy.dtype), device)

    def fake(self) -> torch.Tensor:
        has_gradient = self.dtype.is_floating_point
        return torch.empty(
            self.shape, dtype=self.dtype, device=self.device, requires_grad=has_gradient
        )


@dataclass(frozen=True, slots=True)
class _FunctionCall:
    """A function with its arguments. Each leaf has its type: as dictionary keys, True equals 1."""

    function: str
    structure: Any
    leaves: tuple[tuple[type, Any], ...]

    def run(self, tensors: Iterable[torch.Tensor]) -> Any:
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, _TensorSpec) else leaf for _, leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.structure)
        return getattr(torch.nn.functional, self.function)(*args, **kwargs)

    def fakes(self) -> list[torch.Tensor]:
        return [leaf.fake() for _, leaf in self.leaves if isinstance(leaf, _TensorSpec)]


def _call_of(function: str, args: Any, kwargs: Any) -> tuple[_FunctionCall, list[TensorProxy]]:
    leaves, structure = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, TensorProxy)]
    known = [_TensorSpec.of(leaf) if isinstance(leaf, TensorProxy) else leaf for leaf in leaves]
    return _FunctionCall(function, structure, tuple((type(leaf), leaf) for leaf in known)), tensors


# --------------------------------------------------------------------- tracing torch's autograd


_one_at_a_time = make_reentrant_lock()
# Without a GPU, torch 2.11 keeps a guard of devices in the memory of the first thread that enters
# such a mode. If that thread has ended, the next mode ends the process: this thread stays.
with FakeTensorMode():
    pass


@contextmanager
def _without_memory(has_gradients: bool) -> Iterator[None]:
    """Runs torch on fake tensors, in the same way whatever surrounds the call.

    torch.autocast is off: Thunder has inserted its casts already, and runs traces without it. Only
    one thread at a time traces, for make_fx patches functions that all threads use.
    """
    with (
        _one_at_a_time, FakeTensorMode(), torch._C._DisableAutocast(),
        torch.inference_mode(False), torch.set_grad_enabled(has_gradients),
    ):  # fmt: skip
        yield


@dataclass(frozen=True, slots=True)
class _PartOp:
    """A part of the joint graph as an op, with the names of its operands and results."""

    symbol: Symbol
    reads: tuple[str, ...]
    makes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Traced:
    """A call's forward op, and its backward ops with the places of the tensors they are for.

    The forward returns the results, then the other values that the backward ops read.
    """

    tensors: tuple[str, ...]
    results: tuple[str, ...]
    gradients: tuple[str | None, ...]  # a name for each result that has a gradient
    structure: Any  # of the results
    forward: _PartOp
    backwards: tuple[tuple[_PartOp, tuple[int, ...]], ...]


@functools.lru_cache(maxsize=4096)
def _traced(call: _FunctionCall) -> _Traced:
    def joint(tensors: list[torch.Tensor], gradients: list[torch.Tensor]) -> Any:
        results = tree_flatten(call.run(tensors))[0]
        of = [result for result in results if result.requires_grad]
        return results, [
            torch.autograd.grad(of, [tensors[at] for at in places], gradients, retain_graph=True)
            for places in _places(len(tensors))
        ]

    with _without_memory(has_gradients=True):
        tensors = call.fakes()
        results, structure = tree_flatten(call.run(tensors))
        has_gradient = [result.requires_grad for result in results]
        gradients = [torch.empty_like(result) for result in results if result.requires_grad]
        graph = make_fx(joint)(tensors, gradients).graph
    return _split(call.function, graph, len(tensors), has_gradient, structure)


def _places(tensors: int) -> Iterator[tuple[int, ...]]:
    """The places of tensors whose gradients are one op: the first tensor, then all others."""
    yield (0,)
    if tensors > 1:
        yield tuple(range(1, tensors))


_numbers = itertools.count()


def _split(
    name: str, graph: Graph, count: int, has_gradient: Sequence[bool], structure: Any
) -> _Traced:
    for node in graph.nodes:
        if node.target is _aten.view.default:  # the tensors of a call may have other strides
            node.target = _aten.reshape.default
    operands = [node for node in graph.nodes if node.op == "placeholder"]
    outputs = next(node for node in graph.nodes if node.op == "output").args[0]
    results, gradients = outputs[: len(has_gradient)], iter(outputs[len(has_gradient) :])
    late = reached(operands[count:], lambda node: node.users)
    number = next(_numbers)

    def is_read(node: Node) -> bool:
        return node.op == "placeholder" or (node not in late and node.target not in _VIEWS)

    backwards = tuple(
        (_part(f"{name}_backward{at}_{number}", graph, [next(gradients) for _ in places], is_read),
         places)
        for at, places in enumerate(_places(count))
    )  # fmt: skip
    read = {value for part, _ in backwards for value in part.reads}
    kept = {node.name for node in (*operands, *results)}
    saved = [node for node in graph.nodes if node.name in read - kept]
    forward = _part(
        f"{name}_forward_{number}", graph, [*results, *saved], lambda node: node.op == "placeholder"
    )
    names = (node.name for node in operands[count:])
    return _Traced(
        tensors=tuple(node.name for node in operands[:count]),
        results=tuple(node.name for node in results),
        gradients=tuple(next(names) if has else None for has in has_gradient),
        structure=structure,
        forward=forward,
        backwards=backwards,
    )


def reached(nodes: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """The nodes, and all that follow them."""
    seen, todo = set[Node](), [*nodes]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += following(node)
    return seen


def _part(name: str, graph: Graph, makes: list[Node], is_read: Callable[[Node], bool]) -> _PartOp:
    needed = reached(makes, lambda node: () if is_read(node) else node.all_input_nodes)
    nodes = [node for node in graph.nodes if node in needed]
    reads = [node for node in nodes if is_read(node)]
    part = Graph()
    copies = {node: part.placeholder(node.name) for node in reads}
    for node in nodes:
        if node not in copies:
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[node] for node in makes))
    types = [_type_of(node.meta["val"]) for node in makes]
    symbol = kernel(
        name, GraphModule({}, part).forward,
        lambda *tensors: tuple(TensorProxy(**arguments) for arguments in types),
    )  # fmt: skip
    return _PartOp(symbol, tuple(map(str, reads)), tuple(map(str, makes)))


def kernel(name: str, function: Callable[..., Any], meta: Callable[..., Any]) -> Symbol:
    """An op with this name as its id, which is never recomputed; it calls the function."""

    def bind(bsym: BoundSymbol) -> None:
        bsym._call_ctx = {name: function}

    return Symbol(
        name=name, id=name, is_prim=True, executor=TORCH_KERNELS, _bind_postprocess=bind, meta=meta,
        tags=(OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD,),
    )  # fmt: skip


def _type_of(tensor: torch.Tensor) -> dict[str, Any]:
    """The arguments of TensorProxy for such a tensor."""
    dtype, device = to_dtype(tensor.dtype), to_device(tensor.device)
    return {"shape": tuple(tensor.shape), "dtype": dtype, "device": device}


# ---------------------------------------------------------------------------- what Thunder calls


def _refuses(*args: Any, **kwargs: Any) -> Reject | None:
    leaves = tree_flatten((args, kwargs))[0]
    if any(isinstance(leaf, NumberProxy) for leaf in leaves):
        return Reject("a number that the program computes")
    tensors = [leaf for leaf in leaves if isinstance(leaf, TensorProxy)]
    if any(dtypes.is_complex_dtype(tensor.dtype) for tensor in tensors):
        return Reject("complex tensors")
    return refuses_tensors("a function of torch", *tensors)


def _with_gradient(function: str, run: Symbol) -> Callable[..., Any]:
    def gradient(*args: Any, **kwargs: Any) -> Any:
        call, tensors = _call_of(function, args, kwargs)
        if not all(dtypes.is_float_dtype(tensor.dtype) for tensor in tensors):
            return run(*args, **kwargs)  # max_pool2d of integers has no gradient
        traced = _traced(call)
        values = dict(zip(traced.tensors, tensors, strict=True))
        outputs = traced.forward.symbol(*map(values.__getitem__, traced.forward.reads))
        values |= zip(traced.forward.makes, outputs, strict=True)
        results = [values[name] for name in traced.results]
        values |= {
            name: get_grad(result)
            for name, result in zip(traced.gradients, results, strict=True)
            if name is not None
        }
        for part, places in traced.backwards:
            gradients = part.symbol(*map(values.__getitem__, part.reads))
            for at, of_tensor in zip(places, gradients, strict=True):
                put_grad(tensors[at], of_tensor)
        return tree_unflatten(results, traced.structure)

    return gradient


@functools.lru_cache(maxsize=4096)
def _types_of_results(call: _FunctionCall) -> tuple[list[dict[str, Any]], Any]:
    """TensorProxy's arguments for each result of a call, and the structure of the results."""
    with _without_memory(has_gradients=False):
        results, structure = tree_flatten(call.run(call.fakes()))
    return [*map(_type_of, results)], structure


def _meta(function: str) -> Callable[..., Any]:
    def meta(*args: Any, **kwargs: Any) -> Any:
        types, structure = _types_of_results(_call_of(function, args, kwargs)[0])
        return tree_unflatten([TensorProxy(**arguments) for arguments in types], structure)

    return meta


def _convolution(function: str) -> Table:
    """The Composite of Thunder's symbol; without gradients it is one torch op, as in Thunder."""
    symbol = getattr(ltorch, function)
    run = torch_executor.implmap[symbol.id].symbol
    gradient, rewrite = _with_gradient(function, run), functools.partial(_biased, symbol)
    return {symbol.id: Composite(_refuses, run, gradient, rewrite)}


def _biased(
    symbol: Symbol, input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """On a GPU: conv2d(x, w, b)  ->  conv2d(x, w) + b, in a region with what reads it.

    cuDNN rounds the convolution and then adds the bias in another kernel, and torch sums the bias's
    gradient in a third one. Thunder's symbol refuses a bias of another shape.
    """
    is_row = isinstance(bias, TensorProxy) and tuple(bias._shape) == (weight._shape[0],)
    if not is_row or not _is_on_gpu(weight):
        return symbol(input, weight, bias, *args, **kwargs)
    result = symbol(input, weight, None, *args, **kwargs)
    return result + ltorch.reshape(as_type(bias, result.dtype), (-1, *[1] * (weight.ndim - 2)))


def _is_on_gpu(tensor: TensorProxy) -> bool:
    return bool(tensor.device.devicetype is DeviceType.CUDA)


def _other(function: str) -> Table:
    """An op with torch's own meta function, which is called instead of Thunder's symbol."""
    in_region = _IN_REGIONS.get(function)
    called = getattr(torch.nn.functional, function)
    name = f"torch_{function}"
    op = TORCH_KERNELS.register_operator(
        name, meta=_meta(function), fn=called, tags=[OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD]
    )

    def rewrite(*args: Any, **kwargs: Any) -> Any:
        # Thunder cannot print a torch.Size as Python.
        args, kwargs = tree_map(
            lambda leaf: tuple(leaf) if isinstance(leaf, torch.Size) else leaf, (args, kwargs)
        )
        try:
            if _refuses(*args, **kwargs):
                return NotImplemented
            fused = in_region(*args, **kwargs) if in_region is not None else None
            return op(*args, **kwargs) if fused is None else fused
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            if function not in _CHECKED:
                raise
            return NotImplemented

    of_thunder = ltorch._torch_to_thunder_function_map[called].id
    return {
        of_thunder: Rewrite(rewrite), name: Composite(_refuses, op, _with_gradient(function, op))
    }  # fmt: skip


def _repeated(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", *others: Any,
    **named: Any,
) -> Any:  # fmt: skip
    """interpolate(x[N, C, H, W], scale_factor=2.0)  ->  upsample_nearest(x, (N, C, H, 2, W, 2))

    None for a call that does not repeat all elements equally often, or that torch runs as fast.
    """
    call, _ = _call_of("interpolate", (input, size, scale_factor, mode, *others), named)
    shape, after = input._shape, _types_of_results(call)[0][0]["shape"]
    counts = upsampling.repeats(shape[2:], after[2:], scale_factor, mode)
    if counts is None or data_type(input.dtype) not in FLOATS:
        return None
    is_short = prod(counts) <= upsampling.FEW_REPEATS or _is_on_gpu(input)
    split = upsampling.split_by(shape, counts)
    return upsampling.upsample_nearest(input, split) if is_short else None


def _upsampled(x: Any, split: tuple[int, ...]) -> tuple[Any, Backward]:
    result = upsampling.upsample_nearest(x, split)
    return result, lambda g: [(x, upsampling.upsample_nearest_backward(g, split))]


def _max_pool2d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *others: Any, **named: Any
) -> Any:
    """max_pool2d(x[N, C, H, W], 3, 2)  ->  max_pool(x, (N, C), windows)[0]

    None for a call that only torch knows, or that it runs as fast: on a CPU if windows overlap.
    """
    call, _ = _call_of("max_pool2d", (input, kernel_size, stride, padding, *others), named)
    shape, after = tuple(input._shape), _types_of_results(call)[0][0]["shape"]
    rest = dict(zip(("dilation", "ceil_mode", "return_indices"), others, strict=False)) | named
    is_plain = _pair(rest.get("dilation", 1)) == (1, 1) and not rest.get("return_indices")
    if len(shape) != 4 or not is_plain or data_type(input.dtype) not in FLOATS:
        return None
    sizes = (kernel_size, stride or kernel_size, padding)
    windows = pooling.windows_of(shape[2:], after[2:], *map(_pair, sizes))
    is_fast = windows and (_is_on_gpu(input) or pooling.are_tiles(windows))
    return pooling.max_pool(input, shape[:2], windows)[0] if is_fast else None


def _pair(sizes: Any) -> tuple[int, ...]:
    """3 or [3]  ->  (3, 3)"""
    first, *rest = map(int, sizes if isinstance(sizes, Sequence) else (sizes,))
    return (first, *rest) if rest else (first, first)


def _with_places(x: Any, outer: Any, windows: Any) -> tuple[Any, Backward]:
    y, places = pooling.max_pool(x, outer, windows)
    return (y, places), lambda g: [(x, pooling.max_pool_backward(g, places, outer, windows))]


_IN_REGIONS: dict[str, Callable[..., Any]] = {"interpolate": _repeated, "max_pool2d": _max_pool2d}
KERNELS_OF_TORCH: Table = {
    name: definition
    for table in (*map(_convolution, CONVOLUTIONS), *map(_other, OTHERS))
    for name, definition in table.items()
} | {
    upsampling.FORWARD: with_gradient(lambda *_: None, _upsampled, upsampling.upsample_nearest),
    pooling.FORWARD: with_gradient(lambda *_: None, _with_places, pooling.max_pool),
}
