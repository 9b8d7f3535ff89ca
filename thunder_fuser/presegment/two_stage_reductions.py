# SPDX-License-Identifier: Apache-2.0
"""Sums over different axes of the same data are made of the sums of rows that both have.

    T1 = sum(T0: f32[n, g, c, hw], dims=[0, 3])      a weight's gradient, of a group norm
    T2 = sum(T0, dims=[2, 3])                        of each group, which dx waits for
->  T3 = sum(T0, dims=[3]);  T1 = sum(T3, dims=[0])  T3: f32[n, g, c]
    T4 = sum(T0, dims=[3]);  T2 = sum(T4, dims=[2])

No kernel has both a weight's elements and a group's: all data would be read for each. One that has
groups, rows of which it reduces first (schedule/nested.py), reads it once, and writes the weight's
partial results, an element a row; a second one adds these.

Under `repeatable` no sum may depend on what stands around it, so trace/two_stage_sums.py says
which are two sums, in the trace.
"""

from __future__ import annotations

from itertools import product

from thunder_fuser.analysis.domain_map import Axes, Pattern
from thunder_fuser.analysis.part import Part, Parts
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.presegment.axis_reuse import AxisReuse
from thunder_fuser.presegment.two_steps import TwoSteps, dims_of, in_two_steps
from thunder_fuser.schedule import nested
from thunder_fuser.schedule.axes import size_of
from thunder_fuser.schedule.row_shape import has_order
from thunder_fuser.target import Target

MIN_ROW_BYTES = 48  # so that the partial results are a small part of the bytes


def two_stage_reductions(fusion: Fusion, target: Target, options: CompileOptions) -> Fusion:
    """The fusion with such reductions in two steps, where a group fits on chip."""
    dims = {expr.attr("dims") for expr in fusion.exprs if expr.row.kind is OpKind.REDUCTION}
    if len(dims) < 2 or not any(isinstance(one, tuple) and len(one) > 1 for one in dims):
        return fusion  # none is over columns and more
    whole = Parts(fusion).of(fusion.exprs)
    patterns = {expr: whole.patterns[expr.outputs[0]] for expr in whole.reductions}
    if len(set(patterns.values())) < 2 or has_order(whole, options):
        return fusion
    columns = _columns(whole, patterns, target, options)
    steps = {record: _steps(whole, record, own) for record, own in columns.items()}
    return in_two_steps(fusion, steps)


def _columns(
    whole: Part, patterns: dict[OpRecord, Pattern], target: Target, options: CompileOptions
) -> dict[OpRecord, Axes]:
    """The reductions to be made in two steps, and what the first one reduces."""
    reuse, alike = AxisReuse(whole), dict[Axes, dict[Pattern, None]]()
    plain = {r: p for r, p in patterns.items() if r.attr("chunk") is None}
    for pattern in plain.values():
        alike.setdefault(pattern.walked, {})[pattern] = None
    # What all elements wait for is one reduction, and those beside it share its kernel.
    again = {p for r, p in plain.items() if reuse.is_needed_again(r.outputs[0], p.reduced)}
    found: dict[Pattern, Axes] = {}
    for over, group in (pair for same in alike.values() for pair in product(same, same)):
        shared = over.reduced & group.reduced
        if over in again or not shared or over.reduced <= group.reduced:
            continue
        if _is_worth_it(whole, group, shared, target, options):
            found[over] = shared
            if group.reduced != shared:
                found[group] = shared
    return {record: found[pattern] for record, pattern in plain.items() if pattern in found}


def _is_worth_it(
    whole: Part, pattern: Pattern, shared: Axes, target: Target, options: CompileOptions
) -> bool:
    """True if rows of the shared axes lie in memory one after another, and a group fits."""
    columns = size_of(whole, shared)
    itemsize = min(whole.tensors[name].dtype.bytes for name in whole.global_tensors)
    if not nested.are_innermost(whole, shared) or columns * itemsize < MIN_ROW_BYTES:
        return False
    if pattern.reduced == shared:
        return True
    rows, groups = size_of(whole, pattern.reduced - shared), size_of(whole, pattern.kept)
    read = nested.bytes_read(whole, shared)
    return bool(pattern.kept) and nested.fits(
        groups, rows, columns, read, target=target, options=options
    )


def _steps(whole: Part, record: OpRecord, columns: Axes) -> TwoSteps:
    """The columns first, then what else it reduces."""
    dims, axes = dims_of(record), whole.tensors[names_of(record)[0]].domain.no_reductions
    own = [not axes[at].is_broadcast and whole.domain_map.axis(axes[at]) in columns for at in dims]
    inner = tuple(at for at, is_column in zip(dims, own, strict=True) if is_column)
    outer = tuple(
        at - sum(one < at for one in inner)
        for at, is_column in zip(dims, own, strict=True)
        if not is_column
    )
    return TwoSteps(inner, outer)
