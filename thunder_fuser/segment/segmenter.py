# SPDX-License-Identifier: Apache-2.0
"""(Fusion, Target) -> SegmentedFusion: which expressions share a kernel, so that few bytes move.

    T2 = sum(T0); T4 = mul(T0, T3); T5 = sum(T4 over the other axis)
->  segment 0 (persistent): T2, T4        segment 1 (reduction): T5, reading T4

The cost of a plan, in bytes, adds up what its segments read and store, a price for each launch, and
a price for arithmetic (candidate.py). Schedulers see every expression of a segment.

1. One segment with everything is tried first, and taken unless it reads across memory.
2. Cheap producers are copied into their readers, which makes units (units.py).
3. In a large fusion, a unit with a single reader is merged into it (merge.py, `coarsen`).
4. Units merge while that saves bytes and some scheduler takes the result (merge.py). A small fusion
   is merged in two orders, and the cheaper plan is taken.
5. A value is recomputed where that costs less than moving it (refine.py).
6. A small plan is searched for a better one (refine.py).
7. If no scheduler takes some segment after all, each expression gets a segment of its own.
8. Products of the same few rows share a launch (join.py).
9. Segments are ordered so that few bytes of intermediates are alive. While communication runs,
   kernels run that do not need its result (run_order.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.errors import ScheduleError
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import record_text
from thunder_fuser.schedule.scheduler import Match, NoMatch
from thunder_fuser.segment.acceptance import NAME, Acceptance
from thunder_fuser.segment.candidate import (
    Candidate,
    candidates_from,
    edge_bytes,
    external,
    owners,
    total,
    wasted,
)
from thunder_fuser.segment.fusion_info import FusionInfo
from thunder_fuser.segment.join import join
from thunder_fuser.segment.merge import (
    CYCLE,
    Groups,
    by_gain,
    by_program,
    coarsen,
    merge_greedily,
)
from thunder_fuser.segment.plan import Refusal, Segment, SegmentedFusion
from thunder_fuser.segment.refine import recompute_cheap_edges, refine
from thunder_fuser.segment.run_order import by_liveness, by_posts, peak
from thunder_fuser.segment.units import units_of
from thunder_fuser.target import Target

MOST_SEARCHED = 64  # units: a larger plan is not searched for a better one


def segment(fusion: Fusion, target: Target, options: CompileOptions) -> SegmentedFusion:
    """The segments of a specialised fusion; ScheduleError if an expression fits no scheduler."""
    info = FusionInfo(fusion, target)
    acceptance = Acceptance(info, options)
    whole = _whole(info)
    if not whole.stores:
        return planned(acceptance, [], ())
    is_taken = not acceptance.refusals(whole)
    if is_taken and wasted(info, whole) <= target.launch_bytes:
        return planned(acceptance, [whole], ())
    units = units_of(info)
    is_small = len(units) <= MOST_SEARCHED
    if not is_small:
        units = coarsen(acceptance, units)
    ranks = (by_gain, by_program) if is_small else (by_gain,)
    groupings = [merge_greedily(units, acceptance, rank) for rank in ranks]
    plans = [candidates_of(groups) for groups in groupings]
    best = min(range(len(plans)), key=lambda at: total(info, plans[at])) if is_small else 0
    candidates = recompute_cheap_edges(acceptance, plans[best])
    if is_small:
        candidates = refine(acceptance, candidates)
    if is_taken and total(info, [whole]) <= total(info, candidates):
        candidates = [whole]
    if any(acceptance.refusals(candidate) for candidate in candidates):
        candidates = each_alone(acceptance)
    candidates = _ordered(acceptance, join(acceptance, candidates))
    return planned(acceptance, candidates, _refusals(groupings[best], candidates))


def _ordered(acceptance: Acceptance, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates in the order in which they run."""
    info = acceptance.info
    ordered = by_posts(info, by_liveness(info, candidates))
    if ordered is None:  # one kernel has work from before and from after a communication
        ordered = by_posts(info, by_liveness(info, each_alone(acceptance)))
    assert ordered is not None  # single expressions can run in the definition's order
    return ordered


