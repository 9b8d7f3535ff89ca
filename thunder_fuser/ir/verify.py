# SPDX-License-Identifier: Apache-2.0
"""The rules of a valid Fusion, as a table. Each pass is checked against it.

A rule gets the fusion and yields a sentence for each breach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from thunder_fuser.errors import VerifyError
from thunder_fuser.ir.build import define
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import DtypeRule, OpKind
from thunder_fuser.ir.record import names_of

Rule = Callable[[Fusion], Iterator[str]]


def _defined_before_use(fusion: Fusion) -> Iterator[str]:
    """Every operand is defined before its use, and every name once."""
    seen: set[str] = set()
    for record in fusion.definition:
        for name in names_of(record):
            if name not in seen:
                yield f"{record.op} reads {name} before it is defined"
        for name in record.outputs:
            if name in seen:
                yield f"{name} is defined twice"
            seen.add(name)


def _operands_fit(fusion: Fusion) -> Iterator[str]:
    """Every expression has no more operands than its row of the op table says."""
    for expr in fusion.exprs:
        if 0 <= expr.row.arity < len(expr.inputs):
            yield f"{expr.op} takes {expr.row.arity} operands, has {len(expr.inputs)}"


def _same_compute_type(fusion: Fusion) -> Iterator[str]:
    """Operands of pointwise math agree in type, and narrow floats are never computed in."""
    for expr in fusion.exprs:
        row = expr.row
        if row.kind is not OpKind.POINTWISE or row.rule in (DtypeRule.ATTRIBUTE, DtypeRule.SELECT):
            continue
        dtypes = {fusion.tensors[name].dtype for name in names_of(expr)}
        if len(dtypes) > 1:
            yield f"{expr.op} -> {expr.outputs[0]} mixes {sorted(d.short for d in dtypes)}"
        if any(dtype.is_narrow for dtype in dtypes):
            yield f"{expr.op} -> {expr.outputs[0]} computes in a narrow float"


def _contiguity_is_complete(fusion: Fusion) -> Iterator[str]:
    """Allocation and contiguity list every axis of the tensor once."""
    for view in fusion.tensors.values():
        rank = len(view.domain.transformed)
        if sorted(view.domain.allocation) != list(range(rank)):
            yield f"{view.name}: allocation {view.domain.allocation} is no permutation of {rank}"
        if len(view.domain.contiguity) != rank:
            yield f"{view.name}: {len(view.domain.contiguity)} contiguity entries for rank {rank}"


def _types_follow(fusion: Fusion) -> Iterator[str]:
    """The stored types are those the records define."""
    again = define(fusion.definition)
    if again != fusion:
        yield "defining the records again gives other records"
    elif dict(again.tensors) != dict(fusion.tensors):
        yield "defining the records again gives other types"


RULES: tuple[Rule, ...] = (
    _defined_before_use,
    _operands_fit,
    _same_compute_type,
    _contiguity_is_complete,
    _types_follow,
)


def verify(fusion: Fusion, after: str = "define") -> Fusion:
    """The fusion itself if it follows every rule; VerifyError names the pass that ran last."""
    breaches = [text for rule in RULES for text in rule(fusion)]
    if breaches:
        raise VerifyError(f"fusion after {after}", got="; ".join(breaches))
    return fusion
