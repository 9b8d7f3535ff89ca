# SPDX-License-Identifier: Apache-2.0
"""A line on stderr while something takes long, where a person is watching."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

AFTER_S = 2.0


@contextmanager
def progress(what: str, after_s: float = AFTER_S) -> Iterator[None]:
    """Prints `what` if the block takes longer than `after_s`; on a terminal only."""
    if not sys.stderr.isatty():
        yield
        return
    timer = Timer(after_s, lambda: print(f"{what} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
