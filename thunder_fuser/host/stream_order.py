# SPDX-License-Identifier: Apache-2.0
"""Verifies that the lines of a program are in order across its streams: a race detector.

    with on_stream(1):
        matmul(T0[0:3], T1, out=T2[0:3])      touches T2[0:3] on stream 1
        E1 = record_event()
    wait_event(E1)                            now the caller's stream has waited for that
    return [T2]

Each stream has a vector clock: the last line of each other stream that it has waited for. An event
carries a copy of its stream's clock. A line that touches a value must have waited for the lines
that touched it on other streams, except if both only read, or their pieces do not overlap. A value
is written by the line that makes it and by lines with `out=`; any other line may write all that it
names. Memory belongs to the stream that allocated it. It is freed or returned only after that
stream has waited for all lines that touched it.

The sends and receives of a post count as a stream of their own, which works until its wait:

    P0 = post(receive(T4[0:2], 1), send(T0[0:2], -1), ...)    now T4[0:2] and T0[0:2] are touched
    matmul(T0, T1, out=part(T3, 0, ...))                      may read T0
    wait(P0, 'T4')                                            now T4[0:2] may be read
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from thunder_fuser.host.statements import Statement, Statements, broken
from thunder_fuser.host.transfers import Spans, called, distance_of, line_of, moves, spans

Clock = dict[int, int]  # {stream: the last of its lines that has been waited for}

_MOVES = ("post", "wait")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of a value: the spans of its first axes.

    of: for a `part`, its devices and axis; then the first span is its distance. Pieces with
    different `of` may overlap.
    """

    spans: Spans = ()
    of: object = None


@dataclass(frozen=True, slots=True)
class _Touch:
    """A line's read or write of a value, or of a piece of it. stream: negative for a post."""

    line: int
    stream: int
    piece: _Piece
    writes: bool

    def meets(self, other: _Touch) -> bool:
        """True if one must wait for the other."""
        a, b = self.piece, other.piece
        pairs = zip(a.spans, b.spans, strict=False) if a.of == b.of else ()
        apart = any(a and b and (a[1] <= b[0] or b[1] <= a[0]) for a, b in pairs)
        return (self.writes or other.writes) and not apart


def verify_order(program: Statements) -> None:
    """VerifyError names the first line that does not wait for something that it needs."""
    order = _Order(program.arguments)
    for line, one in enumerate(program.body, start=1):
        order.step(line, one)


class _Order:
    def __init__(self, arguments: Sequence[str]) -> None:
        self.known: dict[int, Clock] = {0: {}}
        self.events: dict[str, Clock] = {}
        self.posts: dict[str, int] = {}  # the lines of posts with sends and receives
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
            raise broken(one, "an event that a line before it records", ", ".join(one.reads))
        known = self.known[one.stream]
        for stream, line in self.events[one.reads[0]].items():
            known[stream] = max(known.get(stream, 0), line)

    def _compute(self, line: int, one: Statement) -> None:
        if one.kind in _MOVES and one.stream:
            raise broken(one, "communication on the caller's stream", f"stream {one.stream}")
        tree = ast.parse(one.text)
        stream = self._stream_of(line, one, tree)
        for name, piece, writes in _touches(one, tree):
            touch = _Touch(line, one.stream, piece, writes)
            self._check(one, name, [t for t in self.touched.get(name, ()) if t.meets(touch)])
            self.touched.setdefault(name, []).append(replace(touch, stream=stream))
        for name in one.makes:
            self.owner[name] = one.stream
            self.touched[name] = [_Touch(line, one.stream, _Piece(), True)]

    def _stream_of(self, line: int, one: Statement, tree: ast.AST) -> int:
        """The stream on which a line touches values: -line for a post of sends and receives, else
        the line's own. After a wait, the line's stream has waited for the post's."""
        for name in one.reads if one.kind == "wait" else ():
            if name in self.posts:
                self.known[one.stream][-self.posts[name]] = self.posts[name]
        if not moves(tree):
            return one.stream
        self.posts |= dict.fromkeys(one.makes, line)
        return -line

    def _end(self, one: Statement) -> None:
        """Checks a `del`, or the return, where all values are freed or returned."""
        for name in one.makes if one.kind == "free" else tuple(self.touched):
            self._check(one, name, self.touched.get(name, ()), self.owner.get(name, 0))
        for name in one.reads:
            if self.owner.get(name, 0):
                got = f"{name}, which stream {self.owner[name]} made"
                raise broken(one, "results that the caller's stream made", got)

    def _check(
        self, one: Statement, name: str, needed: Sequence[_Touch], stream: int | None = None
    ) -> None:
        on = one.stream if stream is None else stream
        known = self.known.setdefault(on, {})
        for touch in needed:
            if touch.stream != on and known.get(touch.stream, 0) < touch.line:
                expected = f"stream {on} to wait for {name} on stream {touch.stream}"
                if touch.stream < 0:
                    raise broken(one, f"a wait for the post of {name} first", "none")
                raise broken(one, expected, "no event between the two")


def _touches(one: Statement, tree: ast.AST) -> Iterator[tuple[str, _Piece, bool]]:
    """For each value that a line names: (name, piece, whether the line may write it)."""
    out = [k.value for node in ast.walk(tree) if isinstance(node, ast.Call)
           for k in node.keywords if k.arg == "out"]  # fmt: skip
    out += [call.args[0] for call in moves(tree) if called(call) == "receive"]
    written = {id(node) for value in out for node in ast.walk(value)}
    pieces = _pieces(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in one.reads:
            writes = not out or id(node) in written
            yield node.id, pieces.get(id(node), _Piece()), writes


def _pieces(tree: ast.AST) -> dict[int, _Piece]:
    """{id of a node: the piece taken of it} for T3[0:2], part(T3, 1, ..), part(T3, 1, ..)[0:2]."""
    found: dict[int, _Piece] = {}
    for node in ast.walk(tree):  # which visits a subscript before what it indexes
        if isinstance(node, ast.Subscript):
            found[id(node.value)] = _Piece(spans(node.slice))
        elif isinstance(node, ast.Call) and called(node) == "part":
            line = line_of(node)
            distance = distance_of(node, line.devices)
            cut = found.get(id(node), _Piece())
            inner = () if cut.of else cut.spans  # for a part of a part, only the outer is known
            dim = [ast.unparse(one.value) for one in node.keywords if one.arg == "dim"]
            found[id(node.args[0])] = _Piece(
                ((distance, distance + 1), *inner), (line, *dim)
            )
    return found
