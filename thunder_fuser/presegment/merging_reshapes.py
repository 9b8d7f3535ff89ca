# SPDX-License-Identifier: Apache-2.0
"""Moves reshapes that merge axes after their readers, down to the results.

    T2 = reshape(T1: f32[8, 32, 8, 64], [8, 256, 64]); T3 = exp(T2); T4 = sum(T3, dims=[0, 2])
->  T5 = exp(T1); T6 = sum(T5, dims=[0, 3]); T4 = reshape(T6, [256])

    T2 = reshape(T1, [8, 256, 64]); add_output(T2)    ->    add_output(T1, shape=[8, 256, 64])

    T2 = reshape(T1: f32[4, 64, 99], [256, 99]); T3 = max(T2, dims=[1])
    T4 = broadcast_in_dim(T3, [256, 99], [0]); T5 = sub(T2, T4)
->  T3 = max(T1, dims=[2]); T4 = broadcast_in_dim(T3, [4, 64, 99], [0, 1]); T6 = sub(T1, T4)

A kernel walks one set of axes. Reductions before and after a reshape have different axes, so they
would be two kernels with a round trip through memory: the groups and the channels of a group norm,
for example. The axes before a merge ("fine" axes) can describe the tensors after it too, and a
result is the same bytes in both shapes. Other operands that do not depend on a reduction are
reshaped where they are read. So are arguments of a merged shape where they are reduced, so that
reductions over the same elements have the same axes. Only values connected with a reduction are
moved, because elsewhere the order makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod

from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.record import AttrValue, OpRecord, names_of, rename
from thunder_fuser.ir.rules.build import define
from thunder_fuser.ir.strides import reshaped_order
from thunder_fuser.presegment.rewrite import with_attrs

Sizes = tuple[int, ...]
AxisGroups = tuple[Sizes, ...]  # for each merged axis, the sizes of the axes that it merges


@dataclass(frozen=True, slots=True)
class Merged:
    """The reshape of a value, `fine`, that merges groups of its axes."""

    fine: str
    groups: AxisGroups

    @property
    def sizes(self) -> Sizes:
        return tuple(prod(group) for group in self.groups)


def _fine_sizes(groups: AxisGroups) -> Sizes:
    return tuple(size for group in groups for size in group)


def move_merging_reshapes(fusion: Fusion) -> Fusion:
    """The fusion with reshapes that merge axes moved after pointwise work and reductions."""
    mover = _Mover(fusion)
    if not mover.known:
        return fusion
    for record in fusion.definition:
        mover.move(record)
    return define(tuple(mover.records)) if mover.moved else fusion


def groups_of(fine: Sizes, merged: Sizes) -> AxisGroups | None:
    """The neighbouring fine axes that each merged axis merges; None if the sizes do not match."""
    groups: list[Sizes] = []
    at = 0
    for size in merged:
        end = at + 1
        while end <= len(fine) and prod(fine[at:end]) < size:
            end += 1
        if end > len(fine) or prod(fine[at:end]) != size:
            return None
        groups.append(fine[at:end])
        at = end
    return tuple(groups) if at == len(fine) else None


def _near_reductions(fusion: Fusion) -> set[str]:
    """The values that a reduction depends on, or that depend on a reduction."""
    after, before = set[str](), set[str]()
    for record in fusion.exprs:
        if record.row.kind is OpKind.REDUCTION or not after.isdisjoint(names_of(record)):
            after.update(record.outputs)
    for record in reversed(fusion.exprs):
        if record.row.kind is OpKind.REDUCTION or not before.isdisjoint(record.outputs):
            before.update(names_of(record))
    return after | before


def _known_sizes(fusion: Fusion, name: str) -> Sizes:
    """The sizes of a value; () if one of them is not known or is 0."""
    view = fusion.tensors[name]
    sizes = view.sizes if all(extent.is_const for extent in view.shape) else ()
    return sizes if all(sizes) else ()


class _Mover:
    """Writes the new records, which compute fine values in place of merged ones.

    near: see _near_reductions; known: {sizes of a merged value: its groups}.
    """

    def __init__(self, fusion: Fusion) -> None:
        self.fusion, self.near = fusion, _near_reductions(fusion)
        self._sizes = {name: _known_sizes(fusion, name) for name in fusion.tensors}
        self.known: dict[Sizes, AxisGroups] = {}
        for record in fusion.exprs:
            if record.op == "reshape" and record.outputs[0] in self.near:
                fine, merged = (self._sizes[n] for n in (*names_of(record), *record.outputs))
                groups = groups_of(fine, merged) if len(fine) > len(merged) else None
                self.known.update({merged: groups} if groups is not None else {})
        self.records: list[OpRecord] = []
        self.moved = False
        self._merged: dict[str, Merged] = {}
        self._names: dict[str, str] = {}
        self._reshaped: dict[tuple[str, Sizes], str] = {}
        self._taken = set(fusion.inputs)  # arguments and results
        self._reduced: set[str] = set()  # the values that depend on a reduction

    def move(self, record: OpRecord) -> None:
        """Writes the records that replace one record."""
        record = rename(record, self._names)
        if record.op == "add_output":
            self._output(record)
        elif record.op not in OPS or not self._is_moved(record):
            self._write_merged(names_of(record))
            self.records.append(record)

    def _is_moved(self, record: OpRecord) -> bool:
        """True if a fine value replaces the result."""
        kind = record.row.kind
        if kind is OpKind.REDUCTION or not self._reduced.isdisjoint(names_of(record)):
            self._reduced.update(record.outputs)
        if record.op == "reshape":
            return self._reshape(record)
        if kind is OpKind.REDUCTION:
            is_moved = self._reduction(record)
        elif record.op == "broadcast_in_dim":
            is_moved = self._broadcast(record)
        else:
            is_like = kind is OpKind.POINTWISE or record.op == "set"  # `set`: of two equal results
            is_moved = is_like and self._pointwise(record)
        self.moved |= is_moved
        return is_moved

    def _write_reshape(self, source: str, result: str, sizes: Sizes) -> None:
        self.records.append(OpRecord("reshape", (source,), (result,), (("new_shape", sizes),)))

    def _read_as(self, name: str, sizes: Sizes) -> str:
        """The reshape of an operand, written once."""
        if (name, sizes) not in self._reshaped:
            view = self._reshaped[name, sizes] = f"{name}.as{len(self._reshaped)}"
            self._sizes[view] = sizes
            self._write_reshape(name, view, sizes)
        return self._reshaped[name, sizes]

    def _write_merged(self, names: Iterable[str]) -> None:
        """Writes the reshapes of merged values, which something needs after all."""
        for name in names:
            merged = self._merged.pop(name, None)
            if merged is not None:
                self._write_reshape(merged.fine, name, merged.sizes)

    def _reshape(self, record: OpRecord) -> bool:
        """True if the result is not computed, since a fine value replaces it."""
        (source,), (result,) = names_of(record), record.outputs
        merged = self._merged.get(source)
        fine = source if merged is None else merged.fine
        before, after = self._sizes[fine], self._sizes[result]
        if merged is not None and before == after:
            self._names[result] = fine
            self.moved = True
            return True
        merges = len(self._sizes[source]) > len(after) > 0 and result in self.near
        groups = groups_of(before, after) if merges else None
        if groups is None or not self._is_row_major(source):
            return False
        self._merged[result] = Merged(fine, groups)
        return True

    def _is_row_major(self, name: str) -> bool:
        view = self.fusion.tensors.get(name)  # a new value has none
        return view is None or view.domain.is_row_major

    def _pointwise(self, record: OpRecord) -> bool:
        """exp(merged)  ->  exp(fine), if all operands are available on fine axes"""
        (result,) = record.outputs
        like = [self._merged[n] for n in names_of(record) if n in self._merged]
        groups = next((g.groups for g in like if g.sizes == self._sizes[result]), None)
        if groups is None or record.op == "segment_set" or not self._is_row_major(result):
            return False
        fines = {name: self._fine(name, groups) for name in names_of(record)}
        replaced: dict[str, str] = {}
        if None in fines.values():
            return False
        for name, sizes in fines.items():
            if name in self._merged:
                replaced[name] = self._merged[name].fine
            elif sizes:
                replaced[name] = self._read_as(name, sizes)
        return self._write_fine(rename(record, replaced), groups)

    def _fine(self, name: str, groups: AxisGroups) -> Sizes | None:
        """The fine sizes of an operand; () if it has no axes, None if it has other fine axes."""
        wanted = self._sizes[name]
        if not wanted:
            return ()
        operand_groups = tuple(
            group if size == prod(group) else (1,) * len(group)
            for size, group in zip(wanted, groups, strict=True)
        )
        merged = self._merged.get(name)
        is_had = name not in self._reduced if merged is None else merged.groups == operand_groups
        return _fine_sizes(operand_groups) if is_had else None

    def _write_fine(self, record: OpRecord, groups: AxisGroups, **attrs: AttrValue) -> bool:
        """Writes a record that computes a fine value in place of its result; True, as it does."""
        (result,), fine = record.outputs, f"{record.outputs[0]}.fine"
        self._merged[result] = Merged(fine, groups)
        self._sizes[fine] = _fine_sizes(groups)
        if result in self._reduced:
            self._reduced.add(fine)
        self.records.append(with_attrs(replace(record, outputs=(fine,)), **attrs))
        return True

    def _reduction(self, record: OpRecord) -> bool:
        """sum(x, dims=[1]), axis 1 merged of two  ->  sum(fine, dims=[1, 2])"""
        (source,) = names_of(record)
        merged = self._merged.get(source) or self._argument(source)
        if merged is None or record.attr("chunk") is not None:
            return False
        dims = record.ints("dims")
        starts = list(accumulate(map(len, merged.groups), initial=0))
        fine_dims = tuple(at for dim in dims for at in range(starts[dim], starts[dim + 1]))
        left = tuple(
            (1,) * len(group) if at in dims else group
            for at, group in enumerate(merged.groups)
            if at not in dims or record.attr("keepdim")
        )
        return self._write_fine(replace(record, inputs=(merged.fine,)), left, dims=fine_dims)

    def _broadcast(self, record: OpRecord) -> bool:
        """broadcast_in_dim(x, [256, 1], [0])  ->  broadcast_in_dim(fine, [8, 32, 1], [0, 1])"""
        (source,), (result,) = names_of(record), record.outputs
        merged, sizes = self._merged.get(source), self._sizes[result]
        dims = record.ints("broadcast_dims")
        if merged is None or not sizes:
            return False
        groups = [*self.known.get(sizes, [(size,) for size in sizes])]
        for axis, group in zip(dims, merged.groups, strict=True):
            if prod(group) == sizes[axis]:
                groups[axis] = group
            elif len(group) != len(groups[axis]):
                return False
        starts = list(accumulate(map(len, groups), initial=0))
        fine_dims = tuple(at for axis in dims for at in range(starts[axis], starts[axis + 1]))
        moved, fine = replace(record, inputs=(merged.fine,)), tuple(groups)
        return self._write_fine(moved, fine, shape=_fine_sizes(fine), broadcast_dims=fine_dims)

    def _argument(self, name: str) -> Merged | None:
        """Reshapes an argument, or its cast, to the fine axes of merged values of the same size."""
        groups = self.known.get(self._sizes[name])
        if groups is None:
            return None
        maker, fine = self.fusion.producer.get(name), _fine_sizes(groups)
        source = maker.inputs[0] if maker is not None and maker.op == "cast" else name
        if source not in self.fusion.inputs and (name, fine) not in self._reshaped:
            return None
        return Merged(self._read_as(name, fine), groups)

    def _output(self, record: OpRecord) -> None:
        """Returns the fine value in the merged shape, unless that is an argument or a result."""
        (name,), others = names_of(record), {*dict(record.attrs)} - {"stride_order"}
        merged = self._merged.get(name)
        if merged is None or others or not merged.groups or merged.fine in self._taken:
            self._write_merged([name])
            self._taken.add(name)
            self.records.append(record)
            return
        self.moved = True
        self._taken.add(merged.fine)
        attrs: tuple[tuple[str, AttrValue], ...] = (("shape", merged.sizes),)
        if record.attr("stride_order") is not None:
            order = record.ints("stride_order")
            fine = reshaped_order(order, merged.sizes, _fine_sizes(merged.groups))
            attrs = (("stride_order", fine), *attrs)
        self.records.append(replace(record, inputs=(merged.fine,), attrs=attrs))
