# SPDX-License-Identifier: Apache-2.0
"""What the segmenter needs to know of a fusion, computed once: bytes, axes, work, reads.

Expressions are numbered in program order. All sets and orders are over these numbers, so a plan
depends on the program alone.
"""

from __future__ import annotations

from math import prod

from thunder_fuser.analysis.cost import INLINED, work
from thunder_fuser.analysis.domain_map import Axes, DomainMap, Pattern, pattern_of
from thunder_fuser.analysis.index_map import ZERO, accesses
from thunder_fuser.analysis.part import Parts, bytes_in_memory
from thunder_fuser.analysis.sector_waste import SECTOR, SectorWaste
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import DtypeRule, OpKind
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.scalar import Scalar, symbol
from thunder_fuser.target import Target

_CALLED = (OpKind.EXTERNAL, OpKind.COMMUNICATION)
_SCATTERED = ("take_along_axis", "gather")  # their reads are single elements
# Ops that read no more elements of their source than their result has.
_PARTIAL = ("slice", "select", "index_select", "take_along_axis", "gather", "embedding_fwd")


class FusionInfo:
    """What segmentation knows of a specialised fusion on a target."""

    def __init__(self, fusion: Fusion, target: Target) -> None:
        self.fusion, self.target = fusion, target
        self.parts = Parts(fusion)
        self.exprs = fusion.exprs
        self.number = {name: at for at, e in enumerate(self.exprs) for name in e.outputs}
        self.results = fusion.results
        self.waste = SectorWaste(self.parts.of(fusion.exprs), target)
        self._map: DomainMap = self.parts.domain_map
        self.axes: dict[str, Axes] = {
            name: frozenset(self._map.axes(view)) for name, view in fusion.tensors.items()
        }
        self.bytes = {  # in memory, without those of expanded axes; 0 if passed by value
            name: 0 if view.by_value else bytes_in_memory(view, self.parts.strides[name])
            for name, view in fusion.tensors.items()
        }
        self.elements = {name: prod(view.sizes) for name, view in fusion.tensors.items()}
        self.operands, self.numbers = self._reads(by_value=False), self._reads(by_value=True)
        self.uses: dict[str, list[int]] = {name: [] for name in fusion.tensors}
        for at, names in enumerate(self.operands):
            for name in names:
                self.uses[name].append(at)
        self.cuts = [e.outputs[0] for e in self.exprs if e.op == "segment_set"]
        self.compares = any(self._compares(expr) for expr in self.exprs)
        self._indices: dict[str, tuple[Scalar, ...]] = {}
        whole = (*_CALLED, OpKind.REDUCTION, OpKind.SCAN, OpKind.INDEX)
        self._reads_whole = [e.row.kind in whole for e in self.exprs]
        self.work = [self._work(e) for e in self.exprs]
        self.patterns: list[Pattern | None] = [
            pattern_of(self._map, fusion.tensors[e.outputs[0]])
            if e.row.kind is OpKind.REDUCTION else None
            for e in self.exprs
        ]
        self.keeps_place = [self._keeps_place(at) for at in range(len(self.exprs))]
        self.depth = self._depths()

    # ---- values

    def _reads(self, *, by_value: bool) -> list[tuple[str, ...]]:
        """What each expression reads: either the values that kernels take by value, or the rest."""
        tensors = self.fusion.tensors
        return [
            tuple(n for n in dict.fromkeys(names_of(e)) if tensors[n].by_value == by_value)
            for e in self.exprs
        ]

    def is_number(self, at: int) -> bool:
        """True if all results of an expression are numbers, which kernels take by value."""
        return all(self.fusion.tensors[name].is_scalar for name in self.exprs[at].outputs)

    def itemsize(self, name: str) -> int:
        """Bytes of one element."""
        return self.fusion.tensors[name].dtype.bytes

    def elements_read(self, at: int, name: str, wanted: int) -> int:
        """How many elements of an operand are read to compute `wanted` elements of the result."""
        every = self.elements[name]
        if not self._reads_whole[at]:
            return min(every, wanted)
        expr = self.exprs[at]
        if expr.op in _PARTIAL and name == expr.inputs[expr.row.source]:
            apart = SECTOR // self.itemsize(name) if expr.op in _SCATTERED else 1
            return min(every, wanted * apart)
        return every

    # ---- expressions

    def is_made_once(self, at: int) -> bool:
        """True for a boundary, and for a copy that may be worth a kernel of its own: no other
        segment computes it again."""
        op = self.exprs[at].op
        return op == "segment_set" or (op == "stride_order" and self.waste.is_mixed)

    def is_plain(self, at: int) -> bool:
        """True if its axes alone tell schedulers enough: it is no scan, torch call, lookup or
        partial result, and its tensors have elements."""
        expr = self.exprs[at]
        is_whole = expr.row.kind is OpKind.REDUCTION and expr.attr("chunk") is None
        return (expr.row.kind in INLINED or is_whole) and self._has_elements(at)

    def _work(self, expr: OpRecord) -> float:
        """The bytes that memory moves in the time of computing it once."""
        if expr.row.kind in (*_CALLED, OpKind.SCALAR):
            return 0.0
        names = names_of(expr) if expr.row.kind is OpKind.REDUCTION else expr.outputs
        count = max((self.elements[n] for n in names), default=0)
        return work(expr.row, count, self.target)

    def _compares(self, expr: OpRecord) -> bool:
        """True if it compares a computed float, whose last bit may then decide the result."""
        names = (n for n in names_of(expr) if n in self.number)
        return expr.row.rule is DtypeRule.COMPARE and any(
            self.fusion.tensors[name].dtype.is_float for name in names
        )

    def _depths(self) -> list[int]:
        """The most reductions on a path to each expression, itself included.

        A reduction of results of reductions, such as over the rows of a group, reads far fewer
        elements. It is no pass over the data and does not count.
        """
        depth: list[int] = []
        walked: list[int] = []  # the most elements that a reduction on a path has read
        for at, names in enumerate(self.operands):
            makers = [self.number[n] for n in names if n in self.number]
            most = max((walked[maker] for maker in makers), default=0)
            read = 0 if self.patterns[at] is None else self.elements[names[0]]
            depth.append(max((depth[maker] for maker in makers), default=0) + (read > most // 2))
            walked.append(max(most, read))
        return depth

    # ---- where operands are read

    def _keeps_place(self, at: int) -> frozenset[str]:
        """The operands that are read at element x for element x of the result."""
        expr, names = self.exprs[at], self.operands[at]
        kind, pattern = expr.row.kind, self.patterns[at]
        if kind is OpKind.SCAN:
            return frozenset(names)
        if pattern is not None:
            is_whole = expr.attr("chunk") is None
            return frozenset(n for n in names if is_whole and self.axes[n] == pattern.walked)
        is_moved = kind is OpKind.MOVEMENT and expr.op not in ("cat", "pad", "slice", "flip")
        if not (is_moved or kind is OpKind.POINTWISE) or not self._has_elements(at):
            return frozenset()
        reads = accesses(expr, self._index(expr.outputs[0]), self.fusion.tensors)
        same = (a for a in reads if a.index == self._index(a.name) and a.condition.is_const)
        return frozenset(access.name for access in same)

    def _has_elements(self, at: int) -> bool:
        names = (*self.operands[at], *self.exprs[at].outputs)
        return all(self.elements[name] for name in names)

    def _index(self, name: str) -> tuple[Scalar, ...]:
        """The index of a value's element, with one symbol for each class of axes."""
        if name not in self._indices:
            axes = self.fusion.tensors[name].domain.no_reductions
            self._indices[name] = tuple(
                ZERO if axis.is_broadcast
                else symbol(self._map.axis(axis), 0, axis.extent.value - 1)
                for axis in axes
            )
        return self._indices[name]
