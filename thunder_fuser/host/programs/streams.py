# SPDX-License-Identifier: Apache-2.0
"""The lines of a host program for a product in pieces, and the functions that they call.

    T2 = matmul(T0, T1, streams=[0, 2])
->  T2 = empty_strided((6, 8), (8, 1), dtype=float32, device=device)
    E0 = record_event()
    with on_stream(1):
        wait_event(E0)
        matmul(T0[0:3], T1, out=T2[0:3])
        E1 = record_event()
    with on_stream(2):
        wait_event(E0)
        matmul(T0[3:6], T1, out=T2[3:6])
        E2 = record_event()
    wait_event(E1)
    wait_event(E2)

The caller's stream allocates the memory, and waits for all pieces. So it may free memory and return
results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from thunder_fuser.errors import TorchCallError
from thunder_fuser.host.programs.overlap import Overlapped
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.rules.streams import streams_of, walks
from thunder_fuser.segment.plan import SegmentedFusion

# ---- which products


def in_pieces(
    segmented: SegmentedFusion, joined: Mapping[int, Overlapped | None]
) -> dict[int, OpRecord]:
    """{segment's number: its product, which is computed in pieces}"""
    return {
        number: one.ops[0] for number, one in enumerate(segmented.segments)
        if number not in joined and len(one.ops) == 1 and not one.scheduler.makes_kernel
        and streams_of(one.ops[0]) is not None
    }  # fmt: skip


# ---- their lines


def piece_lines(
    fusion: Fusion, product: OpRecord, streams: int, events: Iterator[int]
) -> list[str]:
    """The lines of a product in pieces. The line before them allocates its result."""
    _, pieces = streams_of(product) or (0, 1)
    used = min(streams, pieces)
    begin, ends = f"E{next(events)}", list[str]()
    lines = [f"    {begin} = record_event()"]
    for piece in range(pieces):
        lines.append(f"    with on_stream({piece % used + 1}):")
        if piece < used:
            lines.append(f"        wait_event({begin})")
        lines.append(f"        {_call(fusion, product, piece)}")
        if piece >= pieces - used:
            ends.append(f"E{next(events)}")
            lines.append(f"        {ends[-1]} = record_event()")
    return [*lines, *(f"    wait_event({end})" for end in ends)]


def _call(fusion: Fusion, product: OpRecord, piece: int) -> str:
    """matmul(T0[0:3], T1, out=T2[0:3])"""
    (made,), (axis, pieces) = product.outputs, streams_of(product) or (0, 1)
    size = fusion.tensors[made].sizes[axis]
    step = size // pieces
    span = f"{piece * step}:{(piece + 1) * step}"

    def part(name: str, at: int | None) -> str:
        if at is None or fusion.tensors[name].sizes[at] != size:  # a broadcast operand
            return name
        return f"{name}[{':, ' * at}{span}]"

    maps = walks(product.op, [len(fusion.tensors[name].shape) for name in names_of(product)])
    operands = [
        part(name, axes.get(axis)) for name, axes in zip(names_of(product), maps, strict=True)
    ]
    return f"{product.op}({', '.join(operands)}, out={part(made, axis)})"


# ---- what they call


class Streams:
    """The side streams of a device. A CPU has none, so its lines run one after the other."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._is_cuda = device, device.type == "cuda"

    def on_stream(self, number: int) -> AbstractContextManager[None]:
        """Runs the block on side stream `number`, from 1."""
        return self._on(number) if self._is_cuda else nullcontext()

    @contextmanager
    def _on(self, number: int) -> Iterator[None]:
        caller, sides = torch.cuda.current_stream(self.device), _sides(self.device, number)
        with torch.cuda.stream(sides[number - 1]):
            try:
                yield
            except BaseException:  # the lines that wait will not run, and memory will be freed
                for side in sides:
                    caller.wait_stream(side)
                raise

    def record_event(self) -> torch.cuda.Event | None:
        """Records an event on the current stream; None on a CPU."""
        return torch.cuda.current_stream(self.device).record_event() if self._is_cuda else None

    def wait_event(self, event: torch.cuda.Event | None) -> None:
        """Makes later work on the current stream wait for the event."""
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)


# All programs share them, because the allocator has a pool of free memory for each stream.
_SIDES: dict[torch.device, list[torch.cuda.Stream]] = {}


def _sides(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    found = _SIDES.setdefault(device, [])
    while len(found) < count:
        found.append(torch.cuda.Stream(device))
    return found


def _linear(
    a: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor, out: torch.Tensor
) -> None:
    """torch's linear into `out`. With leading axes, torch's own rounds the product before it adds
    the bias, so there addmm is called instead."""
    flat = out.flatten(0, -2)
    if bias and a.dim() > 2 and flat.data_ptr() == out.data_ptr():  # a view
        torch.addmm(*bias, a.flatten(0, -2), weight.t(), out=flat)
    else:
        torch.ops.aten.linear.out(a, weight, *bias, out=out)


def _typed(name: str, call: Callable[..., Any]) -> Callable[..., None]:
    """torch's call, whose errors become TorchCallError, as those of other segments do."""

    @torch.no_grad()
    def run(*operands: torch.Tensor, out: torch.Tensor) -> None:
        try:
            call(*operands, out=out)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise TorchCallError(f"a piece of {name}", got=str(error)) from error

    return run


def named(device: torch.device) -> dict[str, Any]:
    """The names that such lines of a program use, with their functions."""
    streams = Streams(device)
    return {
        "on_stream": streams.on_stream,
        "record_event": streams.record_event,
        "wait_event": streams.wait_event,
        "matmul": _typed("matmul", torch.matmul),
        "linear": _typed("linear", _linear),
    }
