# SPDX-License-Identifier: Apache-2.0
"""A block's shared memory: arrays laid out one behind the other."""

from __future__ import annotations

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import Array, Statement
from thunder_fuser.lower.scope import Scope


class SharedMemory:
    """The shared arrays of one kernel, and the bytes they take."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.bytes = 0
        self._scratch: dict[tuple[DataType, str], Array] = {}

    def array(self, name: str, dtype: DataType, count: int) -> Array:
        """An array behind those there are."""
        offset = -(-self.bytes // 16) * 16
        self.bytes = offset + count * dtype.bytes
        return Array(name, dtype, count, shared_offset=offset)

    def scratch(self, dtype: DataType, axis: str, root: Scope, count: int = 1) -> str:
        """Scratch to reduce `count` values a thread, declared first in the kernel.

        Reductions of one type and axis share it, for each begins with a barrier.
        """
        x, y = self.ctx.threads
        size = x * y * count if axis == "y" else (y * x // 32 if x > 32 else 0)
        old = self._scratch.get((dtype, axis))
        if old is not None and size <= old.count:
            return old.name
        if old is not None:
            root.statements.remove(old)
        others = sum(key[0] is dtype and key[1] != axis for key in self._scratch)
        suffix = f"_{others}" if others else ""
        new = self.array(old.name if old else f"scratch_{dtype.short}{suffix}", dtype, size)
        self._scratch[dtype, axis] = new
        self.declare(new, root)
        return new.name

    @staticmethod
    def declare(array: Statement, root: Scope) -> None:
        """Puts a declaration first in the kernel."""
        root.statements.insert(0, array)
