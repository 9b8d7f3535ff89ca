# SPDX-License-Identifier: Apache-2.0
"""What was found at a point: times, errors, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.clock import Spread

OURS, CLONE, READ, EAGER, COMPILE, TUNED = "ours", "clone", "read", "eager", "compile", "tuned"
COPY = "copy kernel"  # the same bytes by a kernel; the faster of the two stands as clone


@dataclass(frozen=True, slots=True)
class Error:
    """Off the reference: RMS over its RMS, and the largest over its largest value."""

    rms: float
    largest: float


@dataclass(frozen=True)
class Figure:
    """One point. state: measured; wrong (ours failed its check); skipped or failed, with `note`.

    us, us_fresh: the times of each contender; on the CPU with memory kept from call to call, and
    with results in memory that is new to the process. wrong: contenders whose results are over
    their limit, with why; broken: those that raised; neither is timed. bytes_all_passes: the
    traffic of a kernel that has to read its input again.
    """

    op: str
    group: str
    dtype: str
    shape: tuple[int, ...]
    state: str = "measured"
    note: str = ""
    bytes: int = 0
    bytes_written: int = 0
    bytes_all_passes: int = 0
    reference: str = ""
    method: str = ""
    schedulers: tuple[str, ...] = ()
    first_call_ms: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, Error] = field(default_factory=dict)
    wrong: Mapping[str, str] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    us: Mapping[str, Spread] = field(default_factory=dict)
    us_fresh: Mapping[str, Spread] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.op} {self.dtype} {'x'.join(map(str, self.shape))}"

    def times_faster(self, other: str) -> float | None:
        """The time of a contender over ours; None if one of them was not timed."""
        if OURS not in self.us or other not in self.us:
            return None
        return self.us[other].us / self.us[OURS].us
