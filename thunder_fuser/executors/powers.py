# SPDX-License-Identifier: Apache-2.0
"""A power of a tensor of floats by a known number -> what torch computes in its place.

    x ** 0.5  ->  sqrt(x)      of -infinity: NaN, where pow gives infinity; of -0.0: -0.0, where 0.0
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_KNOWN: dict[float, Callable[[Any, Any], Any]] = {
    0.5: lambda ops, x: ops.sqrt(x),
    -0.5: lambda ops, x: ops.rsqrt(x),
    -1.0: lambda ops, x: ops.reciprocal(x),
    2.0: lambda ops, x: ops.mul(x, x),
    -2.0: lambda ops, x: ops.reciprocal(ops.mul(x, x)),
    3.0: lambda ops, x: ops.mul(ops.mul(x, x), x),
}


def power(fd: Any, x: Any, exponent: Any) -> Any:
    """The power, recorded in the fuser's own language."""
    known = isinstance(exponent, (int, float)) and fd.dtype_of(x).is_float
    found = _KNOWN.get(float(exponent)) if known else None
    return fd.ops.pow(x, exponent) if found is None else found(fd.ops, x)
