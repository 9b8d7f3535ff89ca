# SPDX-License-Identifier: Apache-2.0
"""The schema of an op: kind, signature, types, cost, spelling in C and torch; see op_table.py."""

from __future__ import annotations

import inspect
from ast import literal_eval
from dataclasses import dataclass
from enum import Enum
from typing import Any

from thunder_fuser.base.threads import cached_property
from thunder_fuser.errors import DefinitionError
from thunder_fuser.ir.dtypes import DataType

# {nvFuser's name of an argument: its names here}; an op has one of these.
ALSO = {
    "dim": ("dims",),
    "axes": ("dims",),
    "keep_dim": ("keepdim",),
    "minval": ("lo",),
    "maxval": ("hi",),
    "arg1": ("lo", "mean"),
    "arg2": ("hi", "std"),
}
# Keywords of nvFuser that change no result here: indices are always in range, and the op checks.
WITHOUT_EFFECT = {"slice": "manual_normalization", "squeeze": "squeeze_expanded"}


class OpKind(Enum):
    """What an op does to elements. Kernels treat ops by kind."""

    POINTWISE = "pointwise"  # each element from the same element of each operand
    MOVEMENT = "movement"  # elements unchanged, indices mapped (analysis/index_map.py)
    INDEX = "index"  # elements unchanged, read at the places in a tensor of indices
    REDUCTION = "reduction"  # many elements into one
    SCAN = "scan"  # each element combined with all before it along one axis
    FACTORY = "factory"  # elements from no tensor
    RANDOM = "random"  # elements from (seed, offset) and their position
    SCALAR = "scalar"  # a size, known on the host
    EXTERNAL = "external"  # one torch call (expr_eval)
    COMMUNICATION = "communication"  # elements of other devices (ir/rules/communication.py)


class DtypeRule(Enum):
    """The type of the result, and the type that operands are cast to."""

    SAME = "same"  # promoted; 16-bit floats compute, and stay, in Float
    FLOAT = "float"  # as SAME, integers and bools become Float
    COMPARE = "compare"  # operands promoted; the result is Bool
    PREDICATE = "predicate"  # the operand as it is; the result is Bool
    LOGICAL = "logical"  # operands become Bool; the result is Bool
    INTEGER = "integer"  # promoted; only integers and bools are taken
    REAL = "real"  # as SAME; complex operands give the type of their parts
    COMPLEX = "complex"  # operands become one float type; the result is complex
    SELECT = "select"  # first operand Bool, the others promoted and kept in their own type
    KEEP = "keep"  # the operand's own type, untouched
    ACCUMULATE = "accumulate"  # sums: half to Float, integers to Int; `dtype` overrides
    ATTRIBUTE = "attribute"  # the `dtype` attribute


@dataclass(frozen=True)
class Op:
    """One row of the table."""

    name: str
    kind: OpKind
    signature: str
    arity: int
    rule: DtypeRule
    torch: str
    c: str = ""
    c_int: str = ""
    c_complex: str = ""
    cost: int = 1
    bools: bool = True  # False if torch does not take bools either
    keywords: tuple[str, ...] = ()  # the operands, if they are not the first of the signature
    source: int = 0  # KEEP: the operand with the result's type; INDEX: the one that is read
    results: tuple[DataType | None, ...] = (None,)  # EXTERNAL: their types; None: by the rule
    summary: str = ""  # what it does, in one line

    @cached_property
    def parameters(self) -> inspect.Signature:
        """The signature of the call."""
        parts = [part.strip().partition("=") for part in self.signature.split(",")]
        kind, required = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
        return inspect.Signature(
            [
                inspect.Parameter(name, kind, default=literal_eval(value) if equals else required)
                for name, equals, value in parts
            ]
        )

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments by name, with defaults; DefinitionError if they do not fit. As in nvFuser, a
        type may be the second argument of a reduction: sum(T0, DataType.Float)."""
        after = list(args[1:])
        if self.kind is OpKind.REDUCTION and len(after) == 1 and isinstance(after[0], DataType):
            args, kwargs = args[:1], {**kwargs, "dtype": after[0]}
        kept = {k: v for k, v in kwargs.items() if k != WITHOUT_EFFECT.get(self.name)}
        bound = bind(self.parameters, f"ops.{self.name}", args, own_names(self.parameters, kept))
        defaults = {name: argument.default for name, argument in self.parameters.parameters.items()}
        return {**defaults, **bound}

    @property
    def operands(self) -> list[str]:
        """The names of the arguments that are operands; the rest are attributes."""
        return list(self.keywords) or list(self.parameters.parameters)[: abs(self.arity)]

    def operand_name(self, at: int) -> str:
        """The name of one operand; a list of tensors has names such as tensors[1]."""
        return f"{self.operands[0]}[{at}]" if self.arity < 0 else self.operands[at]

    def default(self, name: str) -> Any:
        """The default of an argument; inspect.Parameter.empty if it is required."""
        return self.parameters.parameters[name].default


def own_names(signature: inspect.Signature, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords with nvFuser's names of arguments replaced by the names here."""
    parameters, named = signature.parameters, {}
    for name, value in kwargs.items():
        free = [ours for ours in ALSO.get(name, ()) if ours in parameters and ours not in kwargs]
        named[free[0] if free and name not in parameters else name] = value
    return named


def bind(
    signature: inspect.Signature, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The given arguments by name; DefinitionError if they do not fit the signature."""
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        texts = [
            name if argument.default is argument.empty else f"{name}={argument.default}"
            for name, argument in signature.parameters.items()
            if name != "self"
        ]
        got = str(error).removeprefix("got ")
        raise DefinitionError(call, expected=f"({', '.join(texts)})", got=got) from None
