# SPDX-License-Identifier: Apache-2.0
"""Fusion -> Fusion: the passes that run before segmentation, in this order.

A row has the ops that it looks for, and a function: its docstring, or its file's, shows before ->
after. Most are local rewrites: their function gives a rule for one record. The option dump writes
which row changed which records (1_passes.txt), and the option skip_passes leaves rows out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from thunder_fuser.analysis.cost import is_expensive
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.errors import OptionError, nearest
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.record import LAYOUT
from thunder_fuser.ir.rules.verify import verify
from thunder_fuser.presegment import simplify
from thunder_fuser.presegment.few_rows import PRODUCTS, few_rows
from thunder_fuser.presegment.float_joins import remove_exact_roundings, widen_joins
from thunder_fuser.presegment.index_stores import index_stores
from thunder_fuser.presegment.lay_out import lay_out
from thunder_fuser.presegment.materialize_broadcasts import (
    materialize_broadcasts,
    materialize_straddled,
)
from thunder_fuser.presegment.merging_reshapes import move_merging_reshapes
from thunder_fuser.presegment.one_pass_variance import one_pass_variance
from thunder_fuser.presegment.rewrite import Fired, FusionPass
from thunder_fuser.presegment.rfactor import rfactor, short_runs, two_stage_reductions
from thunder_fuser.presegment.unify_memory_order import unify_memory_order
from thunder_fuser.presegment.unroll_short_sums import unroll_middle_sums, unroll_short_sums
from thunder_fuser.target import Target

_ANY = frozenset(OPS)
_REDUCTIONS = frozenset(row.name for row in OPS.values() if row.kind is OpKind.REDUCTION)
_SCANS = frozenset(row.name for row in OPS.values() if row.kind is OpKind.SCAN)
_COSTLY = frozenset(row.name for row in OPS.values() if is_expensive(row))

PASSES: tuple[FusionPass, ...] = (
    FusionPass(lay_out, frozenset(LAYOUT), needed="kernels know layouts only as strides"),
    FusionPass(few_rows, frozenset(PRODUCTS), for_target=True),
    FusionPass(index_stores, frozenset({"index_copy"})),
    FusionPass(simplify.share_results, frozenset({"add_output"})),
    FusionPass(simplify.fold_scalars, _ANY),
    FusionPass(simplify.remove_empty, frozenset({"pad", "cat"})),
    FusionPass(simplify.remove_trivial_reductions, _REDUCTIONS | _SCANS),
    FusionPass(simplify.remove_round_trips, frozenset({"cast", "set"})),
    FusionPass(widen_joins, frozenset({"cat", "pad"})),
    FusionPass(remove_exact_roundings, frozenset({"cast"})),
    FusionPass(simplify.remove_common, _ANY),
    # With these two, an op's bits depend on its readers.
    FusionPass(simplify.join_one_plus_tanh, frozenset({"add"}), repeatable=False),
    FusionPass(unroll_short_sums, frozenset({"sum"}), repeatable=False),
    FusionPass(unroll_middle_sums, frozenset({"sum"}), repeatable=True),
    FusionPass(move_merging_reshapes, frozenset({"reshape"})),
    FusionPass(simplify.remove_dead, _ANY),
    # These depend on how many blocks a device holds, on the memory of a block, and on prices.
    FusionPass(two_stage_reductions, _REDUCTIONS, for_target=True),
    FusionPass(unify_memory_order, _REDUCTIONS, for_target=True),
    FusionPass(short_runs, _REDUCTIONS, for_target=True),
    FusionPass(rfactor, _REDUCTIONS, for_target=True),
    FusionPass(materialize_broadcasts, _COSTLY, for_target=True),
    FusionPass(one_pass_variance, frozenset({"sum"}), for_target=True),
    FusionPass(materialize_straddled, _REDUCTIONS, for_target=True, repeatable=False),
    FusionPass(simplify.remove_dead, _ANY),  # the sums that one_pass_variance replaces
)

# {a pass: why it cannot be left out, or nothing}. sharding and executors/pipeline.py add theirs.
NEEDED: dict[str, str] = {row.name: row.needed for row in PASSES}


def run_passes(
    fusion: Fusion, options: CompileOptions, target: Target | None = None,
    note: Callable[[list[Fired]], object] = lambda fired: None,
    passes: Iterable[FusionPass] = PASSES,
) -> Fusion:  # fmt: skip
    """Runs the rows in order, without those for a target if there is none.

    note: is called with what the rows did so far, whenever one did something. passes: for a fusion
    on a mesh, those of sharding/localise.py.
    """
    fusion, skipped = verify(fusion, "specialise"), skipped_names(options.skip_passes)
    log: list[Fired] = []
    for row in passes:
        if row.name in skipped or row.repeatable not in (None, options.repeatable):
            continue
        if row.for_target and target is None:
            continue
        fired = row.fire(fusion, *((target, options) if row.for_target else ()))
        if fired is not None:
            fusion = fired.after
            log.append(fired)
            note(log)
    return fusion


def skipped_names(text: str) -> frozenset[str]:
    """The names of passes in a value of the option skip_passes; OptionError for another name."""
    names = frozenset(filter(None, text.replace(" ", "").split(",")))
    optional = [name for name, why in NEEDED.items() if not why]
    for name in sorted(names.difference(optional)):
        why, near = NEEDED.get(name), nearest(name, optional)
        raise OptionError(
            "option skip_passes", expected=f"passes that can be left out: {', '.join(optional)}",
            got=f"{name} ({why})" if why else name, do=f"write {near}" * bool(near and not why),
        )  # fmt: skip
    return names
