# SPDX-License-Identifier: Apache-2.0
"""In-place copies that keep fusible ops apart go behind them.

    m = mean(x); c = copy_(m, running_mean); y = sub(x, m)
->  m = mean(x); y = sub(x, m);              c = copy_(m, running_mean)

A batch norm updates two buffers between its statistics and its result. Where the copies stand, the
three parts are regions of their own, and each reads x.

A copy goes behind the fusible ops that follow it, as far as none of them reads the memory that it
writes, and so does a fence, which gives new names to what a copy writes. They pass nothing else, so
what is copied is not written meanwhile, and keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder_fuser.trace.memory import one_memory
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import COPIES, FENCES

_SINKING = COPIES | FENCES


def sink_copies(prepared: Prepared) -> Prepared:
    """The trace in its new order."""
    if not any(op.bsym.sym.id in _SINKING for op in prepared.ops):
        return prepared
    order = tuple(_sunk(prepared.ops))
    return prepared if order == prepared.ops else prepared.with_ops(order)


def _sunk(ops: Sequence[Op]) -> Iterator[Op]:
    memory = one_memory(ops)
    waiting: list[Op] = []
    written: set[str] = set()  # names for the memory that they write
    for op in ops:
        if op.bsym.sym.id in _SINKING:
            waiting.append(op)
            written.update(memory[name] for group in op.writes for name in group)
            continue
        touches = any(memory.get(name, name) in written for name in op.read_names)
        if touches or not op.is_fusible:
            yield from waiting
            waiting, written = [], set()
        yield op
    yield from waiting
