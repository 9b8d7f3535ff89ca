# SPDX-License-Identifier: Apache-2.0
"""A region -> the comment above its fusion in a trace: what it saves, or recomputes.

    # saves t3, t5 for the backward: 12.0 KiB
    [t3, t5, t7] = thunderFusion0(x, w)
    ...
    # recomputes t2, t4: 16.0 KiB that are not saved
    [t12] = thunderFusion3(t9, t3, x)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from thunder_fuser.executors.regions.region import Region
from thunder_fuser.rematerialization.apply import Recomputation
from thunder_fuser.rematerialization.policy import VIEW
from thunder_fuser.trace.proxies import makes

_SHOWN = 4


class Comments:
    """The comments of one trace; none in a trace without a backward."""

    def __init__(self, recomputation: Recomputation | None) -> None:
        copies = {} if recomputation is None else recomputation.copies
        self._values = {} if recomputation is None else recomputation.forward.values
        self._kept = frozenset(() if recomputation is None else recomputation.plan.kept)
        self._original = {copy: name for name in copies for copy in copies[name]}

    def of(self, region: Region) -> str:
        """The comment on a region: one line, or empty."""
        if not region.is_backward:
            kept = [proxy.name for proxy in region.outputs if proxy.name in self._kept]
            size = sum(self._values[name].bytes for name in kept)
            return f"saves {named(kept)} for the backward: {_kib(size)}" if kept else ""
        again = self.recomputed(region)
        if not again:
            return ""
        return f"recomputes {named(again)}: {_kib(self.bytes(again))} that are not saved"

    def recomputed(self, region: Region) -> list[str]:
        """The values of the forward that a region recomputes, in order."""
        results = (out.name for leaf in region.leaves for out in makes(leaf))
        return [self._original[name] for name in results if name in self._original]

    def bytes(self, again: Iterable[str]) -> int:
        """The bytes of those values that would have been kept; a view has no memory of its own."""
        values = (self._values[name] for name in again if name not in self._kept)
        return sum(value.bytes for value in values if value.needed and VIEW not in value.tags)


def _kib(size: int) -> str:
    return f"{size / 1024:.1f} KiB"


def named(names: Sequence[str]) -> str:
    """The first few names, and the number of the others.

    >>> named(["t1", "t2", "t3", "t4", "t5", "t6"])
    't1, t2, t3, t4 and 2 more'
    """
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def counted(names: Iterable[str]) -> str:
    """(mul, exp, mul)  ->  mul*2 exp"""
    return " ".join(name if n == 1 else f"{name}*{n}" for name, n in Counter(names).items())
