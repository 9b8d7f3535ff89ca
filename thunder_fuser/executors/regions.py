# SPDX-License-Identifier: Apache-2.0
"""A trace's bound symbols -> the same list with runs of fusible ones replaced by Regions.

    t1 = permute(x); t2 = mul(t1, 2); t3 = exp(t2); t4 = reshape(t3); t5 = linear(t4, w)
->  t1 = permute(x); Region(t2, t3);                t4 = reshape(t3); t5 = linear(t4, w)

A region is a run of adjacent fusible bound symbols of one direction (forward or backward) and one
device, and of bounded length (pieces.py). Matrix products between two that could be one step aside
(adjacent.py). Anything else torch runs ends it, so nothing moves across an in-place copy or its
fence.
Every step is linear in the length of the trace; Thunder's own partitioner is not used.

Note [Edges]: at the edges of a region, ops that torch answers with a view stay with torch:
  * reshape, transpose and squeeze of values from outside go before the region;
  * so do shallow_copy, slice and broadcast_in_dim, if nothing that stays in the region uses them,
    and stride_order beside ops that compute: it copies nothing where the strides are right;
  * reshape, transpose, squeeze and shallow_copy that only the outside uses go after it;
  * one that both sides use is made twice: the region returns what it is a view of (a row's
    statistics, not their copies along the row) and torch repeats the view, see exits.py; as it does
    any view or stride_order of what comes from outside, or is returned too;
  * shallow_copy and broadcast_in_dim outside whose results the region reads are repeated in it, so
    that it reads (and the backward saves) what they are made of.
So do ops that are one torch call anyway (scatter, sort, ...): they are taken only between others.
A run of nothing but views is a region without a kernel, see views.py; one that is left with nothing
but views and such calls by the rules above is no region at all.

Note [Written later]: a view of a tensor that is written in place must be torch's view of that very
tensor. Views that feed prims.copy_'s target or a fence are therefore never fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from thunder.core.devices import DeviceType
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, BoundSymbolTag

from thunder_fuser.errors import AliasError
from thunder_fuser.executors.adjacent import brought_together, stretches
from thunder_fuser.executors.dtensor import mesh_of_call
from thunder_fuser.executors.exits import MOVES, by_torch, exits_of
from thunder_fuser.executors.indexing import CALLS
from thunder_fuser.executors.pieces import Users, pieces
from thunder_fuser.executors.refusals import Refused, Unfused
from thunder_fuser.executors.support import device_of, leaves_of
from thunder_fuser.executors.types import Reject, is_known_number
from thunder_fuser.executors.widening import widens
from thunder_fuser.rematerialization.proxies import makes, reads
from thunder_fuser.rematerialization.sharing import COPIES, FENCES, VIEWS

_ENTRY = frozenset({PrimIDs.RESHAPE, PrimIDs.TRANSPOSE, PrimIDs.SQUEEZE})
_EXIT = _ENTRY | {PrimIDs.SHALLOW_COPY}
_ENTERING = frozenset({PrimIDs.SHALLOW_COPY, PrimIDs.BROADCAST_IN_DIM})

# Bound symbols that compute nothing: no one asks why they were not fused.
_SILENT = frozenset(
    {
        PrimIDs.UNPACK_TRIVIAL, PrimIDs.UNPACK_SEQUENCE, PrimIDs.RETURN, PrimIDs.GET_GRAD,
        PrimIDs.PUT_GRAD, PrimIDs.DEL, PrimIDs.COMMENT, PrimIDs.UPDATE_ALIASES, "update_aliases",
        "draw_random",
    }
)

_VIEW = Reject("a view, which torch makes without a kernel")
_CALL = Reject("a torch call with no fused op on one of its sides")

Support = Callable[[BoundSymbol], "Reject | None"]
Views = Mapping[str, BoundSymbol]
_NO_VIEWS: Views = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of a trace that becomes one fusion.

    `leaves` are the live primitives it is made of. Inputs and outputs are in the order of first
    appearance. `bsyms` are the trace's own that it stands for, and `exits` the views that torch
    makes of the outputs, until it is `settled`: what lives as long as the function needs neither.
    Results may be written over the inputs named in `donated`, and over those in `donated_if_freed`
    where autograd is about to free what it kept; see donation.py.
    """

    leaves: tuple[BoundSymbol, ...]
    inputs: tuple[Proxy, ...]
    outputs: tuple[Proxy, ...]
    is_backward: bool
    bsyms: tuple[BoundSymbol, ...] = ()
    exits: tuple[BoundSymbol, ...] = ()
    donated: tuple[str, ...] = ()
    donated_if_freed: tuple[str, ...] = ()

    @staticmethod
    def of(
        bsyms: Sequence[BoundSymbol], outputs: Iterable[str], views: Views = _NO_VIEWS
    ) -> Region:
        """The region of these bound symbols whose results of the given names are wanted.

        `views` are the ones outside that may be repeated in it, by the name of their result.
        """
        leaves = [leaf for bsym in bsyms for leaf in leaves_of(bsym)]
        wanted, exits = exits_of(leaves, outputs)
        live = _with_views(_live(leaves, wanted), views)
        made = _boundary(live, wanted)
        return Region(live, *made, _is_backward(bsyms[0]), tuple(bsyms), exits)

    @staticmethod
    def of_views(bsyms: Sequence[BoundSymbol], outputs: Iterable[str]) -> Region:
        """The region of these views that torch makes all of them."""
        leaves = [leaf for bsym in bsyms for leaf in leaves_of(bsym)]
        wanted = frozenset(outputs)
        live = _live(leaves, wanted)
        return Region(live, *_boundary(live, wanted), _is_backward(bsyms[0]), tuple(bsyms))

    def settled(self) -> Region:
        """The region when its place in the trace is taken."""
        return replace(self, bsyms=(), exits=())

    @property
    def makes_views(self) -> bool:
        """True if it needs no kernel, whatever the strides of its inputs."""
        return all(leaf.sym.id in VIEWS for leaf in self.leaves)

    @property
    def moves_only(self) -> bool:
        """True if it needs no kernel where the strides of its inputs allow."""
        return all(leaf.sym.id in MOVES for leaf in self.leaves)


