# SPDX-License-Identifier: Apache-2.0
"""What the support table is made of: its rows, and the primitives that are recorded as several ops.

    x ** 0.5                     ->  sqrt(x)    of -infinity: NaN, where pow gives infinity
    pad([1, 2], 0, [(1, 2, 1)])  ->  [0, 1, 0, 2, 0, 0]    of (low, high, dilation) for each axis
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from thunder.core.prims import PrimIDs

from thunder_fuser.executors.types import ANY
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.language import Recorder
from thunder_fuser.trace.op import Reject

Check = Callable[..., "Reject | None"]


@dataclass(frozen=True, slots=True)
class Row:
    """A primitive: what it is recorded as, the types it is taken in, what else must hold.

    is_call: torch runs it, so that it is worth taking only between ops that are fused.
    """

    id: PrimIDs | str
    record: Callable[..., Any]
    dtypes: frozenset[DataType] = ANY
    check: Check | None = None
    is_call: bool = False

    @property
    def name(self) -> str:
        """What messages call it: `add` for PrimIDs.ADD, `cumsum` for "torch.cumsum"."""
        own = self.id if isinstance(self.id, str) else self.id.name.lower()
        return own.removeprefix("torch.")


# What torch computes in place of a power of a tensor of floats by a known number.
_POWERS: dict[float, Callable[[Any, Any], Any]] = {
    0.5: lambda ops, x: ops.sqrt(x),
    -0.5: lambda ops, x: ops.rsqrt(x),
    -1.0: lambda ops, x: ops.reciprocal(x),
    2.0: lambda ops, x: ops.mul(x, x),
    -2.0: lambda ops, x: ops.reciprocal(ops.mul(x, x)),
    3.0: lambda ops, x: ops.mul(ops.mul(x, x), x),
}


def power(fd: Any, x: Any, exponent: Any) -> Any:
    """prims.pow."""
    known = isinstance(exponent, (int, float)) and fd.dtype_of(x).is_float
    found = _POWERS.get(float(exponent)) if known else None
    return fd.ops.pow(x, exponent) if found is None else found(fd.ops, x)


def padded(fd: Recorder, a: Any, padding_value: Any, config: Any) -> Any:
    """prims.pad. Widths go from the last axis on, as in torch.nn.functional.pad."""
    ends = []
    for axis, (low, high, dilation) in enumerate(config):
        if dilation:
            a = _spread(fd, a, padding_value, axis, config)
        ends.append((low, high - dilation))
    return fd.ops.pad(a, _widths(ends), padding_value)


def _widths(ends: Sequence[tuple[int, int]]) -> list[int]:
    return [width for low, high in reversed(ends) for width in (low, high)]


def _spread(fd: Recorder, a: Any, value: Any, axis: int, config: Any) -> Any:
    """An axis with values after each element: [1, 2], dilation 1  ->  [1, v, 2, v]."""
    rank, dilation = len(config), config[axis][2]
    sizes: list[Any] = [fd.ops.size(a, at) for at in range(rank)]
    columns = fd.ops.broadcast(a, [at == axis + 1 for at in range(rank + 1)])
    ends = [(0, dilation if at == axis + 1 else 0) for at in range(rank + 1)]
    sizes[axis] = fd.ops.mul(sizes[axis], dilation + 1)
    return fd.ops.reshape(fd.ops.pad(columns, _widths(ends), value), sizes)
