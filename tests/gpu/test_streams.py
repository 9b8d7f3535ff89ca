# SPDX-License-Identifier: Apache-2.0
"""Products over the streams of a device: results while other work is in flight, and in a graph."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from thunder_fuser import FusionDefinition, MultiDeviceParams, ParallelType, options

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


def chain(pieces: int) -> Callable[[list[torch.Tensor]], FusionDefinition]:
    """exp(x) @ v @ w + 1: kernels before and behind the loop read and free its memory."""
    def make(inputs: list[torch.Tensor]) -> FusionDefinition:
        with FusionDefinition() as fd:
            x, v, w = map(fd.from_pytorch, inputs)
            e = fd.ops.exp(x)
            fd.add_output(fd.ops.add(fd.ops.matmul(fd.ops.matmul(e, v), w), 1.0))
            e.outer_split(0, pieces).axis(0).parallelize(ParallelType.stream)
        return fd

    return make


def given(seed: int, *sizes: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(a, b, device="cuda") / b**0.5 for a, b in pairwise(sizes)]


def expected(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.exp().double() @ v.double() @ w.double() + 1).float()


@pytest.mark.parametrize("count", [1, 3, 8])
def test_results_in_flight(count: int) -> None:
    """Many calls in a row, behind a late caller, with memory that is used again at once."""
    inputs = [given(seed, 1024, 512, 768, 512) for seed in range(6)]
    with options(multi_device=MultiDeviceParams().with_(executor={"streams": count})):
        fd = chain(8)(inputs[0])
        fd.execute(inputs[0])
        torch.cuda.synchronize()
        found: list[Any] = []
        for _ in range(5):
            for one in inputs:
                torch.cuda._sleep(200_000)
                found.append(fd.execute([t.clone() for t in one])[0])
                torch.full((1024, 768), torch.nan, device="cuda")  # in memory that was freed
    for number, result in enumerate(found):
        torch.testing.assert_close(result, expected(*inputs[number % 6]), rtol=1e-2, atol=1e-2)


def test_on_a_stream_of_the_caller() -> None:
    inputs = given(0, 512, 256, 384, 128)
    fd, side = chain(4)(inputs), torch.cuda.Stream()
    fd.execute(inputs)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000)
        (found,) = fd.execute(inputs)
    torch.cuda.current_stream().wait_stream(side)
    torch.testing.assert_close(found, expected(*inputs), rtol=1e-2, atol=1e-2)


def test_in_a_graph() -> None:
    """Side streams join the capture by the events, and leave it by them."""
    inputs = given(0, 512, 256, 384, 128)
    fd, graph = chain(4)(inputs), torch.cuda.CUDAGraph()
    for _ in range(2):
        fd.execute(inputs)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        (found,) = fd.execute(inputs)
    for seed in (1, 2):
        for target, source in zip(inputs, given(seed, 512, 256, 384, 128), strict=True):
            target.copy_(source)
        graph.replay()
        torch.testing.assert_close(found, expected(*inputs), rtol=1e-2, atol=1e-2)
