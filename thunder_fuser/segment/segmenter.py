# SPDX-License-Identifier: Apache-2.0
"""(Fusion, Target) -> SegmentedFusion: which expressions share a kernel, so that few bytes move.

    T2 = sum(T0); T4 = mul(T0, T3); T5 = sum(T4 over the other axis)
->  segment 0 (persistent): T2, T4        segment 1 (reduction): T5, reading T4

The cost of a plan is what its segments read and store, a price for each launch, and their work, all
in bytes (candidate.py). Cheap producers are copied into their readers (privatize.py), what has one
reader joins it in large fusions (coarsen.py), units merge while that saves bytes (merge.py), small
plans are searched for a better one (refine.py), what is cheaper to compute again than to move is
(recompute.py), and segments run in the order that keeps few bytes alive (liveness.py). Schedulers
see every expression of a segment.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.errors import ScheduleError
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import record_text
from thunder_fuser.schedule.scheduler import Match, Reject
from thunder_fuser.segment.acceptance import NAME, Acceptance
from thunder_fuser.segment.candidate import Candidate, external, reads_of, settled, total
from thunder_fuser.segment.coarsen import coarsen
from thunder_fuser.segment.facts import Facts
from thunder_fuser.segment.liveness import by_liveness, peak
from thunder_fuser.segment.merge import CYCLE, Groups, by_gain, by_program, merge_greedily
from thunder_fuser.segment.plan import Refusal, Segment, SegmentedFusion
from thunder_fuser.segment.privatize import privatize
from thunder_fuser.segment.recompute import recompute_cheap_edges
from thunder_fuser.segment.refine import refine
from thunder_fuser.segment.summary import MAX_OPS, summaries
from thunder_fuser.target import Target

MOST_SEARCHED = 64  # units of a plan that is worth a search for a better one


def segment(fusion: Fusion, target: Target, options: CompileOptions) -> SegmentedFusion:
    """The segments of a specialised fusion; ScheduleError if an expression fits no scheduler."""
    facts = Facts(fusion, target)
    acceptance = Acceptance(facts, options)
    whole = _whole(acceptance)
    if whole is not None:
        return planned(acceptance, whole, ())
    units = summaries(facts, privatize(facts))
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
    if any(isinstance(acceptance.ask(one.exprs, one.stores), tuple) for one in candidates):
        candidates = one_by_one(acceptance)
    candidates = by_liveness(facts, candidates)
    return planned(acceptance, candidates, _refusals(found[best], candidates))


def _whole(acceptance: Acceptance) -> list[Candidate] | None:
    """One segment of everything, if a scheduler takes it and nothing forces a cut."""
    facts = acceptance.facts
    if len(facts.exprs) > MAX_OPS or any(expr.op == "segment_set" for expr in facts.exprs):
        return None
    results = frozenset(name for name in facts.results if name in facts.number)
    if not results:
        return []
    one = Candidate(frozenset(range(len(facts.exprs))), results)
    return [one] if isinstance(acceptance.ask(one.exprs, one.stores), Match) else None


def candidates_of(groups: Groups) -> list[Candidate]:
    """The groups as candidates, in an order in which they can run."""
    line = groups.order.groups()
    place = {group: at for at, group in enumerate(line)}
    home = {name: place[groups.order.find(at)] for name, at in groups.home.items()}
    sets = [frozenset(groups.summary[group].exprs) for group in line]
    return settled(groups.facts, sets, home)


def _refusals(groups: Groups, candidates: Sequence[Candidate]) -> tuple[Refusal, ...]:
    """Why segments that share an edge or a value are two, by their final numbers."""
    home = {name: at for at, one in enumerate(candidates) for name in sorted(one.stores)}
    place: dict[int, int] = {}
    for group, one in groups.summary.items():
        stored = [home[name] for name in sorted(one.stores) if name in home]
        if stored:
            place[group] = stored[0]
    found: dict[tuple[int, int], tuple[Reject, ...]] = {}
    for (a, b), reasons in groups.refused.items():
        first, second = (place.get(groups.order.find(at), -1) for at in (a, b))
        if min(first, second) >= 0 and first != second:
            if reasons == CYCLE and len(candidates) <= MOST_SEARCHED:
                reasons = _cycle(groups.facts, candidates, *sorted((first, second)))
            found[min(first, second), max(first, second)] = reasons
    return tuple(Refusal(*pair, reasons) for pair, reasons in sorted(found.items(), key=_by_pair))


def _cycle(facts: Facts, candidates: Sequence[Candidate], a: int, b: int) -> tuple[Reject, ...]:
    """The refusal that names a path from one candidate to a later one, if one is left.

    Values are listed in turn: what the first stores, what is made of it, what the last reads.
    """
    home = {name: at for at, one in enumerate(candidates) for name in sorted(one.stores)}
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


def _by_pair(item: tuple[tuple[int, int], tuple[Reject, ...]]) -> tuple[int, int]:
    return item[0]


def planned(
    acceptance: Acceptance, candidates: Sequence[Candidate], refusals: tuple[Refusal, ...]
) -> SegmentedFusion:
    """The plan of accepted candidates, which stand in an order in which they can run."""
    facts = acceptance.facts
    segments = tuple(_segment(acceptance, one) for one in candidates)
    return SegmentedFusion(
        facts.fusion,
        segments,
        facts.parts.strides,
        refusals,
        sum(one.edge_bytes for one in segments),
        _lower_bound(facts),
        peak(facts, candidates),
    )


def one_by_one(acceptance: Acceptance) -> list[Candidate]:
    """A segment for each expression; ScheduleError that lists those that fit nowhere alone."""
    facts = acceptance.facts
    line = [at for at in range(len(facts.exprs)) if not facts.is_number(at)]
    home = {name: n for n, at in enumerate(line) for name in facts.exprs[at].outputs}
    candidates = settled(facts, [frozenset([at]) for at in line], home)
    refused = [(one, acceptance.refuses_set(one.exprs, one.stores)) for one in candidates]
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


def _segment(acceptance: Acceptance, one: Candidate) -> Segment:
    found = acceptance.ask(one.exprs, one.stores)
    assert isinstance(found, Match)  # all candidates were asked about
    return Segment(found, edge_bytes(acceptance.facts, one))


def edge_bytes(facts: Facts, one: Candidate) -> int:
    """What a segment reads and stores in memory."""
    read = sum(reads_of(facts, one.exprs, one.stores).values())
    return read + sum(facts.bytes[name] for name in one.stores)


def plan_cost(plan: SegmentedFusion, target: Target) -> float:
    """What the segmenter minimises; see candidate.cost_of."""
    facts = Facts(plan.fusion, target)
    candidates = []
    for one in plan.segments:
        made = [facts.number[expr.outputs[0]] for expr in one.ops]
        exprs = frozenset(at for at in made if not facts.is_number(at))
        candidates.append(Candidate(exprs, frozenset(one.outputs)))
    return total(facts, candidates)


def _lower_bound(facts: Facts) -> int:
    """What one segment of everything would read and store."""
    results = frozenset(name for name in facts.results if name in facts.number)
    return edge_bytes(facts, Candidate(frozenset(range(len(facts.exprs))), results))
