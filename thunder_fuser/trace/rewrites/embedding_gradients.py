# SPDX-License-Identifier: Apache-2.0
"""The gradient of an embedding that another one is added to is written by the kernel of that sum.

    t1 = embedding_backward(g: bf16[8192, 2304], tokens, 256000)
    t2 = add(t1, of_head)                                         a head that shares its weight
->  place = scatter(full([256000], 8192), tokens, iota(8192))     a row of g for each word, or 8192
    sums = embedding_backward(g, take(place, tokens), 8192)       of all rows of a word, there
    t1 = where(place < 8192, take(sums, place), 0.0)
    t2 = add(t1, of_head)

Torch fills the gradient of the whole vocabulary with zeros, and adds to some rows; the sum reads it
again. Here the rows are summed in memory as small as g, by the same kernel, and the sum takes each
one where a word has it. Whichever row of a word the scatter leaves, the rows that are summed are
the same, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from thunder.core import dtypes, prims
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import tracectx

from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import bytes_of

LEAST_BYTES = 1 << 27  # of the gradient: less is filled and read in the time of a few launches
_TIMES = 2  # as many words as rows, at least: the sums must be small beside the gradient


def sum_embedding_rows(prepared: Prepared) -> Prepared:
    """Sums the rows of an embedding's gradient apart from the vocabulary, where it is added."""
    chosen = {op.made_names[0] for op in prepared.ops if _pays(op, prepared)}
    if not chosen:
        return prepared
    with tracectx(prepared.trace):
        return prepared.with_ops(
            part for op in prepared.ops
            for part in (_by_row(op, prepared) if op.makes_any(chosen) else (op,))
        )  # fmt: skip


def _pays(op: Op, prepared: Prepared) -> bool:
    """True for a large gradient of an embedding whose only reader adds another one."""
    if op.kinds != {PrimIDs.EMBEDDING_BACKWARD} or len(op.leaves) != 1:
        return False
    (leaf,) = op.leaves
    g, index, words, padding, scaled, sparse = leaf.args
    sizes = *g._shape, *index._shape, words, padding
    if scaled or sparse or not all(type(size) is int for size in sizes):
        return False
    is_large = bytes_of(leaf.output) >= LEAST_BYTES and words >= _TIMES * prod(index._shape)
    readers = prepared.flow.readers.get(leaf.output.name, [])
    return is_large and [_is_sum(prepared.ops[at]) for at in readers] == [True]


def _is_sum(op: Op) -> bool:
    tensors = [proxy for proxy in op.reads if isinstance(proxy, TensorProxy)]
    adds = op.is_fusible and PrimIDs.ADD in op.kinds and len(tensors) == 2
    return adds and tensors[0]._shape == tensors[1]._shape


def _by_row(op: Op, prepared: Prepared) -> Iterator[Op]:
    (leaf,) = op.leaves
    tags = leaf.tags | op.bsym.tags
    for bsym in _summed_by_row(leaf):
        yield prepared.rules.op(bsym.from_bsym(tags=tags, header=op.bsym.header))


def _summed_by_row(leaf: BoundSymbol) -> Iterator[BoundSymbol]:
    g, index, words, padding, *_ = leaf.args
    count, width = prod(index._shape), g._shape[-1]
    whole = {"device": index.device, "dtype": dtypes.int64}

    def integers(*shape: int) -> TensorProxy:
        return TensorProxy(like=index, shape=shape, dtype=dtypes.int64)

    wide, tokens = integers(*index._shape), integers(count)
    yield prims.convert_element_type.bind(index, dtypes.int64, output=wide)
    yield prims.reshape.bind(wide, (count,), output=tokens)
    rows = TensorProxy(like=g, shape=(count, width))
    yield prims.reshape.bind(g, (count, width), output=rows)
    none, counts, place, first = integers(words), integers(count), integers(words), integers(count)
    yield prims.full.bind((words,), count, **whole, output=none)
    yield prims.iota.bind(count, start=0, step=1, **whole, output=counts)
    yield prims.scatter.bind(none, tokens, counts, 0, output=place)
    yield prims.take.bind(place, tokens, 0, output=first)
    sums = TensorProxy(like=rows)
    yield prims.embedding_backward.bind(rows, first, count, -1, False, False, output=sums)
    is_here = TensorProxy(like=place, dtype=dtypes.bool8)
    yield prims.lt.bind(place, count, output=is_here)
    if padding >= 0:  # a word without a gradient
        every, others, both = integers(words), TensorProxy(like=is_here), TensorProxy(like=is_here)
        yield prims.iota.bind(words, start=0, step=1, **whole, output=every)
        yield prims.ne.bind(every, padding, output=others)
        yield prims.bitwise_and.bind(is_here, others, output=both)
        is_here = both
    at, taken = integers(words), TensorProxy(like=g, shape=(words, width))
    yield prims.where.bind(is_here, place, 0, output=at)
    yield prims.take.bind(sums, at, 0, output=taken)
    are_here = TensorProxy(like=taken, dtype=dtypes.bool8)
    yield prims.broadcast_in_dim.bind(is_here, (words, width), (0,), output=are_here)
    yield prims.where.bind(are_here, taken, 0.0, output=leaf.output)
