# SPDX-License-Identifier: Apache-2.0
"""How a pass changes a Fusion: it maps records to records, and `define` types the result anew."""

from __future__ import annotations

from collections.abc import Callable

from thunder_fuser.ir.build import define
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import (
    NAMED_ATTRS,
    AttrValue,
    Literal,
    Operand,
    OpRecord,
    names_of,
    rename,
)

# What a pass makes of one record: a record, or the operand that stands for its result.
Rule = Callable[[OpRecord], "OpRecord | Operand"]


def rewrite(fusion: Fusion, rule: Rule) -> Fusion:
    """Applies a rule to every computing record in order; uses of a replaced result follow.

    The rule sees records with operands already replaced. The same Fusion comes back if no record
    changed.
    """
    names: dict[str, str] = {}
    literals: dict[str, Literal] = {}
    records: list[OpRecord] = []
    for record in fusion.definition:
        record = _substitute(record, names, literals)
        new = rule(record) if _is_op(record) else record
        if isinstance(new, OpRecord):
            records.append(new)
        elif isinstance(new, Literal):
            literals[record.outputs[0]] = new
        else:
            names[record.outputs[0]] = new
    if tuple(records) == fusion.definition:
        return fusion
    return define(tuple(records))


def _is_op(record: OpRecord) -> bool:
    return record.op not in ("define_tensor", "define_scalar", "add_output")


def _substitute(
    record: OpRecord, names: dict[str, str], literals: dict[str, Literal]
) -> OpRecord:
    record = rename(record, names)
    if not any(name in literals for name in _read(record)):
        return record
    inputs = tuple(literals.get(o, o) if isinstance(o, str) else o for o in record.inputs)
    attrs = tuple(
        (k, _literal_attr(v, literals) if k in NAMED_ATTRS else v) for k, v in record.attrs
    )
    return OpRecord(record.op, inputs, record.outputs, attrs)


def _literal_attr(value: AttrValue, literals: dict[str, Literal]) -> AttrValue:
    if isinstance(value, tuple):
        return tuple(_literal_attr(item, literals) for item in value)
    return literals[value].value if isinstance(value, str) and value in literals else value


def _read(record: OpRecord) -> set[str]:
    words = set(names_of(record))
    for key, value in record.attrs:
        if key in NAMED_ATTRS:
            words |= set(value if isinstance(value, tuple) else (value,))  # type: ignore[arg-type]
    return words


def read_names(record: OpRecord) -> set[str]:
    """Every value a record reads, in operands and in shapes."""
    return {word for word in _read(record) if isinstance(word, str)}
