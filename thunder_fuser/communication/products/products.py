# SPDX-License-Identifier: Apache-2.0
"""The products with communication that programs call: finds the group, decides, runs pipelines.py.

    all_gather_matmul(x, w, mesh=(0, 1), on="mesh_x")    all_gather(x) @ w

The decision is made at the first call with such sizes. All ranks decide alike, because they read
the same sizes and have agreed on the machine's rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import isfinite, prod
from typing import Any

import torch
from torch.distributed import ProcessGroup

from thunder_fuser.base.logs import log
from thunder_fuser.communication.products import pipelines
from thunder_fuser.communication.products.bandwidths import bandwidths, known_rates
from thunder_fuser.communication.products.cost import (
    H200,
    KINDS,
    Bandwidths,
    Decision,
    decide,
    pipeline_seconds,
)
from thunder_fuser.communication.transport.collectives import group_of
from thunder_fuser.multi_device import LowerParams

Product = Callable[..., torch.Tensor]
Shape = Sequence[int]
MatrixSizes = tuple[int, int, int]


def _rows(a: Shape, b: Shape, _: int) -> MatrixSizes:
    return a[0], a[1], b[1]


# [m, k] @ [k, n] on each rank, from the shapes of both operands and the number of ranks.
_SIZES: dict[str, tuple[str, Callable[[Shape, Shape, int], MatrixSizes]]] = {
    "all_gather_matmul": (KINDS[0], lambda a, b, world: (a[0] * world, a[1], b[1])),
    # the transpose of the product
    "all_gather_linear": (KINDS[0], lambda a, b, world: (b[0] * world, a[1], a[0])),
    "matmul_reduce_scatter": (KINDS[1], _rows),
    "matmul_all_reduce": (KINDS[2], _rows),
}


def foreseen(
    name: str, a: Shape, b: Shape, dtype: str, *, world: int, device: str, lower: LowerParams
) -> str:
    """The decision for such a call in words, with the predicted times, before it runs.

    a, b: the operands' shapes; leading axes of a count as rows, and b is as the call has it. The
    rates are this machine's if this process knows them, else those of two H200, with which the
    decision may differ.
    """
    kind, sizes = _SIZES[name]
    known = known_rates(world, device)
    rates = known or H200
    product = sizes((prod(a[:-1]), a[-1]), b, world)
    decision = _chosen(kind, product, dtype, world, lower, lambda: rates)
    played = decide(kind, *decision.sizes, dtype=dtype, world=world, rates=rates)
    seconds = played.pipeline_seconds
    if isfinite(seconds):  # with the number of chunks that the user asked for
        seconds = pipeline_seconds(
            kind, *decision.sizes, dtype=dtype, world=world, rates=rates, chunks=decision.chunks
        )
    decision = replace(
        decision, pipeline_seconds=seconds, collective_seconds=played.collective_seconds
    )
    whose = "this machine" if known else "two H200; this machine's are measured at the first call"
    return f"{decision}; rates of {whose}"


@lru_cache(maxsize=1024)
def _decided(  # noqa: PLR0917 - the key of the cache
    name: str, a: Shape, b: Shape, dtype: torch.dtype, device: str, group: ProcessGroup,
    lower: LowerParams,
) -> Decision:  # fmt: skip
    """Pipeline or collective, and the number of chunks."""

    def rates() -> Bandwidths:
        index = f":{torch.cuda.current_device()}" if device == "cuda" else ""
        return bandwidths(group, torch.device(device + index))

    kind, sizes = _SIZES[name]
    word, world = str(dtype).removeprefix("torch."), group.size()
    decision = _chosen(kind, sizes(a, b, world), word, world, lower, rates)
    log("fusions", lambda: str(decision))
    return decision


def _chosen(  # noqa: PLR0917 - what a decision depends on
    kind: str, sizes: MatrixSizes, dtype: str, world: int, lower: LowerParams,
    rates: Callable[[], Bandwidths],
) -> Decision:  # fmt: skip
    if lower.overlap == lower.backend == "auto":
        decision = decide(kind, *sizes, dtype=dtype, world=world, rates=rates())
    else:
        uses = lower.overlap == "always" and lower.backend == "auto"
        least = 1 if kind == KINDS[0] else 2
        decision = Decision(kind, sizes, dtype, world, uses, least, 0.0, 0.0)
    return replace(decision, chunks=lower.chunks) if lower.chunks else decision


def _product(
    name: str, a: torch.Tensor, b: torch.Tensor, group: ProcessGroup, lower: LowerParams,
    **bias: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The product of this name in pipelines.py, with the decision for such operands."""
    decision = _decided(name, a.shape, b.shape, a.dtype, a.device.type, group, lower)
    run: Product = getattr(pipelines, name)
    return run(a, b, group, decision, **bias)


PRODUCTS: dict[str, Product] = {name: partial(_product, name) for name in _SIZES}


def all_gather_products(
    shard: torch.Tensor, wanted: Sequence[tuple[str, torch.Tensor]], group: ProcessGroup,
    lower: LowerParams,
) -> list[torch.Tensor]:  # fmt: skip
    """Products with all_gather(shard), as in pipelines.py. The decision is that for one product as
    wide as all of them together."""
    sizes = products_sizes(shard.shape, [(kind, other.shape) for kind, other in wanted])
    decision = _decided(
        "all_gather_matmul", shard.shape, sizes, shard.dtype, shard.device.type, group, lower
    )
    return pipelines.all_gather_products(shard, wanted, group, decision)


def products_sizes(shard: Shape, wanted: Sequence[tuple[str, Shape]]) -> tuple[int, int]:
    """[k, n]: a product of the gathered [m, k] with it takes as long as all these products."""
    widths = (other[1] if kind in ("rows", "left") else other[0] for kind, other in wanted)
    return shard[1], sum(widths)



def named_products(lower: LowerParams) -> dict[str, Product]:
    """The products as a program's text calls them: with a mesh instead of the group."""
    return {name: partial(_on_mesh, product, lower) for name, product in PRODUCTS.items()}


def of_rows(  # noqa: PLR0917 - those of a product, and the shape
    product: Product, a: torch.Tensor, b: torch.Tensor, group: ProcessGroup, lower: LowerParams,
    shape: Shape = (), **more: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """A product of a [.., m, k], whose leading axes count as rows, and b [k, n].

    shape: the result's; by default it has a's axes. more: the bias, if there is one.
    """
    product_rows = product(a.reshape(-1, a.shape[-1]), b, group, lower, **more)
    return product_rows.view(tuple(shape) or (-1, *a.shape[1:-1], product_rows.shape[-1]))


def with_chunks(lower: LowerParams, chunks: int) -> LowerParams:
    """The parameters for a product whose definition gives the chunks of each device's part; 0: it
    gives none, and they are unchanged."""
    return replace(lower, overlap="always", chunks=chunks) if chunks else lower


def _on_mesh(
    product: Product, lower: LowerParams, a: torch.Tensor, b: torch.Tensor, *, mesh: Any, on: str,
    chunks: int = 0, **more: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    group = group_of(mesh, on, a.device.type)
    return of_rows(product, a, b, group, with_chunks(lower, chunks), **more)
