# SPDX-License-Identifier: Apache-2.0
"""A recorder without a GPU: a replay calls the function and writes into the same memory each time.

As with a CUDA graph, capturing runs nothing, inputs and results stay where they are, and a replay
overwrites what the one before has written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Replayed:
    """inputs, outputs, replay: as of runtime/cuda_graphs.py."""

    run: Callable[..., Sequence[Any]]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...] = ()
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        results = self.run(*self.inputs)
        if not self.outputs:
            self.outputs = tuple(results)
            return
        for own, new in zip(self.outputs, results, strict=True):
            if isinstance(own, torch.Tensor) and own is not new:
                own.copy_(new)


@dataclass
class CpuRecorder:
    """fails: the message of each capture's error; settings_of: what `settings` answers."""

    fails: str = ""
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
        self, run: Callable[..., Sequence[Any]], make_inputs: Callable[[], Sequence[Any]]
    ) -> Replayed:
        if self.fails:
            raise RuntimeError(self.fails)
        self.recordings.append(Replayed(run, tuple(make_inputs())))
        return self.recordings[-1]
