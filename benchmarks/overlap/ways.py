# SPDX-License-Identifier: Apache-2.0
"""A point -> its inputs, its result, and the calls that are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed._symmetric_memory import enable_symm_mem_for_group

from benchmarks.overlap.points import GATHER, Point
from benchmarks.overlap.products import Traced
from thunder_fuser.communication.products.cost import Decision
from thunder_fuser.communication.products.pipelines import all_gather_matmul, matmul_reduce_scatter
from thunder_fuser.communication.transport.exchange import BufferLayout
from thunder_fuser.communication.transport.transports import exchange_for

Operands = tuple[torch.Tensor, torch.Tensor]
Way = Callable[[Operands], torch.Tensor]


@dataclass(frozen=True)
class Problem:
    """A point on this rank."""

    point: Point
    group: ProcessGroup
    device: torch.device
    dtype: torch.dtype

    def operands(self, seed: int, rank: int) -> Operands:
        """Random normal numbers: a rank's [m/W, k] or [m, k], and its [k, n]."""
        m, k, n = self.point.m, self.point.k, self.point.n
        rows = m // self.group.size() if self.point.kind == GATHER else m
        make = torch.Generator(self.device).manual_seed(seed * self.group.size() + rank)
        sizes = ((rows, k), (k, n))
        left, right = (
            torch.randn(*size, generator=make, device=self.device).to(self.dtype) for size in sizes
        )
        return left, right

    def expected(self, seed: int) -> torch.Tensor:
        """What this rank should get, from the operands of all ranks and without communication."""
        world, rank = self.group.size(), self.group.rank()
        if self.point.kind == GATHER:
            whole = torch.cat([self.operands(seed, one)[0] for one in range(world)])
            return whole @ self.operands(seed, rank)[1]
        parts = torch.zeros(self.point.m // world, self.point.n, device=self.device)
        for one in range(world):
            left, right = self.operands(seed, one)
            parts += left.chunk(world)[rank] @ right
        return parts


def ways(problem: Problem, decision: Decision, *, is_small: bool) -> dict[str, Way]:
    """{name: call}. `decided` is what the cost model chose; `in c` a pipeline of c chunks.

    is_small: ranks talk through gloo, which has no collectives of tensors on a GPU.
    """
    ours = _gather if problem.point.kind == GATHER else _scatter
    found = {} if is_small else _ways_of_others(problem)
    if problem.device.type == "cpu":
        decision = replace(decision, pipeline=False)
    if not is_small or problem.device.type == "cpu":
        found["decided"] = lambda operands: ours(operands, problem.group, decision)
    for chunks in (1, 2, 4):
        forced = replace(decision, pipeline=True, chunks=chunks)
        found[f"in {chunks}"] = lambda operands, forced=forced: ours(  # type: ignore[misc]
            operands, problem.group, forced
        )
    return found


def pieces(problem: Problem) -> dict[str, Way]:
    """What a pipeline is made of, on operands of its own: the product `alone`, without
    communication, that of one rank's `part` of the rows, and the `copy` of a part to a peer."""
    m, k, n = problem.point.m, problem.point.k, problem.point.n
    group, world = problem.group, problem.group.size()
    a, b = (torch.randn(*size, device=problem.device) for size in ((m, k), (k, n)))
    a, b = a.to(problem.dtype), b.to(problem.dtype)
    part = a[: m // world]
    sent = part if problem.point.kind == GATHER else a.new_zeros(m // world, n)
    layout = BufferLayout("overlap", 1, sent.shape[0], sent.shape[1], sent.dtype, 1)

    def copy(_: Operands) -> torch.Tensor:
        exchange = exchange_for(layout, group, problem.device)
        if exchange is not None:
            peer = (group.rank() + 1) % world
            with exchange.call():
                exchange.put(sent, slice(0, len(sent)), peer, 0, 0)
                exchange.await_flag((group.rank() - 1) % world, 0)
        return sent

    return {"alone": lambda _: a @ b, "part": lambda _: part @ b, "copy": copy}


def _async_tp(problem: Problem) -> Way:
    """torch.compile with async tensor parallel. Compiled anew for each point: sizes are fixed."""
    name = problem.group.group_name
    torch._inductor.config._micro_pipeline_tp = True
    enable_symm_mem_for_group(name)
    torch._dynamo.reset()
    traced = Traced(name)
    run = torch.compile(
        traced.gather if problem.point.kind == GATHER else traced.scatter, dynamic=False
    )
    return lambda operands: run(*operands)


def _gather(operands: Operands, group: ProcessGroup, decision: Decision) -> torch.Tensor:
    return all_gather_matmul(*operands, group, decision)


def _scatter(operands: Operands, group: ProcessGroup, decision: Decision) -> torch.Tensor:
    return matmul_reduce_scatter(*operands, group, decision)


def _ways_of_others(problem: Problem) -> dict[str, Way]:
    made = _gather_ways if problem.point.kind == GATHER else _scatter_ways
    return {**made(problem), "async TP": _async_tp(problem)}


def _gather_ways(problem: Problem) -> dict[str, Way]:
    world, name = problem.group.size(), problem.group.group_name

    def nccl(operands: Operands) -> torch.Tensor:
        shard, weight = operands
        whole = shard.new_empty(shard.shape[0] * world, shard.shape[1])
        dist.all_gather_into_tensor(whole, shard, group=problem.group)
        return whole @ weight

    def fused(operands: Operands) -> torch.Tensor:
        run = torch.ops.symm_mem.fused_all_gather_matmul
        return run(operands[0], [operands[1]], 0, name, return_A=False)[1][0]

    return {"NCCL": nccl, "torch": fused}


def _scatter_ways(problem: Problem) -> dict[str, Way]:
    world, name = problem.group.size(), problem.group.group_name

    def nccl(operands: Operands) -> torch.Tensor:
        product = operands[0] @ operands[1]
        result = product.new_empty(product.shape[0] // world, product.shape[1])
        dist.reduce_scatter_tensor(result, product, group=problem.group)
        return result

    def fused(operands: Operands) -> torch.Tensor:
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(*operands, "sum", 0, name)

    return {"NCCL": nccl, "torch": fused}
