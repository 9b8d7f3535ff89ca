# SPDX-License-Identifier: Apache-2.0
"""Verifies the rules of a legal Kernel, without running it.

names:     each is defined before its use, in the same block or an enclosing one, and only once
writes:    only variables, arrays and results are written
barriers:  all threads of a block reach them: no condition or loop around one differs by thread
ahead:     before a product's wait for earlier kernels, only its matrix is read
bounds:    indices of arrays of known size are inside, for all values of the enclosing loops

    --> Set(Lane(T7_o, j_i), T7_e, DataType.BFloat16)   # T7_e is not defined here
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from thunder_fuser.errors import VerifyError
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.record import Literal
from thunder_fuser.ir.scalar import Scalar, symbol
from thunder_fuser.lower import kernel as nodes

Declaration = nodes.Parameter | nodes.For | nodes.Definition


def verify_kernel(kernel: nodes.Kernel, after: str = "lower") -> nodes.Kernel:
    """The kernel itself if it is legal; else VerifyError with its text and marks at wrong lines."""
    verifier = _Verifier(kernel)
    verifier.block(kernel.body, verifier.names)
    if verifier.wrong:
        marks = {at: "; ".join(dict.fromkeys(why)) for at, why in verifier.wrong.items()}
        text = nodes.statements_text(kernel.body, marks)
        got = f"{next(iter(marks.values()))}\n{text}"
        raise VerifyError(f"kernel {kernel.name} after {after}", got=got)
    return kernel


@dataclass(frozen=True, slots=True)
class _Declared:
    """A name: its declaration, whether threads of a block differ in its value, and its bounds."""

    declared: Declaration
    varies: bool = False
    bounds: Scalar | None = None


Decls = dict[str, _Declared]


class _Verifier:
    """Walks a kernel. names: those in scope. wrong: {id of a statement: sentences}.

    where: the conditions that hold here. varying: the first enclosing condition or loop in which
    threads differ, as text.
    """

    def __init__(self, kernel: nodes.Kernel) -> None:
        self.kernel = kernel
        (x, y), grid = kernel.threads, kernel.grid
        self.extents = {ParallelType.TIDX: x, ParallelType.TIDY: y, ParallelType.BIDX: grid[0]}
        self.names: Decls = {p.name: _Declared(p) for p in kernel.parameters}
        self.where: tuple[Scalar, ...] = ()
        self.varying = ""
        self.wrong: dict[int, list[str]] = {}
        self.line: nodes.Statement | None = None
        self.varies = False
        self.waited = not any(p.ahead for p in kernel.parameters)

    def refuse(self, why: str) -> None:
        self.wrong.setdefault(id(self.line), []).append(why)

    # ---- statements

    def block(self, statements: Iterable[nodes.Statement], names: Decls) -> None:
        """Checks the statements of a scope."""
        outer, self.names = self.names, dict(names)
        here: set[str] = set()
        for statement in statements:
            self.line, self.varies = statement, False
            if isinstance(statement, nodes.For):
                self.loop(statement)
            elif isinstance(statement, nodes.If):
                self.branches(statement)
            elif isinstance(statement, nodes.Block):
                self.block(statement.body, self.names)
            else:
                self.simple(statement, here)
        self.names = outer

    def simple(self, s: nodes.Statement, here: set[str]) -> None:
        """Checks a statement without a body: what it reads, waits for, writes and defines."""
        self.waited |= nodes.called(s) == nodes.PRODUCTS
        self.read(s)
        if self.varying and nodes.called(s) in nodes.WAITS:
            self.refuse(f"not all threads of a block reach this barrier: {self.varying}")
        if isinstance(s, nodes.Store):
            self.written(s.buffer)
            self.inside(s.buffer, s.position, s.width)
        elif isinstance(s, nodes.Set | nodes.Accumulate):
            self.written(s.target.array if isinstance(s.target, nodes.Lane) else s.target)
        if isinstance(s, nodes.Definition):
            if s.name in here:
                self.refuse(f"{s.name} is defined twice")
            here.add(s.name)
            if isinstance(s, nodes.Let):
                self.names[s.name] = _Declared(s, self.varies, self.let_bounds(s))
            else:  # values in a thread's own memory count as different
                is_shared = isinstance(s, nodes.Array) and s.shared_offset is not None
                self.names[s.name] = _Declared(s, not is_shared)

    def let_bounds(self, let: nodes.Let) -> Scalar | None:
        """The name as a symbol with the bounds of its value, if that is an index."""
        value = let.value
        if isinstance(value, nodes.CheckedIndex):
            return symbol(let.name, 0, int(value.size) - 1)
        if isinstance(value, nodes.Coordinate):
            return symbol(let.name, 0, self.extents.get(value.parallel, self.kernel.grid[1]) - 1)
        if not isinstance(value, Scalar):
            return None
        plain = self.bounded(value)
        last = min([plain.hi, *(self.last_where(holds, value) for holds in self.where)])
        return symbol(let.name, plain.lo, last)

    def last_where(self, holds: Scalar, value: Scalar) -> float:
        """The largest value where a condition holds.

        s*256 + t, where s < 2 or s*256 + t < 560:  559
        """
        if holds.op != "lt":
            return self.bounded(value).hi
        below = holds.parts[0]
        arms = below.parts if below.op == "min" else (below,)
        return max(self.last_below(arm, value) for arm in arms)

    def last_below(self, arm: Scalar, value: Scalar) -> float:
        """The largest value where arm < 0."""
        rest, (terms, constant) = value - arm, arm.terms
        if rest.is_const:
            return rest.value - 1
        if len(terms) == 1 and terms[0][1] == 1 and terms[0][0].op == "sym":
            name = terms[0][0].text
            return self.bounded(value).substitute({name: symbol(name, 0, -constant - 1)}).hi
        return self.bounded(value).hi

    def loop(self, loop: nodes.For) -> None:
        for name in (loop.extent, *(v.name for _, v in loop.accumulators), *loop.streams):
            self.read(name)
        varies, last = self.varies, self.bounded(loop.extent).hi - 1
        known = _Declared(loop, varies, symbol(loop.variable, 0, last))
        streams = {f"{name}_v": self.names[name] for name in loop.streams if name in self.names}
        names = {**self.names, **streams, loop.variable: known}
        self.inside_of(f"{loop.variable} < {loop.extent}" if varies else "", (), loop.body, names)

    def branches(self, branch: nodes.If) -> None:
        self.read(branch.condition)
        holds = branch.condition.parts if branch.condition.op == "and" else (branch.condition,)
        differs = str(branch.condition) if self.varies else ""
        before = self.waited
        self.inside_of(differs, holds, branch.body, self.names)
        after, self.waited = self.waited, before
        self.inside_of(differs, (), branch.otherwise, self.names)
        self.waited |= after

    def inside_of(
        self, differs: str, holds: tuple[Scalar, ...], body: Iterable[nodes.Statement], names: Decls
    ) -> None:
        """Checks the body of an If or a loop. differs: its text if threads differ in it, or ""."""
        saved = self.where, self.varying
        self.where, self.varying = (*self.where, *holds), self.varying or differs
        self.block(body, names)
        self.where, self.varying = saved

    # ---- names

    def read(self, node: object) -> None:
        """Checks that the names that a node reads are in scope, and indices inside their arrays."""
        if isinstance(node, str):
            self.known(node)
        elif isinstance(node, Scalar):
            for name in node.symbols:
                self.known(name)
        elif isinstance(node, tuple):
            for item in node:
                self.read(item)
        elif not isinstance(node, Literal | None):
            for name in nodes.name_fields(type(node)):  # type: ignore[arg-type]
                self.read(getattr(node, name))
            if isinstance(node, nodes.Coordinate):
                self.varies |= node.parallel.is_thread
            elif isinstance(node, nodes.Lane):
                self.lane(node)
            elif isinstance(node, nodes.Address):
                self.written(node.variable)
            elif isinstance(node, nodes.Load):
                self.inside(node.buffer, node.position, node.width)

    def declared(self, name: str) -> Declaration | None:
        entry = self.names.get(name)
        return None if entry is None else entry.declared

    def known(self, name: str) -> None:
        entry = self.names.get(name)
        if entry is not None:
            self.varies |= entry.varies
        elif name:
            self.refuse(f"{name} is not defined here")

    def written(self, name: str) -> None:
        """Checks a name that a statement writes."""
        declared = self.declared(name)
        is_input = isinstance(declared, nodes.Parameter) and declared.kind != "output"
        if is_input or isinstance(declared, nodes.Let | nodes.For):
            self.refuse(f"{name} is written, but is no variable, array or result")

    # ---- bounds

    def lane(self, lane: nodes.Lane) -> None:
        """Checks the index of an array, and that of a vector."""
        if lane.at is not None:
            self.inside(lane.array, lane.at)
        declared = self.declared(lane.array)
        if lane.lane is not None and isinstance(declared, nodes.Array | nodes.Let):
            self.within(f"{lane.array}'s lane", lane.lane, 1, declared.width)

    def inside(self, array: str, at: Scalar, width: int = 1) -> None:
        """Checks `width` elements of an array, from `at` on."""
        declared = self.declared(array)
        if isinstance(declared, nodes.Array):
            self.within(array, at, width, declared.count)
        elif isinstance(declared, nodes.Parameter) and not self.waited:
            self.refuse(f"{array} is touched before the wait for earlier kernels")

    def within(self, what: str, at: Scalar, width: int, count: int) -> None:
        known = self.bounded(at)
        if known.lo < 0 or known.hi + width > count:
            last = known.hi + width - 1
            self.refuse(f"{what} has {count} elements, and {at} is from {known.lo} to {last}")

    def bounded(self, at: Scalar) -> Scalar:
        """The index, with the bounds that its names have here."""
        bounds: Mapping[str, Scalar] = {
            name: known.bounds
            for name in at.symbols
            if (known := self.names.get(name)) is not None and known.bounds is not None
        }
        return at.substitute(bounds) if bounds else at
