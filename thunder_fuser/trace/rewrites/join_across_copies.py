# SPDX-License-Identifier: Apache-2.0
"""Fusible ops move before in-place copies that separate them from their operands.

    y, m = f(x, running)                         y, m = f(x, running); z = relu(y)
    t = copy_(m, running); z = relu(y)    ->     t = copy_(m, running)

So a batch norm and its activation are one region. The copies keep their order with all reads of
memory that they may write. An op moves only if it reads values that the trace computed, in memory
of their own: two arguments may share memory without Thunder's knowledge, so an op that reads one,
or a view of one, stays. Its result must also not be larger than the values that it reads. Each op
is looked at once: linear in the length of the trace.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.trace.dataflow import DataFlow, made_at, runs, with_what_they_read
from thunder_fuser.trace.op import MOST_OPS, Op, alike
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import COPIES, FENCES, bytes_of

_BETWEEN = COPIES | FENCES


def join_across_copies(prepared: Prepared) -> Prepared:
    """Moves ops on computed values before in-place copies, to the ops whose results they read."""
    if not any(op.kinds & COPIES for op in prepared.ops):
        return prepared
    return prepared.in_order(_order(prepared.flow))


def _order(flow: DataFlow) -> list[int]:
    """The places of the ops in their new order."""
    # Values that ops have computed, whose memory nothing writes, and no argument may share.
    ops, memory, order = flow.ops, flow.memory, list[int]()
    computed = {name for op in ops if op.reads for name in {*op.made_names} - {*op.read_names}}
    of_inputs = {memory.of(name) for op in ops for name in op.read_names if name not in computed}
    own_memory = {name for name in computed if memory.of(name) not in of_inputs} - flow.written
    run, behind = list[int](), list[int]()  # fusible ops, and the copies and fences behind them
    for stretch in map(list, runs(ops)):
        first = ops[stretch[0]]
        if run and not first.is_fusible and first.only(_BETWEEN):
            behind += stretch
            continue
        joined = list[int]()
        if behind and first.is_fusible and len(run) < MOST_OPS and alike(ops[run[0]], first):
            joined = _joined(ops, run, stretch, own_memory)
            run += joined
        rest = _less(stretch, joined)
        if rest:
            order += [*run, *behind]
            run, behind = (rest, []) if first.is_fusible else ([], [])
            order += [] if first.is_fusible else rest
    return [*order, *run, *behind]


def _joined(
    ops: Sequence[Op], run: Sequence[int], stretch: Sequence[int], own_memory: set[str]
) -> list[int]:
    """Of the stretch, what reads the run, directly or not, and may move to it, if that pays."""
    late, of_run = made_at(ops, stretch), made_at(ops, run)
    free, joined = list[int](), list[int]()
    for at in stretch:
        read = ops[at].read_names
        if own_memory.issuperset(read) and late.isdisjoint(read):
            free.append(at)
            late.difference_update(ops[at].made_names)
    for at in free:
        if ops[at].reads_any(of_run):
            joined.append(at)
            of_run.update(ops[at].made_names)
    joined = sorted(with_what_they_read(ops, free, joined))
    # It pays if the rest reads no more bytes of the moved results than it no longer reads itself.
    left = {name for at in _less(stretch, joined) for name in ops[at].read_names}
    results = {out.name: bytes_of(out) for at in joined for out in ops[at].makes}
    operands = {proxy.name: bytes_of(proxy) for at in joined for proxy in ops[at].reads}
    handed = sum(results[name] for name in results.keys() & left)
    gone = operands.keys() - left - results.keys()
    return joined if handed <= sum(operands[name] for name in gone) else []


def _less(places: Sequence[int], others: Sequence[int]) -> list[int]:
    taken = {*others}
    return [at for at in places if at not in taken]
