# SPDX-License-Identifier: Apache-2.0
"""The schema of an op: kind, signature, types, cost, spelling in C and torch; see op_table.py."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from thunder_fuser.errors import DefinitionError
from thunder_fuser.ir.dtypes import DataType


class OpKind(Enum):
    """What an op does to elements, which decides how a kernel treats it."""

    POINTWISE = "pointwise"  # one result element from the same element of each operand
    MOVEMENT = "movement"  # elements unchanged, indices mapped (analysis/index_map.py has the map)
    INDEX = "index"  # elements unchanged, read where a tensor of indices says
    REDUCTION = "reduction"  # many elements into one
    SCAN = "scan"  # each element joined with all before it along one axis
    FACTORY = "factory"  # elements from nothing
    RANDOM = "random"  # elements from (seed, offset) and their own position
    SCALAR = "scalar"  # a size, known on the host
    EXTERNAL = "external"  # one torch call (expr_eval)


class DtypeRule(Enum):
    """The type of the result, and the one operands are cast to first."""

    SAME = "same"  # promoted; 16-bit floats compute, and stay, in Float
    FLOAT = "float"  # as SAME, integers and bools become Float
    COMPARE = "compare"  # operands promoted; the result is Bool
    PREDICATE = "predicate"  # the operand as it is; the result is Bool
    LOGICAL = "logical"  # operands become Bool; the result is Bool
    INTEGER = "integer"  # promoted; only integers and bools are taken
    REAL = "real"  # as SAME; of complex operands the type of their parts
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
    bools: bool = True  # False where torch does not compute with bools either
    keywords: tuple[str, ...] = ()  # the operands, where they are not the first of the signature
    source: int = 0  # KEEP: the operand whose type the result has; INDEX: the one that is read
    results: tuple[DataType | None, ...] = (None,)  # EXTERNAL: their types, None by the rule

    @cached_property
    def parameters(self) -> inspect.Signature:
        """The call signature, as Python sees it."""
        names = [part.strip().partition("=") for part in self.signature.split(",") if part.strip()]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    kind,
                    default=_DEFAULTS[value] if equals else inspect.Parameter.empty,
                )
                for name, equals, value in names
            ]
        )

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments by name, defaults filled in; DefinitionError if they do not fit."""
        try:
            bound = self.parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise DefinitionError(
                f"ops.{self.name}",
                expected=f"({self.signature})",
                got=str(error).removeprefix("got "),
            ) from error
        bound.apply_defaults()
        return dict(bound.arguments)

    @property
    def operands(self) -> list[str]:
        """The names of the arguments that are operands; the rest are attributes."""
        return list(self.keywords) or list(self.parameters.parameters)[: abs(self.arity)]

    def operand_name(self, at: int) -> str:
        """That of one operand: of a list of tensors, its place in it."""
        return f"{self.operands[0]}[{at}]" if self.arity < 0 else self.operands[at]

    def default(self, name: str) -> Any:
        """What an argument is if it is left out; inspect.Parameter.empty if it must be given."""
        return self.parameters.parameters[name].default

    def is_absent(self, name: str, value: Any) -> bool:
        """True for an operand that may be left out, and is."""
        return value is None and self.default(name) is None

    @property
    def is_cheap(self) -> bool:
        """True if recomputing it costs less than moving its result through memory."""
        dear = (OpKind.REDUCTION, OpKind.SCAN)
        return self.kind not in dear and self.cost <= 2


_DEFAULTS = {
    "None": None, "False": False, "True": True, "-1": -1, "0": 0, "1": 1, "2.0": 2.0,
}  # fmt: skip
