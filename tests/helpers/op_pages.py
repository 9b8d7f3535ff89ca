# SPDX-License-Identifier: Apache-2.0
"""The op table -> the stub ir/frontend/op_methods.pyi and the page docs/operations.md."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable

from thunder_fuser.ir.frontend.composites import Composites
from thunder_fuser.ir.frontend.op_docs import (
    docstring,
    dtype,
    refused,
    shape,
    signature,
    torch_call,
)
from thunder_fuser.ir.op_schema import Op, OpKind
from thunder_fuser.ir.op_table import OPS

_WIDTH = 100
_STUB = """\
# SPDX-License-Identifier: Apache-2.0
# Made from ir/op_table.py by `pytest tests/ir/test_op_docs.py --update-golden`.
from collections.abc import Sequence
from typing import Any

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.kinds import Constant, Scalar, Value
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.op_schema import Op

class OpMethods:
    def _call(self, row: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
"""


def stub() -> str:
    """The methods with types and docstrings, for type checkers and editors."""
    return _STUB + "".join(map(_method, OPS.values()))


def _method(row: Op) -> str:
    call = signature(row)
    given = ["self", *map(_parameter, call.parameters.values())]
    head = f"    def {row.name}({', '.join(given)}) -> {call.return_annotation}:\n"
    if len(head) > _WIDTH + 1:
        lines = "".join(f"        {one},\n" for one in given)
        head = f"    def {row.name}(\n{lines}    ) -> {call.return_annotation}:\n"
    return head + textwrap.indent(f'"""{_wrapped(docstring(row))}\n"""\n', " " * 8)


def _parameter(one: inspect.Parameter) -> str:
    default = "" if one.default is one.empty else f" = {one.default!r}"
    return f"{one.name}: {one.annotation}{default}"


def _wrapped(text: str) -> str:
    return "\n".join(
        textwrap.fill(line, _WIDTH - 12, subsequent_indent="    ") for line in text.splitlines()
    )


# ---- the page

_TITLES = {
    OpKind.POINTWISE: "Element by element",
    OpKind.MOVEMENT: "Elements in other places",
    OpKind.INDEX: "Reads at indices",
    OpKind.FACTORY: "Tensors from numbers",
    OpKind.RANDOM: "Random numbers",
    OpKind.SCALAR: "Sizes",
    OpKind.REDUCTION: "Reductions",
    OpKind.SCAN: "Scans",
    OpKind.EXTERNAL: "Calls of torch",
    OpKind.COMMUNICATION: "Communication between devices",
}
_PAGE = """\
# Operations

The methods of `fd.ops` in a `FusionDefinition`, made from
[`ir/op_table.py`](../thunder_fuser/ir/op_table.py) by a test. `help(fd.ops.add)` says the same of
one of them. A call checks what its arguments are: a tensor, an axis, a list of integers. Sizes and
types are checked where the definition ends. A `DefinitionError` names the argument that does not
fit, a `DtypeError` a type that the operation refuses.

A definition written for nvFuser, or printed by it, runs once it imports `FusionDefinition` and
`DataType` from `thunder_fuser`. Keywords of nvFuser with other names here (`dim` and `axes` for
`dims`, `keep_dim`, `minval`, `maxval`, `arg1`, `arg2`) are taken too. `DataType.Null` is None: the
operation chooses the type. Sizes, pad widths and `k` may be scalars that the host knows: arguments,
sizes, and numbers computed from them, through casts too; the value of a pad may be any scalar.
Python's operators on values call `add`, `sub`, `mul`, `truediv`, `pow`, `neg`, `abs`, the bitwise
operations, and the four comparisons of order. A constant that `define_scalar` makes with a type is
as an argument of this type: where no tensor takes part, it decides the type of the result. Tensors
without axes count for that type as others do, unlike in torch.
"""


def page() -> str:
    """A table for each kind of op, then the composites."""
    tables = [f"\n## {title}\n\n{_table(kind)}" for kind, title in _TITLES.items()]
    return _PAGE + "".join(tables) + f"\n## Made of the operations above\n\n{_composites()}"


def _table(kind: OpKind) -> str:
    head = ("call", "result", "shape", "type", "refused", "in torch")
    rows = [
        (f"`{row.name}({row.signature})`", row.summary, shape(row), dtype(row), refused(row),
         _code(torch_call(row)))
        for row in OPS.values() if row.kind is kind
    ]  # fmt: skip
    shapes = {row[2] for row in rows}
    if len(shapes) > 1 or len(rows) == 1:
        return _rows(head, rows)
    kept = (0, 1, 3, 4, 5)  # one shape for all: a sentence, not a column
    said = f"The shape of a result is {shapes.pop()}.\n\n"
    return said + _rows([head[at] for at in kept], [[row[at] for at in kept] for row in rows])


def _composites() -> str:
    found = [
        (name, one) for name, one in vars(Composites).items() if callable(one) and name[0] != "_"
    ]
    rows = [(f"`{name}{_call(one)}`", _on_a_line(inspect.getdoc(one))) for name, one in found]
    return _rows(("call", "result"), rows)


def _on_a_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _call(method: object) -> str:
    """Its arguments without types and self."""
    given = list(inspect.signature(method).parameters.values())[1:]  # type: ignore[arg-type]
    return f"({', '.join(str(one.replace(annotation=one.empty)) for one in given)})"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _rows(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), ["---"] * len(list(head)), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
