# SPDX-License-Identifier: Apache-2.0
"""Products with communication as a model calls them, with gradients: collectives or pipelines.

    gather(shard [m/W, k], weight [k, n])     all_gather(shard) @ weight
    scatter(a [m, k], weight [k, n])          this rank's rows of the sum of a @ weight
    linear(a [m, k], shard [n/W, k])          a @ all_gather(shard).T, as in FSDP
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from benchmarks.overlap.points import GATHER, SCATTER
from thunder_fuser.communication.products import pipelines
from thunder_fuser.communication.products.cost import Bandwidths, Decision, decide
from thunder_fuser.communication.products.pipelines import (
    all_gather_products,
    matmul_reduce_scatter,
)


class Products(Protocol):
    """See above."""

    def gather(self, shard: torch.Tensor, weight: torch.Tensor) -> torch.Tensor: ...
    def scatter(self, a: torch.Tensor, weight: torch.Tensor) -> torch.Tensor: ...
    def linear(self, a: torch.Tensor, shard: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True)
class Collectives:
    """The collective and the product, one after the other."""

    group: ProcessGroup

    def gather(self, shard: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return all_gather(shard, self.group) @ weight

    def scatter(self, a: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _call(_ReduceScatter, a @ weight, self.group)

    def linear(self, a: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
        return F.linear(a, all_gather(shard, self.group))


@dataclass(frozen=True)
class Traced:
    """The same in calls that torch.compile traces, and overlaps if it is told to."""

    group: str

    def gather(self, shard: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.all_gather_tensor_autograd(shard, 0, self.group) @ weight

    def scatter(self, a: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.reduce_scatter_tensor_autograd(a @ weight, "sum", 0, self.group)

    def linear(self, a: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
        return F.linear(a, functional.all_gather_tensor_autograd(shard, 0, self.group))


def all_gather(shard: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    """The shards of all ranks, with a gradient."""
    return _call(_AllGather, shard, group)


@dataclass(frozen=True)
class Pipelines:
    """Ours, as the cost model decides, forward and backward. forced: always as pipelines."""

    group: ProcessGroup
    rates: Bandwidths
    forced: bool = False

    def gather(self, shard: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _call(_Gather, shard, weight, self)

    def scatter(self, a: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _call(_Scatter, a, weight, self)

    def linear(self, a: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
        return _call(_Linear, a, shard, self)

    def decision(self, kind: str, m: int, k: int, n: int, like: torch.Tensor) -> Decision:
        """For a product [m, k] @ [k, n] on this rank."""
        return _decided(kind, m, k, n, str(like.dtype)[6:], self)


@lru_cache(maxsize=256)
def _decided(kind: str, m: int, k: int, n: int, dtype: str, by: Pipelines) -> Decision:  # noqa: PLR0917
    if by.forced:
        return Decision(kind, (m, k, n), dtype, by.group.size(), True, 2, 0.0, 0.0)
    return decide(kind, m, k, n, dtype=dtype, world=by.group.size(), rates=by.rates)


def _call(function: Any, *arguments: object) -> torch.Tensor:
    found: torch.Tensor = function.apply(*arguments)
    return found


def _gathered(shard: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    whole = shard.new_empty(len(shard) * group.size(), *shard.shape[1:])
    dist.all_gather_into_tensor(whole, shard.contiguous(), group=group)
    return whole


def _scattered(whole: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    part = whole.new_empty(len(whole) // group.size(), *whole.shape[1:])
    dist.reduce_scatter_tensor(part, whole.contiguous(), group=group)
    return part


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return _gathered(shard, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _scattered(gradient, ctx.group), None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return _scattered(whole, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _gathered(gradient, ctx.group), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, weight: torch.Tensor, by: Pipelines) -> torch.Tensor:
        ctx.save_for_backward(shard, weight)
        ctx.by, (rows, k), n = by, shard.shape, weight.shape[1]
        decision = by.decision(GATHER, rows * by.group.size(), k, n, shard)
        return pipelines.all_gather_matmul(shard, weight, by.group, decision)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (shard, weight), by, (m, n) = ctx.saved_tensors, ctx.by, gradient.shape
        k = weight.shape[0]
        return *all_gather_matmul_backward(
            gradient, shard, weight, by.group, gather=by.decision(GATHER, k, m, n, shard),
            scatter=by.decision(SCATTER, m, n, k, shard),
        ), None  # fmt: skip


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, weight: torch.Tensor, by: Pipelines) -> torch.Tensor:
        ctx.save_for_backward(a, weight)
        ctx.by = by
        decision = by.decision(SCATTER, a.shape[0], a.shape[1], weight.shape[1], a)
        return matmul_reduce_scatter(a, weight, by.group, decision)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (a, weight), by = ctx.saved_tensors, ctx.by
        m, k = a.shape
        decision = by.decision(GATHER, m, weight.shape[1], k, a)
        return *matmul_reduce_scatter_backward(
            gradient, a, weight, by.group, decision
        ), None  # fmt: skip


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, shard: torch.Tensor, by: Pipelines) -> torch.Tensor:
        ctx.save_for_backward(a, shard)
        ctx.by = by
        # The transpose of the product: the weight is what is gathered.
        decision = by.decision(GATHER, len(shard) * by.group.size(), a.shape[1], len(a), a)
        return pipelines.all_gather_linear(a, shard, by.group, decision)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (a, shard), by, (m, n) = ctx.saved_tensors, ctx.by, gradient.shape
        k = shard.shape[1]
        return *all_gather_linear_backward(
            gradient, a, shard, by.group, gather=by.decision(GATHER, n, k, m, a),
            scatter=by.decision(SCATTER, n, m, k, a),
        ), None  # fmt: skip


# ---- gradients


@torch.no_grad()
def all_gather_matmul_backward(
    gradient: torch.Tensor, shard: torch.Tensor, weight: torch.Tensor, group: ProcessGroup,
    *, gather: Decision, scatter: Decision,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of shard and weight. Only the shard was saved, so it is gathered again.

    gradient: the result's, [m, n]. The sum over ranks is rounded to the dtype after each rank.
    """
    of_shard = matmul_reduce_scatter(gradient, weight.t(), group, scatter)
    (of_weight,) = all_gather_products(shard, [("left", gradient)], group, gather)
    return of_shard, of_weight


@torch.no_grad()
def matmul_reduce_scatter_backward(
    gradient: torch.Tensor, a: torch.Tensor, b: torch.Tensor, group: ProcessGroup, gather: Decision
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of a and b, which share one gather of the result's gradient [m/W, n]."""
    wanted = [("rows", b.t()), ("right", a.t())]
    of_a, of_b = all_gather_products(gradient, wanted, group, gather)
    return of_a, of_b


@torch.no_grad()
def all_gather_linear_backward(
    gradient: torch.Tensor, a: torch.Tensor, shard: torch.Tensor, group: ProcessGroup,
    *, gather: Decision, scatter: Decision,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of a and shard, for FSDP's linear. The weight is gathered again.

    gradient: the result's, [m, n]. The shard's is a sum over ranks, each of which has its own a.
    """
    (of_a,) = all_gather_products(shard, [("right", gradient)], group, gather)
    return of_a, matmul_reduce_scatter(gradient.t(), a, group, scatter)
