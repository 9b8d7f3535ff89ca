# SPDX-License-Identifier: Apache-2.0
"""One rank of a process group: pipelines against products of whole tensors.

Run by tests/communication/test_processes.py with tensors on the CPU, by tests/gpu/test_overlap.py
with ranks that share a GPU, or by hand:

    torchrun --nproc-per-node 2 tests/helpers/pipeline_ranks.py [cuda]
"""

from __future__ import annotations

import faulthandler
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import pytest
import torch
import torch.distributed as dist

from benchmarks.overlap.products import (
    all_gather_linear_backward,
    all_gather_matmul_backward,
    matmul_reduce_scatter_backward,
)
from helpers.one_rank import join, leave, run_checks
from thunder_fuser.communication.products.bandwidths import bandwidths
from thunder_fuser.communication.products.cost import Decision
from thunder_fuser.communication.products.pipelines import (
    all_gather_linear,
    all_gather_matmul,
    all_gather_products,
    matmul_all_reduce,
    matmul_reduce_scatter,
)
from thunder_fuser.communication.transport import buffers, shared, transports
from thunder_fuser.communication.transport.buffers import BufferCache
from thunder_fuser.communication.transport.exchange import BufferLayout, Exchange
from thunder_fuser.communication.transport.rendezvous import begin_rendezvous
from thunder_fuser.communication.transport.transports import exchange_for, release, why_not
from thunder_fuser.errors import CommunicationError, CommunicationWarning, PeerError


def device_of(rank: int) -> torch.device:
    """Ranks share GPUs if there are more ranks."""
    if sys.argv[1:] != ["cuda"]:
        return torch.device("cpu")
    return torch.device("cuda", rank % torch.cuda.device_count())


DEVICE = device_of(int(os.environ["RANK"]))
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}
Case = tuple[str, Callable[[], object], object]


