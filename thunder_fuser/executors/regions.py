# SPDX-License-Identifier: Apache-2.0
"""The ops of a prepared trace -> the same with each region as one item, and what was refused.

    t1 = permute(x); t2 = mul(t1, 2); t3 = exp(t2); t4 = reshape(t3); t5 = linear(t4, w)
->  t1 = permute(x); Region(t2, t3);                t4 = reshape(t3); t5 = linear(t4, w)

Which ops are one region was decided by trace/split_regions.py. Here a region gets its edges (Note
[Edges] in edges.py), inputs and outputs. Every step is linear in the length of the trace; Thunder's
own partitioner is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeAlias

from thunder.core.devices import DeviceType
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.errors import AliasError
from thunder_fuser.executors.edges import ENTERING, Edges, by_torch, edges_of, exits_of
from thunder_fuser.executors.indexing import CALLS
from thunder_fuser.executors.source_lines import line_of, lines_of
from thunder_fuser.executors.support import device_of, leaves_of
from thunder_fuser.executors.types import is_known_number
from thunder_fuser.trace.op import Kinds, Op, Reject, users_of
from thunder_fuser.trace.proxies import FENCES, MOVES, VIEWS, makes, overwritten, parts, reads
from thunder_fuser.trace.split_regions import Users

# Bound symbols that compute nothing: no one asks why they were not fused.
_SILENT = frozenset(
    {
        PrimIDs.UNPACK_TRIVIAL, PrimIDs.UNPACK_SEQUENCE, PrimIDs.RETURN, PrimIDs.GET_GRAD,
        PrimIDs.PUT_GRAD, PrimIDs.DEL, PrimIDs.COMMENT, "draw_random", *FENCES,
    }
)  # fmt: skip

VIEW = Reject("a view, which torch makes without a kernel")
_CALL = Reject("a torch call with no fused op on one of its sides")

Views = Mapping[str, BoundSymbol]
_NO_VIEWS: Views = {}


@dataclass(frozen=True, slots=True)
class Write:
    """An input that a region writes in place. target: its name.

    value: the name of the last written value; names: the outputs that alias the input after the
    write; is_checked: the write raises for a leaf of autograd that requires a gradient.
    """

    target: str
    value: str
    names: frozenset[str]
    is_checked: bool


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of a trace that becomes one fusion.

    leaves: its live primitives. inputs, outputs: in the order of their first appearance. bsyms: the
    trace's bound symbols that it replaces; exits: the views that torch makes of the outputs; both
    are empty after `without_trace`, since the compiled function keeps the region alive.
    donated: inputs that results may be written over; donated_if_freed: those that autograd kept,
    which results may overwrite if autograd is about to free them; see donation.py. row_major:
    outputs that are row-major for inputs in any order; see row_major.py.
    unseen: the results whose strides the user never sees, each with the stride order that its
    reader wishes for, or () (unseen.py).
    writes: the inputs that it writes in place; its leaves contain the copies, see writes.py.
    where: file:line of the first of its ops that has one.
    """

    leaves: tuple[BoundSymbol, ...]
    inputs: tuple[Proxy, ...]
    outputs: tuple[Proxy, ...]
    is_backward: bool
    bsyms: tuple[BoundSymbol, ...] = ()
    exits: tuple[BoundSymbol, ...] = ()
    donated: tuple[str, ...] = ()
    donated_if_freed: tuple[str, ...] = ()
    unseen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    row_major: tuple[str, ...] = ()
    where: str = ""
    writes: tuple[Write, ...] = ()

    @staticmethod
    def of(ops: Sequence[Op], outputs: Iterable[str], views: Views = _NO_VIEWS) -> Region:
        """The region of these ops that returns the results with these names.

        views: {name: view outside of the region that it may repeat}.
        """
        whole = Region.whole(ops)
        wanted, exits = exits_of(whole.leaves, outputs)
        return replace(whole.narrowed(wanted, views), exits=exits)

    @staticmethod
    def whole(ops: Sequence[Op]) -> Region:
        """A region of all these ops, without inputs and outputs yet."""
        leaves = tuple(leaf for op in ops for leaf in op.leaves)
        bsyms = tuple(op.bsym for op in ops)
        where = next(filter(None, map(line_of, bsyms)), "")
        return Region(leaves, (), (), ops[0].is_backward, bsyms, where=where)

    def narrowed(self, outputs: Iterable[str], views: Views = _NO_VIEWS) -> Region:
        """The part of the region that these results depend on."""
        wanted = frozenset(outputs)
        live = _with_views(_live(self.leaves, wanted), views)
        inputs, made = boundary(live, wanted)
        return replace(self, leaves=live, inputs=inputs, outputs=made)

    def without_trace(self) -> Region:
        """The region without the trace's bound symbols, for the time after the claims."""
        return replace(self, bsyms=(), exits=())

    @property
    def makes_views(self) -> bool:
        """True if it needs no kernel, whatever the strides of its inputs."""
        return all(leaf.sym.id in VIEWS for leaf in self.leaves)

    @property
    def moves_only(self) -> bool:
        """True if it needs no kernel where the strides of its inputs allow."""
        return all(leaf.sym.id in MOVES for leaf in self.leaves)


