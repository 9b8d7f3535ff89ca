# SPDX-License-Identifier: Apache-2.0
"""Part -> the name of its kernel: its operations, dtype and scheduler.

    x + r, then RMS norm, in bf16, by the persistent scheduler
->  fused_add_rms_norm_bf16_persistent

COMPOSITES recognise functions that Thunder has decomposed. Casts, constants and movement are in the
name only if there is nothing else.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from thunder_fuser.analysis.part import Part
from thunder_fuser.ir.dtypes import category
from thunder_fuser.ir.record import Operand, OpRecord

LONGEST = 64
PREFIX = "fused"

# Written as Python. A name stands for one value, a capital for an input of the kernel; + and *
# commute. Matches may share values. If several rows match an expression, the first one names it.
_MEAN = "sum(x) / n"
_LAYER_NORM = f"(x - {_MEAN}) * rsqrt(sum((x - {_MEAN}) * (x - {_MEAN})) / n + e)"
_RMS_NORM = "x * rsqrt(sum(x * x) / n + e)"
COMPOSITES = (
    ("layer_norm", f"{_LAYER_NORM} * W + B"),
    ("layer_norm", f"{_LAYER_NORM} * W"),
    ("layer_norm", _LAYER_NORM),
    ("rms_norm", f"{_RMS_NORM} * W"),
    ("rms_norm", _RMS_NORM),
    ("cross_entropy", "(max(x) - take_along_axis(x, t)) + log(sum(exp(-(max(x) - x))))"),
    ("log_softmax", "(x - max(x)) - log(sum(exp(x - max(x))))"),
    ("softmax", "exp(x - max(x)) / sum(exp(x - max(x)))"),
    ("gelu", "x * (erf(x / s) * h + h)"),
    ("gelu", "(x * h) * one_plus_tanh(((x * x * x) * c + x) * s)"),
    ("gelu", "(x * h) * (tanh(((x * x * x) * c + x) * s) + o)"),
    ("silu", "x * reciprocal(exp(-x) + o)"),
    ("silu", "x * sigmoid(x)"),
    ("sigmoid", "reciprocal(exp(-x) + o)"),
    ("mean", _MEAN),
)
_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.USub: "neg"}
_SAME = {"truediv": "div"}
_UNSEEN = frozenset(
    {
        "cast", "set", "segment_set", "stride_order", "broadcast", "broadcast_in_dim", "expand",
        "squeeze", "permute", "reshape", "full",
    }
)  # fmt: skip

Binding = Mapping[str, Operand]


def kernel_name(part: Part, scheduler: str) -> str:
    """A C identifier of at most 64 characters.

    Equal for parts of equal ops and dtypes, whatever their sizes and the names of their values.
    """
    ending = f"_{_dtype(part)}_{scheduler}"
    words = _words(part) or [expr.op for expr in part.exprs if expr.op != "cast"] or ["cast"]
    room = LONGEST - len(PREFIX) - len(ending)
    return PREFIX + "".join(f"_{word}" for word in _that_fit(words, room)) + ending


def _dtype(part: Part) -> str:
    """The most frequent dtype in memory, of equals the first. Integers count only if all are."""
    dtypes = [part.tensors[name].dtype for name in part.global_tensors]
    numbers = [dtype for dtype in dtypes if category(dtype) > 1] or dtypes
    return Counter(dtype.short for dtype in numbers).most_common(1)[0][0]


def _words(part: Part) -> list[str]:
    """The composites and the other ops, in program order, without _UNSEEN."""
    named, inside = {}, set[str]()
    for composite, tree in _TREES:
        root, _ = _call(tree)
        for expr in reversed(part.exprs):
            name = expr.outputs[0]
            if name not in inside and _SAME.get(expr.op, expr.op) == root:
                for _, matched in islice(_matches(part, tree, name, {}), 1):
                    named[name] = composite
                    inside |= matched
    return [
        named.get(expr.outputs[0]) or _SAME.get(expr.op, expr.op)
        for expr in part.exprs
        if expr.outputs[0] in named or (expr.outputs[0] not in inside and expr.op not in _UNSEEN)
    ]


def _that_fit(words: list[str], room: int) -> list[str]:
    """The words that fit, once each and in order. Composites are chosen first, then reductions."""
    known = {name for name, _ in COMPOSITES}

    def rank(word: str) -> int:
        return 0 if word in known else 1 if word in ("sum", "max", "min", "prod") else 2

    chosen = set()
    for word in sorted(dict.fromkeys(words), key=rank):
        if len(word) + 1 <= room:
            chosen.add(word)
            room -= len(word) + 1
    return [word for word in dict.fromkeys(words) if word in chosen]


# ---- composites


def _matches(
    part: Part, tree: ast.expr, value: Operand, bound: Binding
) -> Iterator[tuple[Binding, frozenset[str]]]:
    """All matches of a value with a tree: the values of names, and the values inside the match."""
    value = _seen(part, value)
    if isinstance(tree, ast.Name):
        fits = bound.get(tree.id, value) == value
        if fits and (tree.id.islower() or value in part.inputs):
            yield {**bound, tree.id: value}, frozenset()
        return
    expr = part.producer.get(value) if isinstance(value, str) else None
    op, operands = _call(tree)
    if expr is None or _SAME.get(expr.op, expr.op) != op:
        return
    for order in _orders(expr, len(operands)):
        for complete, inside in _all_match(part, operands, order, bound):
            yield complete, inside | {expr.outputs[0]}


def _all_match(
    part: Part, trees: Sequence[ast.expr], values: Sequence[Operand], bound: Binding
) -> Iterator[tuple[Binding, frozenset[str]]]:
    if not trees:
        yield bound, frozenset()
        return
    for first, inside in _matches(part, trees[0], values[0], bound):
        for complete, rest in _all_match(part, trees[1:], values[1:], first):
            yield complete, inside | rest


def _orders(expr: OpRecord, count: int) -> Iterator[tuple[Operand, ...]]:
    if len(expr.inputs) == count:
        yield expr.inputs
        if expr.op in ("add", "mul"):
            yield expr.inputs[::-1]


def _seen(part: Part, value: Operand) -> Operand:
    """The value before casts and movement."""
    while isinstance(value, str) and value in part.producer:
        expr = part.producer[value]
        if expr.op not in _UNSEEN:
            break
        value = expr.inputs[0]
    return value


def _call(tree: ast.expr) -> tuple[str, list[ast.expr]]:
    if isinstance(tree, ast.BinOp):
        return _OPERATORS[type(tree.op)], [tree.left, tree.right]
    if isinstance(tree, ast.UnaryOp):
        return _OPERATORS[type(tree.op)], [tree.operand]
    assert isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)
    return tree.func.id, tree.args


_TREES = tuple((name, ast.parse(text, mode="eval").body) for name, text in COMPOSITES)
