# SPDX-License-Identifier: Apache-2.0
"""A bound of a benchmark, and whether a run met it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit, what was found, and whether that is within it."""

    name: str
    limit: float
    found: float

    @property
    def met(self) -> bool:
        return self.found <= self.limit

    def content(self) -> dict[str, Any]:
        """What the JSON says."""
        return {**asdict(self), "met": self.met}

    def __str__(self) -> str:
        word = "met" if self.met else "MISSED"
        return f"{word:7} {self.name}: {self.found:.3f}, at most {self.limit:g}"
