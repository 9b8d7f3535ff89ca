# SPDX-License-Identifier: Apache-2.0
"""Numbers in device memory that a stream writes, or waits for, without a kernel.

A stream that waits occupies no multiprocessor, and the number may be written by another process.
"""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

from thunder_fuser.errors import LaunchError

_AT_LEAST = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)


def write_value(stream: int, address: int, value: int) -> None:
    """The stream writes a 32-bit number once its work so far is done and can be seen elsewhere."""
    _check("cuStreamWriteValue32", driver.cuStreamWriteValue32(stream, address, value, 0))


def wait_value(stream: int, address: int, value: int) -> None:
    """The stream goes on when the 32-bit number at the address has reached a value.

    The comparison is of the signed difference, so it stays right when the numbers wrap around.
    """
    _check("cuStreamWaitValue32", driver.cuStreamWaitValue32(stream, address, value, _AT_LEAST))


def _check(name: str, result: tuple[Any, ...]) -> None:
    if result[0]:
        raise LaunchError(f"{name} failed: {result[0].name}")
