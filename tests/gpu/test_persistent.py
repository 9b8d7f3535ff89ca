# SPDX-License-Identifier: Apache-2.0
"""The option persistent_buffers on a GPU: streams, and graphs that are captured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from thunder_fuser import FusionDefinition, options
from thunder_fuser.communication import buffers
from thunder_fuser.communication.buffers import BufferCache, Plain, held_by_programs

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[BufferCache]:
    cache = BufferCache()
    monkeypatch.setattr(buffers, "LOCAL", cache)
    with options(persistent_buffers=True):
        yield cache


def two_kernels() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        centred = fd.ops.sub(x, fd.ops.sum(x, [0], keepdim=True))
        fd.add_output(fd.ops.sum(fd.ops.exp(fd.ops.neg(fd.ops.abs(centred))), [1]))
    return fd


def check(found: torch.Tensor, x: torch.Tensor) -> None:
    """Sums of float32 beside those of float64, of which the exponential keeps the difference."""
    x = x.double()
    expected = (-(x - x.sum(0, keepdim=True)).abs()).exp().sum(1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def poison() -> None:
    torch.cuda.synchronize()
    for entry in held_by_programs().entries().values():
        assert isinstance(entry, Plain)
        entry.tensor.fill_(torch.nan)
    torch.cuda.synchronize()


def test_two_streams_at_once() -> None:
    """Each has memory of its own, so calls may overlap."""
    fd, xs = two_kernels(), [torch.randn(512, 300, device="cuda") for _ in range(2)]
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
            check(one, x)
    assert len({key.stream for key in held_by_programs().entries()}) == 2


def test_a_graph_has_memory_of_its_own(empty_cache: BufferCache) -> None:
    """It is replayed after what lasts was overwritten and freed."""
    fd, x = two_kernels(), torch.randn(512, 300, device="cuda")
    fd.execute([x])
    held = len(held_by_programs().entries())
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        (found,) = fd.execute([x])
    assert len(held_by_programs().entries()) == held > 0
    poison()
    empty_cache.release("", lambda: None)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    check(found, x)
