# SPDX-License-Identifier: Apache-2.0
"""Fusion -> Fusion: the passes that run before segmentation, in this order."""

from __future__ import annotations

from collections.abc import Callable

from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.rules.verify import verify
from thunder_fuser.presegment.float_joins import remove_exact_roundings, widen_joins
from thunder_fuser.presegment.lay_out import lay_out
from thunder_fuser.presegment.localise import localise
from thunder_fuser.presegment.materialize_broadcasts import materialize_broadcasts
from thunder_fuser.presegment.merging_reshapes import move_merging_reshapes
from thunder_fuser.presegment.one_pass_variance import one_pass_variance
from thunder_fuser.presegment.rfactor import rfactor, two_stage_reductions
from thunder_fuser.presegment.simplify import (
    fold_scalars,
    join_one_plus_tanh,
    remove_common,
    remove_dead,
    remove_empty,
    remove_round_trips,
    remove_trivial_reductions,
    share_results,
)
from thunder_fuser.presegment.unify_memory_order import unify_memory_order
from thunder_fuser.presegment.unroll_short_sums import unroll_middle_sums, unroll_short_sums
from thunder_fuser.target import Target

Pass = Callable[[Fusion], Fusion]
TargetPass = Callable[[Fusion, Target, CompileOptions], Fusion]

PRESEGMENT: tuple[Pass, ...] = (
    localise,
    lay_out,
    share_results,
    fold_scalars,
    remove_empty,
    remove_trivial_reductions,
    remove_round_trips,
    widen_joins,
    remove_exact_roundings,
    remove_common,
    join_one_plus_tanh,
    unroll_short_sums,
    unroll_middle_sums,
    move_merging_reshapes,
    remove_dead,
)

# These depend on how many blocks a device holds, on the memory of a block, and on prices.
FOR_A_TARGET: tuple[TargetPass, ...] = (
    two_stage_reductions,
    unify_memory_order,
    rfactor,
    materialize_broadcasts,
    one_pass_variance,
)

# With these, an op's bits depend on its readers, so they do not run under the option `repeatable`.
LOOK_AROUND = frozenset({join_one_plus_tanh, unroll_short_sums})
REPEATABLE_ONLY = frozenset({unroll_middle_sums})


def run_passes(fusion: Fusion, options: CompileOptions) -> Fusion:
    """Runs the passes in order. The result of each one is verified; an error names the pass."""
    fusion = verify(fusion, after="specialise")
    left_out = LOOK_AROUND if options.repeatable else REPEATABLE_ONLY
    for run in (run for run in PRESEGMENT if run not in left_out):
        fusion = _verified(run.__name__, fusion, run(fusion))
    return fusion


def run_target_passes(fusion: Fusion, target: Target, options: CompileOptions) -> Fusion:
    """Runs the passes that depend on the target, after the others."""
    for run in FOR_A_TARGET:
        fusion = _verified(run.__name__, fusion, run(fusion, target, options))
    return fusion


def _verified(name: str, before: Fusion, after: Fusion) -> Fusion:
    return before if after is before else verify(after, after=name)
