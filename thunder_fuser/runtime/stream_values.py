# SPDX-License-Identifier: Apache-2.0
"""Operations of a stream without a kernel: it writes a number, waits for a number, or copies.

A stream that waits occupies no multiprocessor, and another process may write the number. Streams
and memory are given as handles and addresses, so that a call takes little time on the host.
"""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

from thunder_fuser.errors import LaunchError

_AT_LEAST = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)


def write_value(stream: int, address: int, value: int) -> None:
    """The stream writes a 32-bit number once its work so far is done and visible to others."""
    _check("cuStreamWriteValue32", driver.cuStreamWriteValue32(stream, address, value, 0))


def wait_value(stream: int, address: int, value: int) -> None:
    """The stream waits until the 32-bit number at the address has reached a value.

    The comparison is of the signed difference, so it stays right when the numbers wrap around.
    """
    _check("cuStreamWaitValue32", driver.cuStreamWaitValue32(stream, address, value, _AT_LEAST))


def copy(stream: int, target: int, source: int, size: int) -> None:
    """The stream copies `size` bytes by a copy engine, between addresses that its device maps."""
    _check("cuMemcpyDtoDAsync", driver.cuMemcpyDtoDAsync(target, source, size, stream))


def allow_capture_elsewhere() -> None:
    """Allows this thread driver calls while another thread captures a CUDA graph. By default they
    would break the capture."""
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _check("cuThreadExchangeStreamCaptureMode", driver.cuThreadExchangeStreamCaptureMode(relaxed))


def _check(name: str, result: tuple[Any, ...]) -> None:
    if result[0]:
        raise LaunchError(f"{name} failed: {result[0].name}")
