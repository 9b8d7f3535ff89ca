# SPDX-License-Identifier: Apache-2.0
"""Ops of a trace -> the tensors that are written in place, and those that may share memory.

    v = reshape(x); t = copy_(a, v)  ->  written: v, t, x;  one memory: x, v, t
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.trace.op import Op, Reject
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.sharing import COPIES, FENCES, MOVES
from thunder_fuser.union_find import UnionFind

_WRITTEN_LATER = Reject("a view of a tensor that is written in place")


def written_in_place(ops: Sequence[Op]) -> set[str]:
    """Tensors that are written in place and, forward and back, what may share their memory.

    t2 = copy_(t1, x)  ->  x and t2, and the views of both; not t1, which is only read
    """
    names = {name for op in ops for group in op.writes for name in group}
    if not names:
        return names
    sharing = [group for op in ops for group in op.shares]
    for group in (*reversed(sharing), *sharing):
        if names.intersection(group):
            names.update(group)
    return names


def one_memory(ops: Sequence[Op]) -> UnionFind[str]:
    """Classes of tensors that may share memory."""
    same: UnionFind[str] = UnionFind()
    groups = [group for op in ops for group in op.writes]
    groups += [group for op in ops for group in op.shares]
    for first, *others in filter(None, groups):
        for name in others:
            same.join(first, name)
    return same


def leave_written_views(prepared: Prepared) -> Prepared:
    """Leaves the views of a tensor that is written in place to torch.

    v = reshape(x)       v = reshape(x), refused: the write must reach x
    t = copy_(a, v)  ->  t = copy_(a, v)
    """
    later = _written_later(prepared.ops)
    if not later:
        return prepared
    return prepared.with_ops(
        prepared.rules.refused(op.bsym, _WRITTEN_LATER)
        if op.is_fusible and op.makes_any(later) and op.only(MOVES) else op
        for op in prepared.ops
    )  # fmt: skip


def _written_later(ops: Sequence[Op]) -> set[str]:
    """Names whose memory is written through them, or through a view of them."""
    names: set[str] = set()
    for op in reversed(ops):
        if op.bsym.sym.id in FENCES:
            names.update(proxy.name for proxy in op.reads)
        elif op.bsym.sym.id in COPIES:
            names.add(op.reads[1].name)
        elif op.makes_any(names) and op.only(MOVES):
            names.update(proxy.name for proxy in op.reads)
    return names
