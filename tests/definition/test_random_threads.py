# SPDX-License-Identifier: Apache-2.0
"""Random numbers while several threads ask for them: each call has numbers of its own, and together
they are those of the same calls one after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch
import torch.nn.functional as F
from helpers.cases import TARGETS
from helpers.random_numbers import numbers

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.explain.jitted import jit
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime import random

THREADS, CALLS = 4, 25
T = TypeVar("T")


def in_threads(call: Callable[[], T]) -> list[T]:
    """The results of all calls of all threads."""
    with ThreadPoolExecutor(THREADS) as pool:
        made = list(pool.map(lambda _: [call() for _ in range(CALLS)], range(THREADS)))
    return [one for results in made for one in results]


def in_turn(call: Callable[[], T]) -> list[T]:
    return [call() for _ in range(THREADS * CALLS)]


@pytest.mark.parametrize("target", TARGETS)
def test_definitions(target: str) -> None:
    """The numbers of a call are those of the one seed that it drew."""
    with FusionDefinition() as fd:
        seed, offset = (fd.define_scalar(drawn=word) for word in ("seed", "offset"))
        fd.add_output(fd.ops.cast(seed, DataType.Int))
        fd.add_output(fd.ops.uniform(0.0, 1.0, [64], DataType.Float, seed, offset))

    def call() -> tuple[int, torch.Tensor]:
        seed, made = fd.execute([], target=target)
        return int(seed), made

    torch.manual_seed(11)
    sequential = {seed for seed, _ in in_turn(call)}
    torch.manual_seed(11)
    together = in_threads(call)
    assert {seed for seed, _ in together} == sequential
    assert len(sequential) == THREADS * CALLS
    for seed, made in together[::10]:
        assert torch.equal(made, numbers(64, stream=(seed, 0)))


def test_dropout_through_thunder() -> None:
    """The backward of each call has the mask of its forward."""
    jitted = jit(lambda x: F.dropout(x * 2, 0.5))
    jitted(torch.ones(256, requires_grad=True))  # compiled by one thread

    def call() -> bytes:
        x = torch.ones(256, requires_grad=True)
        y = jitted(x)
        y.backward(torch.ones_like(y))
        assert x.grad is not None and torch.equal(x.grad, y.detach())
        return y.detach().numpy().tobytes()

    torch.manual_seed(11)
    sequential = set(in_turn(call))
    torch.manual_seed(11)
    assert set(in_threads(call)) == sequential
    assert len(sequential) == THREADS * CALLS


class SlowGenerator:
    """As a CUDA generator; a thread that has read its offset is overtaken by all others."""

    def __init__(self) -> None:
        self.offset = 0

    def initial_seed(self) -> int:
        return 3

    def get_offset(self) -> int:
        offset = self.offset
        time.sleep(0.0005)
        return offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset


def test_offsets_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two calls have an offset in common, and none is left out."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "default_generators", [SlowGenerator()])
    starts = [offset for _, offset in in_threads(lambda: random.draw(torch.device("cuda", 0), 3))]
    assert sorted(starts) == list(range(0, 3 * THREADS * CALLS, 3))
