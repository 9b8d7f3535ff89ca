# SPDX-License-Identifier: Apache-2.0
"""SegmentedFusion -> the same, with results written into the memory of donated arguments.

    T1 = gelu'(T0, ...)   T0 donated, as large as T1 and lying as T1 does, read nowhere else
->  T1 = T0; kernel(T0, ..., T1)

Only where a pointwise kernel reads an element for the one that it writes in its place, and for
nothing else: then no order of its threads can read what was written. The text of such a kernel does
not promise that the two addresses are different.
"""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.analysis.part import Part
from thunder_fuser.schedule.pointwise import Pointwise
from thunder_fuser.segment.plan import Segment, SegmentedFusion


def with_donations(segmented: SegmentedFusion) -> SegmentedFusion:
    """The plan, in which each donated argument is given to at most one result.

    A result that the caller gets in another shape or order than it is made in takes none.
    """
    fusion = segmented.fusion
    # The caller gets no input back.
    free = {name for name in fusion.donated if _is_plain(segmented, name)}
    free -= {output.name for output in fusion.outputs}
    if not free:
        return segmented
    wanted = {o.name for o in fusion.outputs if o.shape is None and o.stride_order is None}
    # A segment may only write what none behind it reads.
    last = {name: at for at, one in enumerate(segmented.segments) for name in one.inputs}
    segments = []
    for at, one in enumerate(segmented.segments):
        given = [name for name in one.inputs if name in free and last[name] == at]
        pairs = _pairs(one, given, [name for name in one.outputs if name in wanted])
        part = replace(one.part, overwrites=pairs)
        segments.append(replace(one, match=replace(one.match, part=part)) if pairs else one)
    return replace(segmented, segments=tuple(segments))


def _is_plain(segmented: SegmentedFusion, name: str) -> bool:
    """True if an argument lies in memory as its strides say, and no result is copied into it."""
    view = segmented.fusion.tensors[name]
    written = any(output.alias == name for output in segmented.fusion.outputs)
    return not (written or view.by_value or view.mesh is not None or view.domain.transforms)


def _pairs(
    segment: Segment, given: list[str], wanted: list[str]
) -> tuple[tuple[str, str], ...]:
    """Of a pointwise segment, each output that takes an argument's memory, with the argument."""
    found: dict[str, str] = {}
    for output in wanted if segment.scheduler is Pointwise else ():
        left = (name for name in given if name not in found.values())
        target = next((name for name in left if _fits(segment.part, name, output)), None)
        if target is not None:
            found[output] = target
    return tuple(found.items())


def _fits(part: Part, target: str, output: str) -> bool:
    """True if they lie alike, and the target is read only for the same element of the output."""
    a, b = part.tensors[target], part.tensors[output]
    if (a.dtype, a.sizes, part.strides[target]) != (b.dtype, b.sizes, part.strides[output]):
        return False
    result = part.demand.results[output]
    others = [point for name, point in part.demand.results.items() if name != output]
    read_for_others = {point.name for point in part.demand.reached(others)}
    return target not in read_for_others and all(
        point.index == result.index for point in part.demand.points(target)
    )
