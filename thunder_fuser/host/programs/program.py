# SPDX-License-Identifier: Apache-2.0
"""Segments and their launchers -> a HostProgram: nodes, which print as the Python that runs.

def run(T0, T1):
    T4 = empty_strided((64, 1024), (1024, 1), dtype=float32, device=device)
    push_range(range_0)
    kernel_0(T1.data_ptr(), T0.data_ptr(), T4.data_ptr(), threads())
    pop_range()
    return [T4]

If native.cpp is built, functions in C replace some lines:

    T4 = empty_T4()
    kernel_0_in_c(T1, T0, T4)

The option `persistent_buffers` gives some values memory that is used again at each call:

    T3 = empty_strided((6,), (1,), dtype=float32, device=device)
->  T3 = persistent('T3', (6,), (1,), dtype=float32)

Only values that nothing but kernels read get it. A result belongs to the caller, torch may return
a view of what it reads, and communication may still read a value after the call.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any
from weakref import finalize

import nvtx
import torch
from torch.autograd.graph import increment_version

from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.communication.products.products import named_products
from thunder_fuser.communication.transport.buffers import forget, persistent_tensor
from thunder_fuser.communication.transport.collectives import COLLECTIVES, wait
from thunder_fuser.host.call.native import empty_in_c
from thunder_fuser.host.programs.launchers import Launcher
from thunder_fuser.host.programs.nodes import Allocate, HostNode, LaunchKernel
from thunder_fuser.host.programs.order import ordered, verify
from thunder_fuser.host.programs.pieces import named
from thunder_fuser.host.programs.steps import drawn_nodes, ending_nodes, steps_of
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.multi_device import MultiDeviceParams
from thunder_fuser.runtime.random import draw
from thunder_fuser.runtime.torch_types import coordinate, to_torch_dtype
from thunder_fuser.segment.plan import SegmentedFusion

Runner = Callable[..., list[torch.Tensor]]
_NUMBERS = count()  # each program gets a new number

# Without a profiler, a range costs 0.1 us.
_RANGES = nvtx.get_domain("thunder_fuser")


@dataclass(frozen=True)
class HostProgram:
    """A fusion compiled for one key: its text, the function of the text, its nodes and kernels.

    choices: the autotuner's choice for each segment, or None; empty without autotuning.
    """

    text: str
    run: Runner = field(compare=False, repr=False)
    segmented: SegmentedFusion = field(compare=False, repr=False)
    nodes: tuple[HostNode, ...] = ()
    sources: tuple[KernelSource, ...] = ()
    choices: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return self.text


def plan(
    segmented: SegmentedFusion,
    launchers: Sequence[Launcher],
    device: torch.device,
    params: MultiDeviceParams | None = None,
    *,
    persistent: bool = False,
) -> HostProgram:
    """The program: for each segment its allocations, its call, and a del of dead values.

    A collective is posted in its segment's place, and awaited before the first segment that reads
    it. VerifyError if the program is not sound. persistent: intermediates use the same memory at
    each call.
    """
    params, fusion = params or MultiDeviceParams(), segmented.fusion
    number = f"program {next(_NUMBERS)}"
    lasting = read_by_kernels_only(segmented, launchers) if persistent else frozenset()
    drawn = list(drawn_nodes(fusion))
    kept = {*fusion.inputs, *(name for node in drawn for name in node.makes)}
    kept |= {output.name for output in fusion.outputs}
    is_cuda = device.type == "cuda"
    steps = list(steps_of(segmented, launchers, params, lasting, is_cuda=is_cuda))
    body = ordered(steps, kept, is_early=params.executor.early)
    nodes = (*drawn, *body, *ending_nodes(segmented))
    verify(fusion.inputs, nodes)
    in_c = _functions_in_c(nodes, launchers, device)
    names = {
        **_names(fusion, device, params), **dict(_functions(launchers)), **in_c,
        "persistent": partial(persistent_tensor, number, device=device),
    }  # fmt: skip
    run = _function(_text(fusion, nodes, in_c), names)
    if lasting:
        finalize(run, forget, number).atexit = False
    sources = tuple(launcher.source for launcher in launchers if launcher.source)
    return HostProgram(_text(fusion, nodes), run, segmented, nodes, sources)


def _text(fusion: Fusion, nodes: Sequence[HostNode], in_c: Container[str] = ()) -> str:
    """The program as Python. in_c: the names of functions in C, which it calls."""
    lines = "".join(f"    {line}\n" for node in nodes for line in node.lines(in_c))
    return f"def run({', '.join(fusion.inputs)}):\n{lines}"


def _function(text: str, names: Mapping[str, Any]) -> Runner:
    scope = dict(names)
    exec(compile(text, "<host program>", "exec"), scope)
    return scope.pop("run")  # else a reference cycle would keep kernels until a garbage collection


# ---- the names that the text uses


def _names(fusion: Fusion, device: torch.device, params: MultiDeviceParams) -> dict[str, Any]:
    """Those that are alike in all programs of such types, on such a device."""
    dtypes = {to_torch_dtype(view.dtype) for view in fusion.tensors.values()}
    return {
        "empty_strided": torch.empty_strided,
        "device": device,
        "push_range": _RANGES.push_range,
        "pop_range": _RANGES.pop_range,
        "threads": torch.get_num_threads,
        "stream": getattr(torch._C, "_cuda_getCurrentRawStream", None),  # absent without CUDA
        "draw": draw,
        "note_writes": increment_version,
        "wait": partial(wait, seconds=params.executor.seconds),
        **COLLECTIVES,
        **named_products(params.lower),
        **named(device),
        "coordinate": coordinate,
        **{str(dtype).removeprefix("torch."): dtype for dtype in (*dtypes, torch.uint8)},
    }


def _functions(launchers: Sequence[Launcher]) -> Iterator[tuple[str, Any]]:
    """The functions of the segments, and the ranges of their kernels."""
    for number, launcher in enumerate(launchers):
        if launcher.source is None:
            yield f"torch_{number}", launcher.run
        else:
            yield f"kernel_{number}", launcher.run
            message = launcher.source.name
            yield f"range_{number}", _RANGES.get_event_attributes(message=message)


def _functions_in_c(
    nodes: Sequence[HostNode], launchers: Sequence[Launcher], device: torch.device
) -> dict[str, Callable[..., Any]]:
    """The functions in C that allocate and launch."""
    functions: dict[str, Callable[..., Any] | None] = {}
    for node in nodes:
        if isinstance(node, LaunchKernel):
            functions[node.in_c] = launchers[node.number].in_c
        elif isinstance(node, Allocate) and not (node.is_packed or node.is_persistent):
            functions[node.in_c] = empty_in_c(node.sizes, node.strides, node.dtype, device)
    return {name: function for name, function in functions.items() if function is not None}


# ---- memory that is used again


def read_by_kernels_only(
    segmented: SegmentedFusion, launchers: Sequence[Launcher]
) -> frozenset[str]:
    """The intermediates that only kernels make and read."""
    made, elsewhere = set[str](), {output.name for output in segmented.fusion.outputs}
    for segment, launcher in zip(segmented.segments, launchers, strict=True):
        part = segment.part
        elsewhere |= {name for pair in part.overwrites for name in pair}
        if launcher.source is not None:
            made |= {*part.outputs}
        else:
            elsewhere |= {*part.inputs, *part.outputs}
    return frozenset(made - elsewhere)
