# SPDX-License-Identifier: Apache-2.0
"""A row of the table of passes: how one pass changes a Fusion, and which records it replaced.

`define` numbers the values again after each row, so a row may use any names that are not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import AttrValue, Operand, OpRecord, names_of, record_text, rename
from thunder_fuser.ir.rules.build import define
from thunder_fuser.ir.rules.verify import verify

# What stands for a record: another one, the operand that replaces its result, or several records.
# A function sees the record with operands already replaced. A mapping has the records that change.
New = OpRecord | Operand | list[OpRecord]
RewriteRule = Callable[[OpRecord], New] | Mapping[OpRecord, Iterable[OpRecord]]
Changes = tuple[tuple[OpRecord, Operand | list[OpRecord]], ...]


@dataclass(frozen=True, slots=True)
class Fired:
    """What a row did: the records that it replaced, and by what; none if it wrote all anew."""

    name: str
    changes: Changes
    after: Fusion

    def __str__(self) -> str:
        lines = [f"== {self.name}"]
        for old, new in self.changes:
            lines.append(f"- {record_text(old)}")
            if isinstance(new, list):
                lines += [f"+ {record_text(record)}" for record in new]
            else:
                lines.append(f"+ {old.outputs[0]} is {new if isinstance(new, str) else new.value}")
        whole = () if self.changes else self.after.definition
        return "\n".join([*lines, *(f"  {record_text(record)}" for record in whole)])


@dataclass(frozen=True, slots=True)
class FusionPass:
    """A row of the table. run: makes the rule for a fusion, or a new fusion, or the same one.

    ops: without one of them in a fusion, the row does nothing. A function is called for these
    alone. needed: why the row cannot be left out. repeatable: it runs only under this value of the
    option; None: under both. for_target: `run` takes the target and the options too.
    """

    run: Callable[..., RewriteRule | Fusion]
    ops: frozenset[str]
    needed: str = ""
    repeatable: bool | None = None
    for_target: bool = False

    @property
    def name(self) -> str:
        return self.run.__name__

    def fire(self, fusion: Fusion, *context: object) -> Fired | None:
        """The row on a fusion, verified; None if nothing changes. context: as `for_target` says."""
        if self.ops.isdisjoint([record.op for record in fusion.definition]):
            return None
        new = self.run(fusion, *context)
        changes, after = ((), new) if isinstance(new, Fusion) else _rewritten(fusion, new, self.ops)
        return None if after is fusion else Fired(self.name, changes, verify(after, self.name))


def _rewritten(fusion: Fusion, rule: RewriteRule, ops: frozenset[str]) -> tuple[Changes, Fusion]:
    """What a rule replaces, in order, and the fusion after; the same one if that is nothing."""
    replaced: dict[str, Operand] = {}
    records: list[OpRecord] = []
    changes: list[tuple[OpRecord, Operand | list[OpRecord]]] = []
    for old in fusion.definition:
        record = rename(old, replaced) if replaced else old
        if isinstance(rule, Mapping):
            new: New = [*rule.get(old, [old])]
        else:
            new = rule(record) if old.op in ops else record
        new = [new] if isinstance(new, OpRecord) else new
        if isinstance(new, list):
            records += new
        else:
            replaced[old.outputs[0]] = replaced.get(str(new), new)  # rules may read the old fusion
        if new != [record]:
            changes.append((record, new))
    return tuple(changes), define(tuple(records)) if changes else fusion


def makers(
    producer: Mapping[str, OpRecord], name: str, enters: Callable[[OpRecord], bool] | None = None
) -> Iterator[OpRecord]:
    """What a value is computed by, its maker first. enters: whether to go on behind a maker."""
    seen, stack = set[OpRecord](), [name]
    while stack:
        record = producer.get(stack.pop())
        if record is not None and record not in seen:
            seen.add(record)
            yield record
            stack += names_of(record) if enters is None or enters(record) else ()


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
