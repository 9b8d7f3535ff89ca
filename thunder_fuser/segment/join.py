# SPDX-License-Identifier: Apache-2.0
"""A plan -> the same with fewer launches: each kernel keeps its blocks (schedule/joined.py).

Products of the same few rows share a launch, and so does short pointwise work that reads them, or
one tensor:

    segment 0: T8 = linear(T0, T1)                    segment 0: T8 = linear(T0, T1)
    segment 1: T9 = rope(T8: [1, 32, 64])                        T10 = linear(T0, T2)
    segment 2: T10 = linear(T0, T2)              ->   segment 1: T9 = rope(T8: [1, 32, 64])
    segment 3: T11 = rope(T10: [1, 8, 64])                       T11 = rope(T10: [1, 8, 64])

None of them may need another one. All other plans stay as they are.
"""

from __future__ import annotations

from itertools import pairwise

from thunder_fuser.schedule.joined import JoinedKernels
from thunder_fuser.schedule.pointwise import Pointwise
from thunder_fuser.schedule.reduction import Reduction, rows_of_product
from thunder_fuser.segment.acceptance import Acceptance
from thunder_fuser.segment.acyclic import GroupOrder
from thunder_fuser.segment.candidate import Candidate, external, owners


def join(acceptance: Acceptance, candidates: list[Candidate]) -> list[Candidate]:
    """The plan with joined kernels, in an order in which it can run; on a CPU none are."""
    lines = [] if acceptance.info.target.is_cpu else _lines(acceptance, candidates)
    joined = _joined(acceptance, candidates, lines) if lines else candidates
    return join(acceptance, joined) if len(joined) < len(candidates) else candidates


def _joined(
    acceptance: Acceptance, candidates: list[Candidate], lines: list[list[int]]
) -> list[Candidate]:
    """The candidates, in which those of a line are one if a scheduler takes them together."""
    owner, groups = owners(candidates), dict(enumerate(candidates))
    reads = [external(acceptance.info, candidate.exprs) for candidate in candidates]
    order = GroupOrder([[owner[name] for name in names if name in owner] for names in reads])
    for line in lines:
        for pair in pairwise(line):
            a, b = sorted(map(order.find, pair))
            both = Candidate(groups[a].exprs | groups[b].exprs, groups[a].stores | groups[b].stores)
            if a != b and acceptance.joins(both) and order.merge(a, b):
                groups[a] = both
    return [groups[at] for at in order.groups()]


def _lines(acceptance: Acceptance, candidates: list[Candidate]) -> list[list[int]]:
    """The numbers of products of the same rows; of pointwise readers of one tensor, or of one
    joined kernel."""
    matches = [acceptance.ask(candidate) for candidate in candidates]
    maker = {
        name: at for at, match in enumerate(matches) for name in candidates[at].stores
        if isinstance(match, JoinedKernels)
    }  # fmt: skip
    donated = acceptance.info.fusion.donated
    lines: dict[str | int, list[int]] = {}
    for at, match in enumerate(matches):
        if isinstance(match, Reduction):
            for name in sorted(rows_of_product(match)[1]):
                lines.setdefault(name, []).append(at)
        elif isinstance(match, Pointwise):
            read = [n for n in match.part.inputs if not match.part.tensors[n].by_value]
            # A joined kernel does not write over what it reads.
            shared = {} if donated.intersection(read) else {name: name for name in read}
            for key in dict.fromkeys((shared | maker)[n] for n in read if n in shared | maker):
                lines.setdefault(key, []).append(at)
    return [line for line in lines.values() if len(line) > 1]
