# SPDX-License-Identifier: Apache-2.0
"""SegmentedFusion + kernels -> HostProgram: straight-line Python that allocates and launches.

def run(T0, T1):
    T4 = empty_strided((64, 1024), (1024, 1), dtype=float32, device=device)
    push_range(range_0)
    kernel_0(T1.data_ptr(), T0.data_ptr(), T4.data_ptr(), threads())
    pop_range()
    return [T4]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import nvtx
import torch

from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.host.launchers import Launcher
from thunder_fuser.ir.fusion import Fusion, Output, TensorView
from thunder_fuser.ir.strides import contiguous_strides, stride_order_of
from thunder_fuser.runtime.mesh import coordinate
from thunder_fuser.runtime.random import draw
from thunder_fuser.runtime.torch_types import to_torch_dtype
from thunder_fuser.segment.plan import SegmentedFusion

Runner = Callable[..., list[torch.Tensor]]

# Without a profiler, a range costs 0.1 us.
_RANGES = nvtx.get_domain("thunder_fuser")


@dataclass(frozen=True)
class HostProgram:
    """A fusion compiled for one key: its text, the function of the text, its kernels."""

    text: str
    run: Runner = field(compare=False, repr=False)
    segmented: SegmentedFusion = field(compare=False, repr=False)
    sources: tuple[KernelSource, ...] = ()

    def __str__(self) -> str:
        return self.text


def plan(
    segmented: SegmentedFusion, launchers: Sequence[Launcher], device: torch.device
) -> HostProgram:
    """The program: for each segment its allocations, its call, and a del of dead values."""
    fusion = segmented.fusion
    names: dict[str, Any] = {
        "empty_strided": torch.empty_strided,
        "device": device,
        "push_range": _RANGES.push_range,
        "pop_range": _RANGES.pop_range,
        "draw": draw,
        "coordinate": coordinate,
        **{str(d).removeprefix("torch."): d for d in _dtypes(fusion)},
    }
    lines = [f"def run({', '.join(fusion.inputs)}):", *_draws(fusion)]
    shapes = _shapes_given(segmented)
    dead = _last_reads(segmented)
    for number, (segment, launcher) in enumerate(zip(segmented.segments, launchers, strict=True)):
        call, needed = launcher.line(number, segment.part)
        if launcher.allocates:
            taken = dict(segment.part.overwrites)
            lines += [
                f"    {n} = {taken[n]}" if n in taken
                else _allocation(fusion.tensors[n], segmented.strides[n], shapes.get(n))
                for n in segment.part.outputs
            ]
        if launcher.source is not None:
            needed[f"range_{number}"] = _RANGES.get_event_attributes(message=launcher.source.name)
            call = f"    push_range(range_{number})\n{call}\n    pop_range()"
        lines.append(call)
        names.update(needed)
        if dead[number]:
            lines.append(f"    del {', '.join(dead[number])}")
    lines += _ending(segmented)
    text = "\n".join(lines) + "\n"
    sources = tuple(launcher.source for launcher in launchers if launcher.source)
    return HostProgram(text, _function(text, names), segmented, sources)


def _draws(fusion: Fusion) -> list[str]:
    """The lines for values that are no arguments: coordinates of this device, the drawn seed,
    and drawn offsets."""
    here = [f"    {name} = coordinate({mesh!r}, {on!r})" for name, mesh, on in fusion.coordinates]
    if not fusion.drawn:
        return here
    count = sum(at is not None for _, at in fusion.drawn)
    values = [(name, "seed" if at is None else f"offset + {at}") for name, at in fusion.drawn]
    own = [f"    {name} = {value}" for name, value in values]
    return [*here, f"    seed, offset = draw(device, {count})", *own]


def _shapes_given(segmented: SegmentedFusion) -> dict[str, tuple[int, ...]]:
    """The shapes of results that differ from the shapes of their values.

    They are allocated in these shapes, because kernels see only addresses. Excluded are values
    that torch computes with, and values returned twice.
    """
    torch_runs = [one.part for one in segmented.segments if not one.scheduler.makes_kernel]
    own = {name for part in torch_runs for name in (*part.inputs, *part.outputs)}
    times = Counter(output.name for output in segmented.fusion.outputs)
    return {
        o.name: o.shape for o in segmented.fusion.outputs
        if o.shape is not None and times[o.name] == 1 and o.name not in own
    }


def _last_reads(segmented: SegmentedFusion) -> list[list[str]]:
    """For each segment, the intermediates that it is the last to read."""
    fusion = segmented.fusion
    found = (*fusion.drawn, *fusion.coordinates)
    given = {*fusion.inputs, *(name for name, *_ in found)}
    kept = {*given, *(o.name for o in fusion.outputs)}
    parts = [segment.part for segment in segmented.segments]
    last = {name: number for number, part in enumerate(parts) for name in part.inputs}
    return [
        [name for name in part.inputs if last[name] == number and name not in kept]
        for number, part in enumerate(parts)
    ]


def _ending(segmented: SegmentedFusion) -> list[str]:
    """Copies into aliased inputs, and the return statement.

    An input that is overwritten and also returned is cloned first. A result in another stride
    order than its value is copied.
    """
    fusion, shapes = segmented.fusion, _shapes_given(segmented)
    written = {o.alias for o in fusion.outputs}
    saved = dict.fromkeys(o.name for o in fusion.outputs if o.name in written)
    lines = [f"    {name}_before = {name}.clone()" for name in saved]
    names = {o: f"{o.name}_before" if o.name in saved else o.name for o in fusion.outputs}
    lines += [f"    {o.alias}.copy_({names[o]})" for o in fusion.outputs if o.alias]
    results = []
    for number, output in enumerate(o for o in fusion.outputs if not o.alias):
        strides = _wanted_strides(segmented, output)
        if strides == segmented.strides[output.name]:
            own = output.shape is None or output.name in shapes
            results.append(names[output] if own else f"{names[output]}.view({output.shape!r})")
            continue
        view = replace(fusion.tensors[output.name], name=f"R{number}")
        lines += [_allocation(view, strides), f"    R{number}.copy_({names[output]})"]
        results.append(f"R{number}")
    return [*lines, f"    return [{', '.join(results)}]"]


def _wanted_strides(segmented: SegmentedFusion, output: Output) -> tuple[int, ...]:
    """The strides of a result: in the requested order, else in the value's order."""
    view = segmented.fusion.tensors[output.name]
    if output.stride_order is not None:
        return contiguous_strides(view.sizes, output.stride_order)
    if output.name in segmented.fusion.inputs:
        return segmented.strides[output.name]
    return contiguous_strides(view.sizes, stride_order_of(view.domain.allocation))


def _dtypes(fusion: Fusion) -> set[torch.dtype]:
    return {to_torch_dtype(view.dtype) for view in fusion.tensors.values()}


def _allocation(
    view: TensorView, strides: tuple[int, ...], shape: tuple[int, ...] | None = None
) -> str:
    """The line that allocates a tensor, in the shape of the result if that differs."""
    dtype = str(to_torch_dtype(view.dtype)).removeprefix("torch.")
    sizes = view.sizes if shape is None else shape
    strides = strides if shape is None else contiguous_strides(shape)
    return f"    {view.name} = empty_strided({sizes!r}, {strides!r}, dtype={dtype}, device=device)"


def _function(text: str, names: Mapping[str, Any]) -> Runner:
    scope = dict(names)
    exec(compile(text, "<host program>", "exec"), scope)
    return scope.pop("run")  # popped: a cycle would keep kernels alive until a collection
