# SPDX-License-Identifier: Apache-2.0
"""What a plan costs, and the least that any plan of a small fusion does, by trying all of them.

A plan is which values reach memory and which of them one kernel writes; the rest follows. A kernel
computes what it writes from what others have written, reading that or computing it once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, product

from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.options import compile_options
from thunder_fuser.segment.acceptance import Acceptance
from thunder_fuser.segment.candidate import (
    Candidate,
    cost_of,
    external,
    repeats_compared,
    total,
)
from thunder_fuser.segment.fusion_info import FusionInfo
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.target import Target

Numbers = frozenset[int]
Option = tuple[float, Numbers]  # what a kernel costs, and the expressions it computes
MAX_COMBINATIONS = 256


def least_cost(fusion: Fusion, target: Target) -> float:
    """The cost of the best plan, as the segmenter counts it. Takes up to ten expressions."""
    return _Search(FusionInfo(fusion, target)).least()


def plan_cost(plan: SegmentedFusion, target: Target) -> float:
    """What the segmenter minimises; see candidate.cost_of."""
    info = FusionInfo(plan.fusion, target)
    candidates = []
    for one in plan.segments:
        made = [info.number[expr.outputs[0]] for expr in one.ops]
        exprs = frozenset(at for at in made if not info.is_number(at))
        candidates.append(Candidate(exprs, frozenset(one.outputs)))
    return total(info, candidates)


class _Search:
    def __init__(self, info: FusionInfo) -> None:
        self.info, self.acceptance = info, Acceptance(info, compile_options())
        self._options: dict[tuple[Numbers, Numbers], list[Option]] = {}
        self._bytes: dict[Numbers, float] = {}
        self.best = float("inf")

    def least(self) -> float:
        info = self.info
        must = {info.number[n] for n in info.results if n in info.number}
        for at, expr in enumerate(info.exprs):
            if expr.row.kind is OpKind.EXTERNAL or expr.op == "segment_set":
                must.add(at)
        others = (at for at in range(len(info.exprs)) if not info.is_number(at))
        for more in _subsets([at for at in others if at not in must]):
            stored = frozenset(must | set(more))
            self._extend(stored, sorted(stored), [])
        return self.best

    def _extend(self, stored: Numbers, left: list[int], blocks: list[Numbers]) -> None:
        """All ways to put what is left into these blocks or new ones."""
        if self._floor(len(blocks), stored) >= self.best:
            return
        if not left:
            self._weigh(stored, sorted(blocks, key=len))
            return
        first, rest = left[0], left[1:]
        for at, block in enumerate(blocks):
            self._extend(stored, rest, [*blocks[:at], block | {first}, *blocks[at + 1 :]])
        self._extend(stored, rest, [*blocks, frozenset([first])])

    def _weigh(self, stored: Numbers, blocks: list[Numbers]) -> None:
        found, least = [], self._floor(len(blocks), stored)
        for block in blocks:
            options = self._kernels(block, stored)
            if not options:
                return
            least += options[0][0] - self._floor(1, block)
            if least >= self.best:
                return
            found.append(options)
        for number, chosen in enumerate(product(*found)):
            cost = sum(option[0] for option in chosen)
            exprs = [option[1] for option in chosen]
            if cost < self.best and self._is_acyclic(blocks, exprs):
                self.best = self.best if repeats_compared(self.info, exprs) else cost
            if number == MAX_COMBINATIONS:
                return

    def _floor(self, kernels: int, stored: Numbers) -> float:
        """What so many kernels that write these values cost at least."""
        if stored not in self._bytes:
            self._bytes[stored] = sum(self.info.bytes[name] for name in self._stores(stored))
        return kernels * self.info.target.launch_bytes + self._bytes[stored]

    def _stores(self, exprs: Numbers) -> frozenset[str]:
        info = self.info
        return frozenset(
            n for at in exprs for n in info.exprs[at].outputs if info.uses[n] or n in info.results
        )

    def _is_acyclic(self, blocks: Sequence[Numbers], exprs: Sequence[Numbers]) -> bool:
        number = self.info.number
        home = {at: b for b, block in enumerate(blocks) for at in block}
        needs = [
            {home[number[n]] for n in external(self.info, one) if n in number} for one in exprs
        ]
        done: set[int] = set()
        while len(done) < len(blocks):
            ready = [b for b, need in enumerate(needs) if b not in done and need <= done]
            if not ready:
                return False
            done.update(ready)
        return True

    def _kernels(self, block: Numbers, stored: Numbers) -> list[Option]:
        """The kernels that write a block's values, best first."""
        key = (block, stored)
        if key not in self._options:
            found: dict[Numbers, float] = {}
            self._computed(block, stored - block, found)
            options = [(cost, exprs) for exprs, cost in found.items()]
            self._options[key] = sorted(options, key=lambda option: option[0])
        return self._options[key]

    def _computed(self, block: Numbers, elsewhere: Numbers, found: dict[Numbers, float]) -> None:
        """Every set of expressions that may compute the block, with its cost if a scheduler takes
        it: what is stored elsewhere is read, or computed too."""
        info, stores = self.info, self._stores(block)
        reachable = [at for at in sorted(elsewhere) if at < max(block)]
        for again in _subsets(reachable):
            exprs = self._closure(block, elsewhere - set(again))
            one = Candidate(exprs, stores)
            if exprs not in found and not self.acceptance.refusals(one):
                found[exprs] = cost_of(info, one)

    def _closure(self, block: Numbers, stop: Numbers) -> Numbers:
        info = self.info
        found: set[int] = set()
        stack = list(block)
        while stack:
            at = stack.pop()
            if at not in found:
                found.add(at)
                makers = (info.number.get(n) for n in info.operands[at])
                stack += [m for m in makers if m is not None and m not in stop]
        return frozenset(found)


def _subsets(items: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(items, k) for k in range(len(items) + 1))
