# SPDX-License-Identifier: Apache-2.0
"""A row of the op table -> the signature and the docstring of the method `fd.ops.<op>`.

exp(x: 'Value | Constant | float', short: 'bool | None' = None) -> 'Tensor'

    e to the power x. short=True allows a few wrong digits at the end, on a GPU.

    Shape: that of the operands, which are broadcast as in torch.
    ...
"""

from __future__ import annotations

import ast
import re
from inspect import Parameter, Signature

from thunder_fuser.ir.frontend import kinds
from thunder_fuser.ir.op_schema import DtypeRule, Op, OpKind
from thunder_fuser.ir.rules.type_rules import NUMBER_AT, TAKES_NUMBERS

# The shape of a result, by the name of the op, else by its kind.
_SHAPES: dict[str | OpKind, str] = {
    OpKind.POINTWISE: "that of the operands, which are broadcast as in torch",
    OpKind.REDUCTION: "that of arg without dims, which are all axes by default and have size 1 "
    "with keepdim; chunk=n gives a new first axis, of partial results over runs of n elements",
    OpKind.SCAN: "that of arg",
    OpKind.RANDOM: "the argument shape",
    OpKind.SCALAR: "none, because the result is a scalar",
    OpKind.EXTERNAL: "that of arg",
    OpKind.COMMUNICATION: "that of arg",
    "all_gather": "that of arg, with dim as many times longer as there are devices",
    "reduce_scatter": "that of arg, with dim divided by the number of devices",
    "all_to_all": "that of arg, split_dim divided by the number of devices and cat_dim multiplied",
    "set": "that of arg",
    "segment_set": "that of arg",
    "stride_order": "that of arg",
    "broadcast": "that of arg and the new axes",
    "broadcast_in_dim": "the argument shape",
    "expand": "the argument shape",
    "squeeze": "that of arg without dims",
    "permute": "that of arg in the order of dims",
    "reshape": "the argument new_shape",
    "slice": "(end - start) / stride on each axis, rounded up",
    "pad": "that of arg plus both widths",
    "cat": "that of the tensors, whose sizes along dim are added",
    "flip": "that of arg",
    "index_select": "that of arg, with the number of indices at dim",
    "take_along_axis": "that of arg and index, broadcast, with the size of index at dim",
    "gather": "that of index",
    "index_store": "that of arg",
    "embedding_fwd": "that of input, then the last size of weight",
    "full": "the argument shape",
    "iota": "[length]",
    "matmul": "as of torch.matmul",
    "linear": "that of arg, with the first size of weight in place of the last one",
    "grouped_mm": "[m, n], or [groups, m, n] if mat1 and mat2 are matrices",
    "sdpfa_fwd": "[*batch, H, L, the last size of value], [*batch, H, L], [2], []",
    "sdpfa_bwd": "those of query, key and value",
    "embedding_backward": "[num_weights, the last size of grad]",
    "topk": "that of arg, with k at dim",
}
_HALF, _COUNTED = ", Float for 16-bit floats", ", Int for integers and bools"
# The type of a result, by the name of the op, else by its rule. For reductions "dtype, by default "
# comes before it.
_TYPES: dict[str | DtypeRule, str] = {
    DtypeRule.SAME: "{common}" + _HALF,
    DtypeRule.FLOAT: "as torch promotes; Float for integers, bools and 16-bit floats",
    DtypeRule.COMPARE: "Bool; the operands are compared in their common type",
    DtypeRule.PREDICATE: "Bool",
    DtypeRule.LOGICAL: "Bool; the operands are converted to it first",
    DtypeRule.INTEGER: "{common}",
    DtypeRule.REAL: "that of x, of its parts if it is complex" + _HALF,
    DtypeRule.COMPLEX: "ComplexDouble if an operand is a Double, else ComplexFloat",
    DtypeRule.SELECT: "the common type of a and b",
    DtypeRule.KEEP: "that of {source}",
    DtypeRule.ACCUMULATE: "that of arg" + _HALF + _COUNTED,
    DtypeRule.ATTRIBUTE: "dtype",
    "cat": "the common type of the tensors",
    "max": "that of arg",
    "min": "that of arg",
    "iota": "dtype, by default Int",
    "uniform": "dtype, by default Float",
    "normal": "dtype, by default Float",
    "cumsum": "that of arg" + _COUNTED,
    "cumprod": "that of arg" + _COUNTED,
    "cummax": "that of arg",
    "cummin": "that of arg",
    "size": "Int",
}
_INDEX = "an index that is neither Int nor Int32"
# What raises a DtypeError: by the name of the op, else by its kind.
_REFUSED: dict[str | OpKind, str] = {
    OpKind.INDEX: _INDEX,
    OpKind.RANDOM: "a dtype other than floats of 16 bits or more",
    OpKind.EXTERNAL: _INDEX + ", or src of another type than arg",
    "iota": "the dtype Bool",
    "reduce_scatter": "the dtype Bool and 8-bit floats",
    "all_reduce": "the dtype Bool and 8-bit floats",
    "matmul": "operands of several types",
    "linear": "operands of several types",
    "grouped_mm": "matrices of several types, and offsets that are neither Int nor Int32",
    "sdpfa_fwd": "operands of several types, or of another one than Half, BFloat16 and Float",
    "sdpfa_bwd": "operands of several types, or of another one than Half, BFloat16 and Float",
    "embedding_backward": "a grad that is no float, or " + _INDEX,
    "argsort": "complex numbers and floats below 16 bits",
    "sort": "complex numbers and floats below 16 bits",
    "topk": "complex numbers, bools and floats below 16 bits",
}


