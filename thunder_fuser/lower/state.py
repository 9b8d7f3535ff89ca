# SPDX-License-Identifier: Apache-2.0
"""What changes while a kernel is built. The modules that build it are functions over this state.

From low to high, each calls only those before it:

    guards, buffers, accumulators, values, nests, groups, lower
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from thunder_fuser.analysis.index_map import Point
from thunder_fuser.ir.scalar import Scalar
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import TRUE
from thunder_fuser.lower.scope import KernelNames, SharedMemory
from thunder_fuser.schedule.loop_index import Guard

BEFORE = -1  # a nest before all others: every nest can read what was filled there


@dataclass(frozen=True, slots=True)
class Window:
    """A shared array, and the position of this lane's element in it."""

    array: str
    position: Scalar


@dataclass
class BufferArray:
    """A persistent buffer: its array, whether its elements are Vecs, the nest that fills it.

    position: of this lane's element, if the array is shared.
    """

    array: str
    shared: bool
    vector: bool
    position: Scalar
    filled_in: int | None = None


@dataclass
class KernelState:
    """One kernel, or one phase of a kernel, so far. Only `ctx` and `tiles` do not change.

    tiles: the results that go to shared memory, from which another phase reads them.
    checks: {(text of the op that reads by an index, size of the axis): number of the check}.
    buffers: by the points they hold. nest: the number of the current nest.
    guards: those that are not put yet. row_condition: true where clamped positions lie inside the
      tensor. scan_condition: the same of the scanned axis alone.
    gates: {array of a cluster: the number of its first gate}. gates_ready: true once the code waits
      for the other blocks' gates.
    rows_kept: the reductions of a group's rows that are in arrays, an element for each row.
    largest_index: of numbers made by index arithmetic.
    """

    ctx: Context
    tiles: Mapping[str, Window] = field(default_factory=dict)
    shared: SharedMemory = field(default_factory=SharedMemory)
    checks: dict[tuple[str, int], int] = field(default_factory=dict)
    buffers: dict[Point, BufferArray] = field(default_factory=dict)
    name: KernelNames = field(default_factory=KernelNames)
    guards: list[Guard] = field(init=False)
    row_condition: Scalar = TRUE
    scan_condition: Scalar = TRUE
    gates: dict[str, int] = field(default_factory=dict)
    gates_ready: bool = False
    rows_kept: set[str] = field(default_factory=set)
    nest: int = 0
    largest_index: int = 0

    def __post_init__(self) -> None:
        self.guards = list(self.ctx.loops.guards)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A block of code: guards that are put inside it are open again behind it."""
        before = list(self.guards), self.row_condition, self.scan_condition
        yield
        self.guards, self.row_condition, self.scan_condition = before
