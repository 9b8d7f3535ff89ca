# SPDX-License-Identifier: Apache-2.0
"""Places that tensors of indices hold: their elements, checked, in variables of the kernel.

64*T1[i] + j   ->   const i32 T1_x = checked_index(T1_e, 50);   64*T1_x + j
"""

from __future__ import annotations

from thunder_fuser.analysis.demand import Point
from thunder_fuser.ir.indexed import indexed_axis
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, record_text
from thunder_fuser.ir.scalar import Scalar
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import CheckedIndex, Let
from thunder_fuser.lower.scope import Found, Names, Scope


class Places:
    """The elements of one kernel's positions and conditions."""

    def __init__(self, ctx: Context, names: Names) -> None:
        self.ctx, self._name = ctx, names
        self.checks: dict[tuple[str, int], int] = {}  # (what an index is of, size) -> its number

    @staticmethod
    def point(element: Scalar) -> Point:
        """The point that an element is of."""
        condition, *index = element.parts
        return Point(str(element.args[0]), tuple(index), condition)

    def put(self, element: Scalar, found: Found, scope: Scope) -> Found:
        """The variable with an element, checked where it is made; `found`: its value."""
        operand, needs = found
        expr, size = self._reader(element), int(element.hi) + 1
        number = self.checks.setdefault((record_text(expr), size), len(self.checks) + 1)
        tensor, home = str(element.args[0]), scope.home(needs)
        name = self._name(f"{tensor}_x", element)
        value = CheckedIndex(operand, self.ctx.part.tensors[tensor].dtype, size, number)
        home.put(Let(name, None, value, comment=record_text(expr)))
        home.values[element] = (name, needs)
        return name, needs

    def _reader(self, element: Scalar) -> OpRecord:
        """The op that reads through an element; of several alike, the first."""
        part = self.ctx.part
        for expr in part.exprs:
            if expr.row.kind is OpKind.INDEX and element.args[0] in expr.inputs:
                sizes = part.tensors[str(expr.inputs[expr.row.source])].sizes
                if sizes[indexed_axis(expr, len(sizes))] == element.args[1]:
                    return expr
        raise ValueError(f"{element}: no op of the part reads through it")
