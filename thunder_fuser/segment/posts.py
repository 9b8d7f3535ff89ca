# SPDX-License-Identifier: Apache-2.0
"""Orders segments so that kernels run while communication is under way.

    K0 -> all_gather -> K1;  K0 -> K2       ->      K0, all_gather, K2, K1

Communication keeps the order of the definition, which all ranks share. Their kernels may differ:
segments may depend on strides, which may differ between ranks. Each communication is posted as soon
as its operands are ready. After it, kernels that do not wait for it run first.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.ir.communication import is_communication
from thunder_fuser.segment.candidate import Candidate, external, homes
from thunder_fuser.segment.facts import Facts


def by_posts(facts: Facts, candidates: list[Candidate]) -> list[Candidate] | None:
    """The candidates in that order. None if communication cannot keep the definition's order,
    because one kernel has work from before and from after it."""
    is_post = [_is_post(facts, one) for one in candidates]
    posts = [at for at, found in enumerate(is_post) if found]
    if not posts:
        return candidates
    posts.sort(key=lambda at: min(candidates[at].exprs))
    needs = _needs(facts, candidates)
    rest = [at for at, found in enumerate(is_post) if not found]
    done: list[int] = []
    waiting: set[int] = set()
    while posts or rest:
        if posts and needs[posts[0]] <= set(done):
            waiting -= needs[posts[0]]
            waiting.add(posts[0])
            done.append(posts.pop(0))
            continue
        ready = [at for at in rest if needs[at] <= set(done)]
        if not ready:
            return None
        before = _ancestors(needs, posts[0]) if posts else set()
        best = min(ready, key=lambda at: (not needs[at].isdisjoint(waiting), at not in before))
        waiting -= needs[best]
        rest.remove(best)
        done.append(best)
    return [candidates[at] for at in done]


def _is_post(facts: Facts, one: Candidate) -> bool:
    return any(is_communication(facts.exprs[at]) for at in one.exprs)


def _needs(facts: Facts, candidates: Sequence[Candidate]) -> list[set[int]]:
    """The candidates that each one reads from."""
    home = homes(candidates)
    return [{home[n] for n in external(facts, one.exprs) if n in home} for one in candidates]


def _ancestors(needs: list[set[int]], at: int) -> set[int]:
    """All candidates that one waits for, directly or through others."""
    found: set[int] = set()
    stack = [at]
    while stack:
        new = needs[stack.pop()] - found
        found |= new
        stack += new
    return found
