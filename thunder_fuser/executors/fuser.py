# SPDX-License-Identifier: Apache-2.0
"""The Thunder executor: a trace -> the same trace with its regions as single bound symbols.

    thunder.jit(model, executors=[fuser], fuser_strict=True)

Options of `thunder_fuser.options` are keywords of thunder.jit under the name fuser_<option>.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from thunder.core.compile_data import get_compile_data
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.extend import FUEL_LEVEL, FusionExecutor, register_executor

from thunder_fuser.base.logs import timing
from thunder_fuser.base.stages import stage
from thunder_fuser.base.threads import BACKGROUND
from thunder_fuser.executors.cuda_graphs.transform import add_cuda_graphs
from thunder_fuser.executors.functional_writes.transform import writes_as_values
from thunder_fuser.executors.pipeline import (
    REGION_PASSES,
    TRACE_PASSES,
    plan_options,
    read_trace,
    target_of,
)
from thunder_fuser.executors.plan_text import PlanText, note_arguments, note_fusions
from thunder_fuser.executors.regions.claim import Claims, Compilations, Fuel, claim, with_fuel
from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.run.bind import bind_plan, bind_region, may_be_edited, unwrapped
from thunder_fuser.executors.run.compile_ahead import (
    Prepare,
    compiles_ahead,
    jobs_of,
    prepare_region,
)
from thunder_fuser.executors.run.region_callable import Compile, compile_region
from thunder_fuser.executors.stride_orders.simulate import note_layout
from thunder_fuser.executors.support.check import ROWS, accepts, support
from thunder_fuser.executors.support.products import has_product, is_differentiated
from thunder_fuser.functions import composite_of, register, why_apart
from thunder_fuser.functions.chunked_loss.recognise import losses_in_chunks
from thunder_fuser.options import OptionValue, compile_options, in_force, option
from thunder_fuser.presegment import skipped_names
from thunder_fuser.rematerialization.apply import Recomputation, rematerialize
from thunder_fuser.rematerialization.policy import policy_of
from thunder_fuser.source.jit_options import check_options, options_of_jit
from thunder_fuser.source.lines import tag_line
from thunder_fuser.thunder_patches.door import install
from thunder_fuser.thunder_patches.gradient_rules import GRADIENTS
from thunder_fuser.thunder_patches.patch import Hooks
from thunder_fuser.trace.op import Reject
from thunder_fuser.trace.prepared import run_passes
from thunder_fuser.versions import __version__


class ThunderFuser(FusionExecutor):
    """Claims regions of traces; see regions/ for which, run/ for what they run.

    `last_fused_trace` and `last_claims` are those of the newest compilation: the joint trace as it
    left the fuser (Thunder keeps it nowhere), and the regions and refusals it came from.
    `claims_of` and `recomputation_of` give those of any compilation whose traces still live.
    is_editable: Thunder may move ops between its regions (run/bind.py).
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
        self._compilations, self._fuel = Compilations(), Fuel()
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
        if composite_of(bsym) is None:
            return self._takes_product(bsym) if has_product(bsym) else support(bsym) is None
        reason = why_apart(bsym)
        if reason is not None:
            self.note_refusal(bsym, reason)
        return reason is None

    def note_refusal(self, bsym: BoundSymbol, reason: Reject) -> None:
        """Notes for reports why the running compilation takes a composite apart."""
        if (data := get_compile_data()) is not None:
            self._compilations.refuse(data, bsym, reason)

    def _takes_product(self, bsym: BoundSymbol) -> bool:
        """As `can_fuse` for a matrix product: with the options of the call, and no gradient."""
        if is_differentiated(bsym):
            return False
        with in_force(options_of_jit()):
            return support(bsym) is None

    def get_fuel(self, amount: int = 1, /) -> bool:
        """Takes fuel for one fusion; False when it is used up. amount 0: whether there is any."""
        return self._fuel.take(amount)

    def set_fuel(self, value: int | FUEL_LEVEL) -> None:
        """How many fusions may still be made."""
        self._fuel.set(value)

    def fuse(self, region: Any, fusion_counter: int, **about: Any) -> BoundSymbol:
        """The bound symbol of a region. about: as for bind_region; Thunder gives nothing."""
        about = about or {"options": options_of_jit()}
        return bind_region(unwrapped(region), fusion_counter, self, **about)

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        """Called once a compilation, with forward and backward in one trace."""
        options = options_of_jit()
        check_options(options)
        with in_force(options), timing("trace"):
            note_arguments(trace.args or ())
            if option("cuda_graphs"):
                add_cuda_graphs()
            fused = self._fused(trace, options)
            if self.prepare_region and compiles_ahead():
                BACKGROUND.add(jobs_of(fused, self.prepare_region))
            return fused

    # ---- claim, prepare, bind

    @stage("claim")
    def _fused(self, trace: TraceCtx, options: dict[str, OptionValue]) -> TraceCtx:
        skipped, dump = skipped_names(str(option("skip_passes"))), str(option("dump"))
        note = PlanText(dump).add if dump else lambda name, plan: None
        read = read_trace(trace, target_of(trace), compile_options())
        note("read", read)
        prepared = run_passes(TRACE_PASSES, read, skipped, note)
        prepared, recomputation = rematerialize(prepared, policy_of(option("rematerialization")))
        note("rematerialize", prepared)
        claims = with_fuel(claim(prepared.flow), self.get_fuel)
        plan = Plan(trace, prepared.flow, claims.items, plan_options(self))
        note("claim", plan)
        plan = run_passes(REGION_PASSES, plan, skipped, note)
        fused = bind_plan(plan, recomputation, options)
        note_fusions(fused.bound_symbols, claims.lines)
        claims = self._compilations.keep(claims, plan.regions, recomputation)
        self.last_fused_trace, self.last_claims = fused, claims
        return fused

    # ---- what reports ask

    def claims_of(self, first: TraceCtx) -> Claims | None:
        """The ops claimed and refused in the compilation with this first trace."""
        return self._compilations.of(first).claims

    def recomputation_of(self, first: TraceCtx) -> Recomputation | None:
        """What that compilation saves for the backward; None if there is none."""
        return self._compilations.of(first).recomputation


fuser = ThunderFuser("thunder_fuser", compile_region, prepare_region)
register_executor(fuser)
_in_chunks = partial(losses_in_chunks, note=fuser.note_refusal)
install(Hooks(fuser, writes_as_values, _in_chunks, note_layout, may_be_edited))
