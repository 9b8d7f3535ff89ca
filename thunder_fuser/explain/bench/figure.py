# SPDX-License-Identifier: Apache-2.0
"""What was found at a point: times, errors, or the reason why there are none."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

OURS, CLONE, READ, EAGER, COMPILE, TUNED = "ours", "clone", "read", "eager", "compile", "tuned"
COPY = "copy kernel"  # the same bytes by a kernel; the faster of the two stands as clone


@dataclass(frozen=True, slots=True)
class Spread:
    """Microseconds of a call: the median; a fifth of the calls below p20, a fifth above p80.

    least: the shortest call, for machines so busy that most calls meet another process.
    """

    us: float
    least: float
    p20: float
    p80: float
    runs: int

    @staticmethod
    def of(times: Sequence[float]) -> Spread:
        """The spread of measured times.

        >>> Spread.of([5.0, 1.0, 3.0, 2.0, 4.0])
        Spread(us=3.0, least=1.0, p20=2.0, p80=4.0, runs=5)
        """
        ordered, last = sorted(times), len(times) - 1
        low, high = (ordered[round(last * share)] for share in (0.2, 0.8))
        return Spread(statistics.median(ordered), ordered[0], low, high, len(ordered))


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
