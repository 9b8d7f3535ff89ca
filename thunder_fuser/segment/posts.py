# SPDX-License-Identifier: Apache-2.0
"""The order of segments in which communication hides behind kernels.

    K0 -> all_gather -> K1;  K0 -> K2       ->      K0, all_gather, K2, K1

Communication runs in the order of the definition, which is that of all ranks: how a rank's own
kernels are cut may depend on strides, which ranks need not share. Each is posted as early as its
operands allow; behind it runs first what does not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.ir.communication import is_communication
from thunder_fuser.segment.candidate import Candidate, external, homes
from thunder_fuser.segment.facts import Facts


def by_posts(facts: Facts, candidates: list[Candidate]) -> list[Candidate] | None:
    """The candidates in that order, unchanged without communication; None if kernels are cut so
    that communication cannot run in the order of the definition."""
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
    """The candidates that each reads from."""
    home = homes(candidates)
    return [{home[n] for n in external(facts, one.exprs) if n in home} for one in candidates]


def _ancestors(needs: list[set[int]], at: int) -> set[int]:
    """All candidates that one waits for."""
    found: set[int] = set()
    stack = [at]
    while stack:
        new = needs[stack.pop()] - found
        found |= new
        stack += new
    return found
