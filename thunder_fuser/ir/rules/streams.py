# SPDX-License-Identifier: Apache-2.0
"""An axis over streams: a matrix product computes its pieces one by one, each on a stream.

    T2 = matmul(T0, T1); T2.split(0, 4, False); T2.parallelize(0, "stream")
->  T2 = matmul(T0, T1, streams=[0, 4])          axis 0 of the result in four pieces

The axis belongs to a matrix product's result, or to an operand that does not sum it. If the outer
part of the axis is on devices, [i0.o@mesh_x, i0.i.o@stream, i0.i.i], the attribute counts the
pieces of all devices, and the number of devices follows: streams=[0, 8, 2].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from thunder_fuser.errors import DefinitionError
from thunder_fuser.ir.domain import Domain, Parallelize, ParallelType, Split, StreamAxis, Transform
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.record import OpRecord, names_of, record_text

PRODUCTS = ("matmul", "linear")
Views = Mapping[str, TensorView]

# ---- from the calls on a tensor


def without_streams(
    view: TensorView, chain: tuple[Transform, ...]
) -> tuple[tuple[Transform, ...], StreamAxis | None]:
    """The transforms without those of the axis over streams, and that axis.

    [Split(i0, 4, outer), Parallelize(i0.o, stream)]  ->  [], axis 0 in 4 pieces
    """
    marks = [t for t in chain if isinstance(t, Parallelize) and t.parallel is ParallelType.STREAM]
    if not marks:
        return chain, None
    if len(marks) > 1:
        got = ", ".join(mark.axis for mark in marks)
        raise DefinitionError(f"{view.name}: stream", expected="one axis", got=f"axes {got}")
    (mark,) = marks
    splits = {t.axis: t for t in chain if isinstance(t, Split)}
    split = splits.get(mark.axis.removesuffix(".o")) if mark.axis.endswith(".o") else None
    kept = tuple(t for t in chain if t is not mark and t is not split)
    source = mark.axis if split is None else split.axis
    names = [axis.name for axis in view.domain.no_reductions]
    on_devices = {t.axis for t in kept if isinstance(t, Parallelize)}
    base, devices = source, 1
    while base.endswith(".i") and base[:-2] + ".o" in on_devices:
        base = base[:-2]
        devices *= splits[base].factor
    if base not in names or any(_is_of(transform, source) for transform in kept):
        raise _wrong(
            view, mark.axis, "an axis, or the outer part of its split, inside of what devices have",
            f"[{', '.join(axis.name for axis in view.domain.loop_axes)}]",
            "split over devices first, then the inner axis, by outer_split",
        )  # fmt: skip
    pieces = _pieces(view, mark.axis, names.index(base), split, devices)
    return kept, StreamAxis(mark.axis, names.index(base), pieces, devices)


def _is_of(transform: Transform, source: str) -> bool:
    """True if a transform changes an axis over streams, or a part of it."""
    axis = transform.axis if isinstance(transform, (Split, Parallelize)) else ""
    return axis == source or axis.startswith(source + ".")


def _pieces(view: TensorView, name: str, at: int, split: Split | None, devices: int) -> int:
    """The pieces on each device, 0 if the size is not known; DefinitionError if they differ."""
    extent = view.domain.no_reductions[at].extent
    if split is not None and not split.inner and not extent.is_const:
        return split.factor
    if not extent.is_const:
        return 0
    size = extent.value
    parts = devices if split is None else devices * split.factor
    if size % parts:
        expected = f"a multiple of {parts}: streams take equal pieces"
        raise _wrong(view, name, expected, f"axis {at} of size {size}", "pad the axis first")
    if split is not None and not split.inner:
        return split.factor
    return max(1, size // parts)


# ---- to the products that walk it


def products_in_streams(records: Sequence[OpRecord], tensors: Views) -> dict[str, StreamAxis]:
    """{result of a product: its axis over streams}; DefinitionError for an axis of no product."""
    asked = [(view, view.stream) for view in tensors.values() if view.stream is not None]
    walked: dict[str, StreamAxis] = {}
    for view, stream in asked:
        products = dict(_products_of(records, tensors, view.name, stream))
        if not products:
            raise _no_product(records, view, stream)
        for result, axis in products.items():
            first = walked.setdefault(result, axis)
            if replace(first, name="") != replace(axis, name=""):
                expected = f"one axis over streams, as {first.name}"
                raise _wrong(tensors[result], axis.name, expected, f"axis {axis.axis} too")
    return walked


def _products_of(
    records: Sequence[OpRecord], tensors: Views, name: str, stream: StreamAxis
) -> Iterator[tuple[str, StreamAxis]]:
    """The product that makes a tensor in these pieces, or else those that read it: each result with
    its own axis."""
    for record in records:
        if record.op not in PRODUCTS:
            continue
        (result,) = record.outputs
        maps = walks(record.op, [len(tensors[source].shape) for source in names_of(record)])
        if result == name and any(stream.axis in axes for axes in maps):
            yield result, stream
            return
        for operand, axes in zip(names_of(record), maps, strict=True):
            back = {operand_axis: axis for axis, operand_axis in axes.items()}
            if operand == name and stream.axis in back:
                yield result, replace(stream, axis=back[stream.axis])


def walks(op: str, ranks: Sequence[int]) -> list[dict[int, int]]:
    """For each operand of a product of matrices: {axis of the result: its axis in step with it}.

    >>> walks("matmul", [3, 2])      # [b, m, k], [k, n] -> [b, m, n]
    [{0: 0, 1: 1}, {2: 1}]
    """
    a, b = ranks[:2]
    if min(a, b) < 2:
        return [{} for _ in ranks]
    if op == "linear":
        return [{at: at for at in range(a - 1)}, *({a - 1: 0} for _ in ranks[1:])]
    rank = max(a, b)
    return [
        {at + rank - a: at for at in range(a - 1)},
        {at + rank - b: at for at in range(b) if at != b - 2},
    ]


def check_streams(record: OpRecord, operands: Sequence[TensorView], result: Domain) -> None:
    """DefinitionError unless the attribute of a product fits its result."""
    streams: Any = record.attr("streams")
    if streams is None:
        return
    if len(streams) not in (2, 3) or min(streams[1:]) < 1:
        raise record.error("streams", "an axis and a number of pieces", list(streams))
    maps = walks(record.op, [len(view.shape) for view in operands])
    axis, pieces = streams[:2]
    if not any(axis in axes for axes in maps):
        expected = "an axis of the result of a product of matrices"
        raise record.error(f"streams: axis {axis}", expected, f"rank {len(result)}")
    extent = result[axis].extent
    if extent.is_const and extent.value % pieces:
        expected = f"a multiple of {pieces}: streams take equal pieces"
        what, do = f"streams: axis {axis}", "pad the axis first"
        raise record.error(what, expected, f"size {extent}", do)


def streams_of(record: OpRecord) -> tuple[int, int] | None:
    """(axis of the result, pieces) of a product in streams."""
    streams: Any = record.attr("streams") if record.op in PRODUCTS else None
    return None if streams is None else (streams[0], streams[1])


def _wrong(
    view: TensorView, name: str, expected: str, got: str, do: str = ""
) -> DefinitionError:
    what = f"{view.name}: axis {name} on stream"
    return DefinitionError(what, expected=expected, got=got, do=do)


def _no_product(
    records: Sequence[OpRecord], view: TensorView, stream: StreamAxis
) -> DefinitionError:
    expected = "an axis of a product of matrices: of its result, or of an operand, not summed"
    near = [r for r in records if r.op in OPS and view.name in (*r.outputs, *names_of(r))]
    products = [r for r in near if r.op in PRODUCTS]
    got = "no product beside it"
    if products:
        got = f"axis {stream.axis} of {record_text(products[0])}"
    elif near:
        kind = near[0].row.kind
        by = "torch" if kind is OpKind.EXTERNAL else "a generated kernel"
        got = f"{record_text(near[0])}, which {by} computes"
    return _wrong(view, stream.name, expected, got)
