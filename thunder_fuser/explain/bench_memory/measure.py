# SPDX-License-Identifier: Apache-2.0
"""A model's call -> the bytes of memory that live on for its backward.

What autograd keeps is asked of autograd, by its hooks for saved tensors: of each the storage, once,
less those of parameters, buffers and the inputs, which live anyway. A view counts as all of what it
is a view of, for that lives with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Kept:
    """bytes: of all storages; parts: (type, shape) -> bytes of each storage, the largest first."""

    bytes: int
    parts: tuple[tuple[str, int], ...]


def kept_by(call: Callable[..., Any], model: nn.Module, *inputs: torch.Tensor) -> Kept:
    """What the call keeps between forward and backward, the result alive too."""
    own = {_place(one) for one in (*model.parameters(), *model.buffers(), *inputs)}
    found: dict[int, tuple[str, int]] = {}
    alive: list[torch.Tensor] = []  # else a place could be given to another tensor

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if _place(tensor) not in own:
            alive.append(tensor)
            size = tensor.untyped_storage().nbytes()
            found.setdefault(_place(tensor), (_named(tensor), size))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = call(*inputs)
    del result
    parts = sorted(found.values(), key=lambda part: (-part[1], part[0]))
    return Kept(sum(size for _, size in parts), tuple(parts))


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _named(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
