# SPDX-License-Identifier: Apache-2.0
"""A jitted function -> the memory that is live after each call of its traces.

The traces run once more, call by call, on zeros of the shapes that they were compiled for. After
each call, the storages of all live tensors are counted, each once, without those of the arguments.
Memory that a torch call allocates and frees inside is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import thunder.distributed.prims as collectives
import torch
from thunder.core import devices, dtypes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.pytree import tree_iter
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.torch.experimental.dtensor_proxy import is_dtensor_proxy

from thunder_fuser.errors import InputError
from thunder_fuser.executors.run.region_callable import as_if_freed
from thunder_fuser.explain.jitted import Jitted, final_traces
from thunder_fuser.functions.collectives import CALLS
from thunder_fuser.runtime.cuda_graphs import storage_of

_NO_CALLS = frozenset(
    {
        PrimIDs.UNPACK_TRIVIAL, PrimIDs.UNPACK_SEQUENCE, PrimIDs.DEL, PrimIDs.COMMENT,
        "clear_mutable_collection",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a trace, and the bytes that are live after it, including its operands."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The calls of a forward and a backward; kept: the bytes that live between the two."""

    forward: tuple[Call, ...]
    kept: int
    backward: tuple[Call, ...]

    @property
    def peak(self) -> int:
        return max((call.bytes for call in (*self.forward, *self.backward)), default=0)


def timeline(jitted: Jitted) -> Timeline:
    """The memory of the compilation that ran last, in the order of its calls.

    Raises InputError for a function that was not called, whose arguments are not plain tensors and
    numbers, or that calls collectives, since these would wait for the other devices.
    """
    forward, *rest = final_traces(jitted)
    for trace in (forward, *rest):
        _check_local(trace.bound_symbols)
    with torch.random.fork_rng(), torch.no_grad():
        arguments = {p.name: _made_up(p) for p in (*forward.args, *forward.kwargs.values())}
        first = _TraceRun(forward, arguments, arguments.values())
        calls = tuple(first.calls())
        if not rest:
            return Timeline(calls, 0, ())
        (backward,) = rest
        saved, others = first.returned[1]
        _, gradients = backward.args
        cotangents = [_made_up(proxy) for proxy in gradients]
        read = {"saved_for_backward": [[*saved], [*others]], "cotangents": [*cotangents]}
        first.returned = None
        second = _TraceRun(backward, read, (*arguments.values(), *cotangents))
        kept = second.live()
        del saved, others, read
        with as_if_freed():
            return Timeline(calls, kept, tuple(second.calls()))


class _TraceRun:
    """A trace with values for its arguments; the memory of `lasting` does not count."""

    def __init__(self, trace: TraceCtx, values: Mapping[str, Any], lasting: Iterable[Any]) -> None:
        self.trace, self.scope = trace, dict(values)
        self.lasting = {storage_of(tensor) for tensor in _tensors([*lasting])}
        self.globals = trace.python_ctx()
        self.returned: Any = None

    def calls(self) -> Iterator[Call]:
        """Runs the trace, call by call."""
        for bsym in self.trace.bound_symbols:
            text = "\n".join(bsym.python(indent=0, print_depth=1))
            if bsym.sym.id is PrimIDs.RETURN:
                self.returned = eval(text.removeprefix("return "), self.globals, self.scope)
                return
            exec(text, self.globals, self.scope)
            if bsym.sym.id not in _NO_CALLS:
                yield Call(bsym.sym.name, self.live())

    def live(self) -> int:
        """Bytes of the storages of all values, each once."""
        sizes = {
            storage_of(tensor): tensor.untyped_storage().nbytes()
            for tensor in _tensors(self.scope)
        }
        return sum(size for place, size in sizes.items() if place not in self.lasting)


def _check_local(bsyms: Iterable[BoundSymbol]) -> None:
    """Raises InputError for a collective."""
    for bsym in bsyms:
        if bsym.sym.module is collectives or bsym.sym.executor is CALLS:
            raise InputError("timeline", expected="no collectives", got=bsym.sym.name)


def _tensors(values: object) -> Iterator[torch.Tensor]:
    return (value for value in tree_iter(values) if isinstance(value, torch.Tensor))


def _made_up(proxy: object) -> Any:
    """Zeros for a tensor; a number's own value; None for the gradient of what has none."""
    if proxy is None or isinstance(proxy, NumberProxy):
        return getattr(proxy, "value", None)
    if not isinstance(proxy, TensorProxy) or is_dtensor_proxy(proxy):
        raise InputError("timeline", expected="tensors and numbers as arguments", got=repr(proxy))
    device, dtype = devices.to_torch_device(proxy.device), dtypes.to_torch_dtype(proxy.dtype)
    return torch.zeros([int(size) for size in proxy._shape], dtype=dtype, device=device)
