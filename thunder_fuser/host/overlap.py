# SPDX-License-Identifier: Apache-2.0
"""Segments of a plan that one call of communication/products.py computes.

    segment 1 communication: T2 = all_gather(T0, dim=0, ...)      T3 = all_gather_matmul(T0, T1, ..)
    segment 2 expr_eval:     T3 = matmul(T2, T1)

Of matrices, where nothing else reads what is between the two. Whether it is a pipeline is decided
where the call runs; `with_decisions` tells it before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from thunder_fuser.communication.products import foreseen
from thunder_fuser.ir.communication import devices, is_communication
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import OpRecord, names_of
from thunder_fuser.ir.strides import contiguous_strides
from thunder_fuser.multi_device import LowerParams
from thunder_fuser.runtime.torch_types import to_torch_dtype
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.target import Target

_DTYPES = (DataType.Half, DataType.BFloat16, DataType.Float, DataType.Double)


@dataclass(frozen=True, slots=True)
class Overlapped:
    """A call in place of two segments.

    reads: the operands; transposed: the second one is a weight [n, k]; post: the communication.
    """

    name: str
    reads: tuple[str, str]
    transposed: bool
    result: str
    post: OpRecord


def overlaps(segmented: SegmentedFusion) -> dict[int, Overlapped | None]:
    """{number of a segment: the call that stands in its place; None: nothing does}."""
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
            if call is not None and _is_row_major(segmented, call.result):
                found |= {before: None, at: call}
                break
    return found


def with_decisions(segmented: SegmentedFusion, target: Target) -> SegmentedFusion:
    """The plan with what the cost model decides for such calls, and its numbers."""
    if not segmented.segments:
        return segmented
    is_cuda = not (target.is_cpu or target.emulated)
    lower = segmented.segments[0].match.options.multi_device.lower
    found = overlaps(segmented) if may_overlap(lower, is_cuda=is_cuda) else {}
    notes = tuple(
        f"{call.result} = {call.name}({', '.join(call.reads)}):"
        f" {_decision(segmented.fusion, call, lower, 'cuda' if is_cuda else 'cpu')}"
        for call in found.values() if call is not None
    )  # fmt: skip
    return replace(segmented, notes=notes)


def _decision(fusion: Fusion, call: Overlapped, lower: LowerParams, device: str) -> str:
    a, b = (fusion.tensors[name] for name in call.reads)
    right = b.sizes[::-1] if call.transposed else b.sizes
    dtype = str(to_torch_dtype(a.dtype)).removeprefix("torch.")
    return foreseen(
        call.name, a.sizes, right, dtype, world=devices(call.post), device=device, lower=lower
    )


def may_overlap(lower: LowerParams, *, is_cuda: bool) -> bool:
    """True if products with communication are calls of their own. On a CPU collectives are as
    fast, unless somebody asks."""
    return lower.overlap == "always" or (lower.overlap == "auto" and is_cuda)


def reads_of(
    segmented: SegmentedFusion, found: dict[int, Overlapped | None]
) -> Iterator[Sequence[str]]:
    """What is read in the place of each segment."""
    for at, one in enumerate(segmented.segments):
        call = found.get(at)
        yield call.reads if call is not None else () if at in found else one.part.inputs


def _is_between(fusion: Fusion, name: str) -> bool:
    """True if one expression reads a value, once, and it is no result."""
    is_result = any(output.name == name for output in fusion.outputs)
    return not is_result and sum(names_of(e).count(name) for e in fusion.uses[name]) == 1


def _is_row_major(segmented: SegmentedFusion, name: str) -> bool:
    sizes = segmented.fusion.tensors[name].sizes
    return segmented.strides[name] == contiguous_strides(sizes)


def _joined(fusion: Fusion, first: OpRecord, second: OpRecord) -> Overlapped | None:
    """The call of a communication and a product, whichever comes first; None if there is none."""
    if is_communication(first) and _is_product(fusion, second):
        return _gathered(first, second)
    if _is_product(fusion, first) and is_communication(second):
        return _reduced(fusion, first, second)
    return None


def _is_product(fusion: Fusion, expr: OpRecord) -> bool:
    """True for a product of two matrices of floats, without a bias."""
    views = [fusion.tensors[name] for name in (*names_of(expr), *expr.outputs)]
    are_matrices = all(len(view.shape) == 2 and 0 not in view.sizes for view in views)
    fits = len(views) == 3 and are_matrices and all(view.dtype in _DTYPES for view in views)
    return expr.op in ("matmul", "linear") and fits


def _gathered(post: OpRecord, product: OpRecord) -> Overlapped | None:
    if post.op != "all_gather" or post.attr("dim") not in (0, -2):
        return None
    (shard,), (a, b) = names_of(post), names_of(product)
    (whole,), (result,) = post.outputs, product.outputs
    transposed = product.op == "linear"
    if a == whole:
        return Overlapped("all_gather_matmul", (shard, b), transposed, result, post)
    if transposed:
        return Overlapped("all_gather_linear", (a, shard), False, result, post)
    return None


def _reduced(fusion: Fusion, product: OpRecord, post: OpRecord) -> Overlapped | None:
    rows = fusion.tensors[product.outputs[0]].sizes[0]
    is_sum, fits = post.attr("reduce") == "sum", rows % devices(post) == 0
    name = {"reduce_scatter": "matmul_reduce_scatter", "all_reduce": "matmul_all_reduce"}
    if post.op not in name or not (is_sum and fits) or post.attr("dim") not in (None, 0, -2):
        return None
    a, b = names_of(product)
    return Overlapped(name[post.op], (a, b), product.op == "linear", post.outputs[0], post)
