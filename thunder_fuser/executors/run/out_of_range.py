# SPDX-License-Identifier: Apache-2.0
"""An index out of range in a region -> an error with the user's line, and torch's words.

    T13 = fd.ops.take_along_axis(T2, T12, dim=1): index: expected numbers from 0 to 6, got 7
->  thunderFusion0: take_along_axis: index: expected numbers from 0 to 6, got 7 (at train.py:12)
    torch says: Target 7 is out of bounds.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from thunder.core.prims import PrimIDs

from thunder_fuser.errors import OutOfRangeError
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.executors.support.index_rows import AT_INDICES
from thunder_fuser.source.lines import line_of, span_of
from thunder_fuser.trace.proxies import makes, reads

_OP = re.compile(r"fd\.ops\.(\w+)\(.*?(?:\bdim=(\d+))?\)")
_IN_SELF = "index out of range in self"
_AT_AXIS = "index {got} is out of bounds for dimension {dim} with size {size}"
# Only losses read along an axis at indices that nothing has brought into the range.
_WORDS = {
    "take_along_axis": "Target {got} is out of bounds.",
    "index_select": _IN_SELF,
    "embedding_fwd": _IN_SELF,
}


def in_words(run: Callable[..., Any], name: str, region: Region) -> Callable[..., Any]:
    """The runner of a region, called `name`, with such errors; itself if it reads no indices."""
    if not any(leaf.sym.id in AT_INDICES for leaf in region.leaves):
        return run

    @functools.wraps(run)
    def call(*args: Any) -> Sequence[Any]:
        try:
            return run(*args)  # type: ignore[no-any-return]
        except OutOfRangeError as error:
            raise _in_words(error, name, region).with_traceback(None) from error

    return call


def _in_words(error: OutOfRangeError, name: str, region: Region) -> OutOfRangeError:
    indexing = [leaf for leaf in region.leaves if leaf.sym.id in AT_INDICES]
    where = span_of([*map(line_of, indexing)]) or region.where
    match = _OP.search(error.thing)
    op, dim = match.groups() if match else ("", None)
    facts, got = error.facts, int(error.facts["got"])
    size, words = int(facts["expected"].rpartition(" ")[2]) + 1, _WORDS.get(op, _AT_AXIS)
    if op == "index_select" and _counts_from_the_end(region):
        facts, words = {**facts, "expected": f"numbers from {-size} to {size - 1}"}, _AT_AXIS
        got, dim = got - size * (got < 0), "0"  # torch counts the axes that are indexed
    words = words.format(got=got, dim=dim or 0, size=size)
    facts = {**facts, "got": str(got), "where": where, "lines": (f"torch says: {words}",)}
    return OutOfRangeError(f"{name}: {op}: index", **facts)


def _counts_from_the_end(region: Region) -> bool:
    """True for x[i], which adds the size to an index below 0: i + where(i < 0, size, 0)"""
    kinds = {out.name: leaf.sym.id for leaf in region.leaves for out in makes(leaf)}
    wrapped = {
        makes(leaf)[0].name for leaf in region.leaves
        if leaf.sym.id is PrimIDs.ADD
        and PrimIDs.WHERE in [kinds.get(proxy.name) for proxy in reads(leaf)]
    }  # fmt: skip
    takes = (leaf for leaf in region.leaves if leaf.sym.id is PrimIDs.TAKE)
    return all(leaf.args[1].name in wrapped for leaf in takes)
