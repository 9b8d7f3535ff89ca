# SPDX-License-Identifier: Apache-2.0
"""A product over streams -> the node that computes it in pieces, and the functions that it calls.

    T2 = matmul(T0, T1, streams=[0, 2])
->  T2 = empty_strided((6, 8), (8, 1), dtype=float32, device=device)
    Pieces("matmul", (("T0", 0), ("T1", None)), "T2", axis=0, size=6, pieces=2, streams=4)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from thunder_fuser.errors import TorchCallError
from thunder_fuser.host.programs.nodes import Pieces
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.rules.streams import streams_of, walks


def pieces_of(
    fusion: Fusion, ops: Sequence[OpRecord], streams: int, event: int
) -> Pieces | None:
    """The node of a segment that is a product over streams, None for any other. event: the number
    of its first event."""
    product, split = ops[0], streams_of(ops[0])
    if split is None or len(ops) > 1:  # several without elements are not computed
        return None
    (axis, pieces), (result,), names = split, product.outputs, names_of(product)
    size = fusion.tensors[result].sizes[axis]
    maps = walks(product.op, [len(fusion.tensors[name].shape) for name in names])
    operands = tuple(
        (name, _axis_in_step(fusion.tensors[name].sizes, axes.get(axis), size))
        for name, axes in zip(names, maps, strict=True)
    )
    return Pieces(product.op, operands, result, axis, size, pieces, streams, event)


def _axis_in_step(sizes: Sequence[int], axis: int | None, size: int) -> int | None:
    """The axis of an operand; None if the operand is broadcast along it."""
    return None if axis is None or sizes[axis] != size else axis


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
    sides = _SIDES.setdefault(device, [])
    while len(sides) < count:
        sides.append(torch.cuda.Stream(device))
    return sides


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
            raise TorchCallError(f"a piece of {name}: torch refused it", got=str(error)) from error

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
