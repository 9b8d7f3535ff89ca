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
8. Segments are ordered so that few bytes of intermediates are alive. While communication runs,
   kernels run that do not need its result (run_order.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.errors import ScheduleError
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import record_text
from thunder_fuser.schedule.scheduler import Match, Reject
from thunder_fuser.segment.acceptance import NAME, Acceptance
from thunder_fuser.segment.candidate import (
    Candidate,
    candidates_from,
    crossed,
    edge_bytes,
    external,
    homes,
    total,
)
from thunder_fuser.segment.facts import Facts
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
    facts = Facts(fusion, target)
    acceptance = Acceptance(facts, options)
    whole = _whole(facts)
    if not whole.stores:
        return planned(acceptance, [], ())
    is_taken = not acceptance.refusals(whole)
    if is_taken and crossed(facts, whole) <= target.launch_bytes:
        return planned(acceptance, [whole], ())
    units = units_of(facts)
    is_small = len(units) <= MOST_SEARCHED
    if not is_small:
        units = coarsen(acceptance, units)
    ranks = (by_gain, by_program) if is_small else (by_gain,)
    found = [merge_greedily(units, acceptance, rank) for rank in ranks]
    plans = [candidates_of(groups) for groups in found]
    best = min(range(len(plans)), key=lambda at: total(facts, plans[at])) if is_small else 0
    candidates = recompute_cheap_edges(acceptance, plans[best])
    if is_small:
        candidates = refine(acceptance, candidates)
    if is_taken and total(facts, [whole]) <= total(facts, candidates):
        candidates = [whole]
    if any(acceptance.refusals(one) for one in candidates):
        candidates = one_by_one(acceptance)
    candidates = _ordered(acceptance, candidates)
    return planned(acceptance, candidates, _refusals(found[best], candidates))


def _ordered(acceptance: Acceptance, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates in the order in which they run."""
    facts = acceptance.facts
    found = by_posts(facts, by_liveness(facts, candidates))
    if found is None:  # one kernel has work from before and from after a communication
        found = by_posts(facts, by_liveness(facts, one_by_one(acceptance)))
    assert found is not None  # single expressions can run in the definition's order
    return found


def _whole(facts: Facts) -> Candidate:
    """All expressions, storing the results that are computed."""
    results = facts.results & facts.number.keys()
    return Candidate(frozenset(range(len(facts.exprs))), frozenset(results))


def candidates_of(groups: Groups) -> list[Candidate]:
    """The groups as candidates, in an order in which they can run."""
    line = groups.order.groups()
    place = {group: at for at, group in enumerate(line)}
    home = {name: place[groups.order.find(at)] for name, at in groups.home.items()}
    sets = [frozenset(groups.summary[group].exprs) for group in line]
    return candidates_from(groups.facts, sets, home)


def _refusals(groups: Groups, candidates: Sequence[Candidate]) -> tuple[Refusal, ...]:
    """Why segments with a common edge or value were not merged, by their final numbers."""
    home = homes(candidates)
    place: dict[int, int] = {}
    for group, one in groups.summary.items():
        stored = [home[name] for name in sorted(one.stores) if name in home]
        place.update({group: stored[0]} if stored else {})
    found: dict[tuple[int, int], tuple[Reject, ...]] = {}
    for pair, reasons in groups.refused.items():
        first, second = sorted(place.get(groups.order.find(at), -1) for at in pair)
        if 0 <= first < second:
            is_named = reasons == CYCLE and len(candidates) <= MOST_SEARCHED
            named = _cycle(groups.facts, candidates, first, second) if is_named else reasons
            found[first, second] = named
    return tuple(Refusal(*pair, found[pair]) for pair in sorted(found))


def _cycle(facts: Facts, candidates: Sequence[Candidate], a: int, b: int) -> tuple[Reject, ...]:
    """The refusal that names the values along a path from candidate `a` to a later one, `b`.

    Without such a path in the final plan, the refusal names none.
    """
    home = homes(candidates)
    came: dict[int, tuple[int, str]] = {}
    line = [b]
    for at in line:
        for name in external(facts, candidates[at].exprs):
            maker = home.get(name)
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
    return (Reject(NAME, f"it would be a cycle: {' -> '.join(path)} passes through others"),)


def planned(
    acceptance: Acceptance, candidates: Sequence[Candidate], refusals: tuple[Refusal, ...]
) -> SegmentedFusion:
    """The plan of accepted candidates, which are in an order in which they can run."""
    facts = acceptance.facts
    segments = []
    for one in candidates:
        found = acceptance.ask(one)
        assert isinstance(found, Match)  # all candidates were asked about
        segments.append(Segment(found, edge_bytes(facts, one)))
    return SegmentedFusion(
        facts.fusion,
        tuple(segments),
        facts.parts.strides,
        refusals,
        edge_bytes=sum(one.edge_bytes for one in segments),
        lower_bound=edge_bytes(facts, _whole(facts)),
        peak_bytes=peak(facts, candidates),
    )


def one_by_one(acceptance: Acceptance) -> list[Candidate]:
    """A segment for each expression; ScheduleError lists those that no scheduler takes alone."""
    facts = acceptance.facts
    line = [at for at in range(len(facts.exprs)) if not facts.is_number(at)]
    home = {name: n for n, at in enumerate(line) for name in facts.exprs[at].outputs}
    candidates = candidates_from(facts, [frozenset([at]) for at in line], home)
    refused = [(one, acceptance.refusals(one)) for one in candidates]
    lines = [
        f"{record_text(facts.exprs[min(one.exprs)])}: {'; '.join(map(str, reasons))}"
        for one, reasons in refused if reasons
    ]
    if lines:
        raise ScheduleError(
            f"{len(lines)} expressions that no scheduler takes, even alone",
            expected="one that accepts each",
            got="\n    " + "\n    ".join(lines),
            do="leave these operations to torch",
        )
    return candidates
