# SPDX-License-Identifier: Apache-2.0
"""Stacks of tensors, each as one cat, with the gradients that Thunder loses.

    vstack([a[3], b[3]])  ->  cat([reshape(a, (1, 3)), reshape(b, (1, 3))], 0)

Thunder calls these functions of a list in torch, as they are, and takes the result for one that
has no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import thunder.torch as ltorch
from thunder.core.prims import get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.utils import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_type_promotion

from thunder_fuser.executors.types import ANY, FLOATS, data_type
from thunder_fuser.trace.op import Reject

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """A function of a list of tensors: the shape each is given, and along which dimension."""

    id: str
    shape: Callable[[Shape], Shape]
    dim: int

    def transform(self, tensors: Sequence[Any]) -> Any:
        _, dtype = elementwise_type_promotion(
            *tensors, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        )
        alike = [ltorch.to(_shaped(one, self.shape(one.shape)), dtype) for one in tensors]
        return ltorch.cat(alike, self._along(tensors))

    def gradient(self, tensors: Sequence[Any]) -> Any:
        result, dim = self.transform(tensors), self._along(tensors)
        sizes = [self.shape(one.shape)[dim] for one in tensors]
        parts = ltorch.split(get_grad(result), sizes, dim)
        for one, part in zip(tensors, parts, strict=True):
            if data_type(one.dtype) in FLOATS:
                put_grad(one, ltorch.to(_shaped(part, one.shape), one.dtype))
        return result

    def refuses(self, tensors: Any, **named: Any) -> Reject | None:
        if named or not isinstance(tensors, Sequence):
            return Reject(f"{self.id} with other arguments than a list")
        if any(type(one) is not TensorProxy for one in tensors):
            return Reject(f"{self.id} of other than plain tensors")
        if any(data_type(one.dtype) not in ANY or not one.numel for one in tensors):
            return Reject(f"{self.id} of complex numbers, or of no elements")
        return None

    def _along(self, tensors: Sequence[Any]) -> int:
        return min(self.dim, len(self.shape(tensors[0].shape)) - 1)


def _shaped(x: Any, shape: Shape) -> Any:
    """The tensor itself if it has the shape."""
    return x if tuple(x.shape) == tuple(shape) else ltorch.reshape(x, shape)


def _at_least_1d(shape: Shape) -> Shape:
    return tuple(shape) or (1,)


def _rows(shape: Shape) -> Shape:
    return shape if len(shape) > 1 else (1, *_at_least_1d(shape))


def _columns(shape: Shape) -> Shape:
    return shape if len(shape) > 1 else (*_at_least_1d(shape), 1)


def _sheets(shape: Shape) -> Shape:
    return shape if len(shape) > 2 else (*_rows(shape), 1)


STACKS = (
    Stack("torch.column_stack", _columns, 1),
    Stack("torch.dstack", _sheets, 2),
    Stack("torch.hstack", _at_least_1d, 1),
    Stack("torch.row_stack", _rows, 0),
    Stack("torch.vstack", _rows, 0),
)
