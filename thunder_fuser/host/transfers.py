# SPDX-License-Identifier: Apache-2.0
"""Reads the sends and receives of a post from its text, and checks that they match.

    P0 = post(receive(T2[0:4], 1), send(T0[0:4], -1), mesh=(0, 1, 2), on='mesh_x')

All devices run this line. What one sends to distance -1, the device there receives from distance 1
in the same post. If all sends and receives of a post match in this way, it needs no other post, so
devices cannot deadlock.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from thunder_fuser.errors import FuserError, VerifyError
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.mesh import Mesh

Spans = tuple[tuple[int, int] | None, ...]  # (begin, end) for each axis; None if it is not known


@dataclass(frozen=True, slots=True)
class Line:
    """The lines of devices along a dimension of a mesh."""

    mesh: Mesh
    on: str

    @property
    def devices(self) -> int:
        return self.mesh.size(ParallelType(self.on))


def line_of(call: ast.Call) -> Line:
    """The devices that a call names with mesh= and on=; VerifyError if it names none."""
    named = {one.arg: one.value for one in call.keywords}
    try:
        nested, on = (ast.literal_eval(named[key]) for key in ("mesh", "on"))
        mesh = Mesh.of(nested)
        mesh.size(ParallelType(on))
    except (KeyError, ValueError, FuserError):
        raise _broken(call, "mesh= and on= with a mesh and its dimension") from None
    return Line(mesh, on)


def distance_of(call: ast.Call, devices: int) -> int:
    """The distance in a send, a receive or a part, modulo the number of devices."""
    try:
        found = ast.literal_eval(call.args[1])
    except (IndexError, ValueError):
        found = None
    if type(found) is not int:
        raise _broken(call, "a tensor and a distance")
    return found % devices


def moves(tree: ast.AST) -> list[ast.Call]:
    """The calls of send and receive in a line."""
    return [
        one for one in ast.walk(tree)
        if isinstance(one, ast.Call) and called(one) in ("send", "receive")
    ]  # fmt: skip


def called(node: ast.AST) -> str:
    """The name of a called function, "" if it has none."""
    is_named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return node.func.id if is_named else ""  # type: ignore[attr-defined]


def check_matched(text: str) -> None:
    """VerifyError unless each send of a post has a receive of the same size.

    The sizes are those of the slices in the text. Axes without a slice are not compared.
    """
    call = next((one for one in ast.walk(ast.parse(text)) if called(one) == "post"), None)
    if not isinstance(call, ast.Call):
        return  # a collective
    devices = line_of(call).devices
    sent, received = defaultdict[int, list[object]](list), defaultdict[int, list[object]](list)
    if not call.args or moves(call) != [*call.args]:
        raise _broken(call, "only sends and receives")
    for one in moves(call):
        distance = distance_of(one, devices)
        if not distance:
            raise _broken(one, "another device than this one", text)
        is_send = called(one) == "send"
        sizes = tuple(b - a for a, b in filter(None, _slices(one.args[0])))
        (sent[distance] if is_send else received[-distance % devices]).append(sizes)
    for distance in sorted({*sent, *received}):
        if sent[distance] != received[distance]:
            expected = f"for each send to distance {distance} a receive from {-distance}, as long"
            raise _broken(call, expected, f"sends {sent[distance]}, receives {received[distance]}")


def _slices(node: ast.expr) -> Iterator[tuple[int, int] | None]:
    if isinstance(node, ast.Subscript):
        yield from spans(node.slice)


def spans(index: ast.expr) -> Spans:
    """The spans of an index such as [:, 0:3]; None for an axis without two numbers."""
    axes = index.elts if isinstance(index, ast.Tuple) else [index]
    return tuple(map(_span, axes))


def _span(axis: ast.expr) -> tuple[int, int] | None:
    ends = [axis.lower, axis.upper] if isinstance(axis, ast.Slice) else []
    found = [end.value for end in ends if isinstance(end, ast.Constant)]
    return (found[0], found[1]) if len(found) == 2 else None  # type: ignore[return-value]


def _broken(call: ast.Call, expected: str, got: str = "") -> VerifyError:
    text = ast.unparse(call)
    return VerifyError(f"host program: {text}", expected=expected, got=got or text)
