# SPDX-License-Identifier: Apache-2.0
"""A hidden state -> the loss of its rows, and the gradients, with a piece of the logits at a time.

    losses:     for each chunk of rows              gradients:  for each chunk of columns
                    x = h[rows] @ w.T + b                           x = h @ w[cols].T + b[cols]
                    losses, statistics = kernel(x)                  dx = kernel(x, statistics, g)
                    dx = kernel(x, statistics)                      dw[cols] = dx.T @ h
                    dh[rows] = dx @ w                               db[cols] = sum(dx)
                    dw += dx.T @ h[rows]                            dh += dx @ w[cols]
                    db += sum(dx)

Most often the forward runs the first, and the backward multiplies the gradients by that of the
loss, a number. Where each row's loss has a gradient of its own, the forward has the losses alone,
and the backward runs the second: it knows the statistics of whole rows, two numbers each.

Note [As exact as eager]. Eager has one product for each gradient: its accumulator is float32, and
the sum is rounded once. A gradient that is a sum over chunks is added in float32 here, and rounded
once too. Of two chunks the weight's gradient is added in its own type: the second product adds to
the first one's result before it rounds. So half of the sum is rounded once more, and the float32
sums, twice as large as the gradient, are neither kept nor read. A product of 16-bit floats that
writes float32 exists on a GPU only; on a CPU the operands of this product are widened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from thunder_fuser.functions.chunked_loss.rows import (
    STATISTICS,
    SUMS,
    NamedTensors,
    Options,
    RowKernels,
    loss_type,
)
from thunder_fuser.options import OptionValue

_TILE = 64  # a chunk is a multiple of it, where it is that long: tiles of a product
_TWO = 2  # chunks, of which the weight's gradient needs no float32
NeedsGradient = tuple[bool, bool, bool]  # whether the hidden state, weight and bias need gradients


def chunks(count: int, most: int) -> Iterator[slice]:
    """Runs of rows or columns of one length, at most `most` each; the last one may be shorter.

    >>> [*chunks(10, 4)], len([*chunks(4097, 2048)])
    ([slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)], 3)
    """
    even = -(-count // -(-count // most))
    size = min(-(-even // _TILE) * _TILE, most)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def has_wide_sums(count: int, rows: int) -> bool:
    """Whether the weight's gradient of so many rows is added in the type of the loss; see the note.

    >>> has_wide_sums(8192, 2048), has_wide_sums(8192, 4096)
    (True, False)
    """
    return count > _TWO * rows


@dataclass(frozen=True, slots=True)
class ChunkedLoss:
    """The loss of (h, weight, bias, target, class weights), and its gradients.

    rows: of the logits that exist at a time. needs: the gradients that are asked for. recomputes:
    whether `gradients` computes them, with the logits again; if not, `losses` does, for a loss
    whose own gradient is 1. ranks: the process group, if the weight and the bias are the part of
    one rank; so are their gradients, and that of h is to be summed.
    """

    options: Options
    rows: int
    needs: NeedsGradient
    recomputes: bool
    of_jit: Mapping[str, OptionValue] = field(default_factory=dict)
    where: str = ""
    ranks: Any = None
    kernels: RowKernels = field(init=False)

    def __post_init__(self) -> None:
        kernels = RowKernels(self.options, self.of_jit, self.where)
        object.__setattr__(self, "kernels", kernels)

    def losses(
        self, h: torch.Tensor, w: torch.Tensor, b: Any, target: torch.Tensor, weight: Any
    ) -> tuple[torch.Tensor, ...]:
        """The loss; the rows' logsumexp, if asked for; the statistics, or the gradients, of which
        that of the bias and, of many chunks, that of the weight are in float32."""
        wide = loss_type(h)
        of_w = wide if has_wide_sums(len(h), self.rows) else h.dtype
        has_gradients = any(self.needs) and not self.recomputes
        gradients = self._empty((h, w, b), (h.dtype, of_w, wide)) if has_gradients else []
        if h.device.type == "meta":
            return *self._without_data(h, weight), *_present(gradients)
        runs, total = [*chunks(len(h), self.rows)], self._total(h, target, weight)
        scale = self._scale(target, total.new_ones(()) / total) if has_gradients else total
        x, results = h.new_empty(runs[0].stop * len(w)), []
        for rows in runs:
            logits = _product(h[rows], w, b, x)
            results.append(self._losses(logits, target[rows], weight))
            if has_gradients:
                of_rows = dict(zip(STATISTICS, results[-1][1:], strict=False), scale=scale[rows])
                dx = self._gradient(logits, 0, target[rows], weight, of_rows)
                _add_rows(gradients, rows, dx, h, w)
        columns = zip(*results, strict=True)
        loss, *kept = (torch.cat(each) if each[0].ndim else each[0] for each in columns)
        loss = loss if self.options.reduction == "none" else loss.sum() / total
        sums = [kept[0] + kept[1]] if self.options.with_sums else []
        return loss, *sums, *(kept if self.recomputes else _present(gradients))

    def gradients(
        self, h: torch.Tensor, w: torch.Tensor, b: Any, target: torch.Tensor, weight: Any,
        *others: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        """Those of h, the weight and the bias that are needed. others: the statistics of the rows,
        the gradient of the loss and, if it is a result, that of the rows' logsumexp."""
        statistics, wide = STATISTICS[: _kept(weight)], loss_type(h)
        of_rows = dict(zip((*statistics, "scale", "of_sums"), others, strict=False))
        dh, dw, db = self._empty((h, w, b), (wide, h.dtype, h.dtype))
        # Beside a chunk lies the gradient of the weight, so it has a quarter of the bytes.
        runs = [*chunks(len(w), max(1, self.rows * len(w) // (4 * len(h))))]
        if h.device.type != "meta":
            g = of_rows["scale"].to(wide) / self._total(h, target, weight)
            of_rows["scale"] = self._scale(target, g)
            x = h.new_empty(runs[0].stop * len(h))
            for columns in runs:
                logits = _product(h, w[columns], b if b is None else b[columns], x)
                dx = self._gradient(logits, columns.start, target, weight, of_rows)
                if dh is not None:
                    _add_product(dh, dx, w[columns], begins=not columns.start)
                if dw is not None:
                    torch.mm(dx.t(), h, out=dw[columns])
                if db is not None:
                    db[columns] = dx.sum(0, dtype=wide)
        return tuple(gradient.to(h.dtype) for gradient in _present((dh, dw, db)))

    def _losses(
        self, x: torch.Tensor, target: torch.Tensor, weight: Any
    ) -> Sequence[torch.Tensor]:
        """The losses of some rows, and their statistics, the same on all ranks."""
        if self.ranks is None:
            return self.kernels.run("lossOfRows", {"x": x, "target": target, "weight": weight})
        tensors = {"x": x, "target": target, "weight": self._weights(x, 0, weight)}
        sums = _of_all_ranks(self.kernels.run("sumsOfRows", tensors), self.ranks)
        tensors = dict(zip(SUMS, sums, strict=False), target=target, weight=weight)
        return self.kernels.run("lossOfSums", tensors)

    def _gradient(
        self, x: torch.Tensor, column: int, target: torch.Tensor, weight: Any, of_rows: NamedTensors
    ) -> torch.Tensor:
        """The gradient of logits from this column of the rank on, in their memory most often.

        The losses found all targets among the classes, so 32 bits hold them.
        """
        first, target = self.options.first + column, target.int()
        weights = self._weights(x, column, weight)
        tensors = {"x": x, "target": target - first if first else target, "weight": weights}
        (dx,) = self.kernels.run("gradientOfRows", {**tensors, **of_rows})
        return dx

    def _weights(self, x: torch.Tensor, column: int, weight: Any) -> Any:
        """Those of the classes of these logits, which begin at this column of the rank."""
        first = self.options.first + column
        return weight if weight is None else weight[first : first + x.shape[1]]

    def _empty(
        self, tensors: Sequence[Any], kinds: Sequence[torch.dtype]
    ) -> list[torch.Tensor | None]:
        """Memory for the gradients that are asked for, in these types."""
        return [
            torch.empty(x.shape, dtype=kind, device=x.device) if needed else None
            for x, kind, needed in zip(tensors, kinds, self.needs, strict=True)
        ]

    def _total(self, h: torch.Tensor, target: torch.Tensor, weight: Any) -> torch.Tensor:
        """What a loss is divided by: 1, if it is no mean."""
        if self.options.reduction != "mean":
            return h.new_ones((), dtype=loss_type(h))
        (total,) = self.kernels.run("lossTotal", {"target": target, "weight": weight})
        return total.to(loss_type(h))

    def _scale(self, target: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        """The gradient of each row's loss: 0 for ignored rows."""
        return torch.where(target != self.options.ignore_index, g, 0.0)

    def _without_data(self, h: torch.Tensor, weight: Any) -> tuple[torch.Tensor, ...]:
        rows = h.new_empty(h.shape[:1], dtype=loss_type(h))
        number = rows.new_empty(())
        results = [rows if self.options.reduction == "none" else number]
        results += [rows] if self.options.with_sums else []
        kept = [rows, rows, rows, number][: _kept(weight)]
        return *results, *(kept if self.recomputes else [])


def _of_all_ranks(sums: Sequence[torch.Tensor], ranks: Any) -> Sequence[torch.Tensor]:
    """[rows] of this rank, each  ->  [ranks, rows], by one call."""
    mine = torch.stack([*sums])
    every = mine.new_empty(ranks.size(), *mine.shape)
    dist.all_gather_into_tensor(every.view(-1, mine.shape[1]), mine, group=ranks)
    return every.unbind(1)


def _present(gradients: Iterable[torch.Tensor | None]) -> list[torch.Tensor]:
    return [gradient for gradient in gradients if gradient is not None]


def _add_rows(
    gradients: Sequence[torch.Tensor | None], rows: slice, dx: torch.Tensor, h: torch.Tensor,
    w: torch.Tensor,
) -> None:  # fmt: skip
    """What these rows of the logits, with the gradient dx, add to those of h, w and b."""
    dh, dw, db = gradients
    if dh is not None:
        torch.mm(dx, w, out=dh[rows])
    if dw is not None:
        _add_product(dw, dx.t(), h[rows], begins=not rows.start)
    if db is not None:
        of_rows = dx.sum(0, dtype=db.dtype)
        db.copy_(of_rows if not rows.start else db + of_rows)


def _kept(weight: Any) -> int:
    """How many statistics a row has: two of them are of class weights."""
    return 2 if weight is None else 4


def _product(h: torch.Tensor, w: torch.Tensor, b: Any, memory: torch.Tensor) -> torch.Tensor:
    """h @ w.T + b, in memory that all chunks share: fresh memory takes as long as a kernel."""
    out = memory[: len(h) * len(w)].view(len(h), len(w))
    return torch.mm(h, w.t(), out=out) if b is None else torch.addmm(b, h, w.t(), out=out)


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, begins: bool) -> None:
    """total += a @ b, or = if it begins, in the type of the total; see the note."""
    named: dict[str, Any] = {"beta": 0 if begins else 1, "out": total}
    if a.dtype is not total.dtype and a.is_cuda:
        named["out_dtype"] = total.dtype
    else:
        a, b = a.to(total.dtype), b.to(total.dtype)
    torch.addmm(total, a, b, **named)
