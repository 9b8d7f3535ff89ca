# SPDX-License-Identifier: Apache-2.0
"""Rows of the hidden state -> the loss and its gradients, with a chunk of the logits at a time.

    for each chunk of rows:
        x = h[rows] @ w.T + b              one buffer, for all chunks
        losses[rows], x = kernels(x)       x is its own gradient now
        dh[rows] = x @ w
        dw += x.T @ h[rows]                in float32
        db += sum(x)

The gradients are those of the loss; the backward multiplies them by the gradient that it gets.

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

from thunder_fuser.functions.chunked_loss.rows import Options, RowKernels, loss_type
from thunder_fuser.options import Value

_TILE = 64  # rows of a chunk are a multiple of it, where there are that many: tiles of a product
Needs = tuple[bool, bool, bool]  # whether the hidden state, weight and bias need gradients


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
    """A call of the loss: (h, weight, bias, target, class weights) -> (loss, gradients)."""

    options: Options
    rows: int
    needs: Needs
    of_jit: Mapping[str, Value] = field(default_factory=dict)
    where: str = ""
    kernels: RowKernels = field(init=False)

    def __post_init__(self) -> None:
        kernels = RowKernels(self.options, self.of_jit, self.where)
        object.__setattr__(self, "kernels", kernels)

    def __call__(
        self, h: torch.Tensor, w: torch.Tensor, b: Any, target: torch.Tensor, weight: Any
    ) -> tuple[torch.Tensor, ...]:
        """The loss, then the gradients that are needed."""
        sums = _Sums(h, w, b, self.needs)
        if h.device.type == "meta":
            return h.new_empty((), dtype=loss_type(h)), *sums.results()
        losses = h.new_empty(h.shape[:1], dtype=loss_type(h))
        total = scale = None
        if self.options.reduction == "mean":
            total = self.kernels.total({"target": target, "weight": weight})
            scale = total.reciprocal()
        elif any(self.needs):
            scale = losses.new_ones(())
        for rows in chunks(h.shape[0], self.rows):
            tensors = {"x": sums.logits(rows), "target": target[rows], "weight": weight}
            statistics = self.kernels.losses(tensors)
            losses[rows] = statistics.pop("losses")
            if any(self.needs):
                sums.add(rows, self.kernels.gradient({**tensors, "scale": scale, **statistics}))
            del tensors
        loss = losses.sum()
        return loss if total is None else loss / total, *sums.results()


class _Sums:
    """The gradients of a loss's operands, up to the chunk that was added last."""

    def __init__(self, h: torch.Tensor, w: torch.Tensor, b: Any, needs: Needs) -> None:
        self._operands = h, w, b
        of_h, of_w, of_b = needs
        wide = loss_type(h)
        self._dh = torch.empty_like(h, memory_format=torch.contiguous_format) if of_h else None
        self._dw: torch.Tensor | None = None
        self._of_w = of_w
        self._db = h.new_zeros(w.shape[:1], dtype=wide) if of_b else None

    def logits(self, rows: slice) -> torch.Tensor:
        """The product of these rows."""
        h, w, b = self._operands
        return torch.mm(h[rows], w.t()) if b is None else torch.addmm(b, h[rows], w.t())

    def add(self, rows: slice, dx: torch.Tensor) -> None:
        """Adds the gradients that follow from that of the logits of these rows."""
        h, w, _ = self._operands
        if self._dh is not None:
            torch.mm(dx, w, out=self._dh[rows])
        if self._of_w:
            self._dw = _plus_product(self._dw, dx.t(), h[rows], whole=len(dx) == len(h))
        if self._db is not None:
            self._db += dx.sum(0, dtype=self._db.dtype)

    def results(self) -> Iterator[torch.Tensor]:
        """The gradients, in the types of the operands."""
        h, w, _ = self._operands
        if h.device.type == "meta" and self._of_w:
            self._dw = w.new_empty(w.shape)
        for result in (self._dh, self._dw, self._db):
            if result is not None:
                yield result.to(h.dtype)


def _plus_product(
    sums: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor, whole: bool
) -> torch.Tensor:
    """sums + a @ b in float32, in place; `whole`: nothing is added to it, so in the type of a."""
    if whole or a.dtype in (torch.float32, torch.float64):
        return torch.mm(a, b) if sums is None else sums.addmm_(a, b)
    if a.device.type == "cpu":
        a, b = a.float(), b.float()
        return torch.mm(a, b) if sums is None else sums.addmm_(a, b)
    if sums is None:
        return torch.mm(a, b, out_dtype=torch.float32)
    return torch.addmm(sums, a, b, out_dtype=torch.float32, out=sums)
