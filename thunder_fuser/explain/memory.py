# SPDX-License-Identifier: Apache-2.0
"""A jitted function -> the memory that is live after each call of its traces, and its picture.

    plot({"time": jitted, "memory": other}, "memory.png")

The traces run once more, call by call, on zeros of the shapes that they were compiled for. After
each call, the storages of all live tensors are counted, each once, without those of the arguments.
Memory that a torch call allocates and frees inside is not seen.

In a picture, calls stand at equal distances, the forward's in the left half and the backward's in
the right half. So policies with different numbers of calls can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
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

from thunder_fuser.errors import InputError, ToolchainError
from thunder_fuser.executors.run.region_callable import as_if_freed
from thunder_fuser.explain.jitted import Jitted, final_traces, graphs_of, name_of
from thunder_fuser.explain.shown import Shown, kib, size_unit, table
from thunder_fuser.functions.collectives import CALLS
from thunder_fuser.runtime.graph_pools import storage_of

_INCHES = (9, 3.2)  # of the picture of one model
_NO_CALLS = frozenset(
    {
        PrimIDs.UNPACK_TRIVIAL, PrimIDs.UNPACK_SEQUENCE, PrimIDs.DEL, PrimIDs.COMMENT,
        "clear_mutable_collection",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceCall:
    """A call of a trace, and the bytes that are live after it, including its operands."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class LiveMemory(Shown):
    """The calls of a forward and a backward; kept: the bytes that live between the two."""

    forward: tuple[TraceCall, ...]
    kept: int
    backward: tuple[TraceCall, ...]
    name: str = ""

    @property
    def peak(self) -> int:
        return max((call.bytes for call in (*self.forward, *self.backward)), default=0)

    def __repr__(self) -> str:
        return f"<live memory of {self.name}: {kib(self.peak)} KiB at most>"

    def __str__(self) -> str:
        rows = [(call["call"], call["direction"], kib(call["bytes"])) for call in self._calls()]
        head = f"{self.name} keeps {kib(self.kept)} KiB, and holds {kib(self.peak)} KiB at most."
        return f"{head}\n\n{table(('after', 'pass', 'KiB live'), rows)}\n"

    def _calls(self) -> list[dict[str, Any]]:
        both = (("forward", self.forward), ("backward", self.backward))
        return [
            {"call": call.name, "direction": direction, "bytes": call.bytes}
            for direction, calls in both for call in calls
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """calls: each with the bytes that are live after it."""
        return {"name": self.name, "calls": self._calls(), "kept": self.kept, "peak": self.peak}


def timeline(jitted: Any) -> LiveMemory:
    """The memory of the compilation that ran last, in the order of its calls.

    Its traces run once more, on zeros. If torch.compile made several graphs of the function, they
    follow each other: the forwards in order, then the backwards in reverse.

    Raises InputError for a function that was not called, whose arguments are not plain tensors and
    numbers, or that calls collectives, since these would wait for the other devices.
    """
    graphs = [*map(_of_graph, graphs_of(jitted))]
    forward = tuple(call for graph in graphs for call in graph.forward)
    backward = tuple(call for graph in reversed(graphs) for call in graph.backward)
    return LiveMemory(forward, sum(graph.kept for graph in graphs), backward, name_of(jitted))


# ------------------------------------------------------------------------------------ one graph


def _of_graph(jitted: Jitted) -> LiveMemory:
    forward, *rest = final_traces(jitted)
    for trace in (forward, *rest):
        _check_local(trace.bound_symbols)
    with torch.random.fork_rng(), torch.no_grad():
        arguments = {p.name: _made_up(p) for p in (*forward.args, *forward.kwargs.values())}
        first = _TraceRun(forward, arguments, arguments.values())
        calls = tuple(first.calls())
        if not rest:
            return LiveMemory(calls, 0, ())
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
            return LiveMemory(calls, kept, tuple(second.calls()))


class _TraceRun:
    """A trace with values for its arguments; the memory of `lasting` does not count."""

    def __init__(self, trace: TraceCtx, values: Mapping[str, Any], lasting: Iterable[Any]) -> None:
        self.trace, self.scope = trace, dict(values)
        self.lasting = {storage_of(tensor) for tensor in _tensors([*lasting])}
        self.globals = trace.python_ctx()
        self.returned: Any = None

    def calls(self) -> Iterator[TraceCall]:
        """Runs the trace, call by call."""
        for bsym in self.trace.bound_symbols:
            text = "\n".join(bsym.python(indent=0, print_depth=1))
            if bsym.sym.id is PrimIDs.RETURN:
                self.returned = eval(text.removeprefix("return "), self.globals, self.scope)
                return
            exec(text, self.globals, self.scope)
            if bsym.sym.id not in _NO_CALLS:
                yield TraceCall(bsym.sym.name, self.live())

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


# ------------------------------------------------------------------------------------ pictures


def plot(functions: Mapping[str, Any], path: str, title: str = "") -> None:
    """Writes the picture of functions that were called; the path's suffix chooses the format."""
    picture({title: {name: timeline(function) for name, function in functions.items()}}, path)


def picture(models: Mapping[str, Mapping[str, LiveMemory]], path: str) -> None:
    """A row for each model, with a line for each of its timelines."""
    page = new_page(_INCHES[0], _INCHES[1] * len(models))
    rows = page.subplots(len(models), squeeze=False)
    for (axes,), (title, lines) in zip(rows, models.items(), strict=True):
        _draw(axes, title, lines)
    page.savefig(path, dpi=150)


def new_page(width: float, height: float) -> Any:
    """An empty picture of this size in inches. It needs no display."""
    need_matplotlib()
    return import_module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def need_matplotlib() -> None:
    """Raises ToolchainError if it is not installed."""
    if find_spec("matplotlib") is None:
        raise ToolchainError(
            "a picture", expected="matplotlib", got="none", do="pip install 'thunder-fuser[plot]'"
        )


def _draw(axes: Any, title: str, lines: Mapping[str, LiveMemory]) -> None:
    peak = max((line.peak for line in lines.values()), default=0)
    size, unit = size_unit(peak)
    for name, line in lines.items():
        places, heights = points(line)
        kept, most = line.kept / size, line.peak / size
        label = f"{name}: {kept:.1f} kept, {most:.1f} at most"
        axes.plot(places, [height / size for height in heights], label=label, linewidth=1.2)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlim(0, 2)
    axes.set_ylim(bottom=0)
    axes.set_xticks([0.5, 1.5], ["forward", "backward"])
    axes.set_ylabel(f"{unit} live beside arguments")
    axes.set_title(title, fontsize=9)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8)


def points(line: LiveMemory) -> tuple[list[float], list[int]]:
    """Places from 0 to 2 and the live bytes there; at 1, the bytes kept for the backward.

    forward of 2 calls, backward of 1  ->  places 0.25, 0.75, 1, 1.5
    """
    heights = [*(call.bytes for call in line.forward), line.kept]
    places = [(at + 0.5) / len(line.forward) for at in range(len(line.forward))]
    heights += [call.bytes for call in line.backward]
    after = [1 + (at + 0.5) / len(line.backward) for at in range(len(line.backward))]
    return [*places, 1.0, *after], heights
