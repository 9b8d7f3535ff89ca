# SPDX-License-Identifier: Apache-2.0
"""Places that tensors of indices hold: their elements, checked, in variables of the kernel.

64*T1[i] + j   ->   const i32 T1_x = checked_index(T1_e, 50);   64*T1_x + j
"""

from __future__ import annotations

from collections.abc import Callable

from thunder_fuser.analysis.demand import Point
from thunder_fuser.ir.indexed import indexed_axis
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, record_text
from thunder_fuser.ir.scalar import Scalar, symbol
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import CheckedIndex, Let, Operand
from thunder_fuser.lower.scope import Scope


class Places:
    """Positions and conditions without elements of tensors.

    get: the value of a point and what it depends on; name: a C name for (base, key).
    """

    def __init__(
        self,
        ctx: Context,
        get: Callable[[Point, Scope], tuple[Operand, frozenset[str]]],
        name: Callable[[str, object], str],
    ) -> None:
        self.ctx, self._get, self._name = ctx, get, name
        self.checks: dict[tuple[str, int], int] = {}  # (what an index is of, size) -> its number

    def place(self, at: Scalar, scope: Scope) -> tuple[Scalar, frozenset[str]]:
        """A position or condition with each element in a variable, and what it depends on."""
        needs, names = at.symbols, dict[Scalar, Scalar]()
        for one in sorted(at.elements, key=lambda element: element.sort_key):
            name, more = self._variable(one, scope)
            names[one] = symbol(name, one.lo, one.hi)
            needs |= more
        return at.with_elements(names), needs

    def access(
        self, position: Scalar, condition: Scalar, scope: Scope
    ) -> tuple[Scalar, Scalar, frozenset[str]]:
        """`place` for both parts of an access, and what they depend on together."""
        position, needs = self.place(position, scope)
        condition, more = self.place(condition, scope)
        return position, condition, needs | more

    def _variable(self, element: Scalar, scope: Scope) -> tuple[str, frozenset[str]]:
        """The variable that holds an element, checked where it is made."""
        found = scope.find(element)
        if found is not None:
            return str(found[0]), found[1]
        condition, *index = element.parts
        point = Point(str(element.args[0]), tuple(index), condition)
        operand, needs = self._get(point, scope)
        expr, size = self._reader(element), int(element.hi) + 1
        number = self.checks.setdefault((record_text(expr), size), len(self.checks) + 1)
        dtype = self.ctx.part.tensors[point.name].dtype
        name, home = self._name(f"{point.name}_x", element), scope.home(needs)
        value = CheckedIndex(operand, dtype, size, number)
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
