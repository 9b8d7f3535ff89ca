# SPDX-License-Identifier: Apache-2.0
"""Writes a HostProgram for segments and their kernels: Python lines that allocate and launch.

def run(T0, T1):
    T4 = empty_strided((64, 1024), (1024, 1), dtype=float32, device=device)
    push_range(range_0)
    kernel_0(T1.data_ptr(), T0.data_ptr(), T4.data_ptr(), threads())
    pop_range()
    return [T4]

If native.cpp is built, functions in C replace some lines:

    T4 = empty_T4()
    kernel_0_in_c(T1, T0, T4)

A communication is posted, and its wait stands before the first read (rules: statements.py):

    T3_sent = all_reduce(T2, mesh=(0, 1), on='mesh_x', reduce='sum')
    T3 = wait(T3_sent, 'T3')
    del T3_sent

A product over streams is computed in pieces (streams.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import nvtx
import torch
from torch.autograd.graph import increment_version

from thunder_fuser.analysis.part import Part
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.communication.products.products import named_products
from thunder_fuser.communication.transport.collectives import COLLECTIVES, wait
from thunder_fuser.host.call.native import cpu_launch, cuda_launch, empty_in_c
from thunder_fuser.host.programs.overlap import may_overlap, overlaps, reads_of
from thunder_fuser.host.programs.persistent import Memory, read_by_kernels_only
from thunder_fuser.host.programs.posts import overlapped_lines, post_text, waits
from thunder_fuser.host.programs.statements import statements, verify_program
from thunder_fuser.host.programs.streams import in_pieces, named, piece_lines
from thunder_fuser.host.ranges import ranged
from thunder_fuser.ir.fusion import Fusion, Output, TensorView
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.strides import contiguous_strides, stride_order_of
from thunder_fuser.multi_device import MultiDeviceParams
from thunder_fuser.options import option
from thunder_fuser.runtime.cpu import build_cpu, compile_cpu
from thunder_fuser.runtime.cuda import compile_cubin, load_kernel
from thunder_fuser.runtime.eager.evaluate import evaluate_part
from thunder_fuser.runtime.emulator import EmulatedKernel, compile_emulated
from thunder_fuser.runtime.random import draw
from thunder_fuser.runtime.torch_types import coordinate, to_torch_dtype
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.target import Target

Runner = Callable[..., list[torch.Tensor]]

# Without a profiler, a range costs 0.1 us.
_RANGES = nvtx.get_domain("thunder_fuser")


@dataclass(frozen=True)
class Launcher:
    """A segment's function `run`, and the Python that calls it with `{arguments}`.

    pointer: how the call passes a tensor's memory. source: None if torch runs the segment and
    allocates its results. in_c: a function in C that does the same, with tensors and numbers as
    arguments, or None. moves: whether it posts communication.
    """

    run: Callable[..., Any]
    call: str
    pointer: str = "{}.data_ptr()"
    source: KernelSource | None = None
    in_c: Callable[..., Any] | None = None
    moves: bool = False


def launcher_for(
    part: Part, source: KernelSource | None, target: Target, device: torch.device
) -> Launcher:
    """Compiles a segment's kernel for the target, or prepares its torch call."""
    if part.exprs[0].row.kind is OpKind.COMMUNICATION:
        (expr,) = part.exprs
        return Launcher(COLLECTIVES[expr.op], post_text(expr), moves=True)
    if source is None:
        targets = "".join(f"{name}, " for name in part.outputs)
        in_torch = partial(_in_torch, part, device)
        return Launcher(in_torch, f"{targets}= {{run}}({', '.join(part.inputs)})")
    if target.is_cpu:
        threads = "threads()" if source.threaded else "1"
        call = f"{{run}}({{arguments}}, {threads})"
        function = compile_cpu(source).function
        in_c = cpu_launch(source, function)
        run = function if in_c else ranged(source.name, function)
        return Launcher(run, call, source=source, in_c=in_c)
    if target.emulated:
        emulated = ranged(source.name, partial(_emulated, compile_emulated(source)))
        return Launcher(emulated, "{run}([{arguments}])", "{}", source)
    index = device.index or 0
    kernel = load_kernel(source, target.arch, index)
    call = f"{{run}}(stream({index}), ({{arguments}}, ))"
    return Launcher(kernel.launch, call, source=source, in_c=cuda_launch(kernel))


