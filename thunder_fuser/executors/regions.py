# SPDX-License-Identifier: Apache-2.0
"""The ops of a prepared trace -> the same with each region as one item, and what was refused.

    t1 = permute(x); t2 = mul(t1, 2); t3 = exp(t2); t4 = reshape(t3); t5 = linear(t4, w)
->  t1 = permute(x); Region(t2, t3);                t4 = reshape(t3); t5 = linear(t4, w)

Which ops are one region was decided by trace/split_regions.py. Here a region gets its edges, inputs
and outputs. Every step is linear in the length of the trace; Thunder's own partitioner is not used.

Note [Edges]: at the edges of a region, ops that torch answers with a view stay with torch:
  * reshape, transpose and squeeze of values from outside go before the region;
  * so do shallow_copy, slice and broadcast_in_dim, if nothing that stays in the region uses them,
    and stride_order beside ops that compute: it copies nothing where the strides are right;
  * reshape, transpose, squeeze and shallow_copy that only the outside uses go after it;
  * one that both sides use is made twice: the region returns its operand (a row's statistics, not
    their copies along the row) and torch repeats the view, see exits.py; as it does any view or
    stride_order of what comes from outside, or is returned too;
  * shallow_copy and broadcast_in_dim outside whose results the region reads are repeated in it, so
    that it reads (and the backward saves) their operands.
So do ops that are one torch call anyway (scatter, sort, ...): they are taken only between others.
A run of nothing but views is a region without a kernel, see views.py; one that is left with nothing
but views and such calls by the rules above is no region at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from thunder.core.devices import DeviceType
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.errors import AliasError
from thunder_fuser.executors.exits import by_torch, exits_of
from thunder_fuser.executors.indexing import CALLS
from thunder_fuser.executors.refusals import Refused, Unfused
from thunder_fuser.executors.support import device_of, leaves_of
from thunder_fuser.executors.types import is_known_number
from thunder_fuser.trace.op import Op, Reject, users_of
from thunder_fuser.trace.proxies import COPIES, MOVES, VIEWS, makes, parts, reads
from thunder_fuser.trace.split_regions import Users

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

Views = Mapping[str, BoundSymbol]
_NO_VIEWS: Views = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of a trace that becomes one fusion.

    `leaves` are the live primitives it is made of. Inputs and outputs are in the order of first
    appearance. `bsyms` are the trace's own that it stands for, and `exits` the views that torch
    makes of the outputs, until it is `without_trace`: what lives as long as the function needs
    neither.
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
        ops: Sequence[Op], outputs: Iterable[str], views: Views = _NO_VIEWS
    ) -> Region:
        """The region of these ops whose results of the given names are wanted.

        `views` are the ones outside that may be repeated in it, by the name of their result.
        """
        leaves = [leaf for op in ops for leaf in op.leaves]
        wanted, exits = exits_of(leaves, outputs)
        live = _with_views(_live(leaves, wanted), views)
        made = _boundary(live, wanted)
        return Region(live, *made, ops[0].is_backward, tuple(op.bsym for op in ops), exits)

    @staticmethod
    def of_views(ops: Sequence[Op], outputs: Iterable[str]) -> Region:
        """The region of these views that torch makes all of them."""
        leaves = tuple(leaf for op in ops for leaf in op.leaves)
        bsyms = tuple(op.bsym for op in ops)
        return Region(leaves, (), (), ops[0].is_backward, bsyms).narrowed(outputs)

    def narrowed(self, outputs: Iterable[str]) -> Region:
        """The region as far as it makes these results."""
        wanted = frozenset(outputs)
        live = _live(self.leaves, wanted)
        inputs, made = _boundary(live, wanted)
        return replace(self, leaves=live, inputs=inputs, outputs=made)

    def without_trace(self) -> Region:
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


def claim(ops: Sequence[Op]) -> Claims:
    """The regions of a prepared trace, with the edges that Note [Edges] gives them."""
    users = users_of(ops)
    items, refused = _Items(), Refused()
    for places in _regions(ops):
        first = ops[places[0]]
        if first.refusal is not None:
            items.extend([first.bsym])
            if first.bsym.sym.id not in _SILENT:
                refused.note([(first.bsym, first.refusal)])
            continue
        run = _trim(ops, places, users)
        before, chosen, after = ([ops[at] for at in part] for part in run.parts)
        formed = _formed(ops, run, users, items.views)
        items.extend(op.bsym for op in before)
        items.extend([formed] if isinstance(formed, Region) else [op.bsym for op in chosen])
        items.extend(op.bsym for op in after)
        refused.note(map(_at_an_edge, before))
        if isinstance(formed, Reject):
            refused.note((op.bsym, formed) for op in chosen)
        refused.note(map(_at_an_edge, after))
    return Claims(tuple(items.all), tuple(refused.all))


def _regions(ops: Sequence[Op]) -> Iterator[range]:
    """The places of each region, and of each op that torch runs."""
    start = 0
    for at in range(1, len(ops) + 1):
        here = ops[start].region
        if at == len(ops) or here is None or ops[at].region != here:
            yield range(start, at)
            start = at


def _at_an_edge(op: Op) -> tuple[BoundSymbol, Reject]:
    return op.bsym, _VIEW if op.only(VIEWS) else _CALL


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
                if bsym.sym.executor is None and only(bsym, _ENTERING):
                    self.views.update((_result(leaf), leaf) for leaf in leaves_of(bsym))


def only(bsym: BoundSymbol, kinds: frozenset[PrimIDs | str]) -> bool:
    """True if the bound symbol consists of primitives of these kinds."""
    return all(part.sym.id in kinds for part in parts(bsym))


def _made_outside(item: BoundSymbol | Region) -> tuple[BoundSymbol, ...]:
    """What torch runs, views among it."""
    if not isinstance(item, Region):
        return (item,)
    return item.leaves if item.makes_views else item.exits


# ----------------------------------------------------------------------------------------- edges


@dataclass(frozen=True)
class _Run:
    """Places in the trace: run by torch before the region, in it, and by torch after it."""

    before: tuple[int, ...]
    inside: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        return self.before, self.inside, self.after


def _trim(ops: Sequence[Op], run: range, users: Users) -> _Run:
    """Takes the views off both edges; see Note [Edges]. A run of nothing else stays whole."""
    if all(ops[at].only(VIEWS) for at in run):
        return _Run((), tuple(run), ())
    moves_only = all(ops[at].only(MOVES) for at in run)
    idle = _idle(ops, run, VIEWS if moves_only else MOVES, users)
    before: dict[int, None] = {}
    inside_names: set[str] = set()
    for at in run:
        from_outside = not ops[at].reads_any(inside_names)
        if from_outside and (ops[at].only(_ENTRY | CALLS) or at in idle):
            before[at] = None
        else:
            inside_names.update(out.name for out in ops[at].makes)
    rest = [at for at in run if at not in before]
    after = _idle(ops, rest, _EXIT | CALLS, users)
    inside = tuple(at for at in rest if at not in after)
    return _Run(tuple(before), inside, tuple(at for at in rest if at in after))


def _idle(
    ops: Sequence[Op], places: Sequence[int], kinds: frozenset[PrimIDs], users: Users
) -> set[int]:
    """Those of the kinds whose results no other op among the places needs."""
    members, idle = set(places), set()
    for at in reversed(places):
        uses = (use for out in ops[at].makes for use in users.get(out.name, ()))
        if ops[at].only(kinds) and all(use not in members or use in idle for use in uses):
            idle.add(at)
    return idle


def _formed(ops: Sequence[Op], run: _Run, users: Users, views: Views) -> Region | Reject:
    """The region of what is left inside, or why torch runs all of it."""
    chosen = [ops[at] for at in run.inside]
    escaping = _escaping(ops, run.inside, users)
    if not all(op.only(VIEWS | CALLS) for op in chosen):
        region = Region.of(chosen, escaping, views)
    elif not all(op.only(VIEWS) for op in chosen):
        return _CALL
    elif run.before or run.after:
        return _VIEW
    else:
        region = Region.of_views(chosen, [*escaping, *_sources(chosen)])
    return _refuse_region(region) or region


def _escaping(ops: Sequence[Op], inside: Sequence[int], users: Users) -> list[str]:
    """Names made inside that others read."""
    members = set(inside)
    return [
        out.name
        for at in inside
        for out in ops[at].makes
        if any(use not in members for use in users.get(out.name, ()))
    ]


def _sources(ops: Sequence[Op]) -> list[str]:
    """The operands of the views that a later region may repeat."""
    leaves = [leaf for op in ops for leaf in op.leaves]
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
        return item.narrowed(wanted) if wanted else None
    used = any(out.name in names for out in makes(item))
    return item if used or not only(item, VIEWS) else None


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
