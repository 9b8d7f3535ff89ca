# SPDX-License-Identifier: Apache-2.0
"""Kernel -> text for a reader: one statement a line, each as the call that makes its node.

For(j_o_o, 4, ParallelType.SERIAL, unroll=0)
    Let(T0_v, DataType.BFloat16, Load(T0, 8*j_o_i, DataType.BFloat16, width=8), width=8)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass

from thunder_fuser.ir.scalar import Scalar
from thunder_fuser.lower.kernel import If, Statement

Marks = Mapping[int, str]  # by the id of a statement: what is wrong with it


def statements_text(statements: Iterable[Statement], marks: Marks | None = None) -> str:
    """The statements; a marked one has --> in front, and what is wrong with it behind."""
    return "".join(line + "\n" for line in _lines(statements, marks or {}, ""))


def _lines(statements: Iterable[Statement], marks: Marks, pad: str) -> Iterator[str]:
    for statement in statements:
        text = pad + _call(statement)
        wrong = marks.get(id(statement))
        yield text if wrong is None else f"--> {text}   # {wrong}"
        yield from _lines(getattr(statement, "body", ()), marks, pad + "    ")
        if isinstance(statement, If) and statement.otherwise:
            yield pad + "Else"
            yield from _lines(statement.otherwise, marks, pad + "    ")


def _call(node: object) -> str:
    """A node as the call that makes it, without bodies, comments and fields at their defaults."""
    if isinstance(node, tuple):
        return f"({', '.join(map(_call, node))})"
    if not is_dataclass(node) or isinstance(node, Scalar):
        return str(node)
    given = [(f, getattr(node, f.name)) for f in fields(node) if f.name not in _HIDDEN]
    shown = [
        _call(value) if field.default is MISSING else f"{field.name}={_call(value)}"
        for field, value in given
        if value != field.default
    ]
    return f"{type(node).__name__}({', '.join(shown)})"


_HIDDEN = ("body", "otherwise", "comment")
