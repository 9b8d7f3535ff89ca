# SPDX-License-Identifier: Apache-2.0
"""SegmentedFusion -> the same, with results written into the memory of donated arguments.

    T1 = gelu'(T0, ...)   T0 donated, as large as T1 and lying as T1 does, read nowhere else
->  T1 = T0; kernel(T0, ..., T1)

    T2 = add(mul(T0, 0.9), ...); add_output(T2, alias_input=T0)       T0 donated
->  T2 = T0; kernel(T0, ..., T2)     instead of a copy of T2 into T0 at the end

The kernel must read an element of the argument only for results at the same place, and must do so
once: then no order of its threads can read what was written. In a kernel of reductions this holds
for the values of rows, which one thread stores. The source of such a kernel does not promise that
the two addresses are different. An argument that nothing reads may be written by any kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from thunder_fuser.errors import VerifyError
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.schedule.pointwise import Pointwise
from thunder_fuser.schedule.reduction import Rows
from thunder_fuser.segment.plan import Segment, SegmentedFusion


def with_donations(segmented: SegmentedFusion) -> SegmentedFusion:
    """The plan, in which each donated argument is given to at most one result.

    A result that the caller gets in another shape or order than it is made in takes none.
    """
    fusion = segmented.fusion
    donated = {name for name in fusion.donated if _is_plain(fusion, name)}
    fresh = [o for o in fusion.outputs if fusion.memory_of(o) is None]
    returned = {o.name for o in fresh if not o.alias}
    written = {
        o.name: o.alias for o in fusion.outputs
        if o.alias in donated - {o.name for o in fresh} and o.name not in returned
    }  # fmt: skip
    # The caller gets no input back.
    free = donated - {o.name for o in fusion.outputs} - {o.alias for o in fusion.outputs}
    if not free and not written:
        _check_stores(fusion, segmented)
        return segmented
    wanted = {o.name for o in fusion.outputs if o.shape is None and o.stride_order is None}
    # A segment may only write what none behind it reads.
    last = {name: at for at, segment in enumerate(segmented.segments) for name in segment.inputs}
    unread = set(written.values()) - last.keys()
    segments = []
    for at, segment in enumerate(segmented.segments):
        freed = [*(name for name in segment.inputs if last[name] == at), *unread]
        places = {
            output: [written[output]] if output in written else free for output in segment.outputs
            if output in wanted
        }  # fmt: skip
        pairs = _pairs(segment, {o: [n for n in freed if n in p] for o, p in places.items()})
        part = replace(segment.part, overwrites=pairs)
        match = replace(segment.match, part=part)
        segments.append(replace(segment, match=match) if pairs else segment)
    after = replace(segmented, segments=tuple(segments))
    _check_stores(fusion, after)
    return after


def _check_stores(fusion: Fusion, segmented: SegmentedFusion) -> None:
    """VerifyError if slices that are stored in an argument would have other memory."""
    segments = segmented.segments
    paired = {name for segment in segments for name, _ in segment.part.overwrites}
    for expr in fusion.exprs:
        if expr.op == "index_store" and expr.outputs[0] not in paired:
            raise VerifyError(f"{expr.outputs[0]} of index_store", expected="an argument's memory")


def _is_plain(fusion: Fusion, name: str) -> bool:
    """True if an argument lies in memory as its strides say."""
    view = fusion.tensors[name]
    return not (view.by_value or view.mesh is not None or view.domain.transforms)


def _pairs(
    segment: Segment, places: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, str], ...]:
    """Each output that takes an argument's memory, with the argument; places: those it may take."""
    pairs: dict[str, str] = {}
    for output, names in places.items():
        left = (name for name in names if name not in pairs.values())
        target = next((name for name in left if _fits(segment, name, output)), None)
        if target is not None:
            pairs[output] = target
    return tuple(pairs.items())


def _fits(segment: Segment, target: str, output: str) -> bool:
    """True if they lie alike, and the target is read only for results at the same place."""
    part = segment.part
    if part.producer[output].op == "index_store" or not segment.scheduler.makes_kernel:
        return segment.scheduler.makes_kernel  # of the first, nothing reads the target
    a, b = part.tensors[target], part.tensors[output]
    if (a.dtype, a.sizes, part.strides[target]) != (b.dtype, b.sizes, part.strides[output]):
        return False
    if target not in part.inputs:
        return True
    result, points = part.demand.results[output], part.demand.points(target)
    reading = [
        other for other in part.demand.results.values()
        if target in {point.name for point in part.demand.reached([other])}
    ]  # fmt: skip
    if any(point.index != result.index for point in points):
        return False
    alone = reading == [result]
    match = segment.match
    if isinstance(match, Rows):
        is_of_row = not result.walks(match.reduced) and result not in part.demand.operands.values()
        return is_of_row and alone and not match.chunk
    # What the result is computed from is loaded before it is stored.
    first = result in reading and all(other.index == result.index for other in reading)
    return isinstance(match, Pointwise) and (alone or (first and len(points) == 1))