@dataclass(frozen=True, slots=True)
class Claims:
    """The whole trace in order, regions in place of what they claim, and what was refused.

    Those that are kept for reports have of the trace what became regions alone.
    """

    items: tuple[BoundSymbol | Region, ...]
    unfused: tuple[Unfused, ...]

    @property
    def regions(self) -> tuple[Region, ...]:
        return tuple(item for item in self.items if isinstance(item, Region))


def claim(bsyms: Sequence[BoundSymbol], support: Support) -> Claims:
    """The regions of a joint or inference trace."""
    written = _views_written_later(bsyms)
    refusals = [_refusal(bsym, support, written) for bsym in bsyms]
    is_fusible = [reason is None for reason in refusals]
    order = brought_together(
        bsyms, is_fusible, _alike, lambda bsym: _only(bsym, VIEWS),
        lambda bsym: widens([*leaves_of(bsym)]),
    )  # fmt: skip
    bsyms, refusals = [bsyms[at] for at in order], [refusals[at] for at in order]
    users = _users(bsyms)
    items = _Items()
    refused = Refused()
    for piece in _runs(bsyms, refusals, users):
        reason = refusals[piece.start]
        if reason is not None:
            items.extend([bsyms[piece.start]])
            if bsyms[piece.start].sym.id not in _SILENT:
                refused.note([(bsyms[piece.start], reason)])
            continue
        run = _trim(bsyms, piece, users)
        chosen = [bsyms[at] for at in run.inside]
        items.extend(bsyms[at] for at in run.before)
        formed = _formed(bsyms, run, users, items.views)
        items.extend([formed] if isinstance(formed, Region) else chosen)
        items.extend(bsyms[at] for at in run.after)
        refused.note(map(_at_an_edge, (bsyms[at] for at in run.before)))
        if isinstance(formed, Reject):
            refused.note((bsym, formed) for bsym in chosen)
        refused.note(map(_at_an_edge, (bsyms[at] for at in run.after)))
    return Claims(tuple(items.all), tuple(refused.all))


