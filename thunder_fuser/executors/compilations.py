# SPDX-License-Identifier: Apache-2.0
"""What each compilation claimed, refused and recomputes: kept for reports while its traces live."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

from thunder.common import CompileData
from thunder.core.compile_data import _compile_data, get_compile_data
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.executors.regions.claim import Claims, Unfused
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.rematerialization.apply import Recomputation
from thunder_fuser.source.lines import line_of
from thunder_fuser.trace.op import Reject
from thunder_fuser.trace.proxies import makes


class _Compilation(NamedTuple):
    claims: Claims | None
    recomputation: Recomputation | None


class Compilations:
    """By the first trace of the compilation: Thunder's cache keeps it with the final ones."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[TraceCtx, _Compilation] = WeakKeyDictionary()
        # Composites that Thunder took apart, by the name of their result; they are no longer in the
        # trace when the regions are claimed.
        self._refused: WeakKeyDictionary[CompileData, dict[str, Unfused]] = WeakKeyDictionary()

    def refuse(self, data: CompileData, composite: BoundSymbol, reason: Reject) -> None:
        """Notes a composite that the running compilation takes apart."""
        unfused = Unfused(composite.sym.name, reason, line_of(composite))
        self._refused.setdefault(data, {})[makes(composite)[0].name] = unfused

    def keep(
        self, claims: Claims, regions: tuple[Region, ...], recomputation: Recomputation | None
    ) -> Claims:
        """Keeps the claims of the running compilation, with the composites that it took apart, and
        the regions that the passes have left.

        Nothing is kept where a trace is transformed by hand, outside thunder.jit.
        """
        claims, data = replace(claims, items=regions, outside={}), get_compile_data()
        if data is None:
            return claims
        claims = replace(claims, unfused=(*self._refused.pop(data, {}).values(), *claims.unfused))
        _, stats = _compile_data.get()
        self._kept[stats.last_traces[0]] = _Compilation(claims, recomputation)
        return claims

    def of(self, first: TraceCtx) -> _Compilation:
        """The compilation with this first trace."""
        return self._kept.get(first, _Compilation(None, None))
