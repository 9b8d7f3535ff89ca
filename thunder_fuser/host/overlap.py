# SPDX-License-Identifier: Apache-2.0
"""Replaces two segments of a plan, a product and its communication, by one call that overlaps them.

    segment 1 communication: T2 = all_gather(T0, dim=0, ...)  ->  T3 = all_gather_matmul(T0, T1, ..)
    segment 2 expr_eval:     T3 = matmul(T2, T1)

Nothing else may read the value between the two. The call (communication/products.py) decides when
it runs whether it is a pipeline; `with_decisions` predicts it. If the definition puts the axis over
devices on streams too (ir/streams.py), it is always a pipeline, in the definition's chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from thunder_fuser.communication.products import foreseen, with_chunks
from thunder_fuser.errors import CommunicationError
from thunder_fuser.ir.communication import devices, is_communication
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import OpRecord, names_of, record_text
from thunder_fuser.ir.shapes import normalise_axis
from thunder_fuser.ir.streams import PRODUCTS, streams_of
from thunder_fuser.ir.strides import contiguous_strides
from thunder_fuser.multi_device import LowerParams
from thunder_fuser.runtime.torch_types import to_torch_dtype
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.target import Target

_DTYPES = (DataType.Half, DataType.BFloat16, DataType.Float, DataType.Double)


@dataclass(frozen=True, slots=True)
class Overlapped:
    """A call that replaces two segments.

    reads: the operands, then a bias if there is one. post: the communication. chunks: of each
    device's part, if the definition gives them, else 0.
    """

    name: str
    reads: tuple[str, ...]
    result: str
    product: OpRecord
    post: OpRecord
    chunks: int = 0

    @property
    def transposed(self) -> bool:
        """True if the second operand is a weight [n, k], which the call takes transposed."""
        return self.product.op == "linear" and self.name != "all_gather_linear"


def overlaps(segmented: SegmentedFusion, *, every: bool) -> dict[int, Overlapped | None]:
    """{segment's number: the call that replaces it, or None: the call at the other segment does}.

    every: also calls that the definition does not ask for.
    """
    fusion = segmented.fusion
    singles = {
        at: one.ops[0] for at, one in enumerate(segmented.segments)
        if len(one.ops) == 1 and not one.scheduler.makes_kernel
    }
    maker = {expr.outputs[0]: at for at, expr in singles.items()}
    found: dict[int, Overlapped | None] = {}
    for at, expr in singles.items():
        for name in names_of(expr):
            before = maker.get(name)
            if before is None or before in found or not _is_between(fusion, name):
                continue
            call = _joined(fusion, singles[before], expr)
            is_wanted = call is not None and (every or call.chunks > 0)
            if call is not None and is_wanted and _is_row_major(segmented, call.result):
                found |= {before: None, at: call}
                break
    return found


def with_decisions(segmented: SegmentedFusion, target: Target) -> SegmentedFusion:
    """The plan, with notes on what the cost model decides for its calls and the predicted times."""
    if not segmented.segments:
        return segmented
    is_cuda = not (target.is_cpu or target.emulated)
    lower = segmented.segments[0].match.options.multi_device.lower
    found = overlaps(segmented, every=may_overlap(lower, is_cuda=is_cuda))
    notes = tuple(
        f"{call.result} = {call.name}({', '.join(call.reads)}):"
        f" {_decision(segmented.fusion, call, lower, 'cuda' if is_cuda else 'cpu')}"
        for call in found.values() if call is not None
    )  # fmt: skip
    return replace(segmented, notes=notes)


def ring_chunks(fusion: Fusion, call: Overlapped, lower: LowerParams) -> int:
    """The chunks of each device's part if the call becomes sends and receives (ring.py), else 0."""
    if lower.backend != "point_to_point" or not (call.chunks or lower.overlap == "always"):
        return 0
    (read,) = names_of(call.post)
    is_gather = call.post.op == "all_gather"
    if not is_gather and fusion.tensors[read].sizes[0] % devices(call.post):
        return 0  # the devices divide the rows only together with other axes
    return call.chunks or lower.chunks or (1 if is_gather else 2)


def _decision(fusion: Fusion, call: Overlapped, lower: LowerParams, device: str) -> str:
    if chunks := ring_chunks(fusion, call, lower):
        return f"sends and receives, each device's part in {chunks} chunk{'s' * (chunks > 1)}"
    a, b, *_ = (fusion.tensors[name] for name in call.reads)
    left = (prod(a.sizes[:-1]), a.sizes[-1])
    right = b.sizes[::-1] if call.transposed else b.sizes
    dtype = str(to_torch_dtype(a.dtype)).removeprefix("torch.")
    return foreseen(
        call.name, left, right, dtype, world=devices(call.post), device=device,
        lower=with_chunks(lower, call.chunks),
    )  # fmt: skip


def may_overlap(lower: LowerParams, *, is_cuda: bool) -> bool:
    """True if such segments are replaced. On a CPU only if the user asks: there pipelines are no
    faster than collectives."""
    return lower.overlap == "always" or (lower.overlap == "auto" and is_cuda)


def reads_of(segmented: SegmentedFusion, found: Mapping[int, Any]) -> Iterator[Sequence[str]]:
    """The values read at each segment. found: the calls or loops that replace segments."""
    for at, one in enumerate(segmented.segments):
        call = found.get(at)
        yield call.reads if call is not None else () if at in found else one.part.inputs


def _is_between(fusion: Fusion, name: str) -> bool:
    """True if a value is read only once, and is no result."""
    is_result = any(output.name == name for output in fusion.outputs)
    return not is_result and sum(names_of(e).count(name) for e in fusion.uses[name]) == 1


def _is_row_major(segmented: SegmentedFusion, name: str) -> bool:
    sizes = segmented.fusion.tensors[name].sizes
    return segmented.strides[name] == contiguous_strides(sizes)


def _joined(fusion: Fusion, first: OpRecord, second: OpRecord) -> Overlapped | None:
    """The call for a communication and a product, whichever is first; None if there is none."""
    if is_communication(first) and _is_product(fusion, second):
        return _gathered(fusion, first, second)
    if _is_product(fusion, first) and is_communication(second):
        return _reduced(fusion, first, second)
    return None


def _is_product(fusion: Fusion, expr: OpRecord) -> bool:
    """True for a product of floats by a matrix. A bias must have one element for each column."""
    views = [fusion.tensors[name] for name in (*names_of(expr), *expr.outputs)]
    if expr.op not in PRODUCTS:
        return False
    fits = len(views[0].shape) >= 2 == len(views[1].shape)
    fits = fits and all(view.sizes == views[-1].sizes[-1:] for view in views[2:-1])
    return fits and all(0 not in view.sizes and view.dtype in _DTYPES for view in views)


def _gathered(fusion: Fusion, post: OpRecord, product: OpRecord) -> Overlapped | None:
    (shard,), (a, b, *bias) = names_of(post), names_of(product)
    (whole,), (result,) = post.outputs, product.outputs
    if post.op != "all_gather" or not _is_first(fusion, post, whole):
        return None
    if whole in bias:
        return None
    if a == whole and (chunks := _chunks(product, 0, post)) is not None:
        reads = (shard, b, *bias)
        return Overlapped("all_gather_matmul", reads, result, product, post, chunks)
    is_matrix = len(fusion.tensors[result].shape) == 2
    if b == whole and product.op == "linear" and is_matrix:
        chunks = _chunks(product, 1, post)
        if chunks is not None:
            reads = (a, shard, *bias)
            return Overlapped("all_gather_linear", reads, result, product, post, chunks)
    return None


def _reduced(fusion: Fusion, product: OpRecord, post: OpRecord) -> Overlapped | None:
    (whole,), world = product.outputs, devices(post)
    name = {"reduce_scatter": "matmul_reduce_scatter", "all_reduce": "matmul_all_reduce"}
    is_sum = post.attr("reduce") == "sum" and post.op in name
    if not is_sum or len(names_of(product)) > 2 or prod(fusion.tensors[whole].sizes[:-1]) % world:
        return None
    chunks = _chunks(product, 0, post)
    if chunks is None or (post.op == "reduce_scatter" and not _is_first(fusion, post, whole)):
        return None
    reads, (result,) = names_of(product), post.outputs
    return Overlapped(name[post.op], reads, result, product, post, chunks)


def _is_first(fusion: Fusion, post: OpRecord, name: str) -> bool:
    """True if the first axis is communicated. Then the leading axes count as rows of a matrix."""
    return normalise_axis(post.attr("dim"), len(fusion.tensors[name].shape), post.op) == 0


def _chunks(product: OpRecord, axis: int, post: OpRecord) -> int | None:
    """The chunks of each device's part by the product's streams: 0 without streams, None if they
    split another axis. CommunicationError if the devices do not get equally many."""
    found = streams_of(product)
    if found is None or found[0] != axis:
        return None if found else 0
    pieces, world = found[1], devices(post)
    if pieces % world:
        raise CommunicationError(
            f"{record_text(product)}: axis {axis} on stream", got=f"{pieces} pieces",
            expected=f"a multiple of {world} pieces, as many for each device of {post.op}",
            do="split the axis by a multiple of the devices",
        )  # fmt: skip
    return pieces // world
