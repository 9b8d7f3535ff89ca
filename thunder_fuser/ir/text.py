# SPDX-License-Identifier: Apache-2.0
"""Printed definitions -> records and Fusions: rebuild(str(fusion)) == fusion.

def fusion(fd):
    T0 = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float)  # f32[i0{i0}]
    T1 = fd.ops.exp(T0)                                                         # f32[i0{i0}]
    fd.add_output(T1)
"""

from __future__ import annotations

import ast
from typing import Any

from thunder_fuser.errors import DefinitionError
from thunder_fuser.ir.build import define
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.language import Recorder
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.record import LAYOUT, Definition


def rebuild(text: str) -> Fusion:
    """The Fusion of a printed function, which may contain only calls, names and literals."""
    return define(read_definition(text))


def read_definition(text: str) -> Definition:
    """The records of a printed definition. The text is interpreted, never executed."""
    (function,) = ast.parse(text).body
    if not isinstance(function, ast.FunctionDef):
        raise DefinitionError("text", expected="one function", got=type(function).__name__)
    recorder = Recorder()
    names: dict[str, Any] = {}
    for statement in function.body:
        if isinstance(statement, ast.Assign):
            result = _run(statement.value, recorder, names)
            names.update(_assigned(statement.targets[0], result))
        elif isinstance(statement, ast.Expr):
            _run(statement.value, recorder, names)
        else:
            raise DefinitionError("text", expected="calls", got=ast.unparse(statement))
    return recorder.definition


def _assigned(target: ast.expr, result: Any) -> dict[str, Any]:
    """T1 = ...; or T1, T2 = ... for an op with several results."""
    if isinstance(target, ast.Name):
        return {target.id: result}
    if isinstance(target, ast.Tuple) and isinstance(result, tuple):
        return {ast.unparse(one): value for one, value in zip(target.elts, result, strict=True)}
    raise DefinitionError("text", expected="names on the left", got=ast.unparse(target))


def _run(node: ast.expr, recorder: Recorder, names: dict[str, Any]) -> Any:
    """Interprets one expression of the printed language."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "float":
            return float(ast.literal_eval(node.args[0]))
        args = [_run(arg, recorder, names) for arg in node.args]
        kwargs = {str(k.arg): _run(k.value, recorder, names) for k in node.keywords}
        return _method(node.func, recorder, names)(*args, **kwargs)
    if isinstance(node, ast.List):
        return [_run(item, recorder, names) for item in node.elts]
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise DefinitionError(f"text: {node.id}", expected="a defined value", got=node.id)
        return names[node.id]
    if isinstance(node, ast.Attribute):
        return DataType[node.attr]
    return ast.literal_eval(node)


def _method(node: ast.expr, recorder: Recorder, names: dict[str, Any]) -> Any:
    path = ast.unparse(node)
    owner, _, name = path.rpartition(".")
    if owner in names and name in LAYOUT:
        return getattr(names[owner], name)
    if owner == "fd.ops" and name in OPS:
        return getattr(recorder.ops, name)
    if owner == "fd" and name in ("define_tensor", "define_scalar", "add_output"):
        return getattr(recorder, name)
    raise DefinitionError(f"text: {path}", expected="fd.ops.<op>, fd.define_* or fd.add_output")
