# SPDX-License-Identifier: Apache-2.0
"""A block's shared memory: arrays laid out one behind the other."""

from __future__ import annotations

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower.kernel import Array


class SharedMemory:
    """The bytes that the shared arrays of one kernel take."""

    def __init__(self, taken: int = 0) -> None:
        self.bytes = taken

    def array(self, name: str, dtype: DataType, count: int) -> Array:
        """An array behind those there are, aligned for the widest vector."""
        offset = -(-self.bytes // 16) * 16
        self.bytes = offset + count * dtype.bytes
        return Array(name, dtype, count, shared_offset=offset)
