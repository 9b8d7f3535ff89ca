# SPDX-License-Identifier: Apache-2.0
"""The table of rules: every kind of op has one, and what each does to the shardings of operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.rules.build import define
from thunder_fuser.options import compile_options
from thunder_fuser.presegment import run_passes
from thunder_fuser.sharding.dtensors import layout_records
from thunder_fuser.sharding.place import place
from thunder_fuser.sharding.placements import Placement
from thunder_fuser.sharding.rules import RULES

Build = Callable[[Any, Any, Any], Any]
X = ParallelType.MESH_X
MESH = Mesh.of([0, 1])
ROWS, COLUMNS, WHOLE = Placement(((X,), ())), Placement(((), (X,))), Placement(((), ()))


def on_mesh(build: Build, *placements: Placement) -> Fusion:
    """The fusion of x [8, 4] and y [4, 6] in these placements."""
    fd = FusionDefinition()
    tensors = [fd.define_tensor(shape, True, DataType.Float) for shape in ([8, 4], [4, 6])]
    fd.add_output(build(fd.ops, *tensors))
    records = [
        record for tensor, placement in zip(tensors, placements, strict=True)
        for record in layout_records(tensor.name, MESH, placement)
    ]
    return define((*fd.records, *records))


def test_every_kind_has_a_rule() -> None:
    assert {key for key in RULES if isinstance(key, OpKind)} == set(OpKind)
    assert {key for key in RULES if isinstance(key, str)} <= OPS.keys()


@pytest.mark.parametrize(
    ("build", "x", "y", "result"),
    [
        (lambda o, x, y: o.slice(x, [0, 2], [8, 4]), ROWS, WHOLE, ROWS),
        (lambda o, x, y: o.slice(x, [0, 2], [8, 4]), COLUMNS, WHOLE, WHOLE),
        (lambda o, x, y: o.permute(x, [1, 0]), ROWS, WHOLE, COLUMNS),
        (lambda o, x, y: o.sum(x, [1]), ROWS, WHOLE, Placement(((X,),))),
        (lambda o, x, y: o.sum(x, [0]), ROWS, WHOLE, Placement(((),), ((X, "sum"),))),
        (lambda o, x, y: o.prod(x, [0]), ROWS, WHOLE, Placement(((),), ((X, "product"),))),
        (lambda o, x, y: o.cumsum(x, 1), ROWS, WHOLE, ROWS),
        (lambda o, x, y: o.cumsum(x, 0), ROWS, WHOLE, WHOLE),
        (lambda o, x, y: o.argsort(x, 1), ROWS, WHOLE, ROWS),
        (lambda o, x, y: o.reshape(x, [32]), ROWS, WHOLE, Placement(((X,),))),
        (lambda o, x, y: o.reshape(x, [32]), COLUMNS, WHOLE, Placement(((),))),
        (lambda o, x, y: o.matmul(x, y), ROWS, WHOLE, ROWS),
        (lambda o, x, y: o.matmul(x, y), COLUMNS, ROWS, Placement(((), ()), ((X, "sum"),))),
    ],
)
def test_what_an_op_does_to_shardings(
    build: Build, x: Placement, y: Placement, result: Placement
) -> None:
    placed = place(on_mesh(build, x, y))
    (computed,) = [r for r in placed.definition if r.outputs and r.op not in (
        "define_tensor", "redistribute")]  # fmt: skip
    assert placed.places[computed.outputs[0]] == result


def test_rows_for_plain_tensors_refuse_a_mesh() -> None:
    with pytest.raises(AssertionError):
        run_passes(on_mesh(lambda o, x, y: o.neg(x), ROWS, WHOLE), compile_options())
