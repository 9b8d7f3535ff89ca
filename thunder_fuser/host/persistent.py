# SPDX-License-Identifier: Apache-2.0
"""Memory of a program that lasts from call to call: the option `persistent_buffers`.

    T3 = empty_strided((6,), (1,), dtype=float32, device=device)
->  T3 = persistent('T3', (6,), (1,), dtype=float32)

Only for values that kernels alone read. A result is the caller's, and torch may return a view of
what it reads, or communication may still read it after the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from weakref import finalize

import torch

from thunder_fuser.analysis.part import Part
from thunder_fuser.communication.buffers import forget, persistent
from thunder_fuser.ir.fusion import Fusion

_NUMBERS = count()  # of programs; never used again


def read_by_kernels_only(
    fusion: Fusion, parts: Sequence[Part], is_kernel: Sequence[bool]
) -> frozenset[str]:
    """The intermediates that kernels make, and only kernels read."""
    made = {name for part, is_so in zip(parts, is_kernel, strict=True) if is_so
            for name in part.outputs}  # fmt: skip
    elsewhere = {name for part, is_so in zip(parts, is_kernel, strict=True) if not is_so
                 for name in (*part.inputs, *part.outputs)}  # fmt: skip
    donated = {name for part in parts for pair in part.overwrites for name in pair}
    return frozenset(made - elsewhere - donated - {output.name for output in fusion.outputs})


class Memory:
    """The persistent memory of one program."""

    def __init__(self, device: torch.device) -> None:
        self._program, self._device = f"program {next(_NUMBERS)}", device

    def tensor(
        self, statement: str, sizes: tuple[int, ...], strides: tuple[int, ...],
        dtype: torch.dtype,
    ) -> torch.Tensor:  # fmt: skip
        """As a program's text calls it."""
        return persistent(self._program, statement, sizes, strides, dtype, self._device)

    def freed_with(self, run: Callable[..., object]) -> None:
        """Frees the memory when the function is gone."""
        finalize(run, partial(forget, self._program)).atexit = False