Item: TypeAlias = BoundSymbol | Region


def read_by(item: Item) -> Sequence[Proxy]:
    """The operands of a bound symbol or a region."""
    return item.inputs if isinstance(item, Region) else reads(item)


def made_by(item: Item) -> Sequence[Proxy]:
    """The results of a bound symbol or a region."""
    return item.outputs if isinstance(item, Region) else makes(item)


@dataclass(frozen=True, slots=True)
class Unfused:
    """An op that torch runs, and why, for reports. It keeps no bound symbol alive.

    where: file:line of the user's program; empty if unknown.
    """

    name: str
    reason: Reject
    where: str = ""

    @property
    def is_view(self) -> bool:
        """True if it costs nothing."""
        return self.reason == VIEW


@dataclass(frozen=True, slots=True)
class Claims:
    """The whole trace in order, regions in place of what they claim, and what was refused.

    For reports, only the regions among the items are kept. left_out: the regions for which there
    was no fuel, with the reason; lines: {value: file:line}.
    """

    items: tuple[Item, ...]
    unfused: tuple[Unfused, ...]
    lines: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[tuple[Region, Reject], ...] = ()

    @property
    def regions(self) -> tuple[Region, ...]:
        return tuple(item for item in self.items if isinstance(item, Region))


def claim(ops: Sequence[Op]) -> Claims:
    """The regions of a prepared trace, with the edges that Note [Edges] gives them."""
    lines = lines_of(ops)
    users, trace = users_of(ops), _Claimed(lines)
    for places in _regions(ops):
        if not ops[places[0]].is_fusible:
            trace.leave(ops[places[0]])
            continue
        edges = edges_of(ops, places, users)
        formed = _formed(ops, edges, users, trace.views)
        for at in edges.before:
            trace.leave(ops[at])
        if isinstance(formed, Region):
            trace.add(formed)
        else:
            for at in edges.inside:
                trace.leave(ops[at], formed)
        for at in edges.after:
            trace.leave(ops[at])
    return Claims(tuple(trace.items), tuple(trace.unfused), lines)


def _regions(ops: Sequence[Op]) -> Iterator[list[int]]:
    """The places of each region, and of each op that torch runs."""

    def number(at: int) -> int:
        region = ops[at].region
        return -1 - at if region is None else region

    return ([*places] for _, places in groupby(range(len(ops)), number))


class _Claimed:
    """The claimed trace so far, and the views in it that later regions may repeat.

    Layers are refused alike: equal entries of `unfused` are one object.
    """

    def __init__(self, lines: Mapping[str, str]) -> None:
        self.lines = lines
        self.items: list[Item] = []
        self.views: dict[str, BoundSymbol] = {}
        self.unfused: list[Unfused] = []
        self._known: dict[Unfused, Unfused] = {}

    def leave(self, op: Op, of_region: Reject | None = None) -> None:
        """Adds an op that torch runs. The reason is its own, its region's, or that of an edge."""
        self.add(by_torch(op.bsym))
        if op.bsym.sym.id not in _SILENT:
            at_edge = VIEW if op.only(VIEWS) else _CALL
            where = next((self.lines[name] for name in op.made_names if name in self.lines), "")
            one = Unfused(op.bsym.sym.name, op.refusal or of_region or at_edge, where)
            self.unfused.append(self._known.setdefault(one, one))

    def add(self, item: Item) -> None:
        self.items.append(item)
        for bsym in _made_outside(item):
            # A call of torch is more than its parts: round of integers copies its argument.
            if bsym.sym.executor is None and only(bsym, ENTERING):
                self.views.update((makes(leaf)[0].name, leaf) for leaf in leaves_of(bsym))