def signature(row: Op) -> Signature:
    """The call without `self`, with the types of its arguments and of its result."""
    parameters = row.parameters.parameters.values()
    typed = [parameter.replace(annotation=_python(row, parameter)) for parameter in parameters]
    many = len(row.results)
    result = "Tensor" if many == 1 else f"tuple[{', '.join(['Tensor'] * many)}]"
    is_scalar = row.kind is OpKind.SCALAR
    return Signature(typed, return_annotation="Scalar" if is_scalar else result)


def _python(row: Op, argument: Parameter) -> str:
    python = kind(row, argument.name).python
    may_be_none = argument.default is None and not python.endswith("None")
    return f"{python} | None" if may_be_none else python


def kind(row: Op, name: str) -> kinds.Kind:
    """What an argument of an op may be."""
    if name not in row.operands:
        return kinds.kind_of(row.name, name)
    if row.arity < 0:
        return kinds.TENSORS
    may_be_number = row.kind in TAKES_NUMBERS or NUMBER_AT.get(row.name) == row.operands.index(name)
    return kinds.OPERAND if may_be_number else kinds.TENSOR


def docstring(row: Op) -> str:
    """What the op does, the shape and the type of its result, torch's call, and the errors."""
    facts = {"Shape": shape(row), "Type": dtype(row), "In torch": torch_call(row)}
    lines = [f"{name}: {text}." for name, text in facts.items() if text]
    raises = "Raises DefinitionError if arguments or sizes do not fit"
    raises += f", DtypeError for {refused(row)}" * bool(refused(row))
    return "\n".join([row.summary, "", *lines, "", *_arguments(row), "", f"{raises}."])


def _arguments(row: Op) -> list[str]:
    """A line for each kind of argument: "lhs, rhs: a tensor, a scalar or ..."."""
    names: dict[str, list[str]] = {}
    for name in row.parameters.parameters:
        names.setdefault(kind(row, name).text, []).append(name)
    return [f"{', '.join(alike)}: {text}." for text, alike in names.items()]


def shape(row: Op) -> str:
    """The shape of the result."""
    return _SHAPES[row.name if row.name in _SHAPES else row.kind]


def dtype(row: Op) -> str:
    """The type of the result, or the types of several."""
    text = _TYPES[row.name if row.name in _TYPES else row.rule]
    first = row.operand_name(0)
    common = f"that of {first}" if row.arity == 1 else "the common type of the operands"
    text = text.format(common=common, source=row.operand_name(row.source))
    if row.kind is OpKind.REDUCTION:
        return f"dtype, by default {text}"
    return ", ".join(text if known is None else known.name for known in row.results)


def torch_call(row: Op) -> str:
    """The call of torch with the same result, in the names of the arguments; "" if it is longer."""
    letters = dict(zip("abcd", row.operands, strict=False)) | {"operands": row.operands[0]}
    used = {node.id for node in ast.walk(ast.parse(row.torch)) if isinstance(node, ast.Name)}
    silent = (OpKind.FACTORY, OpKind.SCALAR, OpKind.COMMUNICATION)
    if row.kind in silent or row.torch in letters:
        return ""  # what the evaluator makes of numbers, or nothing
    if used - letters.keys() - row.parameters.parameters.keys() - {"torch"}:
        return ""  # torch needs several calls, which runtime/eager/evaluate.py has as functions
    return re.sub(r"\b([a-d]|operands)\b", lambda match: letters[match[1]], row.torch)


def refused(row: Op) -> str:
    """The types of operands that raise a DtypeError; empty if there are none."""
    collects = row.kind in (OpKind.REDUCTION, OpKind.SCAN)
    if row.kind is not OpKind.POINTWISE and not collects:
        return _REFUSED.get(row.name) or _REFUSED.get(row.kind, "")
    if row.rule is DtypeRule.SELECT:
        return "a condition that is no Bool"
    if row.rule is DtypeRule.ATTRIBUTE:
        return ""
    has_complex = row.rule is DtypeRule.ACCUMULATE if collects else bool(row.c_complex)
    unsupported = ["real numbers"] * (not row.c and not collects)
    unsupported += ["complex numbers"] * (not has_complex and row.rule is not DtypeRule.LOGICAL)
    unsupported += ["bools"] * (not row.bools)
    unsupported += ["floats"] if row.rule is DtypeRule.INTEGER else ["floats below 16 bits"]
    return " and ".join(filter(None, [", ".join(unsupported[:-1]), unsupported[-1]]))
