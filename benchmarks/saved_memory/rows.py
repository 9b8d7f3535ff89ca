# SPDX-License-Identifier: Apache-2.0
"""What one model keeps -> the bounds on that, and why one cannot be met."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.bounds import Bound
from benchmarks.saved_memory.measure import Kept, Part
from thunder_fuser.explain.memory import LiveMemory
from thunder_fuser.explain.shown import kib

POLICIES = ("none", "time", "budget(0.5)", "memory")
THUNDER, COMPILE = "thunder", "compile"  # Thunder's own policy over our regions; torch.compile
LIMITS = {"time": 1.0, "memory": 0.8}


@dataclass(frozen=True)
class Row:
    """A model of so many layers. floor: bytes that any policy keeps, by what makes them;
    timelines: live memory under each policy, if there is to be a picture."""

    model: str
    layers: int
    kept: Mapping[str, Kept]
    floor: dict[str, int]
    timelines: Mapping[str, LiveMemory] = field(default_factory=dict)

    def share(self, bytes: int) -> float:
        """Of what the better of the two others keeps."""
        return bytes / min(self.kept[THUNDER].bytes, self.kept[COMPILE].bytes)

    def bounds(self) -> Iterator[tuple[Bound, str]]:
        """The bounds, and where one is missed, why, if that follows from the figures."""
        whys = {"time": self._why_time, "memory": self._why_memory}
        for policy, limit in LIMITS.items():
            name = f"{policy} of {self.model}, {self.layers} layers"
            one = Bound(name, limit, self.share(self.kept[policy].bytes))
            yield one, "" if one.met else whys[policy]()

    def _why_memory(self) -> str:
        least = sum(self.floor.values())
        if self.share(least) <= LIMITS["memory"]:
            return ""
        return f"what is never recomputed is {kib(least)} KiB, {self.share(least):.3f}"

    def _why_time(self) -> str:
        """Said only of numbers that are the same, in a wider type."""
        ours, theirs = self.kept["time"], self.kept[COMPILE]
        more, fewer = ours.without(theirs), theirs.without(ours)
        same = _numbers(more) == _numbers(fewer)
        if not same or self.share(ours.bytes - _bytes(more) + _bytes(fewer)) > LIMITS["time"]:
            return ""
        return (
            f"{_numbers(more)} numbers of {_types(more)} ({kib(_bytes(more))} KiB) "
            f"are kept by {COMPILE} in {_types(fewer)} ({kib(_bytes(fewer))} KiB)"
        )


def _numbers(parts: Sequence[Part]) -> int:
    return sum(part.numbers for part in parts)


def _bytes(parts: Sequence[Part]) -> int:
    return sum(part.bytes for part in parts)


def _types(parts: Sequence[Part]) -> str:
    return ", ".join(dict.fromkeys(str(part.dtype).removeprefix("torch.") for part in parts))
