# SPDX-License-Identifier: Apache-2.0
"""Part -> Launcher: compiles and loads a segment's kernel, or prepares its call of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from thunder_fuser.analysis.part import Part
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.communication.transport.collectives import COLLECTIVES
from thunder_fuser.host.call.native import cpu_launch, cuda_launch
from thunder_fuser.host.ranges import ranged
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.options import option
from thunder_fuser.runtime.cpu import build_cpu, compile_cpu
from thunder_fuser.runtime.cuda import compile_cubin, load_kernel
from thunder_fuser.runtime.eager.evaluate import evaluate_part
from thunder_fuser.runtime.emulator import EmulatedKernel, compile_emulated
from thunder_fuser.target import Target


@dataclass(frozen=True)
class Launcher:
    """The function `run` of a segment.

    source: of its kernel; None for a collective, and if torch runs the segment. call: the Python
    that runs a kernel with `{arguments}`. pointer: how that passes a tensor's memory. in_c: a
    function in C that does the same, with tensors and numbers as arguments, or None.
    """

    run: Callable[..., Any]
    source: KernelSource | None = None
    call: str = ""
    pointer: str = "{}.data_ptr()"
    in_c: Callable[..., Any] | None = None


def launcher_for(
    part: Part, source: KernelSource | None, target: Target, device: torch.device
) -> Launcher:
    """Compiles a segment's kernel for the target, or prepares its torch call."""
    if part.exprs[0].row.kind is OpKind.COMMUNICATION:
        return Launcher(COLLECTIVES[part.exprs[0].op])
    if source is None:
        return Launcher(lambda *values: evaluate_part(part, values, device))
    if target.is_cpu:
        threads = "threads()" if source.threaded else "1"
        call = f"{{run}}({{arguments}}, {threads})"
        function = compile_cpu(source).function
        in_c = cpu_launch(source, function)
        run = function if in_c else ranged(source.name, function)
        return Launcher(run, source, call, in_c=in_c)
    if target.emulated:
        emulated = ranged(source.name, partial(_emulated, compile_emulated(source)))
        return Launcher(emulated, source, "{run}([{arguments}])", "{}")
    index = device.index or 0
    kernel = load_kernel(source, target.arch, index)
    call = f"{{run}}(stream({index}), ({{arguments}}, ))"
    return Launcher(kernel.launch, source, call, in_c=cuda_launch(kernel))


def build(source: KernelSource, target: Target) -> None:
    """Compiles a kernel, but keeps none loaded, so that `launcher_for` finds its binary."""
    if target.is_cpu:
        build_cpu(source)
    elif target.emulated:
        compile_emulated(source)
    else:
        compile_cubin(source.text, source.name, target.arch)


def _emulated(kernel: EmulatedKernel, arguments: Sequence[Any]) -> None:
    kernel.launch(arguments, reverse=bool(option("emulate_reversed")))
