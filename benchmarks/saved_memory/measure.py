# SPDX-License-Identifier: Apache-2.0
"""A model's call -> the bytes of memory that live on for its backward.

What autograd keeps is asked of autograd, by its hooks for saved tensors: of each the storage, once,
less those of parameters, buffers and the inputs, which live anyway. A view counts as all of what it
is a view of, for that lives with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Part:
    """A storage, and the type and shape of a tensor in it."""

    bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """How many the storage has."""
        return self.bytes // self.dtype.itemsize

    def __str__(self) -> str:
        return f"{_short(self.dtype)}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Kept:
    """All storages, the largest first."""

    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def without(self, other: Kept) -> tuple[Part, ...]:
        """Storages for which the other one has none of as many bytes.

        >>> a, b = (Part(2 * size, torch.float16, (size,)) for size in (3, 4))
        >>> list(map(str, Kept((b, a, a)).without(Kept((a,)))))
        ['float16[4]', 'float16[3]']
        """
        left = Counter(part.bytes for part in other.parts)
        found = []
        for part in self.parts:
            left[part.bytes] -= 1
            if left[part.bytes] < 0:
                found.append(part)
        return tuple(found)


def kept_by(call: Callable[..., Any], model: nn.Module, *inputs: torch.Tensor) -> Kept:
    """What the call keeps between forward and backward, the result alive too."""
    own = {_place(one) for one in (*model.parameters(), *model.buffers(), *inputs)}
    found: dict[int, Part] = {}
    alive: list[torch.Tensor] = []  # else a place could be given to another tensor

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()  # a result that its own graph holds would never be freed
        if _place(tensor) not in own:
            alive.append(tensor)
            size = tensor.untyped_storage().nbytes()
            part = Part(size, tensor.dtype, tuple(tensor.shape))
            found.setdefault(_place(tensor), part)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = call(*inputs)
    del result
    return Kept(tuple(sorted(found.values(), key=lambda part: (-part.bytes, str(part)))))


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
