# SPDX-License-Identifier: Apache-2.0
"""Fusible ops become neighbours if one reads the other and only products or convolutions stand
between them.

    s = silu(g); u = linear(y, w);           m = mul(s, u)
->  u = linear(y, w);              s = silu(g); m = mul(s, u)

    du, ds = f(dm); dy = matmul(du, w); dg = g(ds)
->  du, ds = f(dm); dg = g(ds);                    dy = matmul(du, w)

A product that reads nothing of the first run goes before it; one that does goes after both runs.
An op that reads a product between the runs stays where it is. So does a cast to a wider type that
only such ops read: its result would be stored for them. Only views, products, convolutions and
similar functions of torch step aside: nothing moves across an in-place copy, a random op or a
collective, or between forward and backward. Each run looks at each op once: linear in the length
of the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from thunder.executors.torchex import ex as torch_executor

from thunder_fuser.trace.dataflow import made_at, runs, with_what_they_read
from thunder_fuser.trace.op import MOST_OPS, Op, alike
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import TORCH_KERNELS, VIEWS

_PRODUCTS = frozenset({"linear", "matmul"})


@dataclass
class _Run:
    """Places in the trace: fusible ops, and the products and views behind them."""

    ops: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)

    @property
    def all(self) -> list[int]:
        return [*self.ops, *self.behind]


def reorder_matmuls(prepared: Prepared) -> Prepared:
    """Moves matrix products out of the way of fusible ops, where that makes fewer regions."""
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
    """True if it only reads its operands, allocates its result, and costs more than a move."""
    executor = op.bsym.sym.executor
    if executor is torch_executor:
        return op.bsym.sym.id in _PRODUCTS
    return executor is TORCH_KERNELS


def _joined(
    ops: Sequence[Op], run: _Run, stretch: range
) -> tuple[list[int], _Run, set[int]]:
    """(the places that go before the run, the run with the ops that join it, those ops).

    An op joins if it reads the run, directly or through others that join. So does an op that reads
    the same as one of these, and so do the makers of all that they read. An op that depends on a
    product behind the run does not join.
    """
    of_run, late = made_at(ops, run.ops), set[str]()
    before = [at for at in run.behind if not _follows(ops[at], of_run, late)]
    free = [at for at in stretch if not _follows(ops[at], set(), late)]
    joined = with_what_they_read(ops, free, [at for at in free if _follows(ops[at], set(), of_run)])
    of_run |= made_at(ops, joined)
    readers = [at for at in free if _follows(ops[at], set(), of_run)]
    joins: list[int] = []
    read: set[str] = set()
    for at in sorted(with_what_they_read(ops, free, [*joined, *readers]), reverse=True):
        # A widening cast that none of the others reads stays behind.
        if not ops[at].widens or ops[at].makes_any(read):
            joins.insert(0, at)
            read.update(ops[at].read_names)
    if not joins:
        return [], run, set()
    first = set(before)
    behind = [at for at in run.behind if at not in first]
    return before, _Run([*run.ops, *joins], behind), set(joins)


def _follows(op: Op, names: set[str], late: set[str]) -> bool:
    """True if it reads a name of either set; its results are then added to `late`."""
    if not (op.reads_any(names) or op.reads_any(late)):
        return False
    late.update(op.made_names)
    return True
