# SPDX-License-Identifier: Apache-2.0
"""Kernel -> text for a reader: one statement a line, each as the call that makes its node.

For(j_o_o, 4, ParallelType.SERIAL)
    Let(T0_v, DataType.BFloat16, Load(T0, 8*j_o_i + 256*j_o_o, DataType.BFloat16, 8, 1, 0), 8)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass

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
    hidden = ("body", "otherwise", "comment")
    given = [(f.default, getattr(node, f.name)) for f in fields(node) if f.name not in hidden]
    shown = [_call(value) for default, value in given if value != default]
    return f"{type(node).__name__}({', '.join(shown)})"
