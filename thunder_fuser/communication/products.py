# SPDX-License-Identifier: Apache-2.0
"""Products with communication, as programs call them: a group, a decision, then pipelines.py.

    all_gather_matmul(x, w, mesh=(0, 1), on="mesh_x")    all_gather(x) @ w

The decision is made where a program first runs with such sizes: what it reads is the same on all
ranks, and the rates of the machine are agreed on by all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import isfinite
from typing import Any

import torch
from torch.distributed import ProcessGroup

from thunder_fuser.communication import pipelines
from thunder_fuser.communication.bandwidths import bandwidths, known_rates
from thunder_fuser.communication.collectives import group_of
from thunder_fuser.communication.cost import (
    H200,
    KINDS,
    Bandwidths,
    Decision,
    decide,
    pipeline_seconds,
)
from thunder_fuser.logs import log
from thunder_fuser.multi_device import LowerParams

Product = Callable[..., torch.Tensor]
Shape = Sequence[int]
Sizes = tuple[int, int, int]


def _rows(a: Shape, b: Shape, _: int) -> Sizes:
    return a[0], a[1], b[1]


# [m, k] @ [k, n] on each rank, from the shapes of both operands and the number of ranks.
_SIZES: dict[str, tuple[str, Callable[[Shape, Shape, int], Sizes]]] = {
    "all_gather_matmul": (KINDS[0], lambda a, b, world: (a[0] * world, a[1], b[1])),
    # the transpose of the product
    "all_gather_linear": (KINDS[0], lambda a, b, world: (b[0] * world, a[1], a[0])),
    "matmul_reduce_scatter": (KINDS[1], _rows),
    "matmul_all_reduce": (KINDS[2], _rows),
}


def foreseen(
    name: str, a: Shape, b: Shape, dtype: str, *, world: int, device: str, lower: LowerParams
) -> str:
    """The decision of such a call, with its numbers, before it runs.

    a, b: the operands' shapes, as the call has them. The rates are this machine's if this process
    knows them; else those of two H200, which may decide otherwise.
    """
    kind, sizes = _SIZES[name]
    known = known_rates(world, device)
    rates = known or H200
    found = _chosen(kind, sizes(a, b, world), dtype, world, lower, lambda: rates)
    played = decide(kind, *found.sizes, dtype=dtype, world=world, rates=rates)
    seconds = played.pipeline_seconds
    if isfinite(seconds):  # of the chunks that were asked for
        seconds = pipeline_seconds(
            kind, *found.sizes, dtype=dtype, world=world, rates=rates, chunks=found.chunks
        )
    found = replace(
        found, pipeline_seconds=seconds, collective_seconds=played.collective_seconds
    )
    whose = "this machine" if known else "two H200; this machine's are measured at the first call"
    return f"{found}; rates of {whose}"


def _decision(
    name: str, a: torch.Tensor, b: torch.Tensor, group: ProcessGroup, lower: LowerParams
) -> Decision:
    """Pipeline or collective, and the number of chunks."""
    return _decided(name, a.shape, b.shape, a.dtype, a.device.type, group, lower)


@lru_cache(maxsize=1024)
def _decided(  # noqa: PLR0917 - the key of the cache
    name: str, a: Shape, b: Shape, dtype: torch.dtype, device: str, group: ProcessGroup,
    lower: LowerParams,
) -> Decision:  # fmt: skip
    def rates() -> Bandwidths:
        index = f":{torch.cuda.current_device()}" if device == "cuda" else ""
        return bandwidths(group, torch.device(device + index))

    kind, sizes = _SIZES[name]
    word, world = str(dtype).removeprefix("torch."), group.size()
    found = _chosen(kind, sizes(a, b, world), word, world, lower, rates)
    log("fusions", lambda: str(found))
    return found


def _chosen(  # noqa: PLR0917 - what a decision depends on
    kind: str, sizes: Sizes, dtype: str, world: int, lower: LowerParams,
    rates: Callable[[], Bandwidths],
) -> Decision:  # fmt: skip
    if lower.overlap == lower.backend == "auto":
        found = decide(kind, *sizes, dtype=dtype, world=world, rates=rates())
    else:
        uses = lower.overlap == "always" and lower.backend == "auto"
        least = 1 if kind == KINDS[0] else 2
        found = Decision(kind, sizes, dtype, world, uses, least, 0.0, 0.0)
    return replace(found, chunks=lower.chunks) if lower.chunks else found


def all_gather_matmul(
    shard: torch.Tensor, weight: torch.Tensor, group: ProcessGroup, lower: LowerParams,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """all_gather(shard) @ weight + bias, for shard [m/W, k] and weight [k, n]."""
    decision = _decision("all_gather_matmul", shard, weight, group, lower)
    return pipelines.all_gather_matmul(shard, weight, group, decision, bias)


def all_gather_linear(
    a: torch.Tensor, shard: torch.Tensor, group: ProcessGroup, lower: LowerParams,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """a @ all_gather(shard).T + bias, for a [m, k] and shard [n/W, k]."""
    decision = _decision("all_gather_linear", a, shard, group, lower)
    return pipelines.all_gather_linear(a, shard, group, decision, bias)


def all_gather_products(
    shard: torch.Tensor, wanted: Sequence[tuple[str, torch.Tensor]], group: ProcessGroup,
    lower: LowerParams,
) -> list[torch.Tensor]:  # fmt: skip
    """Products with all_gather(shard), as in pipelines.py; the cost is that of one as wide as all
    together."""
    sizes = products_sizes(shard.shape, [(kind, other.shape) for kind, other in wanted])
    decision = _decided(
        "all_gather_matmul", shard.shape, sizes, shard.dtype, shard.device.type, group, lower
    )
    return pipelines.all_gather_products(shard, wanted, group, decision)


def products_sizes(shard: Shape, wanted: Sequence[tuple[str, Shape]]) -> tuple[int, int]:
    """[k, n], so that a product of the gathered [m, k] with it takes as long as all of these."""
    widths = (other[1] if kind in ("rows", "left") else other[0] for kind, other in wanted)
    return shard[1], sum(widths)


def matmul_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, group: ProcessGroup, lower: LowerParams
) -> torch.Tensor:
    """This rank's rows of the sum over ranks of a [m, k] @ b [k, n]."""
    decision = _decision("matmul_reduce_scatter", a, b, group, lower)
    return pipelines.matmul_reduce_scatter(a, b, group, decision)


