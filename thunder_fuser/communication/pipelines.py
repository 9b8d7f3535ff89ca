# SPDX-License-Identifier: Apache-2.0
"""Matrix products with communication behind them. W is the size of the group.

    all_gather_matmul      shard [m/W, k], weight [k, n]       -> all_gather(shard) @ weight
    all_gather_linear      a [m, k], shard [n/W, k]            -> a @ all_gather(shard).T
    matmul_reduce_scatter  a [m, k], b [k, n]                  -> this rank's rows of sum(a @ b)
    matmul_all_reduce      a [m, k], b [k, n]                  -> sum(a @ b)

Gather: each rank puts its shard into the memory of its peers, the peer that needs it first first.
The product with its own shard hides the first transfer, that with the first peer's the next one.

    rank 1 of 4:   multiplies 1, 2, 3, 0     sends to 0, 3, 2

Scatter: the sum for a rank travels around the ring. A rank gets the sum so far from the rank before
it and adds its own product to it in the same matrix product (beta = 1), so that nothing is left to
add at the end. Rows are in chunks: while one is on its way, another is multiplied.

    rank 1 of 4:   adds to the rows of 0, 3, 2, 1     gets from 0     the last rows are its own

A Decision of `communication/cost.py` says whether a pipeline runs, and its number of chunks. If
not, or without a transport, torch.distributed runs the collective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from thunder_fuser.communication.cost import Decision
from thunder_fuser.communication.exchange import Exchange, Form
from thunder_fuser.communication.transports import exchange_for
from thunder_fuser.errors import CommunicationError

Span = slice
Rows = tuple[Span, torch.Tensor]  # rows of the whole, and their elements


def spans(rows: int, chunks: int) -> list[Span]:
    """Rows in chunks as equal as possible, at least one row each.

    >>> spans(5, 2)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    chunks = max(1, min(chunks, rows))
    return [slice(at * rows // chunks, (at + 1) * rows // chunks) for at in range(chunks)]


# ---------------------------------------------------------------------------------------- gather


@torch.no_grad()
def all_gather_matmul(
    shard: torch.Tensor, weight: torch.Tensor, group: ProcessGroup, decision: Decision
) -> torch.Tensor:
    """[m, n] of shard [m/W, k] and weight [k, n], in their dtype."""
    _check_product("all_gather_matmul", shard, weight)
    result = shard.new_empty(shard.shape[0] * group.size(), weight.shape[1])
    for rows, part in _gathered(shard, group, decision):
        torch.mm(part, weight, out=result[rows])
    return result


@torch.no_grad()
def all_gather_linear(
    a: torch.Tensor, shard: torch.Tensor, group: ProcessGroup, decision: Decision
) -> torch.Tensor:
    """[m, n] of a [m, k] and the rows [n/W, k] of a weight that lie here: FSDP's linear."""
    _check_product("all_gather_linear", a, shard.t())
    result = a.new_empty(a.shape[0], shard.shape[0] * group.size())
    for columns, part in _gathered(shard, group, decision):
        torch.mm(a, part.t(), out=result[:, columns])
    return result


@torch.no_grad()
def all_gather_matmul_backward(
    gradient: torch.Tensor, shard: torch.Tensor, weight: torch.Tensor, group: ProcessGroup,
    *, gather: Decision, scatter: Decision,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of shard and weight. The shard is gathered again: nothing else was saved.

    gradient: of the result, [m, n]. The sum over ranks is rounded to the dtype after each of them.
    """
    of_shard = matmul_reduce_scatter(gradient, weight.t(), group, scatter)
    of_weight = weight.new_empty(weight.shape)
    for number, (rows, part) in enumerate(_gathered(shard, group, replace(gather, chunks=1))):
        _add_product(of_weight, part.t(), gradient[rows], first=not number)
    return of_shard, of_weight


@torch.no_grad()
def matmul_reduce_scatter_backward(
    gradient: torch.Tensor, a: torch.Tensor, b: torch.Tensor, group: ProcessGroup, gather: Decision
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of a and b, in one gather of the result's gradient [m/W, n]."""
    of_a, of_b = a.new_empty(a.shape), b.new_empty(b.shape)
    for number, (rows, part) in enumerate(_gathered(gradient, group, replace(gather, chunks=1))):
        torch.mm(part, b.t(), out=of_a[rows])
        _add_product(of_b, a[rows].t(), part, first=not number)
    return of_a, of_b


def _add_product(
    target: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, first: bool
) -> torch.Tensor:
    """target = a @ b, or target += a @ b."""
    return torch.mm(a, b, out=target) if first else target.addmm_(a, b)


def _gathered(shard: torch.Tensor, group: ProcessGroup, decision: Decision) -> Iterator[Rows]:
    """The parts of all ranks, the own first. What a caller does with one hides the next."""
    shard, world = shard.contiguous(), group.size()
    rows, columns = shard.shape
    pieces = spans(rows, decision.chunks)
    flags = (world - 1) * len(pieces)
    form = Form("all_gather", world - 1, rows, columns, shard.dtype, flags)
    exchange = _exchange(form, group, decision, shard)
    if exchange is None:
        yield slice(None), _by_collective(shard, group)
        return
    with exchange.call():
        for step in range(1, world):
            peer = (exchange.rank - step) % world
            place = exchange.peers[peer][step - 1]
            for at, span in enumerate(pieces):
                exchange.put(shard[span], peer, place[span], (step - 1) * len(pieces) + at)
        yield _part(slice(0, rows), exchange.rank, rows), shard
        for step in range(1, world):
            source = (exchange.rank + step) % world
            for at, span in enumerate(pieces):
                exchange.await_flag(source, (step - 1) * len(pieces) + at)
                yield _part(span, source, rows), exchange.local[step - 1][span]


def _part(span: Span, rank: int, rows: int) -> Span:
    """Rows of a rank's part as rows of the whole."""
    return slice(rank * rows + span.start, rank * rows + span.stop)


def _by_collective(shard: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    whole = shard.new_empty(shard.shape[0] * group.size(), shard.shape[1])
    dist.all_gather_into_tensor(whole, shard, group=group)
    return whole


# --------------------------------------------------------------------------------------- scatter


@torch.no_grad()
def matmul_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, group: ProcessGroup, decision: Decision
) -> torch.Tensor:
    """[m/W, n]: this rank's rows of the sum over ranks of a [m, k] @ b [k, n].

    With a pipeline the sum is rounded to the dtype after each rank's part, as NCCL's ring does.
    """
    rows = _rows_of_each("matmul_reduce_scatter", a, b, group)
    result = a.new_empty(rows, b.shape[1])  # before the exchange begins: copies write to it
    pieces = spans(rows, decision.chunks)
    flags = (group.size() - 1) * len(pieces)
    form = Form("reduce_scatter", group.size() - 1, rows, b.shape[1], a.dtype, flags)
    exchange = _exchange(form, group, decision, a)
    if exchange is None:
        return _scattered(a @ b, result, group)
    with exchange.call():
        for _ in _ring(a, b, exchange, pieces, result):
            pass
    return result


def _ring(
    a: torch.Tensor, b: torch.Tensor, exchange: Exchange, pieces: list[Span], last: torch.Tensor
) -> Iterator[int]:
    """Sums travel around the ring; the numbers of the own chunks, as their sums are in `last`.

    What is got comes after what it waits for in every rank's order of calls, so that ranks make
    progress even if a device ran its streams one after the other.
    """
    rank, world = exchange.rank, exchange.world
    before, after = (rank - 1) % world, (rank + 1) % world
    for step in range(world):
        place = last if step == world - 1 else exchange.local[step]
        owner = (rank - 1 - step) % world
        arrivals = [
            exchange.get(
                place[span], before, exchange.peers[before][step - 1][span],
                (step - 1) * len(pieces) + at,
            )
            for at, span in enumerate(pieces)
        ] if step else []  # fmt: skip
        for at, span in enumerate(pieces):
            if step:
                arrivals[at]()
            _add_product(place[span], a[_part(span, owner, len(last))], b, first=not step)
            if step < world - 1:
                exchange.raise_flag(after, step * len(pieces) + at)
            else:
                yield at


@torch.no_grad()
def matmul_all_reduce(
    a: torch.Tensor, b: torch.Tensor, group: ProcessGroup, decision: Decision
) -> torch.Tensor:
    """[m, n]: the sum over ranks of a [m, k] @ b [k, n]; scattered, then gathered by chunks."""
    rows = _rows_of_each("matmul_all_reduce", a, b, group)
    world, result = group.size(), a.new_empty(a.shape[0], b.shape[1])
    pieces = spans(rows, decision.chunks)
    summed = (world - 1) * len(pieces)  # the flags of sums; then one for each rank and chunk
    form = Form(
        "all_reduce", world, rows, b.shape[1], a.dtype, summed + world * len(pieces)
    )
    exchange = _exchange(form, group, decision, a)
    if exchange is None:
        torch.mm(a, b, out=result)
        dist.all_reduce(result, group=group)
        return result
    own, rank = exchange.local[world - 1], exchange.rank
    others = [(rank + step) % world for step in range(1, world)]
    with exchange.call():
        for at in _ring(a, b, exchange, pieces, own):
            for peer in others:
                exchange.raise_flag(peer, summed + rank * len(pieces) + at)
        for peer in others:
            for at, span in enumerate(pieces):
                source = exchange.peers[peer][world - 1][span]
                flag = summed + peer * len(pieces) + at
                exchange.get(result[_part(span, peer, rows)], peer, source, flag)
        result[_part(slice(0, rows), rank, rows)].copy_(own)
    return result


def _scattered(product: torch.Tensor, result: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    dist.reduce_scatter_tensor(result, product, group=group)
    return result


# ---------------------------------------------------------------------------------------- checks


def _exchange(
    form: Form, group: ProcessGroup, decision: Decision, like: torch.Tensor
) -> Exchange | None:
    """None if the decision is against a pipeline, or nothing is to be sent."""
    if not decision.pipeline or group.size() == 1 or not form.rows * form.columns:
        return None
    return exchange_for(form, group, like.device)


def _check_product(name: str, a: torch.Tensor, b: torch.Tensor) -> None:
    fits = a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0]
    if not fits or a.dtype != b.dtype or a.device != b.device:
        raise CommunicationError(
            f"operands of {name}",
            expected="matrices [m, k] and [k, n] of one dtype on one device",
            got=" and ".join(f"{list(t.shape)} {t.dtype} on {t.device}" for t in (a, b)),
        )


def _rows_of_each(name: str, a: torch.Tensor, b: torch.Tensor, group: ProcessGroup) -> int:
    _check_product(name, a, b)
    rows, rest = divmod(a.shape[0], group.size())
    if rest:
        raise CommunicationError(
            f"axis 0 of {name}", expected=f"a multiple of the group's size {group.size()}",
            got=str(a.shape[0]), do="pad it, or multiply and reduce without scattering",
        )  # fmt: skip
    return rows
