# SPDX-License-Identifier: Apache-2.0
"""The option persistent_buffers on a GPU: streams, and graphs that are captured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers import lasting_memory
from helpers.lasting_memory import expected, memory_of_its_own, two_kernels

from thunder_fuser.communication.transport.buffers import BufferCache, held_by_programs

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[BufferCache]:
    with memory_of_its_own() as cache:
        yield cache


def numbers() -> torch.Tensor:
    """Integers, whose sums no order rounds: the exponential would keep the difference."""
    return torch.randint(-1, 2, (512, 300), device="cuda").float()


def poison() -> None:
    """Before and behind all streams."""
    torch.cuda.synchronize()
    lasting_memory.poison()
    torch.cuda.synchronize()


def test_two_streams_at_once() -> None:
    """Each has memory of its own, so calls may overlap."""
    fd, xs = two_kernels(), [numbers() for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in xs]
    torch.cuda.synchronize()
    for _ in range(20):
        poison()
        found = []
        for stream, x in zip(streams, xs, strict=True):
            with torch.cuda.stream(stream):
                found += fd.execute([x])
        torch.cuda.synchronize()
        for one, x in zip(found, xs, strict=True):
            torch.testing.assert_close(one, expected(x))
    assert len({key.stream for key, _ in held_by_programs().entries()}) == 2


def test_a_graph_has_memory_of_its_own(empty_cache: BufferCache) -> None:
    """It is replayed after what lasts was overwritten and freed."""
    fd, x = two_kernels(), numbers()
    fd.execute([x])
    held = len(held_by_programs().entries())
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        (found,) = fd.execute([x])
    assert len(held_by_programs().entries()) == held > 0
    poison()
    empty_cache.release("", lambda: None)
    x.copy_(numbers())
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(found, expected(x))
