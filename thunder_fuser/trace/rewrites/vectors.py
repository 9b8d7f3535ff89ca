# SPDX-License-Identifier: Apache-2.0
"""A trace -> the same, in which regions read vectors themselves.

    t = reshape(w: [32], (1, 32, 1, 1))  ->  t = broadcast_in_dim(w, (1, 32, 1, 1), (1,))

A reshape before a region is a call of torch, a broadcast is part of each region that reads it. So
do the weights and biases of norms and convolutions come.
"""

from __future__ import annotations

from thunder.core import prims
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy

from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared


def broadcast_vectors(prepared: Prepared) -> Prepared:
    """Makes a reshape of an argument, a vector that only regions read, to axes of size 1, a
    broadcast."""
    ops, readers = prepared.ops, prepared.flow.readers
    computed = {name for op in ops if op.reads for name in op.made_names}
    return prepared.with_ops(
        _broadcast(prepared, op)
        if _adds_axes(op) and op.read_names[0] not in computed
        and all(ops[at].is_fusible for at in readers.get(op.makes[0].name, ()))
        else op
        for op in ops
    )  # fmt: skip


def _adds_axes(op: Op) -> bool:
    is_plain = op.kinds == {PrimIDs.RESHAPE} and len(op.reads) == len(op.makes) == 1
    if not op.is_fusible or not is_plain:
        return False
    (source,), (result,) = op.reads, op.makes
    return (
        isinstance(source, TensorProxy) and isinstance(result, TensorProxy)
        and source.ndim == 1 < result.ndim and sorted(result._shape)[:-1] == [1] * (result.ndim - 1)
    )  # fmt: skip


def _broadcast(prepared: Prepared, op: Op) -> Op:
    (source,), (result,) = op.reads, op.makes
    shape = tuple(result._shape)
    axis = max(range(len(shape)), key=shape.__getitem__)
    bsym = prims.broadcast_in_dim.bind(source, shape, (axis,), output=result)
    bsym.tags.update(op.bsym.tags)
    return prepared.rules.rewritten(op, bsym)
