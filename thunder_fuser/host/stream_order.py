# SPDX-License-Identifier: Apache-2.0
"""Are the lines of a program in order across its streams?

    with on_stream(1):
        matmul(T0[0:3], T1, out=T2[0:3])      touches T2[0:3] on stream 1
        E1 = record_event()
    wait_event(E1)                            now the caller's stream comes behind that
    return [T2]

Each stream knows, of each other one, up to which line it comes behind it; an event carries what its
stream knows. A line that touches a value must come behind all that touched it on other streams, but
for two reads, and for pieces that do not overlap. A value is written by the line that makes it, and
where `out=` names it; any other line may write all that it names.
Memory belongs to the stream that made it: freed, or returned, once that one comes behind all that
touched it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thunder_fuser.errors import VerifyError
from thunder_fuser.host.statements import Statement, Statements

Clock = dict[int, int]  # of each stream, the last line that is done before what follows
Piece = tuple[tuple[int, int] | None, ...]  # of each axis, from the first on, its span

_MOVES = ("post", "wait")


@dataclass(frozen=True, slots=True)
class _Touch:
    """That a line reads or writes a value, or a piece of it."""

    line: int
    stream: int
    piece: Piece
    writes: bool

    def meets(self, other: _Touch) -> bool:
        """True if one must come behind the other."""
        pairs = zip(self.piece, other.piece, strict=False)
        apart = any(a and b and (a[1] <= b[0] or b[1] <= a[0]) for a, b in pairs)
        return (self.writes or other.writes) and not apart


def verify_order(program: Statements) -> None:
    """VerifyError names the first line that is not behind what it needs."""
    order = _Order(program.arguments)
    for line, one in enumerate(program.body, start=1):
        order.step(line, one)


class _Order:
    def __init__(self, arguments: Sequence[str]) -> None:
        self.known: dict[int, Clock] = {0: {}}
        self.events: dict[str, Clock] = {}
        self.touched: dict[str, list[_Touch]] = {name: [] for name in arguments}
        self.owner: dict[str, int] = dict.fromkeys(arguments, 0)

    def step(self, line: int, one: Statement) -> None:
        known = self.known.setdefault(one.stream, {})
        known[one.stream] = line
        if one.kind == "record event":
            self.events |= {name: dict(known) for name in one.makes}
        elif one.kind == "wait event":
            self._wait(one)
        elif one.kind in ("free", "return"):
            self._end(one)
        elif one.kind != "on stream":
            self._compute(line, one)

    def _wait(self, one: Statement) -> None:
        if len(one.reads) != 1 or one.reads[0] not in self.events:
            raise _broken(one, "an event that a line before it records", ", ".join(one.reads))
        known = self.known[one.stream]
        for stream, line in self.events[one.reads[0]].items():
            known[stream] = max(known.get(stream, 0), line)

    def _compute(self, line: int, one: Statement) -> None:
        if one.kind in _MOVES and one.stream:
            raise _broken(one, "communication on the caller's stream", f"stream {one.stream}")
        for name, piece, writes in _touches(one):
            touch = _Touch(line, one.stream, piece, writes)
            self._check(one, name, [t for t in self.touched.get(name, ()) if t.meets(touch)])
            self.touched.setdefault(name, []).append(touch)
        for name in one.makes:
            self.owner[name] = one.stream
            self.touched[name] = [_Touch(line, one.stream, (), True)]

    def _end(self, one: Statement) -> None:
        """A free line, or the end of the program, where all values are freed or returned."""
        for name in one.makes if one.kind == "free" else tuple(self.touched):
            self._check(one, name, self.touched.get(name, ()), self.owner.get(name, 0))
        for name in one.reads:
            if self.owner.get(name, 0):
                got = f"{name}, which stream {self.owner[name]} made"
                raise _broken(one, "results that the caller's stream made", got)

    def _check(
        self, one: Statement, name: str, needed: Sequence[_Touch], stream: int | None = None
    ) -> None:
        on = one.stream if stream is None else stream
        known = self.known.setdefault(on, {})
        for touch in needed:
            if touch.stream != on and known.get(touch.stream, 0) < touch.line:
                expected = f"stream {on} to wait for {name} on stream {touch.stream}"
                raise _broken(one, expected, "no event between the two")


def _touches(one: Statement) -> Iterator[tuple[str, Piece, bool]]:
    """The values that a line names, each with the piece and whether the line may write it."""
    tree = ast.parse(one.text)
    out = [k.value for node in ast.walk(tree) if isinstance(node, ast.Call)
           for k in node.keywords if k.arg == "out"]  # fmt: skip
    written = {id(node) for value in out for node in ast.walk(value)}
    pieces = {
        id(node.value): _piece(node.slice) for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in one.reads:
            writes = not out or id(node) in written
            yield node.id, pieces.get(id(node), ()), writes


def _piece(index: ast.expr) -> Piece:
    axes = index.elts if isinstance(index, ast.Tuple) else [index]
    return tuple(map(_span, axes))


def _span(axis: ast.expr) -> tuple[int, int] | None:
    ends = [axis.lower, axis.upper] if isinstance(axis, ast.Slice) else []
    found = [end.value for end in ends if isinstance(end, ast.Constant)]
    return (found[0], found[1]) if len(found) == 2 else None  # type: ignore[return-value]


def _broken(one: Statement, expected: str, got: str) -> VerifyError:
    return VerifyError(f"host program: {one.text}", expected=expected, got=got)
