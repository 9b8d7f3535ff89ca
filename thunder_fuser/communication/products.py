# SPDX-License-Identifier: Apache-2.0
"""Products with communication, as programs call them: a group, a decision, then pipelines.py.

    all_gather_matmul(x, w, mesh=(0, 1), on="mesh_x")    all_gather(x) @ w

The decision is made where a program first runs with such sizes: what it reads is the same on all
ranks, and the rates of the machine are agreed on by all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch.distributed import ProcessGroup

from thunder_fuser.communication import pipelines
from thunder_fuser.communication.bandwidths import bandwidths
from thunder_fuser.communication.collectives import group_of
from thunder_fuser.communication.cost import KINDS, Decision, decide
from thunder_fuser.logs import log
from thunder_fuser.multi_device import LowerParams

Product = Callable[..., torch.Tensor]


def decision_for(
    kind: str, sizes: tuple[int, int, int], like: torch.Tensor, group: ProcessGroup,
    lower: LowerParams,
) -> Decision:  # fmt: skip
    """Pipeline or collective, and the number of chunks, for [m, k] @ [k, n] on each rank."""
    return _decided(kind, sizes, like.dtype, like.device.type, group, lower)


@lru_cache(maxsize=1024)
def _decided(  # noqa: PLR0917 - the key of the cache
    kind: str, sizes: tuple[int, int, int], dtype: torch.dtype, device: str, group: ProcessGroup,
    lower: LowerParams,
) -> Decision:  # fmt: skip
    word = str(dtype).removeprefix("torch.")
    if lower.overlap == "auto" and lower.backend != "process_group":
        index = f":{torch.cuda.current_device()}" if device == "cuda" else ""
        rates = bandwidths(group, torch.device(device + index))
        found = decide(kind, *sizes, dtype=word, world=group.size(), rates=rates)
    else:
        uses = lower.overlap == "always" and lower.backend != "process_group"
        least = 1 if kind == KINDS[0] else 2
        found = Decision(kind, sizes, word, group.size(), uses, least, 0.0, 0.0)
    found = replace(found, chunks=lower.chunks) if lower.chunks else found
    log("fusions", lambda: str(found))
    return found


def all_gather_matmul(
    shard: torch.Tensor, weight: torch.Tensor, group: ProcessGroup, lower: LowerParams
) -> torch.Tensor:
    """all_gather(shard) @ weight, for shard [m/W, k] and weight [k, n]."""
    sizes = (shard.shape[0] * group.size(), shard.shape[1], weight.shape[1])
    decision = decision_for("all_gather_matmul", sizes, shard, group, lower)
    return pipelines.all_gather_matmul(shard, weight, group, decision)


def all_gather_linear(
    a: torch.Tensor, shard: torch.Tensor, group: ProcessGroup, lower: LowerParams
) -> torch.Tensor:
    """a @ all_gather(shard).T, for a [m, k] and shard [n/W, k]."""
    sizes = (shard.shape[0] * group.size(), a.shape[1], a.shape[0])  # the transpose of the product
    decision = decision_for("all_gather_matmul", sizes, a, group, lower)
    return pipelines.all_gather_linear(a, shard, group, decision)


def matmul_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, group: ProcessGroup, lower: LowerParams
) -> torch.Tensor:
    """This rank's rows of the sum over ranks of a [m, k] @ b [k, n]."""
    sizes = (*a.shape, b.shape[1])
    decision = decision_for("matmul_reduce_scatter", sizes, a, group, lower)
    return pipelines.matmul_reduce_scatter(a, b, group, decision)


def matmul_all_reduce(
    a: torch.Tensor, b: torch.Tensor, group: ProcessGroup, lower: LowerParams
) -> torch.Tensor:
    """The sum over ranks of a [m, k] @ b [k, n]."""
    decision = decision_for("matmul_all_reduce", (*a.shape, b.shape[1]), a, group, lower)
    return pipelines.matmul_all_reduce(a, b, group, decision)


PRODUCTS: dict[str, Product] = {
    one.__name__: one
    for one in (all_gather_matmul, all_gather_linear, matmul_reduce_scatter, matmul_all_reduce)
}


def named_products(lower: LowerParams) -> dict[str, Product]:
    """The products as a program's text calls them, with a mesh in place of the group."""
    return {name: partial(_on_mesh, product, lower) for name, product in PRODUCTS.items()}


def _on_mesh(
    product: Product, lower: LowerParams, a: torch.Tensor, b: torch.Tensor, *, mesh: Any, on: str
) -> torch.Tensor:
    return product(a, b, group_of(mesh, on, a.device.type), lower)
