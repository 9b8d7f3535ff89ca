# SPDX-License-Identifier: Apache-2.0
"""Where results of CPU calls come from: memory the process kept, or memory it never touched.

A large tensor is mapped anew at each call, and the first touch of each page costs more than many a
kernel: 32 MiB take 8 ms. So both are measured. The setting is the C library's, hence the same for
every contender.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # malloc.h's M_...
_USUAL_THRESHOLD, _USUAL_MAPS = 128 << 10, 65536


@cache
def _mallopt() -> Callable[[int, int], int] | None:
    """glibc's; None where the C library has none (macOS, musl)."""
    return getattr(ctypes.CDLL(None), "mallopt", None)


def can_keep() -> bool:
    """Whether `kept` does anything here."""
    return _mallopt() is not None


@contextmanager
def kept() -> Iterator[None]:
    """Freed memory stays with the process and is handed out again. Needs can_keep()."""
    mallopt = _mallopt()
    assert mallopt is not None
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        mallopt(_MMAP_MAX, _USUAL_MAPS)
        mallopt(_MMAP_THRESHOLD, _USUAL_THRESHOLD)
        mallopt(_TRIM_THRESHOLD, _USUAL_THRESHOLD)
        ctypes.CDLL(None).malloc_trim(0)
