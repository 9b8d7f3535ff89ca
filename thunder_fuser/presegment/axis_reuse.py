# SPDX-License-Identifier: Apache-2.0
"""Which reductions of a fusion reduce axes that other expressions walk before or after them.

    T1 = sum(T0[i0, i1], [1]);  T2 = sub(T0, T1)        T1's row is needed again after it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from thunder_fuser.analysis.part import Part
from thunder_fuser.ir.record import names_of


class AxisReuse:
    """Of each value: the axes that reductions behind it reduce, and those of values after it.

    patterns: how many reductions keep and reduce which axes; normalised: of these, those of rows
    that are reduced again or needed again after a reduction.
    """

    def __init__(self, whole: Part) -> None:
        self.reduced: dict[str, frozenset[str]] = {}
        self.later: dict[str, frozenset[str]] = {}
        self.patterns = Counter(whole.patterns.values())
        for expr in whole.exprs:
            behind = frozenset[str]().union(*(self._with_own(whole, n) for n in names_of(expr)))
            self.reduced.update(dict.fromkeys(expr.outputs, behind))
        for expr in reversed(whole.exprs):
            names = expr.outputs
            after = frozenset[str]().union(
                *(whole.axes(n) for n in names), *(self.later.get(n, ()) for n in names)
            )
            for name in names_of(expr):
                self.later[name] = self.later.get(name, frozenset()) | after
        self.normalised = {
            one for name, one in whole.patterns.items() if self._is_normalised(name, one.reduced)
        }

    def _with_own(self, whole: Part, name: str) -> frozenset[str]:
        own = whole.domain_map.reduced(whole.tensors[name])
        return self.reduced.get(name, frozenset()).union(own)

    def _is_normalised(self, name: str, reduced: frozenset[str]) -> bool:
        """True if the row was reduced before, or is needed again after this reduction of it."""
        return self.is_needed_again(name, reduced) or not self.reduced[name].isdisjoint(reduced)

    def is_needed_again(self, name: str, reduced: Iterable[str]) -> bool:
        """True if the row is needed again after this reduction of it."""
        return not self.later.get(name, frozenset()).isdisjoint(reduced)
