# SPDX-License-Identifier: Apache-2.0
"""A definition as Python that runs, and back: rebuild(to_text(fusion)) == fusion.

def fusion(fd):
    T0 = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float)  # f32[i0{i0}]
    T1 = fd.ops.exp(T0)                                                         # f32[i0{i0}]
    fd.add_output(T1)
"""

from __future__ import annotations

import ast
import math
from typing import Any

from thunder_fuser.errors import DefinitionError
from thunder_fuser.ir.build import define
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import (
    NAMED_ATTRS,
    AttrValue,
    Definition,
    Fusion,
    Literal,
    Operand,
    OpRecord,
)
from thunder_fuser.ir.language import Recorder
from thunder_fuser.ir.ops import OPS

_COMMENT_COLUMN = 72


def to_text(fusion: Fusion, name: str = "fusion") -> str:
    """The fusion as a function of a FusionDefinition, types in trailing comments."""
    lines = [f"def {name}(fd):"]
    for record in fusion.definition:
        code = "    " + record_text(record)
        if record.outputs:
            view = fusion.tensors[record.outputs[0]]
            code = f"{code:<{_COMMENT_COLUMN}}  # {str(view).partition(': ')[2]}"
        lines.append(code)
    return "\n".join(lines) + "\n"


def definition_text(definition: Definition, name: str = "fusion") -> str:
    """An unfinished or untyped definition, without the comments."""
    return "\n".join([f"def {name}(fd):", *("    " + record_text(r) for r in definition)]) + "\n"


def record_text(record: OpRecord) -> str:
    """One record as one statement."""
    left = f"{', '.join(record.outputs)} = " if record.outputs else ""
    owner = "fd.ops" if record.op in OPS else "fd"
    return f"{left}{owner}.{record.op}({', '.join(_arguments(record))})"


def _arguments(record: OpRecord) -> list[str]:
    operands = [_operand_text(operand) for operand in record.inputs]
    if record.op == "cat":
        operands = [f"[{', '.join(operands)}]"]
    if record.op in ("full", "iota"):
        names = ["fill_value"] if record.op == "full" else ["start", "step"]
        operands = [f"{n}={o}" for n, o in zip(names, operands, strict=True)]
    attrs = [f"{_keyword(record, key)}={_attr_text(key, value)}" for key, value in record.attrs]
    return operands + attrs


def _keyword(record: OpRecord, key: str) -> str:
    return "alias_input" if key == "alias" else key


def _operand_text(operand: Operand) -> str:
    return number_text(operand.value) if isinstance(operand, Literal) else operand


def number_text(value: bool | int | float) -> str:
    """A number as Python that reads back to the same bits (any NaN to NaN)."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _attr_text(key: str, value: AttrValue) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_attr_text(key, item) for item in value)}]"
    if isinstance(value, str):
        return value if key in NAMED_ATTRS else repr(value)
    if isinstance(value, Literal):
        return number_text(value.value)
    if isinstance(value, (bool, int, float)):
        return number_text(value)
    return str(value)


def rebuild(text: str) -> Fusion:
    """Runs the printed function on a Recorder; only calls, names and literals are allowed in it."""
    return define(read_definition(text))


def read_definition(text: str) -> Definition:
    """The records of a printed definition. The text is interpreted, never executed."""
    (function,) = ast.parse(text).body
    if not isinstance(function, ast.FunctionDef):
        raise DefinitionError("text", expected="one function", got=type(function).__name__)
    recorder = Recorder()
    names: dict[str, Any] = {}
    for statement in function.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            names[statement.targets[0].id] = _run(statement.value, recorder, names)
        elif isinstance(statement, ast.Expr):
            _run(statement.value, recorder, names)
        else:
            raise DefinitionError("text", expected="calls", got=ast.unparse(statement))
    return recorder.definition


def _run(node: ast.expr, recorder: Recorder, names: dict[str, Any]) -> Any:
    """Interprets one expression of the printed language."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "float":
            return float(ast.literal_eval(node.args[0]))
        args = [_run(arg, recorder, names) for arg in node.args]
        kwargs = {str(k.arg): _run(k.value, recorder, names) for k in node.keywords}
        return _method(node.func, recorder)(*args, **kwargs)
    if isinstance(node, ast.List):
        return [_run(item, recorder, names) for item in node.elts]
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise DefinitionError(f"text: {node.id}", expected="a defined value", got=node.id)
        return names[node.id]
    if isinstance(node, ast.Attribute):
        return DataType[node.attr]
    return ast.literal_eval(node)


def _method(node: ast.expr, recorder: Recorder) -> Any:
    path = ast.unparse(node)
    owner, _, name = path.rpartition(".")
    if owner == "fd.ops" and name in OPS:
        return getattr(recorder.ops, name)
    if owner == "fd" and name in ("define_tensor", "define_scalar", "add_output"):
        return getattr(recorder, name)
    raise DefinitionError(f"text: {path}", expected="fd.ops.<op>, fd.define_* or fd.add_output")
