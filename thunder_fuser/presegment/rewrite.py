# SPDX-License-Identifier: Apache-2.0
"""How a pass changes a Fusion: it maps records to records, and `define` infers types again.

`define` also numbers the values again, so a pass may use any names that are not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.record import AttrValue, Operand, OpRecord, rename
from thunder_fuser.ir.rules.build import define

# What a pass makes of one record: a record, or the operand that replaces its result.
Rule = Callable[[OpRecord], "OpRecord | Operand"]


def rewrite(fusion: Fusion, rule: Rule) -> Fusion:
    """Applies a rule to every record that computes, in order.

    The rule sees records with operands already replaced. The same Fusion is returned if no record
    changed.
    """
    replaced: dict[str, Operand] = {}
    records: list[OpRecord] = []
    for record in fusion.definition:
        record = rename(record, replaced)
        new = rule(record) if record.op in OPS else record
        if isinstance(new, OpRecord):
            records.append(new)
        else:
            replaced[record.outputs[0]] = new
    return fusion if tuple(records) == fusion.definition else define(tuple(records))


def expand(fusion: Fusion, replacements: Mapping[OpRecord, Iterable[OpRecord]]) -> Fusion:
    """The fusion with some records replaced by others; the same Fusion if none is."""
    if not replacements:
        return fusion
    return define(tuple(new for old in fusion.definition for new in replacements.get(old, (old,))))


def with_attrs(record: OpRecord, **new: AttrValue) -> OpRecord:
    """The record with these attributes changed or added."""
    return replace(record, attrs=tuple({**dict(record.attrs), **new}.items()))


class Chain:
    """A chain of records, in which each one reads the result of the one before.

    >>> chain = Chain("T0", "to")
    >>> chain.add("permute", dims=(1, 0)); chain.add("reshape", new_shape=(6,))
    >>> [(record.op, record.inputs, record.outputs) for record in chain.records]
    [('permute', ('T0',), ('T0.to0',)), ('reshape', ('T0.to0',), ('T0.to1',))]
    """

    def __init__(self, name: str, suffix: str) -> None:
        self.last, self.records = name, list[OpRecord]()
        self._prefix = f"{name}.{suffix}"

    def add(self, op: str, *more: Operand, **attrs: AttrValue) -> None:
        """Adds a record; `more`: operands after the first."""
        result = f"{self._prefix}{len(self.records)}"
        self.records.append(OpRecord(op, (self.last, *more), (result,), tuple(attrs.items())))
        self.last = result

    def named(self, name: str) -> list[OpRecord]:
        """The records, with `name` as the last one's result."""
        return [*self.records[:-1], replace(self.records[-1], outputs=(name,))]
