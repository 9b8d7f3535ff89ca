# SPDX-License-Identifier: Apache-2.0
"""The ops of a prepared trace -> the same with each region as one item, and what was refused.

    t1 = permute(x); t2 = mul(t1, 2); t3 = exp(t2); t4 = reshape(t3); t5 = linear(t4, w)
->  t1 = permute(x); Region(t2, t3);                t4 = reshape(t3); t5 = linear(t4, w)

Which ops are one region was decided by trace/rewrites/split_regions.py. Here a region gets its
edges (Note [Edges] in boundary.py), inputs and outputs. Every step is linear in the length of the
trace; Thunder's own partitioner is not used. At the end, fuel limits how many of them are made.
What each compilation claimed and refused is kept for reports while its traces live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple
from weakref import WeakKeyDictionary

from thunder.common import CompileData
from thunder.core.compile_data import _compile_data, get_compile_data
from thunder.core.devices import DeviceType
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.extend import FUEL_LEVEL

from thunder_fuser.errors import OptionError
from thunder_fuser.executors.regions.boundary import (
    ENTERING,
    Edges,
    boundary_views_of,
    by_torch,
    edges_of,
)
from thunder_fuser.executors.regions.region import NO_VIEWS, Item, Region, ViewsByName, only
from thunder_fuser.executors.support.check import device_of, leaves_of
from thunder_fuser.executors.support.index_rows import CALLS
from thunder_fuser.options import option
from thunder_fuser.rematerialization.apply import Recomputation
from thunder_fuser.source.lines import line_of, lines_of
from thunder_fuser.trace.dataflow import DataFlow
from thunder_fuser.trace.op import Op, Reject
from thunder_fuser.trace.proxies import FENCES, VIEWS, makes, reads
from thunder_fuser.trace.rewrites.split_regions import Users

# Bound symbols that compute nothing: no one asks why they were not fused.
_SILENT = frozenset(
    {
        PrimIDs.UNPACK_TRIVIAL, PrimIDs.UNPACK_SEQUENCE, PrimIDs.RETURN, PrimIDs.GET_GRAD,
        PrimIDs.PUT_GRAD, PrimIDs.DEL, PrimIDs.COMMENT, "draw_random", *FENCES,
    }
)  # fmt: skip

VIEW = Reject("a view, which torch makes without a kernel")
_CALL = Reject("a torch call that is not between fused ops")


class Outside(NamedTuple):
    """What torch runs for a region.

    unfused: the trace's bound symbols that it replaces, where it gets no fuel; exits: the views
    that torch makes of its outputs and inputs, behind it.
    """

    unfused: tuple[BoundSymbol, ...]
    exits: tuple[BoundSymbol, ...]


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

    outside: by the number of a region. For reports, only the regions among the items are kept, and
    nothing outside. left_out: the regions for which there was no fuel, with the reason; lines:
    {value: file:line}.
    """

    items: tuple[Item, ...]
    unfused: tuple[Unfused, ...]
    lines: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[int, Outside] = field(default_factory=dict)
    left_out: tuple[tuple[Region, Reject], ...] = ()

    @property
    def regions(self) -> tuple[Region, ...]:
        return tuple(item for item in self.items if isinstance(item, Region))


def claim(flow: DataFlow) -> Claims:
    """The regions of a prepared trace, with the edges that Note [Edges] gives them."""
    ops, users = flow.ops, flow.readers
    lines = lines_of(ops)
    trace = _Claimed(lines)
    regions = [-1 - at if op.region is None else op.region for at, op in enumerate(ops)]
    for _, grouped in groupby(range(len(ops)), regions.__getitem__):
        places = [*grouped]  # of a region, or of one op that torch runs
        if not ops[places[0]].is_fusible:
            trace.leave(ops[places[0]])
            continue
        edges = edges_of(ops, places, users)
        formed = _formed(ops, edges, users, trace.views)
        for at in edges.before:
            trace.leave(ops[at])
        if isinstance(formed, Formed):
            trace.add_region(formed, tuple(ops[at].bsym for at in edges.inside))
        else:
            for at in edges.inside:
                trace.leave(ops[at], formed)
        for at in edges.after:
            trace.leave(ops[at])
    return Claims(tuple(trace.items), tuple(trace.unfused), lines, trace.outside)