def _at_an_edge(bsym: BoundSymbol) -> tuple[BoundSymbol, Reject]:
    return bsym, _VIEW if _only(bsym, VIEWS) else _CALL


class _Items:
    """The claimed trace so far, and the views in it that later regions may repeat."""

    def __init__(self) -> None:
        self.all: list[BoundSymbol | Region] = []
        self.views: dict[str, BoundSymbol] = {}

    def extend(self, items: Iterable[BoundSymbol | Region]) -> None:
        for item in items:
            self.all.append(item if isinstance(item, Region) else by_torch(item))
            for bsym in _made_outside(item):
                # A call of torch is more than its parts: round of integers copies its argument.
                if bsym.sym.executor is None and _only(bsym, _ENTERING):
                    self.views.update((_result(leaf), leaf) for leaf in leaves_of(bsym))


def _made_outside(item: BoundSymbol | Region) -> tuple[BoundSymbol, ...]:
    """What torch runs, views among it."""
    if not isinstance(item, Region):
        return (item,)
    return item.leaves if item.makes_views else item.exits


# ------------------------------------------------------------------------------------------ runs


def _refusal(bsym: BoundSymbol, support: Support, written: frozenset[str]) -> Reject | None:
    if any(out.name in written for out in makes(bsym)) and _only(bsym, MOVES):
        return Reject("a view of a tensor that is written in place")
    return support(bsym)


def _runs(
    bsyms: Sequence[BoundSymbol], refusals: Sequence[Reject | None], users: Users
) -> Iterator[range]:
    """The longest runs that may be one region, cut where they are too long for one; refused ones
    stand alone."""
    is_fusible = [reason is None for reason in refusals]
    for run in stretches(bsyms, is_fusible, _alike):
        yield from pieces(bsyms, run, users) if is_fusible[run.start] else [run]


def _alike(one: BoundSymbol, other: BoundSymbol) -> bool:
    """True if two fusible bound symbols may be in one region."""
    return (
        _is_backward(one) == _is_backward(other)
        and device_of(one) == device_of(other)
        and mesh_of_call(one) == mesh_of_call(other)
    )


def _is_backward(bsym: BoundSymbol) -> bool:
    return BoundSymbolTag.BACKWARD in bsym.tags


def _users(bsyms: Sequence[BoundSymbol]) -> dict[str, list[int]]:
    """The places in the trace where each name is read."""
    users: dict[str, list[int]] = {}
    for at, bsym in enumerate(bsyms):
        for proxy in reads(bsym):
            users.setdefault(proxy.name, []).append(at)
    return users


def _views_written_later(bsyms: Sequence[BoundSymbol]) -> frozenset[str]:
    """Names whose memory is written through them, or through a view of them."""
    names: set[str] = set()
    for bsym in reversed(bsyms):
        if bsym.sym.id in FENCES:
            names.update(proxy.name for proxy in reads(bsym))
        elif bsym.sym.id in COPIES:
            names.add(reads(bsym)[1].name)
        elif names.intersection(out.name for out in makes(bsym)) and _only(bsym, MOVES):
            names.update(proxy.name for proxy in reads(bsym))
    return frozenset(names)


def _only(bsym: BoundSymbol, kinds: frozenset[PrimIDs | str]) -> bool:
    """True if the bound symbol is made of primitives of these kinds alone."""
    if not bsym.subsymbols:
        return bsym.sym.id in kinds
    return all(_only(part, kinds) for part in bsym.subsymbols)


# ----------------------------------------------------------------------------------------- edges


@dataclass(frozen=True)
class _Run:
    """Places in the trace: run by torch before the region, in it, and by torch after it."""

    before: tuple[int, ...]
    inside: tuple[int, ...]
    after: tuple[int, ...]


