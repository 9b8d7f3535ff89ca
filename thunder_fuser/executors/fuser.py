# SPDX-License-Identifier: Apache-2.0
"""The Thunder executor: a trace -> the same trace with its regions as single bound symbols.

    thunder.jit(model, executors=[fuser], fuser_strict=True)

Options of `thunder_fuser.options` are keywords of thunder.jit under the name fuser_<option>.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
from thunder.common import CompileData
from thunder.core.compile_data import _compile_data, get_compile_data, get_compile_option
from thunder.core.proxies import unvariableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, Symbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace
from thunder.extend import FUEL_LEVEL, FusionExecutor, register_executor

from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.errors import OptionError
from thunder_fuser.executors.cuda_graphs.transform import add_cuda_graphs
from thunder_fuser.executors.functional_writes.transform import writes_as_values
from thunder_fuser.executors.pipeline import (
    REGION_PASSES,
    TRACE_PASSES,
    read_trace,
    skipped_passes,
    target_of,
)
from thunder_fuser.executors.plan_text import PlanText
from thunder_fuser.executors.regions.claim import Claims, Unfused, claim
from thunder_fuser.executors.regions.comments import Comments
from thunder_fuser.executors.regions.editing import fuses_last, may_be_edited
from thunder_fuser.executors.regions.plan import NO_MEMORY, Plan, PlanOptions, RegionMemory
from thunder_fuser.executors.regions.region import Item, Region
from thunder_fuser.executors.run.compile_ahead import Prepare, Prepared, jobs_of, keys_of
from thunder_fuser.executors.run.region_callable import (
    Compile,
    RegionCallable,
    Runner,
    bind_callable,
)
from thunder_fuser.executors.run.trace_log import note_fusions, note_trace
from thunder_fuser.executors.stride_orders.simulate import note_layout
from thunder_fuser.executors.support.check import ROWS, accepts, leaves_of, support
from thunder_fuser.functions import composite_of, register, why_apart
from thunder_fuser.ir.record import Definition
from thunder_fuser.logs import timing
from thunder_fuser.multi_device import MultiDeviceParams
from thunder_fuser.options import Value, compile_options, in_force, option, with_options_as_now
from thunder_fuser.progress import working
from thunder_fuser.rematerialization.apply import Recomputation, rematerialize
from thunder_fuser.rematerialization.policy import policy_of
from thunder_fuser.source.jit_options import check_options, options_of_jit
from thunder_fuser.source.lines import line_of, say_traced, tag_line
from thunder_fuser.stages import stage
from thunder_fuser.threads import BACKGROUND
from thunder_fuser.thunder_patches import install
from thunder_fuser.thunder_patches.gradient_rules import GRADIENTS
from thunder_fuser.thunder_patches.patch import Hooks
from thunder_fuser.trace.op import Reject
from thunder_fuser.trace.passes import run_passes
from thunder_fuser.trace.proxies import makes, reads
from thunder_fuser.versions import __version__

_IN_PLACE_HELP = (
    "Skip the check for tensors that are read by a fusion after they were written in place."
)
_VIEWS = "fuserViews"  # never the prefix of fusions, by which Thunder's tools know them


class ThunderFuser(FusionExecutor):
    """Claims regions of traces; see regions/ for which, run/ for what they run.

    `last_fused_trace` and `last_claims` are those of the newest compilation: the joint trace as it
    left the fuser (Thunder keeps it nowhere), and the regions and refusals it came from.
    `claims_of` and `recomputation_of` give those of any compilation whose traces still live.
    is_editable: Thunder may move ops between its regions (regions/editing.py).
    """

    is_editable = False

    def __init__(
        self, name: str, compile_region: Compile, prepare_region: Prepare | None = None
    ) -> None:
        """prepare_region: the job that compiles a region ahead of its first call."""
        super().__init__(name, version=__version__)
        self.compile_region, self.prepare_region = compile_region, prepare_region
        self.last_fused_trace: TraceCtx | None = None
        self.last_claims: Claims | None = None
        # By the first trace of the compilation: Thunder's cache keeps it with the final ones.
        self._kept: WeakKeyDictionary[TraceCtx, tuple[Claims, Recomputation | None]]
        self._kept = WeakKeyDictionary()
        # Composites that Thunder took apart, by the name of their result; they are no longer in the
        # trace when the regions are claimed.
        self._refused: WeakKeyDictionary[CompileData, dict[str, Unfused]] = WeakKeyDictionary()
        self._fuel: int | FUEL_LEVEL = FUEL_LEVEL.UNLIMITED
        for row in ROWS.values():
            self.register_supported(
                row.id,
                lambda *args, row=row, **kwargs: accepts(row, args, kwargs) is None,
                grad_transform=GRADIENTS.get(row.id),
            )
        register(self)

    # ---- what Thunder asks of every executor

    def can_execute_or_fuse(self, bsym: BoundSymbol) -> bool:
        """Tags the line first: Thunder calls this before it runs a bound symbol's gradient rule."""
        tag_line(bsym)
        return super().can_execute_or_fuse(bsym)  # type: ignore[no-any-return]

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """True for primitives with a row, for composites of these, and for those of our table."""
        data = get_compile_data()
        if data is not None:
            say_traced(data)
        if composite_of(bsym) is None:
            return support(bsym) is None
        reason = why_apart(bsym)
        if reason is not None and data is not None:
            name = makes(bsym)[0].name
            self._refused.setdefault(data, {})[name] = Unfused(bsym.sym.name, reason, line_of(bsym))
        return reason is None

    def get_fuel(self, amount: int = 1, /) -> bool:
        """Takes fuel for one fusion; False when it is used up. amount 0: whether there is any."""
        if isinstance(self._fuel, FUEL_LEVEL):
            return True
        enough = self._fuel >= max(amount, 1)
        self._fuel -= amount * enough
        return enough

    def set_fuel(self, value: int | FUEL_LEVEL) -> None:
        """How many fusions may still be made."""
        if isinstance(value, int) and value < 0:
            raise OptionError("fuel", expected="a number >= 0 or FUEL_LEVEL", got=str(value))
        self._fuel = value

    # ---- the pass

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        """Called once a compilation, with forward and backward in one trace."""
        given = options_of_jit()
        check_options(given)
        with in_force(given), working("planning"), timing("trace"):
            note_trace(trace)
            if option("cuda_graphs"):
                add_cuda_graphs()
            fused = self._fused(trace, given)
            if self.prepare_region and _compiles_ahead():
                BACKGROUND.add(jobs_of(fused, self.prepare_region))
            return fused

    @stage("claim")
    def _fused(self, trace: TraceCtx, given: dict[str, Value]) -> TraceCtx:
        skipped, text = skipped_passes(str(option("skip_passes"))), PlanText(str(option("dump")))
        read = read_trace(trace, target_of(trace), compile_options())
        text.start("read", read)
        prepared = run_passes(TRACE_PASSES, read, skipped, text.add)
        prepared, recomputation = rematerialize(prepared, policy_of(option("rematerialization")))
        text.add("rematerialize", prepared)
        claims = claim(prepared.flow)
        fueled = [*self._fueled(claims)]
        plan = Plan(trace, prepared.flow, tuple(fueled), self._plan_options())
        text.start("claim", plan)
        plan = run_passes(REGION_PASSES, plan, skipped, text.add)
        fused = from_trace(trace)
        fused.bound_symbols = [*self._bound(plan, recomputation, given)]
        _tag_backward(fused.bound_symbols)
        note_fusions(fused.bound_symbols, claims.lines)
        fusions = sum(bsym.sym.is_fusion for bsym in fused.bound_symbols)
        fused.set_provenance(TraceProvenance(f"Fusion by {self.name}: {fusions} fusions"))
        kept = {item.number: not item.makes_views for item in fueled if isinstance(item, Region)}
        claims = replace(
            claims, items=plan.regions, outside={}, left_out=_left_out(claims.regions, kept)
        )
        self._keep(fused, claims, recomputation)
        return fused

    def _plan_options(self) -> PlanOptions:
        skips_check = get_compile_option("disable_inplace_copy_check", _IN_PLACE_HELP)
        return PlanOptions(
            donation=bool(option("donation")) and fuses_last(self),
            joins_writes=fuses_last(self),
            checks_reads=not skips_check,
            prefix=str(option("name_prefix")),
            lower=multi_device_params().lower,
            executor=self,
        )

    def _bound(
        self, plan: Plan, recomputation: Recomputation | None, given: dict[str, Value]
    ) -> Iterator[BoundSymbol]:
        """Regions as bound symbols of ours."""
        fusions, views = count(), count()
        total = sum(not region.makes_views for region in plan.regions)
        comments = Comments(recomputation)
        if recomputation is not None:  # a recomputed value must have the bits of the forward's
            given = {"repeatable": True, **given}
        for item in plan.items:
            if not isinstance(item, Region):
                yield item
            elif item.makes_views:
                yield self.fuse(item, next(views), given)
            else:
                yield self.fuse(
                    item, next(fusions), given,
                    memory=plan.memory.of(item), header=comments.of(item), total=total,
                )  # fmt: skip

    def _fueled(self, claims: Claims) -> Iterator[Item]:
        """The items; a region for which there is no fuel as the bound symbols it claims.

        Views take none, but are left out with the fusions that follow the last one.
        """
        limit, fused = int(option("fuel")), 0
        for item in claims.items:
            if not isinstance(item, Region):
                yield item
            elif (limit < 0 or fused < limit) and self.get_fuel(not item.makes_views):
                fused += not item.makes_views
                yield item
                yield from claims.outside[item.number].exits
            else:
                yield from claims.outside[item.number].unfused

    def _keep(
        self, fused: TraceCtx, claims: Claims, recomputation: Recomputation | None
    ) -> None:
        data = get_compile_data()
        if data is not None:  # None where a trace is transformed by hand, outside thunder.jit
            apart = self._refused.pop(data, {}).values()
            claims = replace(claims, unfused=(*apart, *claims.unfused))
            _, stats = _compile_data.get()
            self._kept[stats.last_traces[0]] = claims, recomputation
        self.last_fused_trace, self.last_claims = fused, claims

    def claims_of(self, first: TraceCtx) -> Claims | None:
        """The ops claimed and refused in the compilation with this first trace."""
        return self._kept.get(first, (None, None))[0]

    def recomputation_of(self, first: TraceCtx) -> Recomputation | None:
        """What that compilation saves for the backward; None if there is none."""
        return self._kept.get(first, (None, None))[1]

    def fuse(
        self,
        region: Any,
        fusion_counter: int,
        given: dict[str, Value] | None = None,
        *,
        memory: RegionMemory = NO_MEMORY,
        header: str = "",
        total: int = 0,
    ) -> BoundSymbol:
        """The bound symbol of a region: ours, or one that Thunder has edited.

        given: the options of the region; by default those of the running thunder.jit. total: how
        many fusions the trace has, if known. A region of views launches nothing: it is no fusion.
        """
        if not isinstance(region, Region):
            region = _region_of(region)
        given = options_of_jit() if given is None else given
        prefix = _VIEWS if region.makes_views else _prefix(given)
        name = f"{prefix}{fusion_counter}"  # Thunder reads the number back out of it
        place = f"compiling {fusion_counter + 1} of {total}" if total else name
        made = RegionCallable(name, region, memory, self.compile_region, given, place=place)
        symbol = Symbol(
            name, made.meta, is_fusion=not region.makes_views, executor=self,
            _bind_postprocess=bind_callable,
        )  # fmt: skip
        bsym = BoundSymbol(
            symbol, region.inputs, {}, list(region.outputs), region.leaves, header=header
        )
        bind_callable(bsym)
        if region.is_backward:
            bsym.tags.add(BoundSymbolTag.BACKWARD)
        return bsym


