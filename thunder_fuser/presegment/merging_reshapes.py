# SPDX-License-Identifier: Apache-2.0
"""A reshape that merges axes moves behind what reads it, down to the results.

    T2 = reshape(T1: f32[8, 32, 8, 64], [8, 256, 64]); T3 = exp(T2); T4 = sum(T3, dims=[0, 2])
->  T5 = exp(T1); T6 = sum(T5, dims=[0, 3]); T4 = reshape(T6, [256])

    T2 = reshape(T1, [8, 256, 64]); add_output(T2)    ->    add_output(T1, shape=[8, 256, 64])

A kernel walks one set of axes. With a reshape in its midst, reductions before and after it go over
axes that no kernel has both of: so the groups of a group norm and its channels would be two kernels
and a round trip through memory. The axes before a merge describe the tensors after it too; a result
in memory is the same bytes in both shapes. Other operands, which no reduction made, are reshaped
where they are read. Only what is connected with a reduction is moved: elsewhere any order will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from thunder_fuser.ir.build import define
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.ops import OpKind
from thunder_fuser.ir.record import OpRecord, names_of, rename

Sizes = tuple[int, ...]
Groups = tuple[Sizes, ...]  # of each merged axis, the sizes of those it is made of


@dataclass(frozen=True, slots=True)
class Merged:
    """A value that is `fine` with some axes merged."""

    fine: str
    groups: Groups

    @property
    def sizes(self) -> Sizes:
        return tuple(prod(group) for group in self.groups)


def move_merging_reshapes(fusion: Fusion) -> Fusion:
    """The fusion with reshapes that merge axes behind pointwise work and reductions."""
    near = _near_reductions(fusion)
    if not any(_merge(fusion, record) for record in fusion.exprs if record.outputs[0] in near):
        return fusion
    mover = _Mover(fusion, near)
    records = tuple(record for one in fusion.definition for record in mover.move(one))
    return define(records) if mover.moved else fusion


def groups_of(fine: Sizes, merged: Sizes) -> Groups | None:
    """The runs of fine axes that multiply to each merged one; None if there are none."""
    found: list[Sizes] = []
    at = 0
    for size in merged:
        end = at + 1
        while end <= len(fine) and prod(fine[at:end]) < size:
            end += 1
        if end > len(fine) or prod(fine[at:end]) != size:
            return None
        found.append(fine[at:end])
        at = end
    return tuple(found) if at == len(fine) else None


def _near_reductions(fusion: Fusion) -> set[str]:
    """The values that a reduction leads to or follows from."""
    after, before = set[str](), set[str]()
    for record in fusion.exprs:
        if record.row.kind is OpKind.REDUCTION or not after.isdisjoint(names_of(record)):
            after.update(record.outputs)
    for record in reversed(fusion.exprs):
        if record.row.kind is OpKind.REDUCTION or not before.isdisjoint(record.outputs):
            before.update(names_of(record))
    return after | before


def _merge(fusion: Fusion, record: OpRecord) -> Groups | None:
    """How a reshape merges axes; None if it is none that only merges."""
    if record.op != "reshape":
        return None
    (source,), (result,) = names_of(record), record.outputs
    shapes = [fusion.tensors[name].shape for name in (source, result)]
    if not all(extent.is_const and extent.value > 0 for shape in shapes for extent in shape):
        return None
    fine, merged = (fusion.tensors[name].sizes for name in (source, result))
    return groups_of(fine, merged) if len(fine) > len(merged) else None


class _Mover:
    """Maps records to records; `merged` values have not been made, their `fine` ones have."""

    def __init__(self, fusion: Fusion, near: set[str]) -> None:
        self.fusion, self.near = fusion, near
        self.moved = False
        self._merged: dict[str, Merged] = {}
        self._names: dict[str, str] = {}
        self._reshaped: dict[tuple[str, Sizes], str] = {}
        self._given: set[str] = set()
        self._reduced: set[str] = set()  # what follows from a reduction

    def move(self, record: OpRecord) -> Iterator[OpRecord]:
        """What stands for one record."""
        record = rename(record, self._names)
        if record.op == "add_output":
            yield from self._output(record)
            return
        names = names_of(record)
        if record.outputs and (_reduces(record) or not self._reduced.isdisjoint(names)):
            self._reduced.update(record.outputs)
        if record.op == "reshape" and self._reshape(record):
            return
        if self._merged.keys().isdisjoint(names):
            yield record
            return
        moved = self._pointwise(record) if record.row.kind is OpKind.POINTWISE else None
        moved = self._reduction(record) if _reduces(record) else moved
        if moved is None:
            yield from self._made(names)
            yield record
        else:
            self.moved = True
            yield from moved

    def _made(self, names: Sequence[str]) -> Iterator[OpRecord]:
        """The reshapes that make these values after all."""
        for name in dict.fromkeys(names):
            one = self._merged.pop(name, None)
            if one is not None:
                yield OpRecord("reshape", (one.fine,), (name,), (("new_shape", one.sizes),))

    def _reshape(self, record: OpRecord) -> bool:
        """True if a value stands for the result: the one it is merged of, or what that was."""
        (source,), (result,) = names_of(record), record.outputs
        behind = self._merged.get(source)
        fine = source if behind is None else behind.fine
        sizes = self.fusion.tensors[result].sizes if self._is_sized(result) else ()
        if behind is not None and tuple(s for group in behind.groups for s in group) == sizes:
            self._names[result] = fine
            self.moved = True
            return True
        groups = _merge(self.fusion, record) if result in self.near else None
        if behind is not None and groups is not None:
            groups = groups_of(tuple(s for group in behind.groups for s in group), sizes)
        if groups is None or not self._is_row_major(source):
            return False
        self._merged[result] = Merged(fine, groups)
        return True

    def _is_sized(self, name: str) -> bool:
        return all(extent.is_const for extent in self.fusion.tensors[name].shape)

    def _is_row_major(self, name: str) -> bool:
        return self.fusion.tensors[name].domain.is_row_major

    def _pointwise(self, record: OpRecord) -> Iterator[OpRecord] | None:
        """The record on fine operands; None if one of them cannot be had."""
        (result,) = record.outputs
        sizes = self.fusion.tensors[result].sizes
        like = [self._merged[n] for n in names_of(record) if n in self._merged]
        groups = next((one.groups for one in like if one.sizes == sizes), None)
        if groups is None or record.op == "segment_set" or not self._is_row_major(result):
            return None
        fines = {name: self._fine(name, groups) for name in dict.fromkeys(names_of(record))}
        if any(fine is None for fine in fines.values()):
            return None
        return self._on_fine(record, groups, fines)  # type: ignore[arg-type]

    def _fine(self, name: str, groups: Groups) -> Sizes | None:
        """The fine sizes of an operand; () if it has no axes, None if it has others."""
        wanted = self.fusion.tensors[name].sizes
        if not wanted:
            return ()
        own = tuple(
            group if size == prod(group) else (1,) * len(group)
            for size, group in zip(wanted, groups, strict=True)
        )
        if name in self._merged:
            return tuple(s for g in own for s in g) if self._merged[name].groups == own else None
        return None if name in self._reduced else tuple(s for group in own for s in group)

    def _on_fine(
        self, record: OpRecord, groups: Groups, fines: dict[str, Sizes]
    ) -> Iterator[OpRecord]:
        (result,) = record.outputs
        stands = {}
        for name, sizes in fines.items():
            if name in self._merged:
                stands[name] = self._merged[name].fine
            elif sizes:
                if (name, sizes) not in self._reshaped:
                    self._reshaped[name, sizes] = f"{name}.as{len(self._reshaped)}"
                    made = (self._reshaped[name, sizes],)
                    yield OpRecord("reshape", (name,), made, (("new_shape", sizes),))
                stands[name] = self._reshaped[name, sizes]
        self._merged[result] = Merged(f"{result}.fine", groups)
        yield replace(rename(record, stands), outputs=(f"{result}.fine",))

    def _reduction(self, record: OpRecord) -> Iterator[OpRecord] | None:
        """sum(x, dims=[1]), axis 1 merged of two  ->  sum(fine, dims=[1, 2])"""
        (source,), (result,) = names_of(record), record.outputs
        one, dims = self._merged[source], record.attr("dims")
        if record.attr("chunk") is not None or not isinstance(dims, tuple):
            return None
        starts = [sum(map(len, one.groups[:at])) for at in range(len(one.groups))]
        fine = tuple(starts[at] + step for at in dims for step in range(len(one.groups[at])))  # type: ignore[index]
        left = [
            (1,) * len(group) if at in dims else group
            for at, group in enumerate(one.groups)
            if at not in dims or record.attr("keepdim")
        ]
        self._merged[result] = Merged(f"{result}.fine", tuple(left))
        attrs = tuple((key, fine if key == "dims" else value) for key, value in record.attrs)
        made = replace(record, inputs=(one.fine,), outputs=(f"{result}.fine",), attrs=attrs)
        return iter([made])

    def _output(self, record: OpRecord) -> Iterator[OpRecord]:
        """A result in the shape asked for, of the fine value if that is one of ours alone."""
        (name,) = names_of(record)
        one = self._merged.get(name)
        if one is None:
            self._given.add(name)
            yield record
            return
        fine = one.fine
        is_ours = fine not in self._given and fine not in self.fusion.inputs
        if record.attrs or not is_ours or not one.groups:
            yield from self._made([name])
            yield record
            return
        self.moved = True
        self._given.add(fine)
        yield replace(record, inputs=(fine,), attrs=(("shape", one.sizes),))


def _reduces(record: OpRecord) -> bool:
    return record.outputs != () and record.op not in ("define_tensor", "define_scalar") and (
        record.row.kind is OpKind.REDUCTION
    )
