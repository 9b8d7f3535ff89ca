# SPDX-License-Identifier: Apache-2.0
"""Parses the text of a host program into statements, and verifies their rules.

    T3_sent = all_reduce(T2, mesh=[0, 1], on='mesh_x', reduce='sum')    post, makes T3_sent
    T3 = wait(T3_sent, 'T3')                                            wait, makes T3
    del T2                                                              free

A program without communication has no posts and waits. The text that is verified is the text that
runs. Lines run on the caller's stream, except inside such a block:

    E0 = record_event()                  record event, makes E0
    with on_stream(1):                   on stream
        wait_event(E0)                   wait event, on stream 1
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thunder_fuser.communication.transport.collectives import COLLECTIVES
from thunder_fuser.errors import VerifyError

SENT = "_sent"  # ends the name of what a post makes

_VALUE = re.compile(r"[A-Z]\d+\w*")  # T3, S1, R0, T3_sent, T3_before
_CALLS = {
    **dict.fromkeys(("empty_strided", "persistent"), "allocate"), "wait": "wait",
    **dict.fromkeys(COLLECTIVES, "post"), "record_event": "record event",
    "wait_event": "wait event",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Statement:
    """One line.

    kind: allocate, post, wait, free, call, return, on stream, record event or wait event. reads:
    the values that it names. makes: the names that it assigns, or deletes. stream: where it runs,
    0 for the caller's; for "on stream", the stream of the block.
    """

    kind: str
    text: str
    reads: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    stream: int = 0

    def __str__(self) -> str:
        is_inside = self.stream > 0 and self.kind != "on stream"
        return f"{' ' * (8 if is_inside else 4)}{self.text}"


@dataclass(frozen=True, slots=True)
class Statements:
    """A whole program; prints as its text."""

    arguments: tuple[str, ...]
    body: tuple[Statement, ...]

    @property
    def posts(self) -> tuple[Statement, ...]:
        """The communication, in the order in which it is posted."""
        return tuple(one for one in self.body if one.kind == "post")

    def __str__(self) -> str:
        head = f"def run({', '.join(self.arguments)}):"
        return "\n".join([head, *map(str, self.body)]) + "\n"


def statements(text: str) -> Statements:
    """The statements of a program's text; VerifyError if it is not one function of plain lines."""
    try:
        (function,) = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise VerifyError("host program", expected="one function", got=str(error)) from None
    if not isinstance(function, ast.FunctionDef):
        raise VerifyError("host program", expected="one function", got=type(function).__name__)
    arguments = tuple(one.arg for one in function.args.args)
    body = (one for node in function.body for one in _flat(node, text))
    return Statements(arguments, tuple(body))


def _flat(node: ast.stmt, text: str) -> Iterator[Statement]:
    """The statements of a line, or of a block on a stream."""
    if not isinstance(node, ast.With):
        yield _statement(node, text)
        return
    head = ast.unparse(node).partition("\n")[0]
    found = re.fullmatch(r"with on_stream\(([1-9]\d*)\):", head)
    if found is None or any(isinstance(one, ast.With) for one in node.body):
        raise VerifyError(f"host program: {head}", expected="with on_stream(number):, not nested")
    stream = int(found[1])
    yield Statement("on stream", head, stream=stream)
    for one in node.body:
        yield _statement(one, text, stream)


def _statement(node: ast.stmt, text: str, stream: int = 0) -> Statement:
    line = ast.get_source_segment(text, node) or ""
    names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
    # Functions, dtypes and devices are also names, but no line makes them.
    values = (one for one in names if _VALUE.fullmatch(one.id))
    reads = dict.fromkeys(one.id for one in values if isinstance(one.ctx, ast.Load))
    makes = dict.fromkeys(n.id for n in names if not isinstance(n.ctx, ast.Load))
    return Statement(_kind(node), line, tuple(reads), tuple(makes), stream)


def _kind(node: ast.stmt) -> str:
    if isinstance(node, ast.Return):
        return "return"
    if isinstance(node, ast.Delete):
        return "free"
    if isinstance(node, (ast.Assign, ast.Expr)) and isinstance(node.value, ast.Call):
        called = node.value.func
        return _CALLS.get(called.id, "call") if isinstance(called, ast.Name) else "call"
    return "call"


def verify_program(program: Statements) -> Statements:
    """The program itself if it is sound; VerifyError names the line that breaks a rule.

    Each wait has a post before it, and each post has exactly one wait. A line reads only
    values that exist and are not freed. Only the last line returns.
    """
    live, posted = set(program.arguments), dict[str, Statement]()
    for one in program.body:
        for name in one.reads:
            if name not in live:
                raise broken(one, f"{name} to be alive", "it is not made, or freed before")
        if one.kind == "wait":
            _check_awaited(one, posted)
        elif read := [n for n in one.reads if n in posted]:
            raise broken(one, f"a wait for {read[0]} first", "a read of what has not arrived")
        if one.kind == "free":
            if missing := [name for name in one.makes if name not in live]:
                raise broken(one, f"{missing[0]} to be alive", "it is not made, or freed before")
            live -= set(one.makes)
        else:
            live |= set(one.makes)
        if one.kind == "post":
            if not one.makes:
                raise broken(one, "a name for what is posted, to await it", "none")
            posted |= dict.fromkeys(one.makes, one)
    if posted:
        name, post = next(iter(posted.items()))
        raise broken(post, f"a wait for {name}", "none")
    _check_return(program.body)
    return program


def _check_awaited(one: Statement, posted: dict[str, Statement]) -> None:
    sent = [name for name in one.reads if name in posted]
    if len(sent) != 1 or len(one.reads) != 1:
        raise broken(one, "one post before it, awaited once", "none")
    del posted[sent[0]]


def _check_return(body: Sequence[Statement]) -> None:
    kinds = [one.kind for one in body]
    if kinds.count("return") != 1 or kinds[-1] != "return":
        raise VerifyError("host program", expected="one return, as the last line", got=str(kinds))


def broken(one: Statement, expected: str, got: str) -> VerifyError:
    """The error for a line that breaks a rule."""
    return VerifyError(f"host program: {one.text}", expected=expected, got=got)
