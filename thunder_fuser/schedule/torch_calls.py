# SPDX-License-Identifier: Apache-2.0
"""Parts that torch runs: one matmul or linear (expr_eval), and tensors without elements (no_op)."""

from __future__ import annotations

from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.ops import OpKind
from thunder_fuser.schedule.scheduler import Reject
from thunder_fuser.target import Target


def accepts_expr_eval(part: Part, target: Target, options: CompileOptions) -> Reject | None:
    """Takes exactly one expression, and only one that torch has a call for."""
    if len(part.exprs) != 1 or part.exprs[0].row.kind is not OpKind.EXTERNAL:
        return Reject("expr_eval", "not a single torch call")
    return None


def accepts_no_op(part: Part, target: Target, options: CompileOptions) -> Reject | None:
    """Takes expressions without elements: all their results, or what each reads or makes; also the
    numbers that they are given."""
    if all(0 in part.tensors[name].sizes for name in part.outputs):
        return None
    own = [e for e in part.exprs if not all(part.tensors[n].is_scalar for n in e.outputs)]
    for expr in own:
        names = [*expr.outputs, *(o for o in expr.inputs if isinstance(o, str))]
        if not any(0 in part.tensors[name].sizes for name in names):
            return Reject("no_op", f"{expr.op} -> {expr.outputs[0]} has elements to compute")
    return None if own else Reject("no_op", "it computes numbers")
