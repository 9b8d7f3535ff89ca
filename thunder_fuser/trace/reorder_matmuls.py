# SPDX-License-Identifier: Apache-2.0
"""Fusible ops that products and convolutions keep apart, though one reads the other, become
neighbours.

    s = silu(g); u = linear(y, w);           m = mul(s, u)
->  u = linear(y, w);              s = silu(g); m = mul(s, u)

    du, ds = f(dm); dy = matmul(du, w); dg = g(ds)
->  du, ds = f(dm); dg = g(ds);                    dy = matmul(du, w)

A product that reads nothing of the first run goes before it, one that does goes after both runs.
What reads a product that has to stay between stays where it is, and so does a cast to a wider type
that only such ops read: its result would be stored for them. Only views, products, convolutions and
the like of torch step aside: nothing moves across an in-place copy, a random op, a collective, or
into the other direction. One look at each op for every run that stays open: linear in the
length of the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from thunder.executors.torchex import ex as torch_executor

from thunder_fuser.trace.op import Op, alike, made_at, runs, with_what_they_read
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import TORCH_KERNELS, VIEWS

_PRODUCTS = frozenset({"linear", "matmul"})
MOST_OPS = 256  # of a run, and of what may wait behind it


@dataclass
class _Run:
    """Places in the trace: fusible ops, and the products and views behind them."""

    ops: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)

    @property
    def all(self) -> list[int]:
        return [*self.ops, *self.behind]


def reorder_matmuls(prepared: Prepared) -> Prepared:
    """The trace in its new order."""
    return prepared.in_order(_order(prepared.ops))


def _order(ops: Sequence[Op]) -> list[int]:
    """The places of the ops in their new order."""
    order: list[int] = []
    run = _Run()
    for stretch in runs(ops):
        first = ops[stretch.start]
        if all(ops[at].only(VIEWS) for at in stretch) or _steps_aside(first):
            run.behind += stretch
            continue
        if not first.is_fusible:
            order += [*run.all, *stretch]
            run = _Run()
            continue
        joined = set[int]()
        if run.ops and len(run.all) < MOST_OPS and alike(ops[run.ops[0]], first):
            before, run, joined = _joined(ops, run, stretch)
            order += before
        rest = [at for at in stretch if at not in joined]
        if rest and all(ops[at].only(VIEWS) for at in rest):
            run.behind += rest
        elif rest:
            order += run.all
            run = _Run(rest)
    return order + run.all


def _steps_aside(op: Op) -> bool:
    """True for what makes memory of its own of its operands alone, and costs more than a move."""
    executor = op.bsym.sym.executor
    if executor is torch_executor:
        return op.bsym.sym.id in _PRODUCTS
    return executor is not None and executor.name == TORCH_KERNELS


def _joined(
    ops: Sequence[Op], run: _Run, stretch: range
) -> tuple[list[int], _Run, set[int]]:
    """(what goes before the run, the run with what joins it, what joins it).

    An op joins if it reads the run, itself or through others that join, or reads what one of these
    reads; then so does all that it reads. No product between may have to come first.
    """
    own, late = made_at(ops, run.ops), set[str]()
    before = [at for at in run.behind if not _follows(ops[at], own, late)]
    free = [at for at in stretch if not _follows(ops[at], set(), late)]
    joined = with_what_they_read(ops, free, [at for at in free if _follows(ops[at], set(), own)])
    own |= made_at(ops, joined)
    readers = [at for at in free if _follows(ops[at], set(), own)]
    joined = with_what_they_read(ops, free, [*joined, *readers])
    joins = _without_last_casts(ops, joined)
    if not joins:
        return [], run, set()
    first = set(before)
    behind = [at for at in run.behind if at not in first]
    return before, _Run([*run.ops, *joins], behind), set(joins)


def _without_last_casts(ops: Sequence[Op], joined: Iterable[int]) -> list[int]:
    """Less the casts that none of the others reads."""
    left: list[int] = []
    read: set[str] = set()
    for at in sorted(joined, reverse=True):
        if not ops[at].widens or ops[at].makes_any(read):
            left.append(at)
            read.update(ops[at].read_names)
    return left[::-1]


def _follows(op: Op, own: set[str], late: set[str]) -> bool:
    """True if it reads a name of either set; what it makes is then late."""
    if not (op.reads_any(own) or op.reads_any(late)):
        return False
    late.update(op.made_names)
    return True
