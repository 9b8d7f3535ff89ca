# SPDX-License-Identifier: Apache-2.0
"""Copies of large arguments that lie in another memory order than a sum walks.

    T2 = mul(T0: bf16[n, c, h, w], T1: the same, channels last); T3 = sum(T2)
->  T4 = stride_order(T1, row-major); T2 = mul(T0, T4); T3 = sum(T2)

The copy costs nothing as long as it is computed where it is read. It is a place at which the
segmenter may cut: with the prices of analysis/sector_waste.py a kernel of its own pays, which
transposes through shared memory (schedule/transpose.py), and the sum's reads are side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from thunder_fuser.analysis.part import Part, Parts
from thunder_fuser.analysis.sector_waste import SectorWaste
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of, rename
from thunder_fuser.ir.strides import stride_order_of
from thunder_fuser.presegment.rewrite import RewriteRule
from thunder_fuser.schedule.axes import order_over, places_in_views, summed_order
from thunder_fuser.target import Target


@dataclass(frozen=True, slots=True)
class _Copy:
    """An argument, the stride order of its copy, and the expressions that read the copy."""

    name: str
    order: tuple[int, ...]
    readers: tuple[OpRecord, ...]


def unify_memory_order(fusion: Fusion, target: Target, options: CompileOptions) -> RewriteRule:
    """Copies arguments of another memory order, where reading them costs more than to copy."""
    if target.is_cpu:
        return {}
    whole = Parts(fusion).of(fusion.exprs)
    waste = SectorWaste(whole, target)
    if not waste.is_mixed:
        return {}
    copies: dict[str, _Copy] = {}
    for record in whole.reductions:
        for copy in _copies(whole, record, waste, target, options):
            copies.setdefault(copy.name, copy)
    readers = dict.fromkeys(reader for copy in copies.values() for reader in copy.readers)
    return {reader: _written(reader, copies.values()) for reader in readers}


def _copies(
    whole: Part, record: OpRecord, waste: SectorWaste, target: Target, options: CompileOptions
) -> Iterator[_Copy]:
    """The copies that one reduction needs."""
    pattern = whole.patterns[record.outputs[0]]
    order = order_of_sum(whole, record, options)
    for name, readers in _readers(whole, record).items() if order else ():
        axes, size = whole.memory_axes(name), whole.bytes_of(name)
        wanted = order_over(order, places_in_views(axes, whole.merged_axes))
        is_whole, is_row = sorted(wanted) == sorted(axes), order[-1] in pattern.reduced
        wasted = waste.wasted(name, size, order[-1], is_row) if is_whole else 0
        if wasted > 2 * size + target.launch_bytes:
            yield _Copy(name, _stride_order(whole, name, wanted), readers)


def order_of_sum(whole: Part, record: OpRecord, options: CompileOptions) -> tuple[str, ...]:
    """The axes that a reduction walks, slowest first: in the memory order of the arguments that it
    reads with most of them, or of their views, if these agree; else as `summed_order` finds it.

    T4 = sum(T0[i0, i1] * x[i1], i1); T7 = sum(T1[i1, i0] * T4[i0], i0)     (i0, i1) and (i1, i0)
    """
    pattern = whole.patterns[record.outputs[0]]
    places = places_in_views(pattern.walked, reversed(whole.remade_axes))
    orders = {order_over(whole.memory_axes(n), places) for n in _readers(whole, record)}
    most = max(map(len, orders), default=0)
    longest = [order for order in orders if len(order) == most and pattern.reduced <= set(order)]
    if len(longest) == 1:
        return (*sorted(pattern.walked.difference(longest[0])), *longest[0])
    return summed_order(whole, record, pattern.walked, options)


def _readers(whole: Part, record: OpRecord) -> dict[str, tuple[OpRecord, ...]]:
    """The arguments that a reduction reads through pointwise work and views, with their readers."""
    readers: dict[str, dict[OpRecord, None]] = {}
    seen, stack = {record}, [record]
    while stack:
        expr = stack.pop()
        for name in names_of(expr):
            maker = whole.producer.get(name)
            if maker is None and not whole.tensors[name].by_value:
                readers.setdefault(name, {})[expr] = None
            if maker is not None and _passes(maker) and maker not in seen:
                seen.add(maker)
                stack.append(maker)
    place = {expr: at for at, expr in enumerate(whole.exprs)}
    return {name: tuple(sorted(exprs, key=place.__getitem__)) for name, exprs in readers.items()}


def _passes(maker: OpRecord) -> bool:
    """True for pointwise work and views, but not for what may be stored: boundaries and copies."""
    kinds = (OpKind.POINTWISE, OpKind.MOVEMENT)
    return maker.row.kind in kinds and maker.op not in ("segment_set", "stride_order")


def _stride_order(whole: Part, name: str, wanted: tuple[str, ...]) -> tuple[int, ...]:
    """The stride order in which the axes follow one another so; broadcasts come first."""
    axes = whole.tensors[name].domain.no_reductions
    places = {whole.domain_map.axis(axes[at]): at for at in range(len(axes))}
    real = [places[axis] for axis in wanted]
    return stride_order_of([*(at for at in range(len(axes)) if at not in real), *real])


def _written(record: OpRecord, copies: Collection[_Copy]) -> list[OpRecord]:
    """A record that reads copies, behind those that it is the first to read."""
    read = [copy for copy in copies if record in copy.readers]
    names = {copy.name: f"{copy.name}.copy" for copy in read}
    written = [
        OpRecord("stride_order", (copy.name,), (names[copy.name],), (("stride_order", copy.order),))
        for copy in read if copy.readers[0] == record
    ]
    return [*written, rename(record, names)]
