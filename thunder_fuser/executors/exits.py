# SPDX-License-Identifier: Apache-2.0
"""The primitives of a region and the results it is asked for -> what it returns, and its exits.

    t1 = mul(x, 2); t2 = reshape(t1); t3 = stride_order(x); t4 = exp(t3)      t2, t3, t4 wanted
->  the region returns t1 and t4; torch makes t2 of t1, and t3 of x

An exit is a view that torch makes, after the region, of what the region returns or reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import thunder.torch as ltorch
import torch
from thunder.core.prims import PrimIDs
from thunder.core.symbol import BoundSymbol

from thunder_fuser.trace.proxies import MOVES, VIEWS, makes, reads

_REPEATED = frozenset(
    {
        PrimIDs.RESHAPE, PrimIDs.TRANSPOSE, PrimIDs.SQUEEZE, PrimIDs.SHALLOW_COPY,
        PrimIDs.BROADCAST_IN_DIM,
    }
)  # fmt: skip
_FORMATS = {
    (3, 0, 2, 1): torch.channels_last,
    (4, 0, 3, 2, 1): torch.channels_last_3d,
}


def exits_of(
    leaves: Sequence[BoundSymbol], outputs: Iterable[str]
) -> tuple[frozenset[str], tuple[BoundSymbol, ...]]:
    """(what the region returns, the views torch makes of that to get the outputs)."""
    maker = {out.name: leaf for leaf in leaves for out in makes(leaf)}
    wanted: set[str] = set()
    repeated: set[str] = set()
    for name in outputs:
        while name in maker and maker[name].sym.id in _REPEATED:
            repeated.add(name)
            name = reads(maker[name])[0].name
        if name in maker:
            wanted.add(name)
    kinds = _left_to_torch(leaves, wanted)
    for name in [*wanted]:
        *views, base = _chain(name, maker, kinds)
        if views and (base not in maker or base in wanted):
            wanted.discard(name)
            repeated.update(views)
    exits = (by_torch(leaf) for leaf in leaves if makes(leaf)[0].name in repeated)
    return frozenset(wanted), tuple(exits)


def _left_to_torch(leaves: Sequence[BoundSymbol], wanted: set[str]) -> frozenset[PrimIDs]:
    """A region that makes nothing but one stride order asks at each call whether it must copy."""
    alone = len(wanted) == 1 and all(leaf.sym.id in MOVES for leaf in leaves)
    return VIEWS if alone else MOVES


def _chain(
    name: str, maker: Mapping[str, BoundSymbol], kinds: frozenset[PrimIDs]
) -> Iterator[str]:
    """The value, what it is a view of, and so on up to what is no view."""
    yield name
    while name in maker and maker[name].sym.id in kinds:
        name = reads(maker[name])[0].name
        yield name


def by_torch(bsym: BoundSymbol) -> BoundSymbol:
    """The bound symbol; a stride order as a call of torch's, for the primitive always copies."""
    if bsym.sym.id is not PrimIDs.STRIDE_ORDER:
        return bsym
    a, order = bsym.args
    order = tuple(order)
    if order not in _FORMATS and order != tuple(range(a.ndim))[::-1]:
        return bsym
    format = _FORMATS.get(order, torch.contiguous_format)
    call = ltorch.contiguous.bind(a, memory_format=format, output=bsym.output, subsymbols=(bsym,))
    call.tags.update(bsym.tags)
    return call