def _trim(bsyms: Sequence[BoundSymbol], run: range, users: Users) -> _Run:
    """Takes the views off both edges; see Note [Edges]. A run of nothing else stays whole."""
    if all(_only(bsyms[at], VIEWS) for at in run):
        return _Run((), tuple(run), ())
    moves_only = all(_only(bsyms[at], MOVES) for at in run)
    idle = _idle(bsyms, run, VIEWS if moves_only else MOVES, users)
    before: dict[int, None] = {}
    inside_names: set[str] = set()
    for at in run:
        bsym = bsyms[at]
        from_outside = not any(p.name in inside_names for p in reads(bsym))
        if from_outside and (_only(bsym, _ENTRY | CALLS) or at in idle):
            before[at] = None
        else:
            inside_names.update(out.name for out in makes(bsym))
    rest = [at for at in run if at not in before]
    after = _idle(bsyms, rest, _EXIT | CALLS, users)
    inside = tuple(at for at in rest if at not in after)
    return _Run(tuple(before), inside, tuple(at for at in rest if at in after))


def _idle(
    bsyms: Sequence[BoundSymbol], places: Sequence[int], kinds: frozenset[PrimIDs], users: Users
) -> set[int]:
    """Those of the kinds whose results no other op among the places needs."""
    members, idle = set(places), set()
    for at in reversed(places):
        uses = (use for out in makes(bsyms[at]) for use in users.get(out.name, ()))
        if _only(bsyms[at], kinds) and all(use not in members or use in idle for use in uses):
            idle.add(at)
    return idle


def _formed(
    bsyms: Sequence[BoundSymbol], run: _Run, users: Users, views: Views
) -> Region | Reject:
    """The region of what is left inside, or why torch runs all of it."""
    chosen = [bsyms[at] for at in run.inside]
    escaping = _escaping(bsyms, run.inside, users)
    if not all(_only(bsym, VIEWS | CALLS) for bsym in chosen):
        region = Region.of(chosen, escaping, views)
    elif not all(_only(bsym, VIEWS) for bsym in chosen):
        return _CALL
    elif run.before or run.after:
        return _VIEW
    else:
        region = Region.of_views(chosen, [*escaping, *_sources(chosen)])
    return _refuse_region(region) or region


def _escaping(bsyms: Sequence[BoundSymbol], inside: Sequence[int], users: Users) -> list[str]:
    """Names made inside that others read."""
    members = set(inside)
    return [
        out.name
        for at in inside
        for out in makes(bsyms[at])
        if any(use not in members for use in users.get(out.name, ()))
    ]


def _sources(bsyms: Sequence[BoundSymbol]) -> list[str]:
    """What the views that a later region may repeat are made of."""
    leaves = [leaf for bsym in bsyms for leaf in leaves_of(bsym)]
    return [reads(leaf)[0].name for leaf in leaves if leaf.sym.id in _ENTERING]


def _refuse_region(region: Region) -> Reject | None:
    """A Reject for one that returns no tensor, or makes GPU tensors from nothing.

    The device of a call is that of its arguments; torch.full and torch.arange are one kernel too.
    """
    if not region.outputs:
        return Reject("nothing reads its result")
    if not all(isinstance(out, TensorProxy) for out in region.outputs):
        return Reject("its result is a number")
    device = device_of(region.bsyms[0])
    on_cpu = device is None or device.devicetype is DeviceType.CPU
    if on_cpu or any(isinstance(p, TensorProxy) and p.device == device for p in region.inputs):
        return None
    return Reject("GPU tensors made of no tensor, which torch makes as fast")


# ----------------------------------------------------------------------------- inside of a region


def _live(leaves: Sequence[BoundSymbol], wanted: frozenset[str]) -> tuple[BoundSymbol, ...]:
    """The primitives that a wanted result depends on."""
    needed = set(wanted)
    kept = []
    for leaf in reversed(leaves):
        if needed.intersection(out.name for out in makes(leaf)):
            kept.append(leaf)
            needed.update(proxy.name for proxy in reads(leaf))
    return tuple(reversed(kept))


