# SPDX-License-Identifier: Apache-2.0
"""The nodes of a plan's segments, of what is drawn before them, and of the end behind them.

    segment 0 expr_eval: T2 = matmul(T0, T1)      T2, = torch_0(T0, T1)
    segment 1 pointwise: T3 = tanh(T2)            T3 = empty_strided(...), kernel_1(T2, T3)
    add_output(T3, alias_input=T0)                T0.copy_(T3), return []
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from thunder_fuser.analysis.part import Part
from thunder_fuser.host.programs.launchers import Launcher
from thunder_fuser.host.programs.nodes import (
    Allocate,
    Call,
    Collective,
    CopyInto,
    Draw,
    HostNode,
    KernelArgument,
    LaunchKernel,
    Return,
    ReturnedValue,
    View,
    Wait,
    literal,
)
from thunder_fuser.host.programs.overlap import Overlapped, may_overlap, overlaps
from thunder_fuser.host.programs.pieces import pieces_of
from thunder_fuser.ir.fusion import Fusion, Output
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.strides import contiguous_strides, stride_order_of
from thunder_fuser.multi_device import MultiDeviceParams
from thunder_fuser.runtime.torch_types import to_torch_dtype
from thunder_fuser.segment.plan import SegmentedFusion

# ---- before the segments


def drawn_nodes(fusion: Fusion) -> Iterator[HostNode]:
    """Values that are not arguments: coordinates of this device, the drawn seed, drawn offsets."""
    for name, mesh, on in fusion.coordinates:
        yield Call("coordinate", (repr(mesh), repr(on)), results=(name,))
    if fusion.drawn:
        yield Draw(fusion.drawn)


# ---- the segments


def steps_of(
    segmented: SegmentedFusion, launchers: Sequence[Launcher], params: MultiDeviceParams, *,
    is_cuda: bool,
) -> Iterator[list[HostNode]]:  # fmt: skip
    """The nodes of each segment."""
    joined = overlaps(segmented, every=may_overlap(params.lower, is_cuda=is_cuda))
    memory = partial(_memory, segmented, _result_shapes(segmented))
    event = 0
    for number, (segment, launcher) in enumerate(zip(segmented.segments, launchers, strict=True)):
        part, op = segment.part, segment.ops[0]
        if number in joined:
            call = joined[number]  # None: the call stands at the other segment
            yield [] if call is None else [_overlapped(call)]
        elif launcher.source is not None:
            yield [*memory(part), _launch(number, part, launcher)]
        elif op.row.kind is OpKind.COMMUNICATION:
            yield [_collective(segmented, op)]
        elif pieces := pieces_of(segmented.fusion, segment.ops, params.executor.streams, event):
            event += pieces.events
            yield [*memory(part), pieces]
        else:
            function = f"torch_{number}"
            yield [Call(function, part.inputs, part.inputs, part.outputs, is_listed=True)]


def _overlapped(call: Overlapped) -> Call:
    """A product with its communication."""
    a, b, *bias = call.reads
    attrs = [f"{key}={literal(call.post.attr(key))}" for key in ("mesh", "on")]
    attrs += [f"chunks={call.chunks}"] * bool(call.chunks)
    operands = (a, b + ".t()" * call.transposed, *(f"bias={name}" for name in bias))
    return Call(call.name, (*operands, *attrs), call.reads, (call.result,))


def _collective(segmented: SegmentedFusion, op: OpRecord) -> Collective:
    (operand,), (name,) = names_of(op), op.outputs
    strides = segmented.strides[name]
    is_row_major = strides == contiguous_strides(segmented.fusion.tensors[name].sizes)
    return Collective(op.op, operand, Wait(name, None if is_row_major else strides), op.attrs)


def _launch(number: int, part: Part, launcher: Launcher) -> LaunchKernel:
    assert launcher.source is not None
    inputs = []
    for name in part.inputs:
        view = part.tensors[name]
        by_value = "{}" if view.is_scalar else "{}.item()"
        inputs.append(KernelArgument(name, by_value if view.by_value else None))
    return LaunchKernel(
        number, launcher.call, launcher.pointer, tuple(inputs), part.outputs, launcher.source.sizes
    )


def _memory(
    segmented: SegmentedFusion, shapes: Mapping[str, tuple[int, ...]], part: Part
) -> Iterator[HostNode]:
    """The memory of a segment's results: new, or an argument's."""
    taken = dict(part.overwrites)
    for name in part.outputs:
        if name in taken:
            yield View(name, taken[name])
        else:
            yield _allocate(segmented, name, segmented.strides[name], shape=shapes.get(name))


def _allocate(
    segmented: SegmentedFusion, name: str, strides: tuple[int, ...], *,
    shape: tuple[int, ...] | None = None, target: str = "",
) -> Allocate:  # fmt: skip
    """Memory for a value, in the shape of the result if that differs. target: another name."""
    view = segmented.fusion.tensors[name]
    sizes = view.sizes if shape is None else shape
    strides = strides if shape is None else contiguous_strides(shape)
    return Allocate(target or name, sizes, strides, to_torch_dtype(view.dtype))


def _result_shapes(segmented: SegmentedFusion) -> dict[str, tuple[int, ...]]:
    """The shapes of results that differ from the shapes of their values.

    Their memory is allocated in these shapes, because kernels see only addresses. Excluded are
    values that torch computes with, values returned twice, arguments, and results with a stride
    order.
    """
    parts = [segment.part for segment in segmented.segments if not segment.scheduler.makes_kernel]
    torch_values = {name for part in parts for name in (*part.inputs, *part.outputs)}
    arguments = set(segmented.fusion.inputs)
    times = Counter(output.name for output in segmented.fusion.outputs)
    return {
        o.name: o.shape for o in segmented.fusion.outputs
        if o.shape is not None and o.stride_order is None
        and times[o.name] == 1 and o.name not in torch_values | arguments
    }


# ---- behind the segments


def ending_nodes(segmented: SegmentedFusion) -> Iterator[HostNode]:
    """Copies into aliased inputs, and the return.

    An overwritten input is cloned first if its old value overwrites another input. If a kernel has
    written into an input, only autograd must be told. A result is copied if its stride order
    differs from its value's.
    """
    fusion, shapes = segmented.fusion, _result_shapes(segmented)
    in_place = {pair for segment in segmented.segments for pair in segment.part.overwrites}
    writes = [(o.name, o.alias) for o in fusion.outputs if o.alias]
    written = {alias for _, alias in writes}
    saved = {name: f"{name}_before" for name, _ in writes if name in written}
    yield from (Call(f"{name}.clone", (), (name,), (copy,)) for name, copy in saved.items())
    copied = [pair for pair in writes if pair not in in_place]
    yield from (CopyInto(alias, saved.get(name, name)) for name, alias in copied)
    if noted := tuple(alias for name, alias in writes if (name, alias) not in copied):
        yield Call("note_writes", (f"({', '.join(noted)}, )",), noted)
    results = []
    for number, output in enumerate(o for o in fusion.outputs if not o.alias):
        strides, name = _wanted_strides(segmented, output), output.name
        if memory := fusion.memory_of(output):
            results.append(ReturnedValue(memory))
        elif strides != segmented.strides[name]:
            copy = _allocate(segmented, name, strides, target=f"R{number}")
            yield from (copy, CopyInto(copy.name, name))
            results.append(ReturnedValue(copy.name, output.shape))
        else:
            is_seen = output.shape is not None and name not in shapes
            is_argument = is_seen and name in fusion.inputs
            results.append(ReturnedValue(name, output.shape if is_seen else None, is_argument))
    yield Return(tuple(results))


def _wanted_strides(segmented: SegmentedFusion, output: Output) -> tuple[int, ...]:
    """The strides of a result: in the requested order, else in the value's order."""
    view = segmented.fusion.tensors[output.name]
    if output.stride_order is not None:
        return contiguous_strides(view.sizes, output.stride_order)
    if output.name in segmented.fusion.inputs:
        return segmented.strides[output.name]
    return contiguous_strides(view.sizes, stride_order_of(view.domain.allocation))
