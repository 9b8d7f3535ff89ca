# SPDX-License-Identifier: Apache-2.0
"""What tests of the option persistent_buffers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

from thunder_fuser import FusionDefinition, options
from thunder_fuser.communication.transport import buffers
from thunder_fuser.communication.transport.buffers import BufferCache, Plain, held_by_programs


@contextmanager
def memory_of_its_own() -> Iterator[BufferCache]:
    """An empty cache in place of the process's, with the option on."""
    cache = BufferCache()
    with mock.patch.object(buffers, "LOCAL", cache), options(persistent_buffers=True):
        yield cache


def two_kernels(*, scale: float = 2.0) -> FusionDefinition:
    """Sums of rows behind sums of columns: no kernel makes both."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        centred = fd.ops.sub(x, fd.ops.sum(fd.ops.mul(x, scale), [0], keepdim=True))
        fd.add_output(fd.ops.sum(fd.ops.exp(fd.ops.neg(fd.ops.abs(centred))), [1]))
    return fd


def expected(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """Its result."""
    return (-(x - (x * scale).sum(0, keepdim=True)).abs()).exp().sum(1)


def poison() -> None:
    """Old content must not be in a result."""
    for _, entry in held_by_programs().entries():
        assert isinstance(entry, Plain)
        entry.tensor.fill_(torch.nan)
