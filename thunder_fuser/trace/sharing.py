# SPDX-License-Identifier: Apache-2.0
"""A bound symbol -> the tensors it writes in place, and the names that may share memory."""

from __future__ import annotations

from collections.abc import Iterator

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol, has_tags

from thunder_fuser.trace.proxies import makes, reads

VIEWS = frozenset(
    {
        PrimIDs.RESHAPE, PrimIDs.TRANSPOSE, PrimIDs.SQUEEZE, PrimIDs.SHALLOW_COPY,
        PrimIDs.BROADCAST_IN_DIM, PrimIDs.SLICE, PrimIDs.REAL, PrimIDs.IMAG,
    }
)  # fmt: skip
MOVES = VIEWS | {PrimIDs.STRIDE_ORDER}
# Torch's executor gives in-place copies and fences its own symbols, whose ids are strings.
COPIES = frozenset({PrimIDs.COPY_, "copy_"})
FENCES = frozenset({PrimIDs.UPDATE_ALIASES, "update_aliases"})
_SHARING = VIEWS | {
    PrimIDs.STRIDE_ORDER, PrimIDs.UNFOLD, PrimIDs.VIEW, PrimIDs.BITCAST, PrimIDs.DEVICE_PUT,
} | {one for one in PrimIDs if one.name.startswith(("CONSTRUCT_", "PACK_", "UNPACK_"))}

Names = tuple[str, ...]


def written_by(bsym: BoundSymbol) -> Iterator[Names]:
    """Each tensor it writes, under both its names; a fence may write all that it is handed."""
    for part in parts(bsym):
        if part.sym.id in COPIES:
            _, target = reads(part)
            yield (target.name, *(out.name for out in makes(part)))
        elif part.sym.id in FENCES:
            yield tuple(proxy.name for proxy in proxies(part))


def shared_by(bsym: BoundSymbol) -> Iterator[Names]:
    """The operands and results of each part that may give back the memory of an operand.

    Thunder's primitives make memory of their own, but for those listed. Of all else nothing is
    known: torch's functions that Thunder passes on (x.detach()), users' operators, collectives.
    """
    for part in parts(bsym):
        if part.sym.id in _SHARING or not _is_known(part):
            yield tuple(proxy.name for proxy in proxies(part))


def overwritten(bsym: BoundSymbol) -> Iterator[Proxy]:
    """What it writes in place: itself, or as torch's silu(x, inplace=True), in its parts."""
    return (reads(part)[1] for part in parts(bsym) if part.sym.id in COPIES)


def proxies(bsym: BoundSymbol) -> Iterator[Proxy]:
    """All that it reads and makes."""
    yield from reads(bsym)
    yield from makes(bsym)


def parts(bsym: BoundSymbol) -> Iterator[BoundSymbol]:
    """What it consists of, down to what has no parts."""
    if not bsym.subsymbols:
        yield bsym
    for part in bsym.subsymbols:
        yield from parts(part)


def _is_known(part: BoundSymbol) -> bool:
    return isinstance(part.sym.id, PrimIDs) or has_tags(part, {OpTags.RANDOM_OP})
