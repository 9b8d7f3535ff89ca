# SPDX-License-Identifier: Apache-2.0
"""Parts that torch runs: one matmul or linear (expr_eval), and tensors without elements (no_op)."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.schedule.scheduler import Match, Reject
from thunder_fuser.target import Target


@dataclass(frozen=True)
class ExprEval(Match):
    """Exactly one expression, and only one that torch has a call for."""

    name = "expr_eval"
    makes_kernel = False

    @classmethod
    def match(cls, part: Part, target: Target, options: CompileOptions) -> ExprEval | Reject:
        if len(part.exprs) != 1 or part.exprs[0].row.kind is not OpKind.EXTERNAL:
            return Reject(cls.name, "not a single torch call")
        return cls(part, target, options)

    def schedule(self, alignment: dict[str, int]) -> None:
        return None


@dataclass(frozen=True)
class NoOp(Match):
    """Expressions without elements, and the numbers that they are given.

    Either all results have no elements, or each expression reads or makes a tensor without any.
    """

    name = "no_op"
    makes_kernel = False

    @classmethod
    def match(cls, part: Part, target: Target, options: CompileOptions) -> NoOp | Reject:
        if all(0 in part.tensors[name].sizes for name in part.outputs):
            return cls(part, target, options)
        own = [e for e in part.exprs if not all(part.tensors[n].is_scalar for n in e.outputs)]
        for expr in own:
            names = [*expr.outputs, *(o for o in expr.inputs if isinstance(o, str))]
            if not any(0 in part.tensors[name].sizes for name in names):
                return Reject(cls.name, f"{expr.op} -> {expr.outputs[0]} has elements to compute")
        return cls(part, target, options) if own else Reject(cls.name, "it computes numbers")

    def schedule(self, alignment: dict[str, int]) -> None:
        return None
