# SPDX-License-Identifier: Apache-2.0
"""A division of integers -> None, or why torch must have it: there torch raises at a divisor of 0.

It does so on a CPU, with a ZeroDivisionError inside of a RuntimeError. A kernel cannot raise, so
there only divisions by a number that is not 0 are fused; a GPU raises in torch no more than here.
"""

from __future__ import annotations

from typing import Any

from thunder.core.devices import DeviceType
from thunder.core.proxies import TensorProxy

from thunder_fuser.executors.types import EXACT, data_type, is_known_number
from thunder_fuser.trace.op import Reject


def check_divisor(a: Any, b: Any) -> Reject | None:
    """None for a division of floats, on a GPU, or by a number other than 0."""
    tensors = [one for one in (a, b) if isinstance(one, TensorProxy)]
    if not tensors:
        return Reject("its result is a number")
    on_cpu = all(one.device.devicetype is DeviceType.CPU for one in tensors)
    if not on_cpu or not all(data_type(one.dtype) in EXACT for one in tensors):
        return None
    divisor = b.value if is_known_number(b) else b
    known = isinstance(divisor, (int, float)) and divisor != 0
    return None if known else Reject("division of integers by what may be 0, where torch raises")
