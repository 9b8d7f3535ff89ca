# SPDX-License-Identifier: Apache-2.0
"""Memory that a program uses again at each call: the option `persistent_buffers`.

    T3 = empty_strided((6,), (1,), dtype=float32, device=device)
->  T3 = persistent('T3', (6,), (1,), dtype=float32)

Only values that nothing but kernels read get it. A result belongs to the caller, torch may return
a view of what it reads, and communication may still read a value after the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from weakref import finalize

import torch

from thunder_fuser.communication.transport.buffers import forget, persistent
from thunder_fuser.host.programs.launchers import Launcher
from thunder_fuser.segment.plan import SegmentedFusion

_NUMBERS = count()  # each program gets a new number


def read_by_kernels_only(
    segmented: SegmentedFusion, launchers: Sequence[Launcher]
) -> frozenset[str]:
    """The intermediates that only kernels make and read."""
    made, elsewhere = set[str](), {output.name for output in segmented.fusion.outputs}
    for segment, launcher in zip(segmented.segments, launchers, strict=True):
        part = segment.part
        elsewhere |= {name for pair in part.overwrites for name in pair}
        if launcher.source is not None:
            made |= {*part.outputs}
        else:
            elsewhere |= {*part.inputs, *part.outputs}
    return frozenset(made - elsewhere)


class Memory:
    """The persistent memory of one program."""

    def __init__(self, device: torch.device) -> None:
        self._program, self._device = f"program {next(_NUMBERS)}", device

    def tensor(
        self, statement: str, sizes: tuple[int, ...], strides: tuple[int, ...],
        dtype: torch.dtype,
    ) -> torch.Tensor:  # fmt: skip
        """The memory of a value. A program's text calls it as `persistent`."""
        return persistent(self._program, statement, sizes, strides, dtype, self._device)

    def freed_with(self, run: Callable[..., object]) -> None:
        """Frees the memory when the function is gone."""
        finalize(run, partial(forget, self._program)).atexit = False
