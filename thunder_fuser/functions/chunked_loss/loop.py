# SPDX-License-Identifier: Apache-2.0
"""Rows of the hidden state -> the loss and its gradients, with a chunk of the logits at a time.

    for each chunk of rows:
        x = h[rows] @ w.T + b              one buffer, for all chunks
        losses[rows], x = kernels(x)       x is its own gradient now
        dh[rows] = x @ w
        dw += x.T @ h[rows]                in float32
        db += sum(x)

Most often the forward does this, and the backward multiplies the gradients by that of the loss, a
number. Where the loss is one for each row, or half lacks the range for what is not scaled yet, the
forward computes the losses alone, and the backward runs the loop again, with their gradients.

Note [As exact as eager]. Eager has one product for all rows: its accumulator is float32, and the
sum is rounded once, to the type of the weight. Here the sums of chunks are added in float32 and
rounded once too. A product of 16-bit floats that writes float32 exists on a GPU only; on a CPU the
operands of this product are widened. With float32 weights the gradient itself is the accumulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_fuser.functions.chunked_loss.rows import (
    NamedTensors,
    Options,
    RowKernels,
    loss_type,
)
from thunder_fuser.options import Value

_TILE = 64  # rows of a chunk are a multiple of it, where there are that many: tiles of a product
NeedsGradient = tuple[bool, bool, bool]  # whether the hidden state, weight and bias need gradients


def chunks(rows: int, most: int) -> Iterator[slice]:
    """Runs of rows of one length, at most `most` of them each; the last one may be shorter.

    >>> [*chunks(10, 4)], len([*chunks(4097, 2048)])
    ([slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)], 3)
    """
    count = -(-rows // most)
    even = -(-rows // count)
    size = min(-(-even // _TILE) * _TILE, most)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


@dataclass(frozen=True, slots=True)
class ChunkedLoss:
    """A call of the loss, or of its gradients, of (h, weight, bias, target, class weights).

    needs: the gradients that it computes. Beside the loss these are its own; with `g`, the gradient
    of the loss, they are those of what the loss is used for, and the loss is not returned.
    """

    options: Options
    rows: int
    needs: NeedsGradient
    of_jit: Mapping[str, Value] = field(default_factory=dict)
    where: str = ""
    kernels: RowKernels = field(init=False)

    def __post_init__(self) -> None:
        kernels = RowKernels(self.options, self.of_jit, self.where)
        object.__setattr__(self, "kernels", kernels)

    def __call__(  # noqa: PLR0917 - the operands of a call in a trace
        self, h: torch.Tensor, w: torch.Tensor, b: Any, target: torch.Tensor, weight: Any,
        g: torch.Tensor | None = None, of_sums: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        """The loss and, if asked for, the rows' logsumexp, if there is no `g`; then gradients."""
        gradients, wide = _Sums(h, w, b, self), loss_type(h)
        if h.device.type == "meta":
            results = [] if g is not None else self._without_data(h)
            return *results, *gradients.results()
        tensors = {"target": target, "weight": weight, "scale": None, "of_sums": of_sums}
        mean, total = self.options.reduction == "mean", h.new_ones((), dtype=wide)
        if mean:
            total = self.kernels.total({"target": target, "weight": weight}).to(wide)
        if any(self.needs):
            tensors["scale"] = (total.new_ones(()) if g is None else g.to(wide)) / total
        losses, sums = self._rows(gradients, tensors)
        if g is not None:
            return (*gradients.results(),)
        loss = losses if self.options.reduction == "none" else losses.sum()
        loss = loss / total if mean else loss
        return loss, *([sums] if self.options.with_sums else []), *gradients.results()

    def _without_data(self, h: torch.Tensor) -> list[torch.Tensor]:
        rows = h.new_empty(h.shape[:1], dtype=loss_type(h))
        loss = rows if self.options.reduction == "none" else rows.new_empty(())
        return [loss, rows] if self.options.with_sums else [loss]

    def _rows(
        self, gradients: _Sums, tensors: NamedTensors
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(losses, logsumexp) of all rows. What holds a chunk is gone when this returns."""
        losses, sums = [], []
        split = {name: x for name, x in tensors.items() if x is not None and x.ndim}
        split.pop("weight", None)
        for rows, x in gradients.logits():
            of_rows = {**tensors, **{name: each[rows] for name, each in split.items()}, "x": x}
            statistics = self.kernels.losses(of_rows)
            losses.append(statistics.pop("losses"))
            sums.append(statistics["most"] + statistics["log_sum"])
            if tensors["scale"] is not None:
                gradients.add(rows, self.kernels.gradient({**of_rows, **statistics}))
        return torch.cat(losses), torch.cat(sums)


class _Sums:
    """The gradients of a loss's operands, up to the chunk that was added last."""

    def __init__(self, h: torch.Tensor, w: torch.Tensor, b: Any, call: ChunkedLoss) -> None:
        self._operands, (of_h, self._of_w, of_b) = (h, w, b), call.needs
        self._runs = [*chunks(h.shape[0], call.rows)]
        # The memory of all chunks: a fresh one for each would be as large, and takes as long.
        self._x: torch.Tensor | None = h.new_empty(self._runs[0].stop, w.shape[0])
        self._dh = torch.empty_like(h, memory_format=torch.contiguous_format) if of_h else None
        self._dw: torch.Tensor | None = None
        self._wide: torch.Tensor | None = None  # the gradient of a chunk, where it is widened
        self._db = h.new_zeros(w.shape[:1], dtype=loss_type(h)) if of_b else None

    def logits(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Each run of rows, with the product of these."""
        (h, w, b), x = self._operands, self._x
        assert x is not None
        for rows in self._runs:
            out = x[: rows.stop - rows.start]
            if b is None:
                yield rows, torch.mm(h[rows], w.t(), out=out)
            else:
                yield rows, torch.addmm(b, h[rows], w.t(), out=out)

    def add(self, rows: slice, dx: torch.Tensor) -> None:
        """Adds the gradients that follow from that of the logits of these rows."""
        h, w, _ = self._operands
        if self._dh is not None:
            torch.mm(dx, w, out=self._dh[rows])
        if self._of_w:
            self._add_to_weight(dx, h[rows])
        if self._db is not None:
            self._db += dx.sum(0, dtype=self._db.dtype)

    def _add_to_weight(self, dx: torch.Tensor, h: torch.Tensor) -> None:
        """dw += dx.T @ h, in the type of a loss."""
        wide = loss_type(h)
        if h.dtype is not wide and h.is_cuda:
            if self._dw is None:
                self._dw = torch.mm(dx.t(), h, out_dtype=wide)
            else:
                torch.addmm(self._dw, dx.t(), h, out_dtype=wide, out=self._dw)
            return
        if h.dtype is not wide:
            if self._wide is None:
                self._wide = dx.new_empty(dx.shape, dtype=wide)  # the first chunk is the longest
            dx, h = self._wide[: len(dx)].copy_(dx), h.to(wide)
        self._dw = torch.mm(dx.t(), h) if self._dw is None else self._dw.addmm_(dx.t(), h)

    def results(self) -> list[torch.Tensor]:
        """The gradients, in the types of the operands."""
        (h, w, _), self._x, self._wide = self._operands, None, None
        if h.device.type == "meta" and self._of_w:
            self._dw = w.new_empty(w.shape)
        of_all = (self._dh, self._dw, self._db)
        return [gradient.to(h.dtype) for gradient in of_all if gradient is not None]
