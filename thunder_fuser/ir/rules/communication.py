# SPDX-License-Identifier: Apache-2.0
"""Communication between devices: the sizes of its results, on one device.

    all_gather(T0: [4, 3], dim=0, mesh=[0, 1], on="mesh_x")        [8, 3]
    reduce_scatter(T0: [4, 3], dim=0, mesh=[0, 1], on="mesh_x")    [2, 3]
    all_to_all(T0: [4, 3], split_dim=0, cat_dim=1, ...)            [2, 6]

`redistribute` speaks of the whole tensor instead, whose sizes it keeps.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.errors import DtypeError
from thunder_fuser.ir.domain import Domain, ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.ir.rules.shapes import Fresh, normalise_axis
from thunder_fuser.ir.scalar import Scalar


def is_communication(record: OpRecord) -> bool:
    """True for a record of the op table that moves elements between devices."""
    return record.row.kind is OpKind.COMMUNICATION


def devices(record: OpRecord) -> int:
    """How many devices take part in each group; MeshError if the mesh lacks the dimension."""
    return Mesh.of(record.attr("mesh")).size(ParallelType(record.attr("on")))


def axes(record: OpRecord, view: TensorView, fresh: Fresh) -> Domain:
    """The axes of the result. DefinitionError names an axis that the devices do not divide."""
    sizes = list(view.shape)
    reduces, dtype = record.attr("reduce") is not None, view.dtype
    if reduces and (dtype is DataType.Bool or dtype.is_float8):
        do, expected = "cast it first", "a type with arithmetic"
        raise DtypeError(f"ops.{record.op}", expected=expected, got=dtype.name, do=do)
    if record.attr("split_dim") is not None:
        _cut(record, sizes, "split_dim")
        _longer(record, sizes, "cat_dim")
    elif record.op == "reduce_scatter":
        _cut(record, sizes, "dim")
    elif record.op == "all_gather":
        _longer(record, sizes, "dim")
    elif record.op == "broadcast_from":
        normalise_axis(record.attr("root"), devices(record), "broadcast_from: root")
    return tuple(map(fresh, sizes))


def _axis(record: OpRecord, sizes: Sequence[Scalar], word: str) -> int:
    return normalise_axis(record.attr(word), len(sizes), f"{record.op}: {word}")


def _longer(record: OpRecord, sizes: list[Scalar], word: str) -> None:
    at = _axis(record, sizes, word)
    sizes[at] = sizes[at] * devices(record)


def _cut(record: OpRecord, sizes: list[Scalar], word: str) -> None:
    at, parts = _axis(record, sizes, word), devices(record)
    if sizes[at].is_const and sizes[at].value % parts:
        expected = f"a multiple of {parts} devices: a split over devices must divide"
        raise record.error(f"axis {at}", expected, f"size {sizes[at]}", "pad the axis first")
    sizes[at] = sizes[at] // parts
