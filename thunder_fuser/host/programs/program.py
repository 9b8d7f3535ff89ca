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

Between the steps of segments stand waits and frees:

    [T3_sent = all_gather(T2)], [T4 = ..., kernel_1(T1, T4)], [T5 = ..., kernel_2(T3, T5)]
->  T3_sent = all_gather(T2)
    del T2
    T4 = ..., kernel_1(T1, T4)
    T3 = wait(T3_sent, 'T3')             before the first step that reads it
    del T3_sent
    T5 = ..., kernel_2(T3, T5)
    del T3                               behind the last step that reads it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import nvtx
import torch
from torch.autograd.graph import increment_version

from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.communication.products.products import named_products
from thunder_fuser.communication.transport.collectives import COLLECTIVES, wait
from thunder_fuser.errors import VerifyError
from thunder_fuser.host.call.native import empty_in_c
from thunder_fuser.host.programs.launchers import Launcher
from thunder_fuser.host.programs.nodes import (
    Allocate,
    Collective,
    Free,
    HostNode,
    LaunchKernel,
    Return,
    View,
    Wait,
)
from thunder_fuser.host.programs.pieces import named
from thunder_fuser.host.programs.steps import drawn_nodes, ending_nodes, steps_of
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.multi_device import MultiDeviceParams
from thunder_fuser.runtime.random import draw
from thunder_fuser.runtime.torch_types import coordinate, to_torch_dtype
from thunder_fuser.segment.plan import SegmentedFusion

ProgramRun = Callable[..., list[torch.Tensor]]

# Without a profiler, a range costs 0.1 us.
_RANGES = nvtx.get_domain("thunder_fuser")


# ---- order


def ordered(
    steps: Sequence[Sequence[HostNode]], kept: Collection[str], *, is_early: bool
) -> Iterator[HostNode]:
    """The nodes of all steps, with waits and frees.

    A collective is awaited before the first step that reads what it brings, or that writes into the
    memory it sends; directly behind its own step unless `is_early`. kept: values that are not
    freed.
    """
    reads = [dict.fromkeys(name for node in step for name in node.reads) for step in steps]
    last = {name: number for number, names in enumerate(reads) for name in names}
    under_way: dict[str, Collective] = {}
    for number, step in enumerate(steps):
        overwritten = {node.of for node in step if isinstance(node, View)}
        yield from _awaited(under_way, {
            name for name, post in under_way.items()
            if name in reads[number] or post.operand in overwritten
        })  # fmt: skip
        yield from step
        under_way |= {node.wait.name: node for node in step if isinstance(node, Collective)}
        if not is_early:
            yield from _awaited(under_way, set(under_way))
        dead = [name for name in reads[number] if last[name] == number and name not in kept]
        if dead:
            yield Free(tuple(dead))
    yield from _awaited(under_way, set(under_way))


def _awaited(under_way: dict[str, Collective], names: Collection[str]) -> Iterator[HostNode]:
    """The waits for these names, in the order of their collectives; removes them."""
    for name in [name for name in under_way if name in names]:
        wait = under_way.pop(name).wait
        yield wait
        yield Free((wait.sent,))


def verify(arguments: Sequence[str], nodes: Sequence[HostNode]) -> None:
    """VerifyError names the first node that breaks a rule.

    A node needs only values that exist and are not freed. Each collective has one wait; until then
    nobody reads what it brings, or writes into the memory that it sends. Only the last node
    returns.
    """
    memory = {name: name for name in arguments}  # {value that is alive: whose memory it has}
    sent: dict[str, tuple[Collective, str]] = {}  # with whose memory is sent
    for node in nodes:
        for name in (*node.reads, *node.writes, *node.frees):
            if name not in memory:
                raise broken(node, f"{name} to be alive", "it is not made, or freed before")
        if isinstance(node, Wait):
            if sent.pop(node.sent, None) is None:
                raise broken(node, "one collective before it, awaited once", "none")
        elif early := [name for name in node.reads if name in sent]:
            raise broken(node, f"a wait for {early[0]} first", "a read of what has not arrived")
        for post, operand in sent.values():
            if operand in [memory[name] for name in node.writes]:
                raise broken(node, f"a wait for {post.sent} first", "a write of what it sends")
        memory |= {n: memory[node.of] if isinstance(node, View) else n for n in node.makes}
        if isinstance(node, Collective):
            sent[node.sent] = node, memory[node.operand]
        for name in node.frees:
            del memory[name]
    if sent:
        name, (post, _) = next(iter(sent.items()))
        raise broken(post, f"a wait for {name}", "none")
    _check_return(nodes)


def _check_return(nodes: Sequence[HostNode]) -> None:
    ends = [isinstance(node, Return) for node in nodes]
    if ends.count(True) != 1 or not ends[-1]:
        got = f"{ends.count(True)} of {len(nodes)} nodes"
        raise VerifyError("host program", expected="one return, as the last node", got=got)


def broken(node: HostNode, expected: str, got: str) -> VerifyError:
    """The error for a node that breaks a rule."""
    return VerifyError(f"host program: {node}", expected=expected, got=got)


@dataclass(frozen=True)
class HostProgram:
    """A fusion compiled for one key: its text, the function of the text, its nodes and kernels."""

    text: str
    run: ProgramRun = field(compare=False, repr=False)
    segmented: SegmentedFusion = field(compare=False, repr=False)
    nodes: tuple[HostNode, ...] = ()
    sources: tuple[KernelSource, ...] = ()

    def __str__(self) -> str:
        return self.text


def plan(
    segmented: SegmentedFusion,
    launchers: Sequence[Launcher],
    device: torch.device,
    params: MultiDeviceParams | None = None,
) -> HostProgram:
    """The program: for each segment its allocations, its call, and a del of dead values.

    A collective is posted in its segment's place, and awaited before the first segment that reads
    it. VerifyError if the program is not sound.
    """
    params, fusion = params or MultiDeviceParams(), segmented.fusion
    drawn = list(drawn_nodes(fusion))
    kept = {*fusion.inputs, *(name for node in drawn for name in node.makes)}
    kept |= {output.name for output in fusion.outputs}
    is_cuda = device.type == "cuda"
    steps = list(steps_of(segmented, launchers, params, is_cuda=is_cuda))
    body = ordered(steps, kept, is_early=params.executor.early)
    nodes = (*drawn, *body, *ending_nodes(segmented))
    verify(fusion.inputs, nodes)
    in_c = _functions_in_c(nodes, launchers, device)
    names = {**_names(fusion, device, params), **dict(_functions(launchers)), **in_c}
    run = _function(_text(fusion, nodes, in_c), names)
    sources = tuple(launcher.source for launcher in launchers if launcher.source)
    return HostProgram(_text(fusion, nodes), run, segmented, nodes, sources)


def _text(fusion: Fusion, nodes: Sequence[HostNode], in_c: Container[str] = ()) -> str:
    """The program as Python. in_c: the names of functions in C, which it calls."""
    lines = "".join(f"    {line}\n" for node in nodes for line in node.lines(in_c))
    return f"def run({', '.join(fusion.inputs)}):\n{lines}"


def _function(text: str, names: Mapping[str, Any]) -> ProgramRun:
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
        elif isinstance(node, Allocate):
            functions[node.in_c] = empty_in_c(node.sizes, node.strides, node.dtype, device)
    return {name: function for name, function in functions.items() if function is not None}
