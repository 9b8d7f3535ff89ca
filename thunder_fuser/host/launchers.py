# SPDX-License-Identifier: Apache-2.0
"""How segments run: a line of the host program, and the objects that the line names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_fuser.analysis.part import Part
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.ir.build import define
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import AttrValue, OpRecord
from thunder_fuser.options import option
from thunder_fuser.runtime.cpu import compile_cpu
from thunder_fuser.runtime.cuda import load_kernel
from thunder_fuser.runtime.emulator import compile_emulated
from thunder_fuser.runtime.evaluate import evaluate
from thunder_fuser.segment.plan import Segment
from thunder_fuser.target import Target

Line = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Launcher:
    """Makes the program's line for segment `number`. Torch segments allocate their own results."""

    line: Callable[[int, Part], Line]
    source: KernelSource | None = None
    allocates: bool = True


def launcher_for(
    segment: Segment,
    source: KernelSource | None,
    target: Target,
    device: torch.device,
) -> Launcher:
    """Compiles the segment's kernel for the target, or prepares its torch call."""
    if source is None:
        return Launcher(_torch_line(segment.part, device), None, allocates=False)
    if target.is_cpu:
        kernel = compile_cpu(source).function
        return Launcher(_with_threads(kernel, source), source)
    if target.emulated:
        return Launcher(_emulated(source), source)
    loaded = load_kernel(source, target.arch, device.index or 0)
    return Launcher(_on_stream(loaded.launch, source, device.index or 0), source)


def _arguments(part: Part, source: KernelSource, pointer: str) -> list[str]:
    """The arguments of a kernel: addresses of tensors, values of scalars, then sizes."""
    inputs = []
    for name in part.inputs:
        view = part.tensors[name]
        by_value = name if view.is_scalar else f"{name}.item()"
        inputs.append(by_value if view.by_value else pointer.format(name))
    outputs = [pointer.format(name) for name in part.outputs]
    return [*inputs, *outputs, *map(str, source.sizes)]


def _with_threads(
    kernel: Callable[..., None], source: KernelSource
) -> Callable[[int, Part], Line]:
    threads = "threads()" if source.threaded else "1"

    def line(number: int, part: Part) -> Line:
        arguments = ", ".join([*_arguments(part, source, "{}.data_ptr()"), threads])
        names = {f"kernel_{number}": kernel, "threads": torch.get_num_threads}
        return f"    kernel_{number}({arguments})", names

    return line


def _emulated(source: KernelSource) -> Callable[[int, Part], Line]:
    kernel = compile_emulated(source)

    def launch(arguments: Sequence[Any]) -> None:
        kernel.launch(arguments, reverse=bool(option("emulate_reversed")))

    def line(number: int, part: Part) -> Line:
        arguments = ", ".join(_arguments(part, source, "{}"))
        return f"    kernel_{number}([{arguments}])", {f"kernel_{number}": launch}

    return line


def _on_stream(
    launch: Callable[..., None], source: KernelSource, index: int
) -> Callable[[int, Part], Line]:
    def line(number: int, part: Part) -> Line:
        arguments = "".join(f"{a}, " for a in _arguments(part, source, "{}.data_ptr()"))
        names = {f"kernel_{number}": launch, "stream": torch._C._cuda_getCurrentRawStream}
        return f"    kernel_{number}(stream({index}), ({arguments}))", names

    return line


def _torch_line(part: Part, device: torch.device) -> Callable[[int, Part], Line]:
    """Runs the segment's operations one by one in torch."""
    own = sub_fusion(part)
    wanted = [part.strides[name] for name in part.outputs]

    def call(*values: Any) -> list[torch.Tensor]:
        found = evaluate(own, values, device=device)
        return [_laid_out(value, strides) for value, strides in zip(found, wanted, strict=True)]

    def line(number: int, part: Part) -> Line:
        targets = "".join(f"{name}, " for name in part.outputs)
        return f"    {targets}= torch_{number}({', '.join(part.inputs)})", {f"torch_{number}": call}

    return line


def _laid_out(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if value.stride() == strides:
        return value
    memory = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return memory.copy_(value)


def sub_fusion(part: Part) -> Fusion:
    """The part as a fusion of its own."""
    inputs = [_input_record(part, name) for name in part.inputs]
    results = [OpRecord("add_output", (name,)) for name in part.outputs]
    return define((*inputs, *part.exprs, *results))


def _input_record(part: Part, name: str) -> OpRecord:
    view = part.tensors[name]
    if view.is_scalar:
        return OpRecord("define_scalar", (), (name,), (("dtype", view.dtype),))
    order = tuple(range(len(view.shape) - 1, -1, -1))
    attrs: tuple[tuple[str, AttrValue], ...] = (
        ("shape", view.sizes),
        ("contiguity", (None,) * len(order)),
        ("dtype", view.dtype),
        ("is_cpu", view.is_cpu),
        ("stride_order", order),
        ("strides", part.strides[name]),
    )
    return OpRecord("define_tensor", (), (name,), attrs)
