# SPDX-License-Identifier: Apache-2.0
"""What programs on several devices do, as an object; definitions that cannot be placed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from helpers.meshes import MESH, as_rank, shard

from thunder_fuser import DataType, FusionDefinition, MultiDeviceParams, options
from thunder_fuser.errors import (
    CommunicationError,
    DefinitionError,
    DtypeError,
    MeshError,
    OptionError,
)
from thunder_fuser.options import compile_options

WHERE = {"mesh": MESH[2], "on": "mesh_x"}


def test_params_are_frozen_nested_and_keys() -> None:
    params = MultiDeviceParams()
    other = params.with_(executor={"seconds": 4}, lower={"overlap": "never"})
    assert other.executor.seconds == 4 and other.lower.overlap == "never"
    assert params == MultiDeviceParams() != other and len({params, other}) == 2
    assert "LowerParams(overlap='never'" in repr(other)
    assert MultiDeviceParams.parse(str(other)) == other
    with pytest.raises(FrozenInstanceError):
        params.lower.overlap = "never"  # type: ignore[misc]
    with options(multi_device=other):
        assert compile_options().multi_device is other
        assert compile_options() != options_outside
    assert compile_options() == options_outside


options_outside = compile_options()

WRONG: tuple[tuple[Callable[[], Any], str], ...] = (
    (lambda: MultiDeviceParams().with_(lower={"overlapp": "never"}), "write overlap"),
    (lambda: MultiDeviceParams().with_(lower={"overlap": "often"}), "one of auto, never, always"),
    (lambda: MultiDeviceParams().with_(lower={"chunks": -1}), "0 or more"),
    (lambda: MultiDeviceParams().with_(executor={"seconds": 0}), "a positive number"),
    (lambda: MultiDeviceParams().with_(lower={"backend": "point_to_point"}),
     "backend: expected one of auto, process_group, got 'point_to_point'"),
    (lambda: MultiDeviceParams.parse("lower.overlap=often"), "one of auto, never, always"),
    (lambda: MultiDeviceParams.parse("lower.overlapp=never"), r"write lower\.overlap"),
    (lambda: MultiDeviceParams.parse("executor.early=maybe"), "true or false"),
    (lambda: MultiDeviceParams.parse("lower.chunks=few"), "expected int"),
    (lambda: options(multi_device=3).__enter__(), "the type MultiDeviceParams"),  # type: ignore[arg-type]
)


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_params(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_params_change_the_program() -> None:
    """Awaited at once, where that is asked for: another program of the same definition."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        gathered = fd.ops.all_gather(fd.ops.exp(x), 0, **WHERE)
        fd.add_output(fd.ops.sum(fd.ops.tanh(x), [1]))
        fd.add_output(fd.ops.neg(gathered))
    with as_rank(0, 2):
        early = str(fd.program([torch.ones(4, 6)]))
        with options(multi_device=MultiDeviceParams().with_(executor={"early": False})):
            at_once = str(fd.program([torch.ones(4, 6)]))
    lines = at_once.splitlines()
    (post,) = [at for at, line in enumerate(lines) if "all_gather" in line]
    assert "wait(" in lines[post + 1] and early != at_once


# ---- definitions that are refused


def local(call: Callable[[Any, Any], Any], dtype: DataType = DataType.Float) -> None:
    with FusionDefinition() as fd:
        fd.add_output(call(fd, fd.define_tensor([3, 4], [True, True], dtype=dtype)))


REFUSED: tuple[tuple[Callable[[], Any], type[Exception], str], ...] = (
    (lambda: local(lambda fd, x: fd.ops.reduce_scatter(x, 0, **WHERE)), DefinitionError,
     "axis 0: expected a multiple of 2 devices.* got size 3"),
    (lambda: local(lambda fd, x: fd.ops.all_to_all(x, 0, 1, **WHERE)), DefinitionError,
     "axis 0: expected a multiple of 2"),
    (lambda: local(lambda fd, x: fd.ops.all_gather(x, 2, **WHERE)), DefinitionError,
     "all_gather: dim: axis 2"),
    (lambda: local(lambda fd, x: fd.ops.all_gather(x, 0, MESH[2], "mesh_y")), MeshError,
     "axis on mesh_y"),
    (lambda: local(lambda fd, x: fd.ops.all_gather(x, 0, MESH[2], "x")), MeshError,
     'expected "mesh_x", "mesh_y" or "mesh_z"'),
    (lambda: local(lambda fd, x: fd.ops.all_gather(x, 0, [0, 0], "mesh_x")), MeshError,
     "distinct ranks"),
    (lambda: local(lambda fd, x: fd.ops.all_reduce(x, **WHERE, reduce="mean")), DefinitionError,
     "expected one of sum, avg"),
    (lambda: local(lambda fd, x: fd.ops.all_reduce(x, **WHERE), DataType.Bool), DtypeError,
     "a type with arithmetic, got Bool"),
    (lambda: local(lambda fd, x: fd.ops.broadcast_from(x, 2, **WHERE)), DefinitionError,
     "broadcast_from: root"),
    (lambda: local(lambda fd, x: fd.ops.redistribute(x, ["Split(0)"])), DefinitionError,
     r"a list of Shard\(axis\)"),
)  # fmt: skip


@pytest.mark.parametrize(("define", "error", "message"), REFUSED)
def test_refused_calls(define: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        define()


def placed(target: list[str], shape: tuple[int, ...] = (4, 6), **partial: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.redistribute(x, target))
        if partial:
            x.set_device_mesh(MESH[2])
            x.set_partial(**partial)
        else:
            shard(x, 0, 2)
    fd.plan([torch.zeros(shape)])


PLACED: tuple[tuple[Callable[[], Any], type[Exception], str], ...] = (
    (lambda: placed(["Shard(1)"], (4, 5)), CommunicationError,
     r"axis 1: expected a multiple of 2 devices.* got size 5"),
    (lambda: placed(["Shard(2)"]), MeshError, "expected an axis of 2"),
    (lambda: placed(["Shard(0)", "Shard(1)"]), MeshError, "expected 1 placements"),
    (lambda: placed(["Partial(sum)"]), CommunicationError, "that the tensor has"),
    (lambda: placed(["Partial(max)"], on="mesh_x"), CommunicationError, "that the tensor has"),
    (lambda: placed(["Shard(0)"], on="mesh_y"), MeshError, "axis on mesh_y"),
)  # fmt: skip


@pytest.mark.parametrize(("define", "error", "message"), PLACED)
def test_refused_placements(
    define: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        define()


def test_a_sum_without_a_mesh() -> None:
    with pytest.raises(MeshError, match="a partial tensor"), FusionDefinition() as fd:
        x = fd.define_tensor([4], [True])
        fd.add_output(fd.ops.neg(x))
        x.set_partial("mesh_x")


def test_an_axis_and_a_sum_on_one_dimension() -> None:
    with pytest.raises(MeshError, match="at most one axis"), FusionDefinition() as fd:
        x = fd.define_tensor([4], [True])
        fd.add_output(fd.ops.neg(x))
        shard(x, 0, 2)
        x.set_partial("mesh_x")


def test_no_process_group() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.all_reduce(fd.define_tensor([4], [True]), **WHERE))
    with pytest.raises(MeshError, match="init_process_group"):
        fd.execute([torch.ones(4)])
