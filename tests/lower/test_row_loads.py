# SPDX-License-Identifier: Apache-2.0
"""What a row reads for itself is under way before its reductions are waited for."""

from __future__ import annotations

import pytest
import torch
from helpers.cases import Runner, rand
from helpers.graphs import Graph, meta, rows, softmax
from helpers.kernels import scheduled

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.target import CPU, H200

D = DataType


def losses(count: int, columns: int) -> Graph:
    """log(sum(exp(x - max))) + max - x[target], of each row"""
    fd, x = rows(count, columns, dtype=D.BFloat16)
    target = fd.define_tensor(shape=[-1, 1], contiguity=[True, None], dtype=D.Int)
    _losses(fd, x, target)
    return fd, [meta(count, columns, dtype=D.BFloat16), meta(count, 1, dtype=D.Int)]


def _losses(fd: FusionDefinition, x: object, target: object) -> None:
    top = fd.ops.max(x, [1], keepdim=True)
    powers = fd.ops.sum(fd.ops.exp(fd.ops.sub(x, top)), [1], keepdim=True)
    picked = fd.ops.take_along_axis(x, target, dim=1)
    fd.add_output(fd.ops.sub(fd.ops.add(fd.ops.log(powers), top), picked))


@pytest.mark.parametrize("columns", [4096, 50257])
def test_it_fires(columns: int) -> None:
    """The place is read before the first pass, the element before the first reduction."""
    text = scheduled(losses(600, columns), H200)[1].text
    body = text[text.index("__global__") :]
    words = ["T1_e = ld(T1", "#pragma unroll", "T1_e, ", "reduce_"]
    found = [body.index(word) for word in words]
    assert found == sorted(found)


def test_what_a_pass_reads_is_its_own() -> None:
    text = scheduled(softmax(64, 4096, dtype=D.BFloat16), H200)[1].text
    assert "= ld(" not in text[text.index("__global__") :]


def test_a_place_that_a_reduction_makes_is_not_known_before() -> None:
    fd, x = rows(64, 4096)
    best = fd.ops.argmax(x, dim=1, keepdim=True)
    fd.add_output(fd.ops.take_along_axis(x, best, dim=1))
    text = scheduled((fd, [meta(64, 4096)]), H200)[1].text
    assert text.rindex("checked_index<") > text.rindex("reduce_")


def test_the_cpu_does_not_wait_for_memory_ahead() -> None:
    text = scheduled(losses(64, 4096), CPU)[1].text
    assert text.rindex("checked_index<") > text.rindex("expf")


@pytest.mark.parametrize(("count", "columns"), [(3, 1031), (2, 20001)])
def test_results(count: int, columns: int) -> None:
    x = rand(count, columns, dtype=torch.bfloat16)
    target = torch.randint(0, columns, (count, 1))

    def build(fd: FusionDefinition) -> None:
        _losses(fd, fd.from_pytorch(x), fd.from_pytorch(target))

    wide = x.double()
    expected = torch.logsumexp(wide, 1, keepdim=True) - wide.gather(1, target)
    Runner("emulator")(build, [x, target], [expected.float()])
