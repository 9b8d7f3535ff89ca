# SPDX-License-Identifier: Apache-2.0
"""In-place copies that keep fusible ops apart go behind them.

    m = mean(x); c = copy_(m, running_mean); y = sub(x, m)
->  m = mean(x); y = sub(x, m);              c = copy_(m, running_mean)

A batch norm updates two buffers between its statistics and its result. Where the copies stand, the
three parts are regions of their own, and each reads x.

A copy goes behind the fusible ops that follow it, as far as none of them reads the memory that it
writes. It passes nothing else, so what it copies from is not written meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder_fuser.trace.memory import one_memory
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import COPIES


def sink_copies(prepared: Prepared) -> Prepared:
    """The trace in its new order."""
    if not any(op.bsym.sym.id in COPIES for op in prepared.ops):
        return prepared
    order = tuple(_sunk(prepared.ops))
    return prepared if order == prepared.ops else prepared.with_ops(order)


def _sunk(ops: Sequence[Op]) -> Iterator[Op]:
    memory = one_memory(ops)
    waiting: list[Op] = []
    written: set[str] = set()  # names for the memory that they write

    for op in ops:
        touches = not written.isdisjoint(memory.get(name, name) for name in op.read_names)
        is_copy = op.bsym.sym.id in COPIES
        if waiting and (touches or not (is_copy or op.is_fusible)):
            yield from waiting
            waiting, written = [], set()
        if is_copy:
            waiting.append(op)
            written.update(memory[name] for group in op.writes for name in group)
        else:
            yield op
    yield from waiting
