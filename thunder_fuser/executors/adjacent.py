# SPDX-License-Identifier: Apache-2.0
"""Fusible ops that matrix products keep apart, though one reads the other, become neighbours.

    s = silu(g); u = linear(y, w);           m = mul(s, u)
->  u = linear(y, w);              s = silu(g); m = mul(s, u)

    du, ds = f(dm); dy = matmul(du, w); dg = g(ds)
->  du, ds = f(dm); dg = g(ds);                    dy = matmul(du, w)

A product that reads nothing of the first run goes before it, one that does goes after both runs.
What reads a product that has to stay between stays where it is, and so does a cast to a wider type
that only such ops read: its result would be stored for them. Only products of torch and views
step aside: nothing moves across an in-place copy, a random op, a collective, or into the other
direction. One look at each op for every run that stays open: linear in the length of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from thunder.core.symbol import BoundSymbol
from thunder.executors.torchex import ex as torch_executor

from thunder_fuser.rematerialization.proxies import makes, reads

_PRODUCTS = frozenset({"linear", "matmul"})
MOST_OPS = 256  # of a run, and of what may wait behind it

Alike = Callable[[BoundSymbol, BoundSymbol], bool]
Asked = Callable[[BoundSymbol], bool]


@dataclass
class _Run:
    """Places in the trace: fusible ops, and the products and views behind them."""

    ops: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)

    @property
    def all(self) -> list[int]:
        return [*self.ops, *self.behind]


def stretches(
    bsyms: Sequence[BoundSymbol], is_fusible: Sequence[bool], alike: Alike
) -> Iterator[range]:
    """The longest runs of fusible neighbours that are alike; each of the others by itself."""
    start = 0
    for at in range(1, len(bsyms) + 1):
        whole = at == len(bsyms) or not (is_fusible[at - 1] and is_fusible[at])
        if whole or not alike(bsyms[at - 1], bsyms[at]):
            yield range(start, at)
            start = at


def brought_together(
    bsyms: Sequence[BoundSymbol],
    is_fusible: Sequence[bool],
    alike: Alike,
    is_view: Asked,
    widens: Asked,
) -> list[int]:
    """The places of the bound symbols in their new order.

    alike: whether two may be in one run; is_view: whether torch makes one without a kernel; widens:
    whether one is a cast to a wider type.
    """
    order: list[int] = []
    run = _Run()
    for stretch in stretches(bsyms, is_fusible, alike):
        first = bsyms[stretch.start]
        if all(is_view(bsyms[at]) for at in stretch) or _is_product(first):
            run.behind += stretch
            continue
        if not is_fusible[stretch.start]:
            order += [*run.all, *stretch]
            run = _Run()
            continue
        joined = set[int]()
        if run.ops and len(run.all) < MOST_OPS and alike(bsyms[run.ops[0]], first):
            before, run, joined = _joined(bsyms, run, stretch, widens)
            order += before
        rest = [at for at in stretch if at not in joined]
        if rest and all(is_view(bsyms[at]) for at in rest):
            run.behind += rest
        elif rest:
            order += run.all
            run = _Run(rest)
    return order + run.all


def _is_product(bsym: BoundSymbol) -> bool:
    return bsym.sym.executor is torch_executor and bsym.sym.id in _PRODUCTS


def _joined(
    bsyms: Sequence[BoundSymbol], run: _Run, stretch: range, widens: Asked
) -> tuple[list[int], _Run, set[int]]:
    """(what goes before the run, the run with what joins it, what joins it).

    An op joins if it reads the run, itself or through others that join, or reads what one of these
    reads; then so does all that it reads. No product between may have to come first.
    """
    own, late = _made(bsyms, run.ops), set[str]()
    before = [at for at in run.behind if not _follows(bsyms[at], own, late)]
    free = [at for at in stretch if not _follows(bsyms[at], set(), late)]
    joined = _with_inputs(bsyms, free, [at for at in free if _follows(bsyms[at], set(), own)])
    own |= _made(bsyms, joined)
    readers = [at for at in free if _follows(bsyms[at], set(), own)]
    joined = _with_inputs(bsyms, free, [*joined, *readers])
    joins = _without_last_casts(bsyms, joined, widens)
    if not joins:
        return [], run, set()
    first = set(before)
    behind = [at for at in run.behind if at not in first]
    return before, _Run([*run.ops, *joins], behind), set(joins)


def _with_inputs(
    bsyms: Sequence[BoundSymbol], free: Sequence[int], joined: Iterable[int]
) -> set[int]:
    """And those of the free ones that they read, directly or not."""
    closed = set(joined)
    read = {name for at in closed for name in _read(bsyms[at])}
    for at in reversed(free):
        if at not in closed and read.intersection(_made(bsyms, [at])):
            closed.add(at)
            read.update(_read(bsyms[at]))
    return closed


def _without_last_casts(
    bsyms: Sequence[BoundSymbol], joined: Iterable[int], widens: Asked
) -> list[int]:
    """Less the casts that none of the others reads."""
    left: list[int] = []
    read: set[str] = set()
    for at in sorted(joined, reverse=True):
        if not widens(bsyms[at]) or read.intersection(_made(bsyms, [at])):
            left.append(at)
            read.update(_read(bsyms[at]))
    return left[::-1]


def _follows(bsym: BoundSymbol, own: set[str], late: set[str]) -> bool:
    """True if it reads a name of either set; what it makes is then late."""
    if not any(name in own or name in late for name in _read(bsym)):
        return False
    late.update(out.name for out in makes(bsym))
    return True


def _read(bsym: BoundSymbol) -> list[str]:
    return [proxy.name for proxy in reads(bsym)]


def _made(bsyms: Sequence[BoundSymbol], places: Iterable[int]) -> set[str]:
    return {out.name for at in places for out in makes(bsyms[at])}
