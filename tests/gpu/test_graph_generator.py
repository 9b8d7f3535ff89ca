# SPDX-License-Identifier: Apache-2.0
"""Graphs captured while other threads draw random numbers: no draw fails, none is lost."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.graph_scenarios import Block, equal, step

from thunder_fuser.errors import GraphWarning
from thunder_fuser.executors.cuda_graphs.transform import cuda_graphs_of
from thunder_fuser.explain.jitted import jit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CUDA = torch.device("cuda", 0)


def in_graphs(function: Any) -> Any:
    return jit(function, strict=True, cuda_graphs=True, max_cuda_graphs=200)


def captures(jitted: Any) -> int:
    owner = cuda_graphs_of(jitted)
    assert owner is not None
    return sum(len(graphs.kept) for graphs in owner.graphs.values())


@contextmanager
def drawing() -> Iterator[list[torch.Tensor]]:
    """Another thread draws until the block ends; yields its draws, and raises what it raises."""
    drawn: list[torch.Tensor] = []
    failed: list[BaseException] = []
    starts, ends = threading.Event(), threading.Event()

    def draw() -> None:
        try:
            while not ends.wait(1e-4):
                drawn.append(torch.randint(1 << 30, (4,), device=CUDA))
                starts.set()
        except BaseException as error:
            failed.append(error)
            starts.set()

    thread = threading.Thread(target=draw)
    thread.start()
    starts.wait()
    try:
        yield drawn
    finally:
        ends.set()
        thread.join()
    assert failed == []
    assert len(drawn) > 1


def test_captures_without_random_numbers_leave_the_generator() -> None:
    """And the draws of the other thread are those of a program without captures."""
    w = torch.randn(32, 32, device=CUDA)

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).sin() @ w

    found, expected = in_graphs(product), jit(product, strict=True)
    data = [torch.randn(rows, 32, device=CUDA) for rows in range(1, 41)]
    torch.manual_seed(7)
    with drawing() as drawn:
        for x in data:
            for _ in range(3):
                equal([found(x, w)], [expected(x, w)])
    assert captures(found) == len(data)
    torch.manual_seed(7)
    again = [torch.randint(1 << 30, (4,), device=CUDA) for _ in drawn]
    equal([torch.stack(drawn)], [torch.stack(again)])


def test_training_with_dropout_of_regions() -> None:
    """Its seeds are drawn between the graphs."""
    block = Block(0.3).to(CUDA)
    found, expected = in_graphs(block), jit(block, strict=True)
    data = [torch.randn(rows, 16, device=CUDA) for rows in range(1, 13)]
    with drawing():
        for x in data:
            for _ in range(3):
                assert all(one.isfinite().all() for one in step(found, x, block))
    assert captures(found) >= len(data)
    for x in data:
        equal(step(found, x, block), step(expected, x, block))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q * 1.5, k, v, dropout_p=0.25) * 2


def test_a_piece_that_draws_by_torch_waits() -> None:
    found, expected = in_graphs(attend), jit(attend, strict=True)
    shape = (2, 4, 64, 32)
    qkv = [torch.randn(shape, device=CUDA, dtype=torch.bfloat16) for _ in range(3)]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with drawing():
            for _ in range(20):
                assert found(*qkv).isfinite().all()
    assert captures(found) == 0
    (warning,) = (one for one in told if issubclass(one.category, GraphWarning))
    assert "no other thread" in str(warning.message)
    for seed in range(6):
        torch.manual_seed(seed)
        one = [found(*qkv), torch.rand(8, device=CUDA)]
        torch.manual_seed(seed)
        equal(one, [expected(*qkv), torch.rand(8, device=CUDA)])
    assert captures(found) == 1


def test_failed_captures_leave_generator_memory_and_stream() -> None:
    """Pieces that draw fail once without the generator, in turn with those that do not."""
    x = torch.randn(64, 64, device=CUDA)
    qkv = [torch.randn(2, 4, 64, 32, device=CUDA, dtype=torch.bfloat16) for _ in range(3)]
    used = []
    for turn in range(6):
        draws, other = in_graphs(attend), in_graphs(lambda x: (x @ x).sin() @ x)
        for _ in range(3):
            draws(*qkv), other(x)
        assert captures(draws) == captures(other) == 1
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        del draws, other
        gc.collect()
        torch.cuda.synchronize()
        used.append(torch.cuda.memory_allocated())
        assert turn < 2 or used[-1] <= used[1] + (1 << 20), used


def test_two_threads_capture_while_a_third_draws() -> None:
    blocks = [Block().to(CUDA) for _ in range(2)]
    pairs = [(in_graphs(one), jit(one, strict=True)) for one in blocks]
    results: list[Any] = [None, None]

    def train(at: int) -> None:
        found, expected = pairs[at]
        data = [torch.randn(rows, 16, device=CUDA) for rows in range(1, 13)]
        with torch.no_grad():
            results[at] = [(found(x), expected(x)) for x in data for _ in range(3)]

    with drawing():
        threads = [threading.Thread(target=train, args=(at,)) for at in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    for pair in results:
        for one, other in pair:
            equal([one], [other])
