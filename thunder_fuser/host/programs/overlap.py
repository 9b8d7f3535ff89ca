# SPDX-License-Identifier: Apache-2.0
"""Replaces two segments of a plan, a product and its communication, by one call that overlaps them.

    segment 1 communication: T2 = all_gather(T0, dim=0, ...)  ->  T3 = all_gather_matmul(T0, T1, ..)
    segment 2 expr_eval:     T3 = matmul(T2, T1)

Nothing else may read the value between the two. The call (communication/products) decides when
it runs whether it is a pipeline; `with_decisions` predicts it. If the definition puts the axis over
devices on streams too (ir/rules/streams.py), it is always a pipeline, in the definition's chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from thunder_fuser.communication.products.pairs import (
    REDUCED,
    MatrixProduct,
    ProductPair,
    SumOverDevices,
    pairs_of,
)
from thunder_fuser.communication.products.products import foreseen, with_chunks
from thunder_fuser.errors import CommunicationError
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import OpRecord, names_of, record_text
from thunder_fuser.ir.rules.communication import devices
from thunder_fuser.ir.rules.shapes import normalise_axis
from thunder_fuser.ir.rules.streams import PRODUCTS, streams_of
from thunder_fuser.ir.strides import contiguous_strides
from thunder_fuser.multi_device import LowerParams
from thunder_fuser.runtime.torch_types import to_torch_dtype
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.target import Target


@dataclass(frozen=True, slots=True)
class Overlapped:
    """A call that replaces two segments.

    reads: the operands, then a bias if there is one; the call takes a second one that is
    transposed as [k, n]. post: the communication. chunks: of each device's part, if the definition
    gives them, else 0.
    """

    name: str
    reads: tuple[str, ...]
    result: str
    product: OpRecord
    post: OpRecord
    transposed: bool
    chunks: int = 0


def overlaps(segmented: SegmentedFusion, *, every: bool) -> dict[int, Overlapped | None]:
    """{segment's number: the call that replaces it, or None: the call at the other segment does}.

    every: also calls that the definition does not ask for.
    """
    singles = {
        at: segment.ops[0] for at, segment in enumerate(segmented.segments)
        if len(segment.ops) == 1 and not segment.scheduler.makes_kernel
    }
    place = {expr.outputs[0]: at for at, expr in singles.items()}
    ops = _Segments(segmented, every, singles, place)
    calls: dict[int, Overlapped | None] = {}
    for expr in ops.singles.values():
        product = _product(segmented.fusion, expr)
        pairs = () if product is None else pairs_of(product, ops.gather_of, ops.reduction_of)
        for pair in filter(ops.takes, pairs):
            first, second = sorted(ops.place[op.outputs[0]] for op in (expr, pair.collective))
            calls |= {first: None, second: _overlapped(pair)}
            break
    return dict(sorted(calls.items()))


@dataclass(frozen=True, slots=True)
class _Segments:
    """The segments of one op, as the finder of products and collectives asks for them.

    singles: {segment's number: its op}; place: {result of such an op: the segment's number}
    """

    segmented: SegmentedFusion
    every: bool
    singles: dict[int, OpRecord]
    place: dict[str, int]

    def gather_of(self, product: MatrixProduct, place: int) -> OpRecord | None:
        """The gather of an operand that nothing else reads."""
        name, fusion = names_of(product.op)[place], self.segmented.fusion
        post = self.singles[self.place[name]] if name in self.place else None
        is_gather = post is not None and post.op == "all_gather" and _is_first(fusion, post, name)
        return post if is_gather and _is_between(fusion, name) else None

    def reduction_of(self, product: MatrixProduct) -> SumOverDevices | None:
        """The sum over devices that is the only reader of a product."""
        (whole,), fusion = product.op.outputs, self.segmented.fusion
        for post in fusion.uses[whole] if _is_between(fusion, whole) else ():
            is_sum = post.op in REDUCED and post.attr("reduce") == "sum"
            if is_sum and post.outputs[0] in self.place and _is_first(fusion, post, whole):
                return SumOverDevices(post.op, devices(post), post)
        return None

    def takes(self, pair: ProductPair) -> bool:
        """True if the definition or the user asks for the call, and its result is row-major."""
        chunks = _chunks(pair)
        is_wanted = chunks is not None and (self.every or chunks > 0)
        return is_wanted and _is_row_major(self.segmented, _result(pair))


def with_decisions(segmented: SegmentedFusion, target: Target) -> SegmentedFusion:
    """The plan, with notes on what the cost model decides for its calls and the predicted times."""
    if not segmented.segments:
        return segmented
    is_cuda = not (target.is_cpu or target.emulated)
    lower = segmented.segments[0].match.options.multi_device.lower
    calls = overlaps(segmented, every=may_overlap(lower, is_cuda=is_cuda))
    notes = tuple(
        f"{call.result} = {call.name}({', '.join(call.reads)}):"
        f" {_decision(segmented.fusion, call, lower, 'cuda' if is_cuda else 'cpu')}"
        for call in calls.values() if call is not None
    )  # fmt: skip
    return replace(segmented, notes=notes)


def _decision(fusion: Fusion, call: Overlapped, lower: LowerParams, device: str) -> str:
    a, b, *_ = (fusion.tensors[name] for name in call.reads)
    right = b.sizes[::-1] if call.transposed else b.sizes
    dtype = str(to_torch_dtype(a.dtype)).removeprefix("torch.")
    return foreseen(
        call.name, a.sizes, right, dtype, world=devices(call.post), device=device,
        lower=with_chunks(lower, call.chunks),
    )  # fmt: skip


def may_overlap(lower: LowerParams, *, is_cuda: bool) -> bool:
    """True if such segments are replaced. On a CPU only if the user asks: there pipelines are no
    faster than collectives."""
    return lower.overlap == "always" or (lower.overlap == "auto" and is_cuda)


def _is_between(fusion: Fusion, name: str) -> bool:
    """True if a value is read only once, and is no result."""
    is_result = any(output.name == name for output in fusion.outputs)
    return not is_result and sum(names_of(e).count(name) for e in fusion.uses[name]) == 1


def _is_row_major(segmented: SegmentedFusion, name: str) -> bool:
    sizes = segmented.fusion.tensors[name].sizes
    return segmented.strides[name] == contiguous_strides(sizes)


def _is_first(fusion: Fusion, post: OpRecord, name: str) -> bool:
    """True if the first axis is communicated, or, as by an all_reduce, none."""
    axis: Any = post.attr("dim")
    return axis is None or normalise_axis(axis, len(fusion.tensors[name].shape), post.op) == 0


def _product(fusion: Fusion, expr: OpRecord) -> MatrixProduct | None:
    if expr.op not in PRODUCTS:
        return None
    tensors = [fusion.tensors[name] for name in (*names_of(expr), *expr.outputs)]
    sizes, dtypes = (view.sizes for view in tensors), (view.dtype for view in tensors)
    return MatrixProduct(expr, expr.op == "linear", tuple(sizes), tuple(dtypes))


def _overlapped(pair: ProductPair) -> Overlapped:
    """The call that replaces a product and its communication."""
    product, post = pair.product.op, pair.collective
    reads = [*names_of(product)]
    if pair.place is not None:
        (reads[pair.place],) = names_of(post)
    return Overlapped(
        pair.name, tuple(reads), _result(pair), product, post, pair.transposed, _chunks(pair) or 0
    )


def _result(pair: ProductPair) -> str:
    last = pair.collective if pair.place is None else pair.product.op
    return str(last.outputs[0])


def _chunks(pair: ProductPair) -> int | None:
    """The chunks of each device's part by the product's streams: 0 without streams, None if they
    split another axis. CommunicationError if the devices do not get equally many."""
    product, post = pair.product.op, pair.collective
    split = streams_of(product)
    if split is None or split[0] != (pair.place or 0):
        return None if split else 0
    pieces, world = split[1], devices(post)
    if pieces % world:
        raise CommunicationError(
            f"{record_text(product)}: axis {split[0]} on stream", got=f"{pieces} pieces",
            expected=f"a multiple of {world} pieces, as many for each device of {post.op}",
            do="split the axis by a multiple of the devices",
        )  # fmt: skip
    return pieces // world
