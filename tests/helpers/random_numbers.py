# SPDX-License-Identifier: Apache-2.0
"""A definition of uniform numbers, and what they must be."""

from __future__ import annotations

from typing import Any

import torch

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.runtime import random
from thunder_fuser.runtime.torch_types import from_torch_dtype


def uniform(
    *shape: int, dtype: torch.dtype = torch.float32, stream: tuple[int, int] = (3, 7), **more: Any
) -> FusionDefinition:
    """uniform(0, 1) of a shape, as the one result; `more` goes to add_output."""
    fd = FusionDefinition()
    value = fd.ops.uniform(0.0, 1.0, list(shape), from_torch_dtype(dtype), *stream)
    fd.add_output(value, **more)
    return fd


def numbers(
    *shape: int, dtype: torch.dtype = torch.float32, stream: tuple[int, int] = (3, 7)
) -> torch.Tensor:
    """What uniform(*shape) must be, from torch alone."""
    seed, offset = map(torch.tensor, stream)
    return random.uniform(torch.tensor(0.0), torch.tensor(1.0), (seed, offset), shape, dtype)
