# SPDX-License-Identifier: Apache-2.0
"""Bound symbols -> which tensors are written in place, and which may share memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol, has_tags

from thunder_fuser.rematerialization.proxies import makes, reads

VIEWS = frozenset(
    {
        PrimIDs.RESHAPE, PrimIDs.TRANSPOSE, PrimIDs.SQUEEZE, PrimIDs.SHALLOW_COPY,
        PrimIDs.BROADCAST_IN_DIM, PrimIDs.SLICE, PrimIDs.REAL, PrimIDs.IMAG,
    }
)  # fmt: skip
# Torch's executor gives in-place copies and fences its own symbols, whose ids are strings.
COPIES = frozenset({PrimIDs.COPY_, "copy_"})
FENCES = frozenset({PrimIDs.UPDATE_ALIASES, "update_aliases"})
_SHARING = VIEWS | {
    PrimIDs.STRIDE_ORDER, PrimIDs.UNFOLD, PrimIDs.VIEW, PrimIDs.BITCAST, PrimIDs.DEVICE_PUT,
} | {one for one in PrimIDs if one.name.startswith(("CONSTRUCT_", "PACK_", "UNPACK_"))}


def written_in_place(bsyms: Sequence[BoundSymbol]) -> set[str]:
    """Tensors that are written in place and, forward and back, what may share their memory.

    t2 = copy_(t1, x)  ->  x and t2, and the views of both; not t1, which is only read
    """
    names = {name for group in _written(bsyms) for name in group}
    if not names:
        return names
    sharing = [*_sharing(bsyms)]
    for group in (*reversed(sharing), *sharing):
        if names.intersection(group):
            names.update(group)
    return names


def overwritten(bsym: BoundSymbol) -> Iterator[Proxy]:
    """What it writes in place: itself, or as torch's silu(x, inplace=True), in its parts."""
    return (reads(part)[1] for part in parts(bsym) if part.sym.id in COPIES)


def _written(bsyms: Iterable[BoundSymbol]) -> Iterator[list[str]]:
    """What each copy writes, under both its names; a fence stands for all that it is handed."""
    for bsym in bsyms:
        for part in parts(bsym):
            if part.sym.id in COPIES:
                _, target = reads(part)
                yield [target.name, *(out.name for out in makes(part))]
            elif part.sym.id in FENCES:
                yield [proxy.name for proxy in proxies(part)]


def one_memory(bsyms: Sequence[BoundSymbol]) -> dict[str, str]:
    """For each tensor that may share memory with others, one name for all of them."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while (above := leader.get(name, name)) != name:
            leader[name] = leader.get(above, above)
            name = above
        return name

    for first, *others in filter(None, (*_written(bsyms), *_sharing(bsyms))):
        leader.update((find(name), find(first)) for name in others)
    return {name: find(name) for name in leader}


def proxies(bsym: BoundSymbol) -> Iterator[Proxy]:
    """All that it reads and makes."""
    yield from reads(bsym)
    yield from makes(bsym)


def _sharing(bsyms: Iterable[BoundSymbol]) -> Iterator[list[str]]:
    """Arguments and results of what may give back its argument's memory.

    Thunder's primitives make memory of their own, but for those listed. Of all else nothing is
    known: torch's functions that Thunder passes on (x.detach()), users' operators, collectives.
    """
    for bsym in bsyms:
        for part in parts(bsym):
            if part.sym.id in _SHARING or not _is_known(part):
                yield [proxy.name for proxy in proxies(part)]


def _is_known(part: BoundSymbol) -> bool:
    return isinstance(part.sym.id, PrimIDs) or has_tags(part, {OpTags.RANDOM_OP})


def parts(bsym: BoundSymbol) -> Iterator[BoundSymbol]:
    """What it is made of, down to what has no parts."""
    if not bsym.subsymbols:
        yield bsym
    for part in bsym.subsymbols:
        yield from parts(part)