class _Claimed:
    """The claimed trace so far, and the views in it that later regions may repeat.

    Layers are refused alike: equal entries of `unfused` are one object.
    """

    def __init__(self, lines: Mapping[str, str]) -> None:
        self.lines = lines
        self.items: list[Item] = []
        self.outside: dict[int, Outside] = {}
        self.views: dict[str, BoundSymbol] = {}
        self.unfused: list[Unfused] = []
        self._known: dict[Unfused, Unfused] = {}

    def leave(self, op: Op, of_region: Reject | None = None) -> None:
        """Adds an op that torch runs. The reason is its own, its region's, or that of an edge."""
        bsym = by_torch(op.bsym)
        self.items.append(bsym)
        self._offer([bsym])
        if op.bsym.sym.id not in _SILENT:
            at_edge = VIEW if op.only(VIEWS) else _CALL
            where = next((self.lines[name] for name in op.made_names if name in self.lines), "")
            unfused = Unfused(op.bsym.sym.name, op.refusal or of_region or at_edge, where)
            self.unfused.append(self._known.setdefault(unfused, unfused))

    def add_region(self, formed: Formed, unfused: tuple[BoundSymbol, ...]) -> None:
        region, exits = formed
        self.items.append(region)
        self.outside[region.number] = Outside(unfused, exits)
        self._offer(region.leaves if region.makes_views else exits)

    def _offer(self, run_by_torch: Iterable[BoundSymbol]) -> None:
        """Notes the views that later regions may repeat."""
        for bsym in run_by_torch:
            # A call of torch is more than its parts: round of integers copies its argument.
            if bsym.sym.executor is None and only(bsym, ENTERING):
                self.views.update((makes(leaf)[0].name, leaf) for leaf in leaves_of(bsym))


class Formed(NamedTuple):
    """A region, and the views that torch makes of its outputs and inputs."""

    region: Region
    exits: tuple[BoundSymbol, ...] = ()

    @staticmethod
    def of(ops: Sequence[Op], outputs: Iterable[str], views: ViewsByName = NO_VIEWS) -> Formed:
        """The region of these ops that returns the results with these names.

        views: {name: view outside of the region that it may repeat}.
        """
        whole = Region.whole(ops)
        wanted, exits = boundary_views_of(whole.leaves, outputs)
        return Formed(whole.narrowed(wanted, views), exits)


def _formed(ops: Sequence[Op], edges: Edges, users: Users, views: ViewsByName) -> Formed | Reject:
    """The region of the ops inside of the edges, or why torch runs all of them."""
    chosen, members = [ops[at] for at in edges.inside], set(edges.inside)
    results = [name for op in chosen for name in op.made_names]
    escaping = [name for name in results if not members.issuperset(users.get(name, ()))]
    if not all(op.only(VIEWS | CALLS) for op in chosen):
        formed = Formed.of(chosen, escaping, views)
    elif not all(op.only(VIEWS) for op in chosen):
        return _CALL
    elif edges.before or edges.after:
        return VIEW
    else:  # with the operands of the views that a later region may repeat
        leaves = [leaf for op in chosen for leaf in op.leaves if leaf.sym.id in ENTERING]
        sources = [reads(leaf)[0].name for leaf in leaves]
        formed = Formed(Region.whole(chosen).narrowed([*escaping, *sources]))
    region, device = formed.region, device_of(chosen[0].bsym)
    if not region.outputs:
        return Reject("nothing reads its result")
    if not all(isinstance(out, TensorProxy) for out in region.outputs):
        return Reject("its result is a number")
    # A call runs on the device of its arguments. And torch.full and torch.arange are one kernel.
    on_cpu = device is None or device.devicetype is DeviceType.CPU
    if on_cpu or any(isinstance(p, TensorProxy) and p.device == device for p in region.inputs):
        return formed
    return Reject("only creates GPU tensors, at which torch is as fast")


# ----------------------------------------------------------------------------------------- fuel


class Fuel:
    """How many fusions an executor may still make. Thunder's tests set it."""

    def __init__(self) -> None:
        self._left: int | FUEL_LEVEL = FUEL_LEVEL.UNLIMITED

    def take(self, amount: int) -> bool:
        """Takes fuel for this many fusions; False when it is used up. 0: whether there is any."""
        if isinstance(self._left, FUEL_LEVEL):
            return True
        enough = self._left >= max(amount, 1)
        self._left -= amount * enough
        return enough

    def set(self, value: int | FUEL_LEVEL) -> None:
        if isinstance(value, int) and value < 0:
            raise OptionError("fuel", expected="a number >= 0 or FUEL_LEVEL", got=str(value))
        self._left = value


def with_fuel(claims: Claims, take: Callable[[int], bool]) -> Claims:
    """The claims with the bound symbols that a region replaces, where there is no fuel for it.

    Views take none, but are left out with the fusions that follow the last one. take: an
    executor's `get_fuel`; the option fuel limits one trace.
    """
    limit, fused = int(option("fuel")), 0
    items: list[Item] = []
    left_out: list[Region] = []
    for item in claims.items:
        if not isinstance(item, Region):
            items.append(item)
        elif (limit < 0 or fused < limit) and take(not item.makes_views):
            fused += not item.makes_views
            items += [item, *claims.outside[item.number].exits]
        else:
            left_out.append(item)
            items += claims.outside[item.number].unfused
    by_option = 0 <= limit <= fused
    reason = Reject(f"the option fuel is {limit}" if by_option else "set_fuel's fuel is used up")
    refused = tuple((region, reason) for region in left_out)
    return replace(claims, items=tuple(items), left_out=refused)


# --------------------------------------------------------------------------------- kept for reports


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
