# SPDX-License-Identifier: Apache-2.0
"""The rules of a valid Fusion, as a table. Each pass is checked against it.

A rule gets the fusion and yields a sentence for each breach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from thunder_fuser.errors import DefinitionError, VerifyError
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import record_text
from thunder_fuser.ir.rules.build import define

Rule = Callable[[Fusion], Iterator[str]]


def _operands_fit(fusion: Fusion) -> Iterator[str]:
    """Every expression has no more operands than its row of the op table says."""
    for expr in fusion.exprs:
        if 0 <= expr.row.arity < len(expr.inputs):
            yield f"{expr.op} takes {expr.row.arity} operands, has {len(expr.inputs)}"


def _contiguity_is_complete(fusion: Fusion) -> Iterator[str]:
    """Allocation and contiguity list every axis of the tensor once."""
    for view in fusion.tensors.values():
        rank = len(view.domain.transformed)
        if sorted(view.domain.allocation) != list(range(rank)):
            yield f"{view.name}: allocation {view.domain.allocation} is no permutation of {rank}"
        if len(view.domain.contiguity) != rank:
            yield f"{view.name}: {len(view.domain.contiguity)} contiguity entries for rank {rank}"


def _is_defined(fusion: Fusion) -> Iterator[str]:
    """Defining the records again changes nothing.

    So every operand is defined before its use and every name once, operands of an op agree in
    type, and no op computes in a narrow float.
    """
    try:
        again = define(fusion.definition)
    except DefinitionError as error:
        yield str(error)
        return
    pairs = zip(fusion.definition, again.definition, strict=False)
    changed = [f"{record_text(old)} becomes {record_text(new)}" for old, new in pairs if old != new]
    yield from changed[:1]
    if not changed and dict(again.tensors) != dict(fusion.tensors):
        yield "defining the records again gives other types"


RULES: tuple[Rule, ...] = (_operands_fit, _contiguity_is_complete, _is_defined)


def verify(fusion: Fusion, after: str = "define") -> Fusion:
    """The fusion itself if it follows every rule; VerifyError names the pass that ran last."""
    breaches = [text for rule in RULES for text in rule(fusion)]
    if breaches:
        raise VerifyError(f"fusion after {after}", got="; ".join(breaches))
    return fusion
