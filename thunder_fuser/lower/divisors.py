# SPDX-License-Identifier: Apache-2.0
"""Divisors that many elements share, and those that differ from call to call.

softmax:  T8 = T6 / T7, T7 a row value     ->  T7_d = divisor(T7);  T8 = quotient(T6, T7_d)
mean:     T9 = T8 / 1024.0, of 1024 rows   ->  T9_by = (float) size0;  T9 = T8 / T9_by
          on a GPU                         ->  T9_by = divisor(size0);  T9 = quotient(T8, T9_by)
"""

from __future__ import annotations

from thunder_fuser.analysis.demand import Point
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.record import Literal, OpRecord
from thunder_fuser.ir.scalar import const
from thunder_fuser.ir.size_symbols import sized
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import Call, IndexValue, Let, Math, Operand, Value
from thunder_fuser.lower.scope import NONE, Found, Names, Scope

LARGEST_COUNT = 2**31 - 1
DIVISIONS = ("truediv", "div")  # of floats both are the same


class Divisors:
    """The divisors of one kernel."""

    def __init__(self, ctx: Context, names: Names) -> None:
        self.ctx, self._name = ctx, names

    def is_of_row(self, point: Point, expr: OpRecord, dtype: DataType) -> bool:
        """True for element / row value in Float, as in softmax, on a GPU; repeatable, for a / b.

        There a division is some ten instructions, and has a branch.
        """
        ctx, divisor = self.ctx, expr.inputs[-1]
        if ctx.is_cpu or expr.op not in DIVISIONS or isinstance(divisor, Literal):
            return False
        floats = all(t is DataType.Float for t in (dtype, *ctx.operand_types(expr, dtype)))
        if ctx.repeatable:  # the same for all, wherever the divisor lies
            return floats and not isinstance(expr.inputs[0], Literal)
        row_value = not ctx.is_full(ctx.demand.reads[point][-1])
        return floats and row_value and ctx.is_full(point)

    def of_row(self, point: Point, found: Found, scope: Scope) -> str:
        """The variable with what all quotients by a row value share, made once a row."""
        operand, needs = found
        name = self._name(f"{self.ctx.local(point.name)}_d", point)
        scope.define(Let(name, DataType.Float, Call("divisor", (operand,)), 2), needs)
        return name

    def is_count(self, expr: OpRecord, dtype: DataType) -> bool:
        """True for x / N where N may be how many elements were added, as in a mean."""
        by = expr.inputs[-1]
        if expr.op not in DIVISIONS or not isinstance(by, Literal):
            return False
        if set(self.ctx.operand_types(expr, dtype)) - {DataType.Float, DataType.Double}:
            return False
        value = by.value
        return not isinstance(value, complex) and 2 < value <= LARGEST_COUNT and value % 1 == 0

    def by_count(
        self, point: Point, expr: OpRecord, x: Operand, dtype: DataType, scope: Scope
    ) -> tuple[Math | Call, str]:
        """x divided by a number that the launch passes, and the variable it is made with.

        On a GPU a Float is multiplied (`quotient`): a division has a call in it, beside which the
        rows of a norm's backward do not stay in registers. Elsewhere a power of two multiplies by
        its reciprocal, where it divides each element.
        """
        literal = expr.inputs[-1]
        assert isinstance(literal, Literal) and not isinstance(literal.value, complex)
        count = int(literal.value)
        name = self._name(f"{self.ctx.local(point.name)}_by", literal)
        if not self.ctx.is_cpu and dtype is DataType.Float:
            inverse = self._count(name, count, dtype, scope, Call("divisor", (f"{name}_n",)))
            return Call("quotient", (x, inverse)), inverse
        types = (dtype, dtype)
        if count.bit_count() == 1 and self.ctx.is_full(point):
            one = Math("truediv", (Literal.of(1.0), f"{name}_n"), types, dtype)
            inverse = self._count(name, count, dtype, scope, one)
            return Math("mul", (x, inverse), types, dtype), inverse
        divisor = self._count(name, count, dtype, scope)
        return Math("truediv", (x, divisor), types, dtype), divisor

    def _count(
        self, name: str, count: int, dtype: DataType, scope: Scope, derived: Value | None = None
    ) -> str:
        """The variable with the number, or with what is derived from it, made once a kernel."""
        plain = name if derived is None else f"{name}_n"
        scope.define(Let(plain, dtype, IndexValue(const(sized(name, count)), dtype)), NONE)
        if derived is not None:
            width = 2 if isinstance(derived, Call) else 1
            scope.define(Let(name, dtype, derived, width), NONE)
        return name
