# SPDX-License-Identifier: Apache-2.0
"""Makes the function that checks whether tensors are like those for which a trace was made.

    check(x, weight)  ->  True if both are plain tensors with these sizes, dtypes, devices and
                          requires_grad

It runs in C (checks.cpp) if that can be built, else in Python. Strides are not checked here,
because they are in the key of a region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from thunder_fuser.host.call.native import native

Check = Callable[..., bool]
PLAIN = (torch.Tensor, torch.nn.Parameter)


class Like(NamedTuple):
    """The properties of a tensor that are compared. device: without an index for the CPU."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


def make_check(wanted: Sequence[Like]) -> Check:
    """A function of that many tensors. It is False for anything but a plain strided tensor: for a
    subclass, a sparse tensor, or one inside a transform of torch.func."""
    return _in_c(wanted) or _in_python(wanted)


def _in_c(wanted: Sequence[Like]) -> Check | None:
    in_c = native()
    if in_c is None:
        return None
    samples = {one[1:3]: torch.empty(0, dtype=one.dtype, device=one.device) for one in wanted}
    rows = tuple((samples[one[1:3]], one.requires_grad, one.shape) for one in wanted)
    return in_c.check(rows)  # type: ignore[no-any-return]


def _in_python(wanted: Sequence[Like]) -> Check:
    def check(*tensors: object) -> bool:
        pairs = zip(tensors, wanted, strict=True)
        return len(tensors) == len(wanted) and all(_is_like(one, like) for one, like in pairs)

    return check


def _is_like(one: object, like: Like) -> bool:
    return (
        type(one) in PLAIN
        and isinstance(one, torch.Tensor)
        and one.layout is torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(one)
        and (one.shape, one.dtype, one.device, one.requires_grad) == like
    )