def matmul_all_reduce(
    a: torch.Tensor, b: torch.Tensor, group: ProcessGroup, lower: LowerParams
) -> torch.Tensor:
    """The sum over ranks of a [m, k] @ b [k, n]."""
    decision = _decision("matmul_all_reduce", a, b, group, lower)
    return pipelines.matmul_all_reduce(a, b, group, decision)


PRODUCTS: dict[str, Product] = {
    one.__name__: one
    for one in (all_gather_matmul, all_gather_linear, matmul_reduce_scatter, matmul_all_reduce)
}


def named_products(lower: LowerParams) -> dict[str, Product]:
    """The products as a program's text calls them, with a mesh in place of the group."""
    return {name: partial(_on_mesh, product, lower) for name, product in PRODUCTS.items()}


def of_rows(  # noqa: PLR0917 - those of a product, and the shape
    product: Product, a: torch.Tensor, b: torch.Tensor, group: ProcessGroup, lower: LowerParams,
    shape: Shape = (), **more: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """A product of a [.., m, k], whose leading axes are rows as well, and b [k, n].

    shape: of the result, by default with a's axes. more: the bias, if there is one.
    """
    found = product(a.reshape(-1, a.shape[-1]), b, group, lower, **more)
    return found.view(tuple(shape) or (-1, *a.shape[1:-1], found.shape[-1]))


def asked(lower: LowerParams, chunks: int) -> LowerParams:
    """For a product that its definition wants in so many chunks of each device's part; 0: as it
    is."""
    return replace(lower, overlap="always", chunks=chunks) if chunks else lower


def _on_mesh(
    product: Product, lower: LowerParams, a: torch.Tensor, b: torch.Tensor, *, mesh: Any, on: str,
    chunks: int = 0, **more: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    group = group_of(mesh, on, a.device.type)
    return of_rows(product, a, b, group, asked(lower, chunks), **more)
