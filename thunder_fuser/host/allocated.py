# SPDX-License-Identifier: Apache-2.0
"""A tensor whose memory layout no strides describe: its storage and its domains.

    storage 0 3 1 4 2 5, allocation [i0.i*i0.o{6}] of logical [i0{6}] split by 2
    .logical()  ->  0 1 2 3 4 5 where storage place k holds element 2 * (k % 3) + k // 3
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thunder_fuser.ir.domain import TensorDomain
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.presegment.lay_out import from_storage, to_storage
from thunder_fuser.runtime.evaluate import move


@dataclass(frozen=True, eq=False)
class AllocatedTensor:
    """A storage with the shape of `domain`'s allocation domain, whose sizes are numbers."""

    storage: torch.Tensor
    domain: TensorDomain

    @property
    def shape(self) -> torch.Size:
        """The logical sizes."""
        return torch.Size(axis.extent.value for axis in self.domain.no_reductions)

    @property
    def dtype(self) -> torch.dtype:
        return self.storage.dtype

    @property
    def device(self) -> torch.device:
        return self.storage.device

    def logical(self) -> torch.Tensor:
        """The logical tensor, as a row-major copy."""
        return _run(from_storage(self.domain, "s").records, self.storage, "s").contiguous()

    @staticmethod
    def of(tensor: torch.Tensor, domain: TensorDomain) -> AllocatedTensor:
        """The storage of a logical tensor; the inverse of `logical`."""
        storage = _run(to_storage(domain, "s").records, tensor, "s")
        return AllocatedTensor(storage.contiguous(), domain)

    def __repr__(self) -> str:
        memory = ", ".join(map(str, self.domain.memory))
        return f"AllocatedTensor(shape={tuple(self.shape)}, allocation=[{memory}], {self.storage})"


def _run(records: list[OpRecord], tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Runs movement records in torch."""
    for record in records:
        tensor = move(record, tensor)
    return tensor
