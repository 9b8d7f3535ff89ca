# SPDX-License-Identifier: Apache-2.0
"""Nested blocks of statements. A value is put into the outermost block with all that it needs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from thunder_fuser.errors import VerifyError
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.scalar import Scalar
from thunder_fuser.lower.kernel import Array, For, Let, Operand, Statement, Words

# Pseudo symbols. A value that depends on one stays inside the loop over blocks (accumulators and
# persistent arrays do), or inside the loop over a block's rows, if it has one.
ROOT = "@root"
ROW = "@row"

Needs = frozenset[str]  # the symbols that a value depends on
Computed = tuple[Operand, Needs]
NONE: Needs = frozenset()


@dataclass
class Scope:
    """One block: its statements so far, the symbols defined in it, and the values it holds."""

    symbols: frozenset[str]
    parent: Scope | None = None
    statements: list[Statement] = field(default_factory=list)
    values: dict[Hashable, Computed] = field(default_factory=dict)
    definitions: dict[str, Let | Words] = field(default_factory=dict)
    condition: Scalar | None = None  # if this block is the body of an If: the If's

    def child(self, *symbols: str) -> Scope:
        """A new block inside this one, with more symbols."""
        return Scope(self.symbols | frozenset(symbols), self)

    def find(self, key: Hashable) -> Computed | None:
        """A value held here or in an enclosing block, with the symbols it depends on."""
        return next((s.values[key] for s in self._outwards() if key in s.values), None)

    def _outwards(self) -> Iterator[Scope]:
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def home(self, needs: Needs) -> Scope:
        """The outermost enclosing block that has all the symbols."""
        scope = self
        while scope.parent is not None and needs <= scope.parent.symbols:
            scope = scope.parent
        return scope

    def put(self, statement: Statement, needs: Needs | None = None) -> None:
        """Adds a statement: here, or if `needs` are given, to the outermost block with them."""
        scope = self if needs is None else self.home(needs)
        scope.statements.append(statement)

    def keep(self, key: Hashable, value: Computed) -> Computed:
        """Stores a value under a key in the outermost block with the symbols it depends on."""
        self.home(value[1]).values[key] = value
        return value

    def define(self, value: Let | Words, needs: Needs) -> Computed:
        """Puts a definition into its home unless it is there. Returns (its name, its needs).

        VerifyError if the name has another definition there.
        """
        known = [s.definitions[value.name] for s in self._outwards() if value.name in s.definitions]
        if not known:
            self.put(value, needs)
            self.keep(value.name, (value.name, needs))
            self.home(needs).definitions[value.name] = value
        elif known[0] != value:
            raise VerifyError(f"variable {value.name}", expected=str(known[0]), got=str(value))
        return value.name, needs

    def declare(self, array: Array) -> None:
        """Puts a declaration in front of all other statements."""
        self.statements.insert(0, array)


def loops_around(
    statements: Sequence[Statement], loops: Sequence[tuple[Scalar, Scalar, ParallelType]]
) -> tuple[Statement, ...]:
    """The statements inside loops, which are (variable, extent, how it runs), outermost first."""
    body = tuple(statements)
    for variable, extent, parallel in reversed(loops):
        body = (For(str(variable), extent, parallel, body),)
    return body


class KernelNames:
    """The C names of one kernel.

    >>> names = KernelNames()
    >>> names("T0_e", "here"), names("T0_e", "there"), names("T0_e", "here")
    ('T0_e', 'T0_e_1', 'T0_e')
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, object], str] = {}
        self._used: dict[str, int] = {}

    def __call__(self, base: str, key: object) -> str:
        """The name for (base, key)."""
        if (base, key) not in self._names:
            number = self._used.get(base, 0)
            self._used[base] = number + 1
            self._names[base, key] = f"{base}_{number}" if number else base
        return self._names[base, key]


class SharedMemory:
    """The shared memory of a block, in which the arrays of a kernel are placed in a row."""

    def __init__(self, taken: int = 0) -> None:
        self.bytes = taken

    def array(self, name: str, dtype: DataType, count: int) -> Array:
        """A new array behind the others, aligned for the widest vector."""
        offset = -(-self.bytes // 16) * 16
        self.bytes = offset + count * dtype.bytes
        return Array(name, dtype, count, shared_offset=offset)