def _tag_backward(bsyms: Sequence[BoundSymbol]) -> None:
    """Tags what reads gradients, as Thunder does: our passes make bound symbols without tags. An
    executor that fuses after us joins what has no tag to the forward.
    """
    made: set[str] = set()
    for bsym in bsyms[:-1]:
        if BoundSymbolTag.BACKWARD in bsym.tags or any(one.name in made for one in reads(bsym)):
            bsym.tags.add(BoundSymbolTag.BACKWARD)
            made.update(one.name for one in makes(bsym))


def _region_of(region: Any) -> Region:
    """Thunder's region, whose inputs and outputs are wrapped proxies, as ours."""
    bsyms = tuple(region.bound_symbols)
    leaves = tuple(leaf for bsym in bsyms for leaf in leaves_of(bsym))
    inputs, outputs = tuple(map(unvariableify, region.inputs)), map(unvariableify, region.outputs)
    is_backward = any(BoundSymbolTag.BACKWARD in bsym.tags for bsym in bsyms)
    return Region(leaves, inputs, tuple(outputs), is_backward)


def _compiles_ahead() -> bool:
    """False if dumps are written or schedules measured, since these happen call by call."""
    return bool(option("compile_ahead")) and not option("dump") and not option("autotune")


def _left_out(
    regions: Sequence[Region], kept: Mapping[int, bool]
) -> tuple[tuple[Region, Reject], ...]:
    """The regions without fuel, and why. kept: the numbers of the others, and which are fusions."""
    limit = int(option("fuel"))
    by_option = 0 <= limit <= sum(kept.values())
    reason = Reject(f"the option fuel is {limit}" if by_option else "set_fuel's fuel is used up")
    return tuple((region, reason) for region in regions if region.number not in kept)


def multi_device_params() -> MultiDeviceParams:
    """The settings for several devices, as they are now."""
    return option("multi_device")  # type: ignore[return-value]


def _prefix(given: Mapping[str, Value]) -> str:
    """The prefix of the names of fusions."""
    return str(given.get("name_prefix") or option("name_prefix"))


# ------------------------------------------------------------------------------- the instance


def compile_region(definition: Definition, name: str, args: Sequence[Any]) -> Runner:
    """The program of a region's definition for arguments like these, from the process's cache."""
    return FusionCache.get().look_up(definition).program_for(args, name=name).run


def prepare_region(
    definition: Definition, args: Sequence[Any], device: torch.device
) -> Prepared | None:
    """The job that plans and compiles such a program; None if that needs numbers of the call."""
    entry = FusionCache.get().expect(definition)
    if entry.error is not None or entry.fusion.shape_scalars:
        return None
    what = keys_of(args), device, compile_options()
    return (entry.number, *what), with_options_as_now(partial(entry.plan_ahead, *what))


fuser = ThunderFuser("thunder_fuser", compile_region, prepare_region)
register_executor(fuser)
install(Hooks(fuser, writes_as_values, note_layout, may_be_edited))
