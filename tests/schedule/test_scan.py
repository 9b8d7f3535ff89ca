# SPDX-License-Identifier: Apache-2.0
"""Scans: what shares their kernel, what does not, and their order of operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import Runner, ints, rand
from helpers.graphs import rows

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import DefinitionError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.runtime.torch_types import from_torch_dtype
from thunder_fuser.target import CPU, H200

TARGETS = {"h200": H200, "cpu": CPU}


def graph(call: Callable[..., Any], *shape: int) -> tuple[FusionDefinition, list[torch.Tensor]]:
    """A definition of one input, and that input."""
    fd, x = rows(*shape)
    made = call(fd.ops, x)
    for value in made if isinstance(made, list) else [made]:
        fd.add_output(value)
    return fd, [rand(*shape)]


def schedulers(call: Callable[..., Any], *shape: int, target: Any = H200) -> list[str]:
    fd, inputs = graph(call, *shape)
    return [s.scheduler.name for s in fd.plan(inputs, target=target).segments]


# ---- what shares a kernel


FUSES = {
    "before and behind": lambda o, x: o.exp(o.cumsum(o.mul(x, 2.0), 1)),
    "with its own operand": lambda o, x: o.truediv(x, o.cumsum(x, 1)),
    "two side by side": lambda o, x: [o.cumsum(x, 0), o.cummax(x, 0)],
    "one behind the other": lambda o, x: o.cumsum(o.relu(o.cummin(x, 1)), 1),
    "places of a maximum": lambda o, x: [o.cummax(x, 1), o.cummax_indices(x, 1)],
}
CUTS = {
    "along two axes": lambda o, x: o.cumsum(o.cumsum(x, 1), 0),
    "read elsewhere": lambda o, x: o.add(x, o.permute(o.cumsum(x, 1), [1, 0])),
    "behind a slice": lambda o, x: o.slice(o.cumsum(x, 1), [0, 1], [12, 12]),
    "behind a pad": lambda o, x: o.pad(o.cumsum(x, 1), [1, 0]),
    "before a sum": lambda o, x: o.sum(o.cumsum(x, 1), [1]),
    "behind a sum": lambda o, x: o.cumsum(o.truediv(x, o.sum(x, [1], True)), 1),
    "of a vector, over a matrix": lambda o, x: o.add(x, o.cumsum(o.sum(x, [0]), 0)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FUSES)
def test_one_kernel(name: str, target: str) -> None:
    assert schedulers(FUSES[name], 12, 12, target=TARGETS[target]) == ["scan"]


@pytest.mark.parametrize("name", CUTS)
def test_several_kernels(name: str) -> None:
    found = schedulers(CUTS[name], 12, 12)
    assert len(found) > 1
    assert "scan" in found


@pytest.mark.parametrize("name", {**FUSES, **CUTS})
def test_values(name: str, run: Runner) -> None:
    """Shared kernels and several give what the ops give one by one."""
    call = {**FUSES, **CUTS}[name]
    fd, inputs = graph(call, 12, 12)
    reference = evaluate(fd.fusion, inputs)
    for result, expected in zip(run.execute(fd, inputs), reference, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def test_an_axis_of_size_1_needs_no_scan() -> None:
    assert schedulers(lambda o, x: o.neg(o.cumsum(x, 1)), 12, 1) == ["pointwise"]


# ---- torch's rules


ROWS = torch.tensor(
    [[1.0, 3, 3, 2, 3], [torch.nan, 1, torch.nan, 4, 5], [-torch.inf, -torch.inf, 0, -0.0, 0]]
)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("x", [ROWS, ints(40, 70, low=-2, high=3), ints(6, 1200) > 0], ids=str)
def test_places_are_torchs(name: str, dim: int, x: torch.Tensor, run: Runner) -> None:
    """Also of equal values, where torch takes the last, and of NaN."""
    def build(fd: FusionDefinition) -> None:
        dtype = from_torch_dtype(x.dtype)
        t = fd.define_tensor(sizes=tuple(x.shape), strides=x.stride(), dtype=dtype)
        fd.add_output(getattr(fd.ops, name)(t, dim))
        fd.add_output(getattr(fd.ops, f"{name}_indices")(t, dim))

    run(build, [x], list(getattr(torch, name)(x, dim)), tolerance=0.0)


@pytest.mark.parametrize("dim", [0, 1])
def test_as_accurate_as_torch(dim: int, run: Runner) -> None:
    x = rand(300, 3000)
    fd, _ = graph(lambda o, t: o.cumsum(t, dim), 1, 1)
    (result,) = run.execute(fd, [x])
    exact = x.double().cumsum(dim)
    # torch on a CPU adds in double: the least error that float32 has, half an ulp.
    mine = (result.double() - exact).abs().max()
    ulp = torch.finfo(torch.float32).eps * exact.abs().max()
    assert mine <= (0.6 if run.target == "cpu" else 8.0) * ulp


def test_the_same_bits_every_time(run: Runner) -> None:
    fd, _ = graph(lambda o, t: o.cumsum(t, 1), 1, 1)
    x = rand(3, 3000)
    assert torch.equal(run.execute(fd, [x])[0], run.execute(fd, [x])[0])


def test_refusals() -> None:
    with pytest.raises(DefinitionError, match="axis 2: expected an axis from -2 to 1"):
        graph(lambda o, t: o.cumsum(t, 2), 3, 4)[0].fusion
    scalar = FusionDefinition()
    t = scalar.define_tensor(shape=[], contiguity=[], dtype=DataType.Float)
    scalar.add_output(scalar.ops.cumsum(t, 0))
    with pytest.raises(DefinitionError, match="none, as the rank is 0"):
        scalar.fusion


# ---- places that a scan computes


INDICES: dict[str, Callable[[Any, Any, int], Any]] = {
    "a sum": lambda o, x, axis: o.cumsum(o.cast(x, DataType.Int), axis),
    "a maximum": lambda o, x, axis: o.cummax(o.cast(x, DataType.Int), axis),
    "a minimum": lambda o, x, axis: o.cummin(o.cast(x, DataType.Int), axis),
    "places of a maximum": lambda o, x, axis: o.cummax_indices(x, axis),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", INDICES)
def test_a_scan_is_an_index(run: Runner, name: str, axis: int) -> None:
    """A thread behind the end of a row looks up the last place, not one behind the table."""
    for shape in ((3, 3), (5, 100), (100, 3), (2, 3000)):
        x, table = torch.ones(shape), torch.rand(shape)
        x.select(axis, 0).zero_()

        def build(fd: FusionDefinition, x: Any = x, table: Any = table) -> None:
            t, values = fd.from_pytorch(x), fd.from_pytorch(table)
            places = INDICES[name](fd.ops, t, axis)
            fd.add_output(fd.ops.take_along_axis(values, places, axis))

        scanned = {
            "a sum": x.cumsum(axis), "a maximum": x.cummax(axis)[0],
            "a minimum": x.cummin(axis)[0], "places of a maximum": x.cummax(axis)[1],
        }[name]  # fmt: skip
        run(build, [x, table], [table.take_along_dim(scanned.long(), axis)])