def _with_views(leaves: Sequence[BoundSymbol], views: Views) -> tuple[BoundSymbol, ...]:
    """The primitives, preceded by the views outside that they read, and those these read."""
    made = {out.name for leaf in leaves for out in makes(leaf)}
    front: dict[str, BoundSymbol] = {}
    wanted = [proxy.name for leaf in leaves for proxy in reads(leaf)]
    while wanted:
        name = wanted.pop()
        if name in views and name not in made:
            front.pop(name, None)  # read once more: it must come still earlier
            front[name] = views[name]
            wanted.append(reads(views[name])[0].name)
    return (*reversed(front.values()), *leaves) if front else tuple(leaves)


def _result(leaf: BoundSymbol) -> str:
    return str(makes(leaf)[0].name)


def _boundary(
    leaves: Sequence[BoundSymbol], wanted: frozenset[str]
) -> tuple[tuple[Proxy, ...], tuple[Proxy, ...]]:
    """(inputs, outputs) in the order in which they first appear."""
    made: set[str] = set()
    inputs: dict[str, Proxy] = {}
    outputs: dict[str, Proxy] = {}
    for leaf in leaves:
        for proxy in reads(leaf):
            if proxy.name not in made and not is_known_number(proxy):
                inputs.setdefault(proxy.name, proxy)
        for proxy in makes(leaf):
            made.add(proxy.name)
            if proxy.name in wanted:
                outputs.setdefault(proxy.name, proxy)
    return tuple(inputs.values()), tuple(outputs.values())


# ------------------------------------------------------------------------------- after the claims


def without_dead_views(items: Sequence[BoundSymbol | Region]) -> list[BoundSymbol | Region]:
    """The trace less the views that only regions read which now repeat them."""
    needed: set[str] = set()
    kept: list[BoundSymbol | Region] = []
    for item in reversed(items):
        live = _needed(item, needed)
        if live is not None:
            kept.append(live)
            given = live.inputs if isinstance(live, Region) else reads(live)
            needed.update(proxy.name for proxy in given)
    return kept[::-1]


def _needed(item: BoundSymbol | Region, names: set[str]) -> BoundSymbol | Region | None:
    """The item; a region of views only as far as it makes these names; None if it makes none."""
    if isinstance(item, Region) and not item.makes_views:
        return item
    if isinstance(item, Region):
        wanted = [proxy.name for proxy in item.outputs if proxy.name in names]
        if len(wanted) == len(item.outputs):
            return item
        return Region.of_views(item.bsyms, wanted) if wanted else None
    used = any(out.name in names for out in makes(item))
    return item if used or not _only(item, VIEWS) else None


def check_in_place(items: Sequence[BoundSymbol | Region], prefix: str) -> None:
    """AliasError if a region reads a tensor after it was written in place.

    Thunder gives such a tensor a new name, and regions compute from names: the old one would give
    the new contents. Its own check looks only at fusions called nvFusion.
    """
    written: dict[str, BoundSymbol] = {}
    count = 0
    for item in items:
        if isinstance(item, Region):
            name = "a view" if item.makes_views else f"{prefix}{count}"
            for proxy in item.inputs:
                if proxy.name in written:
                    raise _read_after_write(name, proxy, written[proxy.name])
            count += not item.makes_views
        elif item.sym.id in COPIES:
            written[reads(item)[1].name] = item


def _read_after_write(region: str, proxy: Proxy, copy: BoundSymbol) -> AliasError:
    return AliasError(
        f"{region} reads {proxy.name} after {makes(copy)[0].name} = {copy.sym.name}"
        f"({reads(copy)[0].name}, {proxy.name}) has written it",
        expected=f"{reads(copy)[0].name}, the value copied from",
        got=f"{proxy.name}, the tensor copied to",
        do="use the result of the in-place op, or set disable_inplace_copy_check=True",
    )
