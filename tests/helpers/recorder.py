# SPDX-License-Identifier: Apache-2.0
"""A recorder without a GPU: a replay calls the function and writes into the same memory each time.

As with a CUDA graph, capturing runs nothing, inputs and results stay where they are, a replay
overwrites what the one before has written, and an argument is an address: nothing keeps it alive.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_fuser.errors import CaptureBusyError
from thunder_fuser.runtime.cuda_graphs import memory_like


@dataclass
class Replayed:
    """inputs, outputs, replay: as of runtime/cuda_graphs.py."""

    run: Callable[..., Sequence[Any]]
    inputs: tuple[Any, ...]
    keeps: bool
    outputs: tuple[Any, ...] = ()
    replays: int = 0
    bytes: int = 1 << 20

    def replay(self) -> None:
        self.replays += 1
        with torch.inference_mode(False), torch.no_grad():
            results = self.run(*self.inputs)
            if not self.outputs:
                self.outputs = tuple(results)
                return
            for own, new in zip(self.outputs, results, strict=True):
                if isinstance(own, torch.Tensor) and own is not new:
                    own.copy_(new)


@dataclass
class CpuRecorder:
    """fails: the message of each capture's error; busy: how many captures may not be made yet;
    value: what `settings` answers."""

    fails: str = ""
    busy: int = 0
    capturing: bool = False
    value: object = None
    device_type: str = "cpu"
    recordings: list[Replayed] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    turns: int = 0

    def is_capturing(self) -> bool:
        return self.capturing

    def settings(self) -> object:
        return self.value

    def take_turn(self) -> None:
        assert self.lock.locked()
        self.turns += 1

    def capture(
        self, run: Callable[..., Sequence[Any]], args: Sequence[Any], copied: Container[int],
        *, kept: Sequence[int],
    ) -> Replayed:  # fmt: skip
        if self.busy:
            self.busy -= 1
            raise CaptureBusyError("the generator is needed elsewhere")
        if self.fails:
            raise RuntimeError(self.fails)
        own = tuple(memory_like(x) if at in copied else x for at, x in enumerate(args))
        inputs = (one if at in copied else at_its_address(one) for at, one in enumerate(own))
        self.recordings.append(Replayed(run, tuple(inputs), bool(kept)))
        return self.recordings[-1]


def at_its_address(value: Any) -> Any:
    """The same memory, which it does not keep alive."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return value
    axes = zip(value.shape, value.stride(), strict=True)
    count = 1 + sum((size - 1) * stride for size, stride in axes)
    memory = (ctypes.c_uint8 * (count * value.element_size())).from_address(value.data_ptr())
    return torch.frombuffer(memory, dtype=value.dtype).as_strided(value.shape, value.stride())