def only(bsym: BoundSymbol, kinds: Kinds) -> bool:
    """True if the bound symbol consists of primitives of these kinds."""
    return all(part.sym.id in kinds for part in parts(bsym))


def _made_outside(item: Item) -> tuple[BoundSymbol, ...]:
    """The bound symbols of an item that torch runs."""
    if not isinstance(item, Region):
        return (item,)
    return item.leaves if item.makes_views else item.exits


def _formed(ops: Sequence[Op], edges: Edges, users: Users, views: Views) -> Region | Reject:
    """The region of the ops inside of the edges, or why torch runs all of them."""
    chosen = [ops[at] for at in edges.inside]
    escaping = _escaping(ops, edges.inside, users)
    if not all(op.only(VIEWS | CALLS) for op in chosen):
        region = Region.of(chosen, escaping, views)
    elif not all(op.only(VIEWS) for op in chosen):
        return _CALL
    elif edges.before or edges.after:
        return VIEW
    else:
        region = Region.whole(chosen).narrowed([*escaping, *_sources(chosen)])
    return _refuse_region(region) or region


def _escaping(ops: Sequence[Op], inside: Sequence[int], users: Users) -> list[str]:
    """The names made inside that ops outside read."""
    members = set(inside)
    made = (name for at in inside for name in ops[at].made_names)
    return [name for name in made if not members.issuperset(users.get(name, ()))]


def _sources(ops: Sequence[Op]) -> list[str]:
    """The operands of the views that a later region may repeat."""
    leaves = [leaf for op in ops for leaf in op.leaves]
    return [reads(leaf)[0].name for leaf in leaves if leaf.sym.id in ENTERING]


def _refuse_region(region: Region) -> Reject | None:
    """A Reject for a region that returns no tensor, or that makes GPU tensors from no tensor.

    A call runs on the device of its arguments. And torch.full and torch.arange are one kernel too.
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
    """The primitives, preceded by the outside views that they read, directly or through views."""
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


def boundary(
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


def without_dead_views(items: Sequence[Item]) -> list[Item]:
    """The items without views whose only readers are regions that now repeat them."""
    needed: set[str] = set()
    kept: list[Item] = []
    for item in reversed(items):
        live = _needed(item, needed)
        if live is not None:
            kept.append(live)
            needed.update(proxy.name for proxy in read_by(live))
    return kept[::-1]


def _needed(item: Item, names: set[str]) -> Item | None:
    """The item; of a region of views, the part that makes these names; None if it makes none."""
    if isinstance(item, Region) and item.makes_views:
        wanted = [proxy.name for proxy in item.outputs if proxy.name in names]
        return item.narrowed(wanted) if wanted else None
    if isinstance(item, Region) or not only(item, VIEWS):
        return item
    return item if any(out.name in names for out in makes(item)) else None


def check_in_place(items: Sequence[Item], prefix: str) -> None:
    """Raises AliasError if a region reads a tensor by its old name after an in-place write.

    Thunder gives a written tensor a new name, and a region must read the contents that the name
    stands for: by the old name it would read the new contents. Thunder's own check looks only at
    fusions called nvFusion.
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
        else:
            written |= {proxy.name: item for proxy in overwritten(item)}


def _read_after_write(region: str, proxy: Proxy, copy: BoundSymbol) -> AliasError:
    return AliasError(
        f"{region} reads {proxy.name} after {makes(copy)[0].name} = {copy.sym.name}"
        f"({', '.join(one.name for one in reads(copy))}) has written it",
        expected="the value that was written",
        got=f"{proxy.name}, the tensor written to",
        do="use the result of the in-place op, or set disable_inplace_copy_check=True",
    )
