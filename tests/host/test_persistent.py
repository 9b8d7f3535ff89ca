# SPDX-License-Identifier: Apache-2.0
"""The option persistent_buffers: memory of a program from call to call, and who never gets it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import thunder
import torch
from helpers.lasting_memory import expected, memory_of_its_own, poison, two_kernels
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser import FusionDefinition, fuser, options
from thunder_fuser.communication.transport import buffers
from thunder_fuser.communication.transport.buffers import BufferCache, Plain, held_by_programs
from thunder_fuser.explain.machine import info

ROWS, COLUMNS = 6, 5


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[BufferCache]:
    with memory_of_its_own() as cache:
        yield cache


def check(fd: FusionDefinition, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """The result; old content must not be in it."""
    poison()
    (found,) = fd.execute([x])
    torch.testing.assert_close(found, expected(x, scale))
    return found


def addresses() -> list[int]:
    held = [one for _, one in held_by_programs().entries()]
    return [one.tensor.data_ptr() for one in held if isinstance(one, Plain)]


def test_the_memory_of_the_last_call(empty_cache: BufferCache) -> None:
    fd, x = two_kernels(), torch.randn(ROWS, COLUMNS)
    check(fd, x)
    first = addresses()
    assert len(first) == str(fd.program([x])).count("= persistent(") == 1
    for _ in range(3):
        check(fd, x)
    assert addresses() == first
    assert empty_cache.counts == {"miss": 1, "hit": 3}
    assert "1 of 20 bytes; 3 hit, 1 miss, 0 evicted" in info()


def test_without_the_option_there_is_none(empty_cache: BufferCache) -> None:
    fd, x = two_kernels(), torch.randn(ROWS, COLUMNS)
    check(fd, x)
    with options(persistent_buffers=False):
        check(fd, x)
        assert "persistent(" not in str(fd.program([x]))
    assert empty_cache.counts == {"miss": 1}


def test_a_result_is_never_in_it() -> None:
    """Nor what another result is a view of, nor what torch reads."""
    x, w = torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS, 3)
    with FusionDefinition() as fd:
        a, b = fd.from_pytorch(x), fd.from_pytorch(w)
        total = fd.ops.sum(a, [0], keepdim=True)
        fd.add_output(total)
        fd.add_output(fd.ops.sum(fd.ops.exp(fd.ops.sub(a, total)), [1]))
        fd.add_output(fd.ops.matmul(fd.ops.tanh(a), b))
        turned = fd.ops.permute(fd.ops.exp(a), [1, 0])
        fd.add_output(turned)
    every = [fd.execute([x, w]) for _ in range(3)]
    kept = addresses()
    starts = [one.untyped_storage().data_ptr() for results in every for one in results]
    assert not set(kept) & set(starts)
    poison()
    for results in every:
        torch.testing.assert_close(results[0], x.sum(0, keepdim=True))
        torch.testing.assert_close(results[1], (x - x.sum(0)).exp().sum(1))
        torch.testing.assert_close(results[2], x.tanh() @ w)
        torch.testing.assert_close(results[3], x.exp().t())


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 3, 8]), st.sampled_from([2, 5])), min_size=2,
                max_size=8))  # fmt: skip
def test_shapes_that_change(shapes: list[tuple[int, int]]) -> None:
    """nvFuser's cache would hand out the memory of the first shape."""
    fd = two_kernels()
    for shape in shapes:
        check(fd, torch.randn(shape))


def test_two_graphs_do_not_share() -> None:
    x = torch.randn(ROWS, COLUMNS)
    one, other = two_kernels(), two_kernels(scale=3.0)
    for _ in range(2):
        check(one, x)
        check(other, x, 3.0)
    assert len(set(addresses())) == 2


def test_threads_do_not_share() -> None:
    """Two threads that run one program at once, many times."""
    fd, errors = two_kernels(), []
    check(fd, torch.randn(ROWS, COLUMNS))

    def work(seed: int) -> None:
        x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed))
        for _ in range(200):
            (found,) = fd.execute([x])
            if not torch.allclose(found, expected(x), atol=1e-5):
                errors.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors


def test_streams_do_not_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same memory again on the same stream."""
    fd, x = two_kernels(), torch.randn(ROWS, COLUMNS)
    for stream in (0, 1, 0, 1):
        monkeypatch.setattr(buffers, "stream_number", lambda _, stream=stream: stream)
        check(fd, x)
    assert len(set(addresses())) == 2


def test_what_is_evicted(empty_cache: BufferCache) -> None:
    """The least recently used; results are right before and after."""
    empty_cache.most_bytes = 30  # one buffer of 20 bytes
    x = torch.randn(ROWS, COLUMNS)
    one, other = two_kernels(), two_kernels(scale=3.0)
    for _ in range(2):
        check(one, x)
        check(other, x, 3.0)
    assert empty_cache.counts == {"miss": 4, "evicted": 3}
    assert len(addresses()) == 1


def test_the_memory_of_a_program_that_is_gone(empty_cache: BufferCache) -> None:
    with options(max_programs=1):
        fd = two_kernels(scale=7.0)
        for columns in (COLUMNS, COLUMNS + 1):
            check(fd, torch.randn(ROWS, columns), 7.0)
        gc.collect()
        assert [key.sizes for key, _ in held_by_programs().entries()] == [(1, COLUMNS + 1)]
        assert empty_cache.counts["evicted"] == 1


def test_an_option_of_a_jit(empty_cache: BufferCache) -> None:
    """Results of regions are the trace's, and new: what is saved for the backward is one."""
    def function(x: torch.Tensor) -> torch.Tensor:
        return (-(x - (x * 2.0).sum(0, keepdim=True)).abs()).exp().sum(1)

    with options(persistent_buffers=False):
        jitted = thunder.jit(function, executors=[fuser], fuser_persistent_buffers=True)
        for _ in range(3):
            x = torch.randn(ROWS, COLUMNS)
            torch.testing.assert_close(jitted(x), function(x))
        assert empty_cache.counts == {"miss": 1, "hit": 2}
        for _ in range(3):
            found = jitted(x.requires_grad_())
            poison()
            torch.testing.assert_close(found, function(x))
            ours, theirs = (torch.autograd.grad(y.sum(), x)[0] for y in (found, function(x)))
            torch.testing.assert_close(ours, theirs)