def build(source: KernelSource, target: Target) -> None:
    """Compiles a kernel, but does not load it, so that `launcher_for` finds its binary."""
    if target.is_cpu:
        build_cpu(source)
    else:
        compile_cubin(source.text, source.name, target.arch)


def _in_torch(part: Part, device: torch.device, *values: Any) -> list[torch.Tensor]:
    return evaluate_part(part, values, device)


def _emulated(kernel: EmulatedKernel, arguments: Sequence[Any]) -> None:
    kernel.launch(arguments, reverse=bool(option("emulate_reversed")))


@dataclass(frozen=True)
class Line:
    """A line of a program. in_c: the line that runs instead, if any. function: the name that it
    uses, and the function."""

    text: str
    in_c: str = ""
    function: tuple[str, Callable[..., Any] | None] = ("", None)


@dataclass(frozen=True)
class HostProgram:
    """A fusion compiled for one key: its text, the function of the text, its kernels.

    choices: the autotuner's choice for each segment, or None; empty without autotuning.
    """

    text: str
    run: Runner = field(compare=False, repr=False)
    segmented: SegmentedFusion = field(compare=False, repr=False)
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

    A communication is posted in its segment's place, and awaited before the first segment that
    reads it. VerifyError if the text is not sound. persistent: intermediates use the same memory at
    each call.
    """
    params = params or MultiDeviceParams()
    fusion = segmented.fusion
    lasting = Memory(device)
    names = _names(fusion, device, params, lasting)
    lines: list[str | Line] = [f"def run({', '.join(fusion.inputs)}):", *_draws(fusion)]
    on_cuda = device.type == "cuda"
    joined = overlaps(segmented, every=may_overlap(params.lower, is_cuda=on_cuda))
    divided, events = in_pieces(segmented, joined), count()
    read = list(reads_of(segmented, joined))
    dead = _last_reads(segmented, read)
    is_kernel = [launcher.source is not None for launcher in launchers]
    parts = [one.part for one in segmented.segments]
    kept = read_by_kernels_only(fusion, parts, is_kernel) if persistent else frozenset()
    under_way: list[str] = []
    for number, (segment, launcher) in enumerate(zip(segmented.segments, launchers, strict=True)):
        lines += waits(segmented, under_way, read[number])
        if number in joined:
            lines += overlapped_lines(joined[number])
        elif number in divided:
            lines += _allocations(segmented, segment.part, device, frozenset())
            lines += piece_lines(fusion, divided[number], params.executor.streams, events)
        elif launcher.moves:
            lines.append("    " + launcher.call)
            under_way += segment.part.outputs
            at_once = not params.executor.early
            lines += waits(segmented, under_way, segment.part.outputs if at_once else ())
        else:
            makes = launcher.source is not None  # torch allocates what it makes
            memory = _allocations(segmented, segment.part, device, kept) if makes else []
            lines += _computed(segmented, number, launcher, memory, names)
        lines += [f"    del {', '.join(dead[number])}"] * bool(dead[number])
    lines += [*waits(segmented, under_way, tuple(under_way)), *_ending(segmented, device)]
    program = _program(lines, names, segmented, launchers)
    if kept:
        lasting.freed_with(program.run)
    return program


def _names(
    fusion: Fusion, device: torch.device, params: MultiDeviceParams, lasting: Memory
) -> dict[str, Any]:
    """The names that a program's lines may use, except its kernels and torch calls."""
    dtypes = {to_torch_dtype(view.dtype) for view in fusion.tensors.values()}
    return {
        "empty_strided": torch.empty_strided,
        "persistent": lasting.tensor,
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


def _computed(
    segmented: SegmentedFusion, number: int, launcher: Launcher, memory: list[str | Line],
    names: dict[str, Any],
) -> list[str | Line]:  # fmt: skip
    """The lines of a segment: memory, then the kernel, or else the torch call. Adds the functions
    that they use to `names`."""
    source, part = launcher.source, segmented.segments[number].part
    run = f"torch_{number}" if source is None else f"kernel_{number}"
    names[run] = launcher.run
    if source is None:
        return ["    " + launcher.call.format(run=run)]
    names[f"range_{number}"] = _RANGES.get_event_attributes(message=source.name)
    return [
        *memory,
        f"    push_range(range_{number})",
        _launch(run, launcher, part, source),
        "    pop_range()",
    ]


def _program(
    lines: Sequence[str | Line],
    names: dict[str, Any],
    segmented: SegmentedFusion,
    launchers: Sequence[Launcher],
) -> HostProgram:
    """The program of these lines: their text, and the function, with C instead of some lines."""
    known = [line if isinstance(line, Line) else Line(line) for line in lines]
    text = "".join(f"{line.text}\n" for line in known)
    runs = "".join(f"{line.in_c or line.text}\n" for line in known)
    scope = {**names, **dict(line.function for line in known)}
    sources = tuple(launcher.source for launcher in launchers if launcher.source)
    if any(launcher.moves for launcher in launchers) or "on_stream(" in text:
        verify_program(statements(text))
    return HostProgram(text, _function(runs, scope), segmented, sources)


def _launch(run: str, launcher: Launcher, part: Part, source: KernelSource) -> Line:
    """The line that runs a kernel."""
    sizes = [str(size) for size in source.sizes]
    arguments = ", ".join([*_arguments(part, launcher.pointer), *sizes])
    text = "    " + launcher.call.format(run=run, arguments=arguments)
    if launcher.in_c is None:
        return Line(text)
    name = f"{run}_in_c"
    return Line(text, f"    {name}({', '.join(_arguments(part, '{}'))})", (name, launcher.in_c))


def _allocations(
    segmented: SegmentedFusion, part: Part, device: torch.device, kept: frozenset[str]
) -> list[str | Line]:
    """The lines that name the memory of a kernel's results."""
    shapes, taken = _shapes_given(segmented), dict(part.overwrites)
    return [
        f"    {name} = {taken[name]}" if name in taken
        else _persistent(part.tensors[name], segmented.strides[name]) if name in kept
        else _allocation(part.tensors[name], segmented.strides[name], device, shapes.get(name))
        for name in part.outputs
    ]


def _arguments(part: Part, pointer: str) -> list[str]:
    """The arguments of a kernel but for its sizes: memory of tensors and values of scalars."""
    inputs = []
    for name in part.inputs:
        view = part.tensors[name]
        by_value = name if view.is_scalar else f"{name}.item()"
        inputs.append(by_value if view.by_value else pointer.format(name))
    outputs = [pointer.format(name) for name in part.outputs]
    return [*inputs, *outputs]


def _draws(fusion: Fusion) -> list[str]:
    """The lines for values that are not arguments: coordinates of this device, the drawn seed,
    and drawn offsets."""
    lines = [f"    {name} = coordinate({mesh!r}, {on!r})" for name, mesh, on in fusion.coordinates]
    if fusion.drawn:
        count = sum(at is not None for _, at in fusion.drawn)
        lines.append(f"    seed, offset = draw(device, {count})")
    for name, at in fusion.drawn:
        lines.append(f"    {name} = {'seed' if at is None else f'offset + {at}'}")
    return lines


def _shapes_given(segmented: SegmentedFusion) -> dict[str, tuple[int, ...]]:
    """The shapes of results that differ from the shapes of their values.

    Their memory is allocated in these shapes, because kernels see only addresses. Excluded are
    values that torch computes with, values returned twice, arguments, and results with a stride
    order.
    """
    torch_runs = [one.part for one in segmented.segments if not one.scheduler.makes_kernel]
    own = {name for part in torch_runs for name in (*part.inputs, *part.outputs)}
    given = set(segmented.fusion.inputs)
    times = Counter(output.name for output in segmented.fusion.outputs)
    return {
        o.name: o.shape for o in segmented.fusion.outputs
        if o.shape is not None and o.stride_order is None
        and times[o.name] == 1 and o.name not in own | given
    }


def _last_reads(
    segmented: SegmentedFusion, read: Sequence[Sequence[str]]
) -> list[list[str]]:
    """For each segment, the intermediates whose last reader it is."""
    fusion = segmented.fusion
    found = (*fusion.drawn, *fusion.coordinates)
    given = {*fusion.inputs, *(name for name, *_ in found)}
    kept = {*given, *(o.name for o in fusion.outputs)}
    last = {name: number for number, names in enumerate(read) for name in names}
    return [
        [name for name in names if last[name] == number and name not in kept]
        for number, names in enumerate(read)
    ]


def _ending(segmented: SegmentedFusion, device: torch.device) -> list[str | Line]:
    """Copies into aliased inputs, and the return statement.

    An overwritten input is cloned first if its old value overwrites another input. If a kernel has
    written into an input, only autograd must be told. A result is copied if its stride order
    differs from its value's.
    """
    fusion, shapes = segmented.fusion, _shapes_given(segmented)
    in_place = {pair for one in segmented.segments for pair in one.part.overwrites}
    writes = [o for o in fusion.outputs if o.alias]
    written = {o.alias for o in writes}
    saved = dict.fromkeys(o.name for o in writes if o.name in written)
    lines: list[str | Line] = [f"    {name}_before = {name}.clone()" for name in saved]
    names = {name: f"{name}_before" for name in saved}
    copied = [o for o in writes if (o.name, o.alias) not in in_place]
    lines += [f"    {o.alias}.copy_({names.get(o.name, o.name)})" for o in copied]
    noted = "".join(f"{o.alias}, " for o in writes if o not in copied)
    lines += [f"    note_writes(({noted}))"] * bool(noted)
    results = []
    for number, output in enumerate(o for o in fusion.outputs if not o.alias):
        strides, name = _wanted_strides(segmented, output), output.name
        if memory := fusion.memory_of(output):
            results.append(memory)
        elif strides == segmented.strides[name]:
            own = output.shape is None or name in shapes
            value = f"{name}.detach()" if name in fusion.inputs else name
            results.append(name if own else f"{value}.view({output.shape!r})")
        else:
            view = replace(fusion.tensors[name], name=f"R{number}")
            lines += [_allocation(view, strides, device), f"    R{number}.copy_({name})"]
            results.append(f"R{number}" + f".view({output.shape!r})" * (output.shape is not None))
    return [*lines, f"    return [{', '.join(results)}]"]


def _wanted_strides(segmented: SegmentedFusion, output: Output) -> tuple[int, ...]:
    """The strides of a result: in the requested order, else in the value's order."""
    view = segmented.fusion.tensors[output.name]
    if output.stride_order is not None:
        return contiguous_strides(view.sizes, output.stride_order)
    if output.name in segmented.fusion.inputs:
        return segmented.strides[output.name]
    return contiguous_strides(view.sizes, stride_order_of(view.domain.allocation))


def _allocation(
    view: TensorView,
    strides: tuple[int, ...],
    device: torch.device,
    shape: tuple[int, ...] | None = None,
) -> Line:
    """The line that allocates a tensor, in the shape of the result if that differs."""
    dtype = to_torch_dtype(view.dtype)
    sizes = view.sizes if shape is None else shape
    strides = strides if shape is None else contiguous_strides(shape)
    words, seen_as = str(dtype).removeprefix("torch."), ""
    if view.dtype.is_packed:  # torch cannot fill them, as its deterministic mode does
        words, seen_as = "uint8", f".view({words})"
    text = f"    {view.name} = empty_strided({sizes!r}, {strides!r}, dtype={words}, device=device)"
    text += seen_as
    in_c = None if seen_as else empty_in_c(sizes, strides, dtype, device)
    if in_c is None:
        return Line(text)
    name = f"empty_{view.name}"
    return Line(text, f"    {view.name} = {name}()", (name, in_c))


def _persistent(view: TensorView, strides: tuple[int, ...]) -> str:
    """The line that takes the same memory as the last call."""
    word = str(to_torch_dtype(view.dtype)).removeprefix("torch.")
    return (
        f"    {view.name} = persistent({view.name!r}, {view.sizes!r}, {strides!r}, dtype={word})"
    )


def _function(text: str, names: Mapping[str, Any]) -> Runner:
    scope = dict(names)
    exec(compile(text, "<host program>", "exec"), scope)
    return scope.pop("run")  # else a reference cycle would keep kernels until a garbage collection