def _whole(info: FusionInfo) -> Candidate:
    """All expressions, storing the results that are computed."""
    results = info.results & info.number.keys()
    return Candidate(frozenset(range(len(info.exprs))), frozenset(results))


def candidates_of(groups: Groups) -> list[Candidate]:
    """The groups as candidates, in an order in which they can run."""
    line = groups.order.groups()
    place = {group: at for at, group in enumerate(line)}
    owner = {name: place[groups.order.find(at)] for name, at in groups.owner.items()}
    sets = [frozenset(groups.summary[group].exprs) for group in line]
    return candidates_from(groups.info, sets, owner)


def _refusals(groups: Groups, candidates: Sequence[Candidate]) -> tuple[Refusal, ...]:
    """Why segments with a common edge or value were not merged, by their final numbers."""
    owner = owners(candidates)
    place: dict[int, int] = {}
    for group, unit in groups.summary.items():
        stored = [owner[name] for name in sorted(unit.stores) if name in owner]
        place.update({group: stored[0]} if stored else {})
    refused: dict[tuple[int, int], tuple[NoMatch, ...]] = {}
    for pair, reasons in groups.refused.items():
        first, second = sorted(place.get(groups.order.find(at), -1) for at in pair)
        if 0 <= first < second:
            is_named = reasons == CYCLE and len(candidates) <= MOST_SEARCHED
            named = _cycle(groups.info, candidates, first, second) if is_named else reasons
            refused[first, second] = named
    return tuple(Refusal(*pair, refused[pair]) for pair in sorted(refused))


def _cycle(info: FusionInfo, segments: Sequence[Candidate], a: int, b: int) -> tuple[NoMatch, ...]:
    """The refusal that names the values along a path from candidate `a` to a later one, `b`.

    Without such a path in the final plan, the refusal names none.
    """
    owner = owners(segments)
    came: dict[int, tuple[int, str]] = {}
    line = [b]
    for at in line:
        for name in external(info, segments[at].exprs):
            maker = owner.get(name)
            if maker is None or maker in came or (at, maker) == (b, a):
                continue
            came[maker] = (at, name)
            line.append(maker)
    if a not in came:
        return CYCLE
    path, at = [], a
    while at != b:
        at, name = came[at]
        path.append(name)
    return (NoMatch(NAME, f"it would be a cycle: {' -> '.join(path)} passes through others"),)


def planned(
    acceptance: Acceptance, candidates: Sequence[Candidate], refusals: tuple[Refusal, ...]
) -> SegmentedFusion:
    """The plan of accepted candidates, which are in an order in which they can run."""
    info = acceptance.info
    segments = []
    for candidate in candidates:
        match = acceptance.ask(candidate)
        assert isinstance(match, Match)  # all candidates were asked about
        segments.append(Segment(match, edge_bytes(info, candidate)))
    return SegmentedFusion(
        info.fusion,
        tuple(segments),
        info.parts.strides,
        refusals,
        edge_bytes=sum(segment.edge_bytes for segment in segments),
        lower_bound=edge_bytes(info, _whole(info)),
        peak_bytes=peak(info, candidates),
    )


def each_alone(acceptance: Acceptance) -> list[Candidate]:
    """A segment for each expression; ScheduleError lists those that no scheduler takes alone."""
    info = acceptance.info
    line = [at for at in range(len(info.exprs)) if not info.is_number(at)]
    owner = {name: n for n, at in enumerate(line) for name in info.exprs[at].outputs}
    candidates = candidates_from(info, [frozenset([at]) for at in line], owner)
    refused = [(candidate, acceptance.refusals(candidate)) for candidate in candidates]
    lines = [
        f"{record_text(info.exprs[min(candidate.exprs)])}: {'; '.join(map(str, reasons))}"
        for candidate, reasons in refused if reasons
    ]
    if lines:
        raise ScheduleError(
            f"{len(lines)} expressions that no scheduler takes, even alone",
            expected="one that accepts each",
            got="\n    " + "\n    ".join(lines),
            do="leave these operations to torch",
        )
    return candidates
