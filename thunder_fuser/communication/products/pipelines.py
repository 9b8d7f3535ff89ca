# SPDX-License-Identifier: Apache-2.0
"""Matrix products that overlap with communication. W is the size of the group.

    all_gather_matmul      shard [m/W, k], weight [k, n]       -> all_gather(shard) @ weight
    all_gather_linear      a [m, k], shard [n/W, k]            -> a @ all_gather(shard).T
    all_gather_products    shard [m/W, k], other matrices      -> products with all_gather(shard)
    matmul_reduce_scatter  a [m, k], b [k, n]                  -> this rank's rows of sum(a @ b)
    matmul_all_reduce      a [m, k], b [k, n]                  -> sum(a @ b)

Gather: each rank copies its shard to its peers, in the order in which they need it. The first copy
runs during the product with the own shard, the next one during the product with the first peer's.

    rank 1 of 4:   multiplies 1, 2, 3, 0     sends to 0, 3, 2

Scatter: the sum for a rank travels around the ring. A rank gets the sum so far from the rank before
it, and its own matrix product adds to that (beta = 1), so there is no separate addition. Rows are
split into chunks: one chunk is copied while another is multiplied.

    rank 1 of 4:   adds to the rows of 0, 3, 2, 1     gets from 0     the last rows are its own

A Decision of cost.py says whether a pipeline runs, and its number of chunks. If it does not, or the
ranks cannot have an exchange, torch.distributed runs the collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from thunder_fuser.communication.products.cost import Decision
from thunder_fuser.communication.transport.exchange import BufferLayout, Exchange
from thunder_fuser.communication.transport.transports import exchange_for
from thunder_fuser.errors import CommunicationError

Span = slice
RowSpan = tuple[Span, torch.Tensor]  # rows of the whole, and their elements


def spans(rows: int, chunks: int) -> list[Span]:
    """Splits rows into chunks as equal as possible, of at least one row each.

    >>> spans(5, 2)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    chunks = max(1, min(chunks, rows))
    return [slice(at * rows // chunks, (at + 1) * rows // chunks) for at in range(chunks)]


# ---------------------------------------------------------------------------------------- gather


@torch.no_grad()
def all_gather_matmul(
    shard: torch.Tensor, weight: torch.Tensor, group: ProcessGroup, decision: Decision,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """[m, n] of shard [m/W, k] and weight [k, n], plus a bias [n], in their dtype."""
    _check_product("all_gather_matmul", shard, weight)
    result = shard.new_empty(shard.shape[0] * group.size(), weight.shape[1])
    for rows, part in _gathered(shard, group, decision):
        _product(part, weight, bias, result[rows])
    return result


@torch.no_grad()
def all_gather_linear(
    a: torch.Tensor, shard: torch.Tensor, group: ProcessGroup, decision: Decision,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """[m, n] of a [m, k] and this rank's rows [n/W, k] of the weight, plus a whole bias [n]. It is
    FSDP's linear."""
    _check_product("all_gather_linear", a, shard.t())
    result = a.new_empty(a.shape[0], shard.shape[0] * group.size())
    for columns, part in _gathered(shard, group, decision):
        piece = None if bias is None else bias[columns]
        _product(a, part.t(), piece, result[:, columns])
    return result


def _product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
) -> torch.Tensor:
    """out = a @ b, or a @ b + bias."""
    return torch.mm(a, b, out=out) if bias is None else torch.addmm(bias, a, b, out=out)


# How each kind of product uses rows of the gathered matrix G [m, k]. Arguments: result, rows of G,
# their place in G, the other operand, whether they are the first rows.
_STEPS: dict[str, Callable[..., object]] = {
    "rows": lambda out, part, at, b, first: torch.mm(part, b, out=out[at]),
    "columns": lambda out, part, at, a, first: torch.mm(a, part.t(), out=out[:, at]),
    "left": lambda out, part, at, b, first: _add_product(out, part.t(), b[at], first=first),
    "right": lambda out, part, at, a, first: _add_product(out, a[:, at], part, first=first),
}


@torch.no_grad()
def all_gather_products(
    shard: torch.Tensor, wanted: Sequence[tuple[str, torch.Tensor]], group: ProcessGroup,
    decision: Decision,
) -> list[torch.Tensor]:  # fmt: skip
    """Products with G = all_gather(shard). G is gathered once, and never stored as a whole.

    wanted: ("rows", b) for G @ b, ("columns", a) for a @ G.T, ("left", b) for G.T @ b,
    ("right", a) for a @ G. The last two add over the ranks' parts and round to the dtype after
    each part, so with them a part is one chunk.
    """
    rows, columns = shard.shape[0] * group.size(), shard.shape[1]
    shapes = [_result_shape(kind, other.shape, rows, columns) for kind, other in wanted]
    results = [shard.new_empty(shape) for shape in shapes]
    if any(kind in ("left", "right") for kind, _ in wanted):
        decision = replace(decision, chunks=1)
    for number, (at, part) in enumerate(_gathered(shard, group, decision)):
        for (kind, other), out in zip(wanted, results, strict=True):
            _STEPS[kind](out, part, at, other, not number)
    return results


def _result_shape(
    kind: str, other: Sequence[int], rows: int, columns: int
) -> tuple[int, int]:
    """The shape of a product with G [rows, columns]; CommunicationError if `other` does not fit."""
    summed = {"rows": columns, "columns": columns, "left": rows, "right": rows}[kind]
    length = other[0] if kind in ("rows", "left") else other[1]
    if len(other) != 2 or length != summed:
        raise CommunicationError(
            f"operand of all_gather_products ({kind})", got=str(list(other)),
            expected=f"a matrix with {summed} elements along the axis that is summed",
        )  # fmt: skip
    return {
        "rows": (rows, other[1]), "columns": (other[0], rows),
        "left": (columns, other[1]), "right": (other[0], columns),
    }[kind]


def _add_product(
    target: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, first: bool
) -> torch.Tensor:
    """target = a @ b, or target += a @ b."""
    return torch.mm(a, b, out=target) if first else target.addmm_(a, b)


@dataclass(frozen=True, slots=True)
class _Gather:
    """The steps of a gather. They are cached, so that a call costs little time on the host.

    mine: the rows of this rank's part in the whole. puts: (rows, peer, slot, flag). arrivals:
    (source, slot, rows, flag, their place in the whole).
    """

    layout: BufferLayout
    mine: Span
    puts: tuple[tuple[Span, int, int, int], ...]
    arrivals: tuple[tuple[int, int, Span, int, Span], ...]


@lru_cache(maxsize=1024)
def _gather(
    shape: tuple[int, int], dtype: torch.dtype, chunks: int, rank: int, world: int
) -> _Gather:
    rows, columns = shape
    pieces = spans(rows, chunks)
    steps = [
        (step, span, step * len(pieces) + at)
        for step in range(world - 1) for at, span in enumerate(pieces)
    ]  # fmt: skip
    puts = ((span, (rank - slot - 1) % world, slot, flag) for slot, span, flag in steps)
    sources = ((slot, span, flag, (rank + slot + 1) % world) for slot, span, flag in steps)
    return _Gather(
        BufferLayout("all_gather", world - 1, rows, columns, dtype, len(steps)),
        _part(slice(0, rows), rank, rows), tuple(puts),
        tuple(
            (source, slot, span, flag, _part(span, source, rows))
            for slot, span, flag, source in sources
        ),
    )  # fmt: skip


def _gathered(shard: torch.Tensor, group: ProcessGroup, decision: Decision) -> Iterator[RowSpan]:
    """Yields the parts of all ranks, this rank's first. The next part is copied while the caller
    works with one."""
    shard, (rows, columns) = shard.contiguous(), shard.shape
    plan = _gather((rows, columns), shard.dtype, decision.chunks, group.rank(), group.size())
    exchange = _exchange(plan.layout, group, decision, shard)
    if exchange is None:
        yield slice(None), _by_collective(shard, group)
        return
    with exchange.call():
        for span, peer, slot, flag in plan.puts:
            exchange.put(shard, span, peer, slot, flag)
        yield plan.mine, shard
        for source, slot, span, flag, place in plan.arrivals:
            exchange.await_flag(source, flag)
            yield place, exchange.rows(slot, span)


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

    A pipeline rounds the sum to the dtype after each rank's part, as NCCL's ring does.
    """
    rows = _rows_of_each("matmul_reduce_scatter", a, b, group)
    result = a.new_empty(rows, b.shape[1])  # before the exchange begins: copies write to it
    pieces = spans(rows, decision.chunks)
    flags = (group.size() - 1) * len(pieces)
    layout = BufferLayout("reduce_scatter", group.size() - 1, rows, b.shape[1], a.dtype, flags)
    exchange = _exchange(layout, group, decision, a)
    if exchange is None:
        dist.reduce_scatter_tensor(result, a @ b, group=group)
        return result
    with exchange.call():
        for _ in _ring(a, b, exchange, pieces, result):
            pass
    return result


def _ring(
    a: torch.Tensor, b: torch.Tensor, exchange: Exchange, pieces: list[Span], last: torch.Tensor
) -> Iterator[int]:
    """Sends sums around the ring. Yields the number of each chunk of this rank's own rows once its
    sum is in `last`.

    Each get is issued after what it waits for, in the order of calls on every rank. So the ranks
    make progress even if a device ran its streams one after the other.
    """
    rank, world, rows = exchange.rank, exchange.world, exchange.layout.rows
    before, after = (rank - 1) % world, (rank + 1) % world
    for step, parts in enumerate(_ring_parts(rows, len(pieces), rank, world)):
        is_last = step == world - 1
        place = last if is_last else exchange.rows(step, slice(0, rows))
        first = (step - 1) * len(pieces)  # of the flags
        arrivals = [
            exchange.get(place, span, before, step - 1, first + at)
            for at, span in enumerate(pieces)
        ] if step else []  # fmt: skip
        for at, span in enumerate(pieces):
            if step:
                arrivals[at]()
            target = last[span] if is_last else exchange.rows(step, span)
            _add_product(target, a[parts[at]], b, first=not step)
            if is_last:
                yield at
            else:
                exchange.raise_flag(after, step * len(pieces) + at)


@lru_cache(maxsize=1024)
def _ring_parts(rows: int, chunks: int, rank: int, world: int) -> tuple[tuple[Span, ...], ...]:
    """For each step, the rows of the whole that it multiplies, in chunks."""
    owners = [(rank - 1 - step) % world for step in range(world)]
    pieces = spans(rows, chunks)
    return tuple(tuple(_part(span, owner, rows) for span in pieces) for owner in owners)


@torch.no_grad()
def matmul_all_reduce(
    a: torch.Tensor, b: torch.Tensor, group: ProcessGroup, decision: Decision
) -> torch.Tensor:
    """[m, n]: the sum over ranks of a [m, k] @ b [k, n]: a scatter, then a gather by chunks."""
    rows = _rows_of_each("matmul_all_reduce", a, b, group)
    world, result = group.size(), a.new_empty(a.shape[0], b.shape[1])
    pieces = spans(rows, decision.chunks)
    summed = (world - 1) * len(pieces)  # the scatter's flags; then one for each rank and chunk
    layout = BufferLayout(
        "all_reduce", world, rows, b.shape[1], a.dtype, summed + world * len(pieces)
    )
    exchange = _exchange(layout, group, decision, a)
    if exchange is None:
        torch.mm(a, b, out=result)
        dist.all_reduce(result, group=group)
        return result
    sums, rank = exchange.rows(world - 1, slice(0, rows)), exchange.rank
    others = [(rank + step) % world for step in range(1, world)]
    with exchange.call():
        for at in _ring(a, b, exchange, pieces, sums):
            for peer in others:
                exchange.raise_flag(peer, summed + rank * len(pieces) + at)
        for peer in others:
            part = result[_part(slice(0, rows), peer, rows)]
            for at, span in enumerate(pieces):
                exchange.get(part, span, peer, world - 1, summed + peer * len(pieces) + at)
        result[_part(slice(0, rows), rank, rows)].copy_(sums)
    return result



# ---------------------------------------------------------------------------------------- checks


def _exchange(
    layout: BufferLayout, group: ProcessGroup, decision: Decision, like: torch.Tensor
) -> Exchange | None:
    """The exchange of this call; None for a collective, or if there is nothing to send."""
    if not decision.pipeline or group.size() == 1 or not layout.rows * layout.columns:
        return None
    return exchange_for(layout, group, like.device)


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
