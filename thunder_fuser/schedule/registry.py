# SPDX-License-Identifier: Apache-2.0
"""The schedulers in the order in which they are tried, and those of parts that torch runs."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.analysis.part import Part
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import names_of
from thunder_fuser.schedule.nested import InnerOuter, Nested
from thunder_fuser.schedule.pointwise import Pointwise
from thunder_fuser.schedule.products import Products
from thunder_fuser.schedule.reduction import Persistent, Reduction, Scan
from thunder_fuser.schedule.scheduler import Match, NoMatch
from thunder_fuser.schedule.transpose import Transpose
from thunder_fuser.target import Target


@dataclass(frozen=True)
class ExprEval(Match):
    """A single torch call, such as a matmul."""

    name = "expr_eval"
    kind, call = OpKind.EXTERNAL, "torch call"

    @classmethod
    def match(cls, part: Part, target: Target, options: CompileOptions) -> Match | NoMatch:
        if len(part.exprs) != 1 or part.exprs[0].row.kind is not cls.kind:
            return NoMatch(cls.name, f"not a single {cls.call}")
        return cls(part, target, options)


@dataclass(frozen=True)
class Communication(ExprEval):
    """A single communication between devices."""

    name = "communication"
    kind, call = OpKind.COMMUNICATION, "communication"


@dataclass(frozen=True)
class NoOp(Match):
    """Expressions without elements, and the numbers that they read.

    Either no result has elements, or each expression reads or makes a tensor without elements.
    """

    name = "no_op"

    @classmethod
    def match(cls, part: Part, target: Target, options: CompileOptions) -> Match | NoMatch:
        if any(expr.row.kind is OpKind.COMMUNICATION for expr in part.exprs):
            return NoMatch(cls.name, "it moves elements between devices")
        if all(0 in part.tensors[name].sizes for name in part.outputs):
            return cls(part, target, options)
        others = [e for e in part.exprs if not all(part.tensors[n].is_scalar for n in e.outputs)]
        for expr in others:
            names = (*expr.outputs, *names_of(expr))
            if not any(0 in part.tensors[name].sizes for name in names):
                return NoMatch(cls.name, f"{expr.op} -> {expr.outputs[0]} has elements to compute")
        return cls(part, target, options) if others else NoMatch(cls.name, "no tensor results")


SCHEDULERS: tuple[type[Match], ...] = (
    Communication,
    NoOp,
    ExprEval,
    Products,
    Reduction,
    Persistent,
    InnerOuter,
    Nested,
    Scan,
    Transpose,
    Pointwise,
)


def find_match(part: Part, target: Target, options: CompileOptions) -> Match | tuple[NoMatch, ...]:
    """The match of the first scheduler that takes the part, or every refusal."""
    refusals: list[NoMatch] = []
    for scheduler in SCHEDULERS:
        match = scheduler.match(part, target, options)
        if isinstance(match, Match):
            return match
        refusals.append(match)
    return tuple(refusals)
