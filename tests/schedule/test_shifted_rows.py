# SPDX-License-Identifier: Apache-2.0
"""Long rows of odd length: aligned vectors that may begin before their row and end behind it."""

from __future__ import annotations

import pytest
import torch
from conftest import Golden
from helpers.cases import Runner, rand
from helpers.graphs import Graph, biased, layer_norm, meta, rows, softmax, summed
from helpers.kernels import kernel_text, scheduled
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.target import A100, CPU, H200, Target

D = DataType
TYPES = {D.Float: torch.float32, D.BFloat16: torch.bfloat16, D.Half: torch.float16}


def flat(*shape: int, dtype: DataType = D.BFloat16) -> Graph:
    fd, x = rows(*shape, dtype=dtype)
    fd.add_output(fd.ops.cast(fd.ops.relu(x), dtype))
    return fd, [meta(*shape, dtype=dtype)]


def scaled_rows(*shape: int, dtype: DataType = D.BFloat16) -> Graph:
    """relu(x * a value of its row)"""
    fd, x = rows(*shape, dtype=dtype)
    factor = fd.define_tensor(shape=[-1, 1], contiguity=[True, None])
    fd.add_output(fd.ops.cast(fd.ops.relu(fd.ops.mul(x, factor)), dtype))
    return fd, [meta(*shape, dtype=dtype), meta(shape[0], 1)]


@pytest.mark.parametrize(
    "graph",
    [softmax(64, 4095, dtype=D.BFloat16), scaled_rows(64, 1031), flat(63, 4095)],
    ids=["softmax", "scaled_rows", "flat"],
)
def test_text(graph: Graph, golden: Golden) -> None:
    made, source = scheduled(graph, H200)
    golden(str(made), ext="py")
    golden(kernel_text(source), ext="cu")


@pytest.mark.parametrize("columns", [1025, 1026, 4094, 4095])
def test_it_fires(columns: int) -> None:
    for graph in (softmax(64, columns, dtype=D.Half), scaled_rows(64, columns, dtype=D.Half)):
        made, source = scheduled(graph, H200)
        assert made.params.vectorize == 8
        assert "lde<8>(T0" in source.text and "stv<8>" in source.text


@pytest.mark.parametrize(
    ("graph", "target"),
    [
        (softmax(64, 4096, dtype=D.Half), H200),  # whole vectors
        (softmax(64, 1023, dtype=D.Half), H200),  # the ends are too much of a short row
        (softmax(64, 4095, dtype=D.Half), CPU),  # its compiler makes the vectors
        (softmax(64, 150001, dtype=D.Half), A100),  # read each pass: no registers hold it
        (layer_norm(64, 4095, dtype=D.Half), H200),  # weights, and three passes
        (summed(64, 4095, dims=[1], dtype=D.Half), H200),  # one pass, which would wait
        (biased(64, 4095, dtype=D.Half), H200),  # whole vectors that cross rows
    ],
    ids=["whole", "short", "cpu", "long", "weights", "one_pass", "flat"],
)
def test_it_does_not(graph: Graph, target: Target) -> None:
    assert "lde<" not in scheduled(graph, target)[1].text


def test_only_first_and_last_steps_are_tested() -> None:
    text = scheduled(softmax(640, 7001, dtype=D.BFloat16), H200)[1].text
    assert "(0 < j_o_o || " in text and "(j_o_o < 6 || " in text and "size2), j_o_o < 6)" in text


@pytest.mark.parametrize("dtype", TYPES)
@settings(max_examples=3, deadline=None)
@given(count=st.integers(1, 9), columns=st.integers(1024, 1100), offset=st.integers(0, 9))
def test_results(dtype: DataType, count: int, columns: int, offset: int) -> None:
    """Rows and memory that begin at any place; softmax, its rows scaled, and flat."""
    x = rand(count * columns + offset, dtype=TYPES[dtype])[offset:].view(count, columns)
    factor = rand(count, 1)
    run = Runner("emulator")
    wide, one = x.double(), TYPES[dtype]

    def build(fd: FusionDefinition) -> None:
        a, b = fd.from_pytorch(x), fd.from_pytorch(factor)
        powers = fd.ops.exp(fd.ops.sub(a, fd.ops.max(a, [1], keepdim=True)))
        soft = fd.ops.truediv(powers, fd.ops.sum(powers, [1], keepdim=True))
        fd.add_output(fd.ops.cast(soft, dtype))
        fd.add_output(fd.ops.cast(fd.ops.mul(a, b), dtype))
        fd.add_output(fd.ops.cast(fd.ops.relu(a), dtype))

    expected = [torch.softmax(wide, 1), wide * factor.double(), torch.relu(wide)]
    run(build, [x, factor], [value.to(one) for value in expected])


def test_not_a_number_stays_in_its_row() -> None:
    """What a vector reads of the neighbouring rows is left out."""
    x = rand(5, 1031, dtype=torch.bfloat16)
    x[1::2] = float("nan")
    x[2, 0], x[2, -1] = 3.0, 4.0
    fd, _ = softmax(5, 1031, dtype=D.BFloat16)
    (got,) = fd.execute([x], target="emulator")
    torch.testing.assert_close(got, torch.softmax(x.float(), 1).bfloat16(), equal_nan=True)


def test_indices_of_64_bits_and_tensors_that_are_slices() -> None:
    wide = rand(9, 1400, dtype=torch.float32)
    x = wide[:, 3:1034]
    fd = FusionDefinition()
    a = fd.from_pytorch(x)
    powers = fd.ops.exp(fd.ops.sub(a, fd.ops.max(a, [1], keepdim=True)))
    fd.add_output(fd.ops.truediv(powers, fd.ops.sum(powers, [1], keepdim=True)))
    (got,) = fd.execute([x], target="emulator")
    torch.testing.assert_close(got, torch.softmax(x, 1))