def whole(seed: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """The same on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)


def each(seed: int, rows: int, columns: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """One for each rank."""
    seeds = (1000 * seed + rank for rank in range(dist.get_world_size()))
    return [whole(one, rows, columns, dtype) for one in seeds]


def way(pipeline: bool, chunks: int) -> Decision:
    return Decision("test", (0, 0, 0), "", dist.get_world_size(), pipeline, chunks, 0.0, 0.0)


def poison() -> None:
    """Old content of memory that ranks share must never be in a result."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()
    for _, entry in buffers.CACHE.entries():
        if isinstance(entry, Exchange):
            entry.local.fill_(torch.nan)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


def cases(
    sizes: tuple[int, int, int], dtype: torch.dtype, decision: Decision, seed: int
) -> Iterator[Case]:
    """(name, what runs, what it should give)."""
    m, k, n = sizes
    group, rank, world = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    assert group is not None
    a, w, g = (
        whole(seed + at, *size, dtype) for at, size in enumerate([(m, k), (k, n), (m, n)])
    )
    own = a.chunk(world)[rank]
    yield "gather", partial(all_gather_matmul, own, w, group, decision), a.double() @ w.double()
    flat = w.t().contiguous()
    wanted = [("rows", w), ("columns", flat), ("left", g), ("right", g.t())]
    run = partial(all_gather_products, own, wanted, group, decision)
    yield "products", lambda: tuple(run()), (
        a.double() @ w.double(), flat.double() @ a.double().t(),
        a.double().t() @ g.double(), g.double().t() @ a.double(),
    )  # fmt: skip
    if not n % world:
        part = flat.chunk(world)[rank]
        run = partial(all_gather_linear, a, part, group, decision)
        yield "linear", run, a.double() @ w.double()
        # As in FSDP: each rank has rows of its own, and a shard of the sum of gradients.
        mine, gradients = each(seed + 11, m, k, dtype), each(seed + 12, m, n, dtype)
        run = partial(
            all_gather_linear_backward, gradients[rank], mine[rank], part, group,
            gather=decision, scatter=decision,
        )
        of_flat = sum(
            y.double().t() @ x.double() for x, y in zip(mine, gradients, strict=True)
        )
        assert isinstance(of_flat, torch.Tensor)
        yield "linear backward", run, (
            gradients[rank].double() @ flat.double(), of_flat.chunk(world)[rank]
        )  # fmt: skip
    # The result's gradient on each rank; the shard's gets a part from each.
    both = each(seed + 7, m, n, dtype)
    expected = sum(one.double() @ w.double().t() for one in both)
    run = partial(
        all_gather_matmul_backward, both[rank], own, w, group, gather=decision, scatter=decision
    )
    assert isinstance(expected, torch.Tensor)
    yield "gather backward", run, (
        expected.chunk(world)[rank], a.double().t() @ both[rank].double()
    )  # fmt: skip
    left, right = each(seed + 1, m, k, dtype), each(seed + 2, k, n, dtype)
    total = sum(x.double() @ y.double() for x, y in zip(left, right, strict=True))
    assert isinstance(total, torch.Tensor)
    pair = left[rank], right[rank]
    mine = total.chunk(world)[rank]
    yield "scatter", partial(matmul_reduce_scatter, *pair, group, decision), mine
    turned = pair[0], pair[1].t().contiguous().t()
    yield "turned scatter", partial(matmul_reduce_scatter, *turned, group, decision), mine
    run = partial(matmul_reduce_scatter_backward, g.chunk(world)[rank], *pair, group, decision)
    yield "scatter backward", run, (
        g.double() @ pair[1].double().t(), pair[0].double().t() @ g.double()
    )  # fmt: skip
    yield "all-reduce", partial(matmul_all_reduce, *pair, group, decision), total


def check(case: Case, dtype: torch.dtype) -> None:
    name, run, expected = case
    close(name, run(), expected, dtype)


def close(name: str, found: object, expected: object, dtype: torch.dtype) -> None:
    pairs = zip(
        found if isinstance(found, tuple) else (found,),
        expected if isinstance(expected, tuple) else (expected,), strict=True,
    )  # fmt: skip
    for one, other in pairs:
        assert one.dtype is dtype
        error = (one.double() - other).abs().max() / other.abs().max()
        assert error <= TOLERANCE[dtype], f"{name} on rank {dist.get_rank()}: {error}"


def check_results(turns: int = 3, every: tuple[int, ...] = (1, 3)) -> None:
    """Every pipeline and collective, in so many chunks, with poisoned memory between calls."""
    world = dist.get_world_size()
    sizes = [
        (4 * world, 24, 3 * world, torch.float64), (7 * world, 5, 9, torch.float32),
        (8 * world, 16, 8, torch.bfloat16),
    ]  # fmt: skip
    for m, k, n, dtype in sizes:
        for chunks in every:
            for turn in range(turns):
                for case in cases((m, k, n), dtype, way(True, chunks), 10 * turn):
                    poison()
                    check(case, dtype)
    if DEVICE.type == "cpu":
        for case in cases((4 * world, 6, 8), torch.float32, way(False, 1), 3):
            check(case, torch.float32)


def check_without_waiting(rounds: int = 30) -> None:
    """Many calls in a row: no rank waits for another but where a pipeline does."""
    random.seed(dist.get_rank())
    m, k, n = 8 * dist.get_world_size(), 32, 16
    found = []
    for turn in range(rounds):
        for case in cases((m, k, n), torch.float32, way(True, 1 + turn % 2), turn):
            if random.random() < 0.1:
                late()
            found.append((case[0], case[1](), case[2]))
    for name, one, expected in found:
        close(name, one, expected, torch.float32)


def late() -> None:
    """This rank alone is slow for once, on the host or on the device."""
    if DEVICE.type == "cuda":
        torch.cuda._sleep(random.randrange(5_000_000))
    else:
        time.sleep(random.random() * 0.005)


def check_changing_shapes() -> None:
    """Nothing of an earlier shape is read, also when memory is freed on the way."""
    group = dist.group.WORLD
    assert group is not None
    kept, small = buffers.CACHE.most_bytes, 20_000
    buffers.CACHE.most_bytes = small
    before = buffers.CACHE.counts["evicted"]
    try:
        for turn in range(6):
            m = 4 * dist.get_world_size() * (1 + turn % 3)
            for case in cases((m, 20, 12), torch.float32, way(True, 2), turn):
                check(case, torch.float32)
            held = buffers.CACHE.entries()
            assert sum(one.bytes for _, one in held) <= small or len(held) <= 2
    finally:
        buffers.CACHE.most_bytes = kept
    assert buffers.CACHE.counts["evicted"] > before
    keys: list[object] = [None] * group.size()
    dist.all_gather_object(keys, [key for key, _ in buffers.CACHE.entries()])
    assert keys == keys[:1] * len(keys)
    release(group, DEVICE)
    assert not buffers.CACHE.entries()


def check_memory_is_kept() -> None:
    """Two exchanges take turns, and a warm call makes none."""
    group = dist.group.WORLD
    assert group is not None
    a, w = whole(0, 8, 8, torch.float32), whole(1, 8, 8, torch.float32)
    for _ in range(4):
        all_gather_matmul(a, w, group, way(True, 1))
    entries = buffers.CACHE.entries()
    assert [entry.epoch for _, entry in entries if isinstance(entry, Exchange)] == [2, 2]
    results = [all_gather_matmul(a, w, group, way(True, 1)) for _ in range(2)]
    assert results[0].data_ptr() != results[1].data_ptr()
    assert entries == buffers.CACHE.entries()
    release(group, DEVICE)


def check_subgroup() -> None:
    """A group of the odd ranks only, while the others do something else."""
    world, rank = dist.get_world_size(), dist.get_rank()
    odd = dist.new_group(list(range(1, world, 2)))
    if rank % 2 and world > 2:
        a, w = whole(0, 6, 8, torch.float32), whole(1, 8, 3, torch.float32)
        own = a.chunk(world // 2)[rank // 2]
        close("odd", all_gather_matmul(own, w, odd, way(True, 2)), a.double() @ w.double(),
              torch.float32)  # fmt: skip
    dist.barrier()


def check_own_groups() -> None:
    """torch finds the peers through our group, though it counts differently on each rank."""
    numbers = count(10 * dist.get_rank())
    for group in (dist.group.WORLD, dist.new_group(), dist.group.WORLD):
        assert group is not None
        name = begin_rendezvous(group, DEVICE)
        own = torch._C._distributed_c10d._resolve_process_group(name)
        assert (own.rank(), own.size()) == (group.rank(), group.size())
        assert own.group_name  # what torch's logs ask for
        for _ in range(2):
            assert exchanged(own, next(numbers)) == list(range(group.size()))
    if dist.get_rank() == 0:  # a rendezvous that stops in the middle on one rank
        begin_rendezvous(group, DEVICE)
        exchanged(own, next(numbers), most=0)
    else:
        begin_rendezvous(group, DEVICE)
    name = begin_rendezvous(group, DEVICE)
    own = torch._C._distributed_c10d._resolve_process_group(name)
    assert exchanged(own, next(numbers)) == list(range(group.size()))
    dist.barrier()


def exchanged(group: dist.ProcessGroup, number: int, most: int = 99) -> list[int]:
    """What torch's symmetric memory does with a group's store, from C++ as there."""
    store = dist.PrefixStore("from C++", group.get_group_store())
    keys = [f"CUDASymmetricMemory/{number}/{rank}" for rank in range(group.size())]
    store.set(keys[group.rank()], str(group.rank()))
    found = []
    for key in keys[:most]:
        store.wait([key])
        found.append(int(store.get(key)))
    return found


def check_refusals() -> None:
    group = dist.group.WORLD
    assert group is not None
    x = torch.zeros(3 * dist.get_world_size() + 1, 4, device=DEVICE)
    with pytest.raises(CommunicationError, match=r"axis 0 of matmul_reduce_scatter: .*multiple"):
        matmul_reduce_scatter(x, x.t(), group, way(True, 1))
    with pytest.raises(CommunicationError, match="operands of all_gather_matmul"):
        all_gather_matmul(x, x, group, way(True, 1))
    with pytest.raises(CommunicationError, match=r"\(left\): expected a matrix with .* elements"):
        all_gather_products(x, [("left", x)], group, way(True, 1))
    rows = 4 + dist.get_rank()
    layout = BufferLayout("test", 1, rows, 4, torch.float32, 1)
    with pytest.raises(PeerError, match=r"rank 0: .*\[1, 4, 4\].*rank 1: .*\[1, 5, 4\]"):
        exchange_for(layout, group, DEVICE, BufferCache())


def check_silent_peer() -> None:
    """A rank that never calls is named in time, with the memory that is waited for."""
    group = dist.group.WORLD
    assert group is not None
    layout = BufferLayout("silent", 1, 2, 2, torch.float32, 1)
    exchange = exchange_for(layout, group, DEVICE)
    assert exchange is not None
    if dist.get_rank() == 0 and DEVICE.type == "cpu":
        kept, shared.SECONDS = shared.SECONDS, 0.2
        exchange.begin()
        with pytest.raises(PeerError, match=r"rank 0, silent \[1, 2, 2\] float32, flag 0 of"):
            exchange.await_flag(1, 0)
        shared.SECONDS = kept
    if DEVICE.type == "cuda":
        exchange.begin()
        if dist.get_rank() == 0:
            exchange.await_flag(1, 0)
            exchange.end()
            with pytest.raises(PeerError, match=r"rank 0, silent .*got \[0\]"):
                exchange.finish(0.3)
        dist.barrier()
        if dist.get_rank() == 1:
            exchange.raise_flag(0, 0)
        exchange.finish(20.0)
    dist.barrier()
    release(group, DEVICE)


def check_fallback() -> None:
    """Ranks that cannot map memory, and one alone is enough, say so once and use collectives."""
    def refuse(*_: object) -> Exchange:
        raise PeerError("memory", expected="access", got="none")

    group = dist.new_group()
    kept = transports._MAKERS[DEVICE.type]
    transports._MAKERS[DEVICE.type] = refuse
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                assert "expected access, got none" in why_not(group, DEVICE)
    finally:
        transports._MAKERS[DEVICE.type] = kept
    assert [one.category for one in caught] == [CommunicationWarning]
    if DEVICE.type == "cpu":  # gloo has no all_gather_into_tensor of CUDA tensors
        a, w = whole(0, 8, 8, torch.float32), whole(1, 8, 8, torch.float32)
        found = all_gather_matmul(a.chunk(group.size())[group.rank()], w, group, way(True, 1))
        close("fallback", found, a.double() @ w.double(), torch.float32)


def check_rates() -> None:
    """Measured once, then read from the file; the same on all ranks."""
    group = dist.group.WORLD
    assert group is not None
    found = bandwidths(group, DEVICE)
    again = bandwidths(dist.new_group(), DEVICE)
    rates: list[object] = [None] * group.size()
    dist.all_gather_object(rates, (found, again))
    assert rates == [(found, found)] * group.size()
    assert found.collective > 0 and dict(found.flops)["float32"] > 0


def begin() -> None:
    """One that stands still says where, before its caller loses patience."""
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    join()
    faulthandler.dump_traceback_later(75 if DEVICE.type == "cuda" else 110, exit=True)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    torch.manual_seed(0)


def main() -> None:
    begin()
    checks = [
        check_results, check_without_waiting, check_changing_shapes, check_memory_is_kept,
        check_subgroup, check_own_groups, check_refusals, check_silent_peer, check_fallback,
    ]  # fmt: skip
    if DEVICE.type == "cpu":
        checks.append(check_rates)
    for one in checks:
        run_checks([one])
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
    leave()


if __name__ == "__main__":
    main()
