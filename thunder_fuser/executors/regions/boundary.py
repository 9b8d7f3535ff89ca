# SPDX-License-Identifier: Apache-2.0
"""The ops of a region -> those that torch runs before and after it, and the views it repeats.

    t1 = permute(x); t2 = mul(t1, 2); t3 = exp(t2); t4 = reshape(t3)
->  before: t1       inside: t2, t3                 after: t4

    t1 = mul(x, 2); t2 = reshape(t1); t3 = stride_order(x); t4 = exp(t3)      t2, t3, t4 wanted
->  the region returns t1 and t4; torch makes the exits: t2 of t1, and t3 of x

Note [Edges]: at the edges of a region, torch runs the ops for which it returns a view:
  * reshape, transpose and squeeze of values from outside go before the region;
  * so do shallow_copy, slice and broadcast_in_dim if no op that stays in the region reads them,
    and stride_order if other ops compute: torch copies nothing if the strides are right;
  * reshape, transpose, squeeze and shallow_copy go after the region if only the outside reads them;
  * a view that both sides read is made twice: the region returns its operand (a row's statistics,
    not their copies along the row), and torch repeats the view as an exit. It also repeats each
    view or stride_order of a value that comes from outside, or that the region returns anyway;
  * if the region reads a shallow_copy or broadcast_in_dim from outside, it repeats them, so that
    it reads (and the backward saves) their operands.
Ops that are one torch call anyway (scatter, sort, ...) leave at the edges too: a region takes them
only between other ops. A run of views alone is a region without a kernel (see
record/torch_function.py). A run that these rules leave with only views and such calls is no region.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import thunder.torch as ltorch
from thunder.core.prims import PrimIDs
from thunder.core.symbol import BoundSymbol

from thunder_fuser.executors.stride_orders.orders import format_of
from thunder_fuser.executors.support.index_rows import CALLS
from thunder_fuser.trace.op import Kinds, Op
from thunder_fuser.trace.proxies import MOVES, VIEWS, makes, reads
from thunder_fuser.trace.rewrites.split_regions import REPEATED, Users

_ENTRY = frozenset({PrimIDs.RESHAPE, PrimIDs.TRANSPOSE, PrimIDs.SQUEEZE})
_EXIT = _ENTRY | {PrimIDs.SHALLOW_COPY}
ENTERING = REPEATED - _ENTRY


@dataclass(frozen=True, slots=True)
class Edges:
    """Places in the trace: run by torch before the region, in it, and by torch after it."""

    before: Sequence[int]
    inside: Sequence[int]
    after: Sequence[int]


def edges_of(ops: Sequence[Op], run: Sequence[int], users: Users) -> Edges:
    """Takes the views off both edges; see Note [Edges]. A run of views alone stays whole."""
    if all(ops[at].only(VIEWS) for at in run):
        return Edges((), run, ())
    moves_only = all(ops[at].only(MOVES) for at in run)
    unneeded = _unneeded(ops, run, VIEWS if moves_only else MOVES, users)
    before: list[int] = []
    rest: list[int] = []
    computed: set[str] = set()
    for at in run:
        enters = ops[at].only(_ENTRY | CALLS) or at in unneeded
        if enters and not ops[at].reads_any(computed):
            before.append(at)
        else:
            rest.append(at)
            computed.update(ops[at].made_names)
    after = _unneeded(ops, rest, _EXIT | CALLS, users)
    inside = [at for at in rest if at not in after]
    return Edges(before, inside, [at for at in rest if at in after])


def _unneeded(ops: Sequence[Op], places: Sequence[int], kinds: Kinds, users: Users) -> set[int]:
    """The places of ops of these kinds whose results no other op among the places needs."""
    needing = set(places)
    for at in reversed(places):
        uses = (use for name in ops[at].made_names for use in users.get(name, ()))
        if ops[at].only(kinds) and needing.isdisjoint(uses):
            needing.remove(at)
    return {*places} - needing


def boundary_views_of(
    leaves: Sequence[BoundSymbol], outputs: Iterable[str]
) -> tuple[frozenset[str], tuple[BoundSymbol, ...]]:
    """What a region of these primitives returns, and the views that torch makes of its results and
    inputs. outputs: the results that its readers need."""
    maker = {out.name: leaf for leaf in leaves for out in makes(leaf)}
    wanted: set[str] = set()
    repeated: set[str] = set()
    for name in outputs:
        *views, base = _chain(name, maker, REPEATED)
        repeated.update(views)
        wanted.update({base} & maker.keys())
    # A region that makes nothing but one stride order asks at each call whether it must copy.
    alone = len(wanted) == 1 and all(leaf.sym.id in MOVES for leaf in leaves)
    for name in [*wanted]:
        *views, base = _chain(name, maker, VIEWS if alone else MOVES)
        if views and (base not in maker or base in wanted):
            wanted.discard(name)
            repeated.update(views)
    exits = (by_torch(leaf) for leaf in leaves if makes(leaf)[0].name in repeated)
    return frozenset(wanted), tuple(exits)


def _chain(name: str, maker: Mapping[str, BoundSymbol], kinds: Kinds) -> Iterator[str]:
    """The value, the value it is a view of, and so on; the last one is not a view."""
    yield name
    while name in maker and maker[name].sym.id in kinds:
        name = reads(maker[name])[0].name
        yield name


def by_torch(bsym: BoundSymbol) -> BoundSymbol:
    """The bound symbol; a stride order as torch's `contiguous`, for the primitive always copies."""
    if bsym.sym.id is not PrimIDs.STRIDE_ORDER:
        return bsym
    a, order = bsym.args
    format = format_of(tuple(order))
    if format is None:
        return bsym
    call = ltorch.contiguous.bind(a, memory_format=format, output=bsym.output, subsymbols=(bsym,))
    call.tags.update(bsym.tags)
    return call
