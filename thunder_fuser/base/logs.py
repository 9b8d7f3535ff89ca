# SPDX-License-Identifier: Apache-2.0
"""The package's one logger, `thunder_fuser`, with a child for each topic of the option `log`.

    THUNDER_FUSER_LOG=kernels,time python train.py
    thunder_fuser.kernels: fused_gelu_f32_pointwise: pointwise, reads ..., compiled in 312 ms

A topic in the option, and each with `all`, is logged whatever the levels; without a handler it goes
to stderr. Another is logged if its logger's level is DEBUG, as in Python's own modules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from thunder_fuser.base.stages import collected, is_collected
from thunder_fuser.options import OPTIONS, option

LOGGER = logging.getLogger("thunder_fuser")
_LOGGERS = {str(name): LOGGER.getChild(str(name)) for name in OPTIONS["log"].choices[:-1]}
_FORMAT = logging.Formatter("%(name)s: %(message)s")


def is_logged(topic: str) -> bool:
    """True if the topic is in the option, or its logger's level is DEBUG."""
    return _LOGGERS[topic].isEnabledFor(logging.DEBUG) or _is_asked(topic)


def log(topic: str, make: Callable[[], str]) -> None:
    """Logs the text that `make` returns. If the topic is not logged, `make` is not called."""
    if not is_logged(topic):
        return
    logger = _LOGGERS[topic]
    level = logging.INFO if _is_asked(topic) else logging.DEBUG
    record = logger.makeRecord(logger.name, level, __file__, 0, make(), (), None)
    if logger.hasHandlers():
        logger.handle(record)
    else:
        handler = logging.StreamHandler()  # of what sys.stderr is now
        handler.setFormatter(_FORMAT)
        handler.handle(record)


def _is_asked(topic: str) -> bool:
    asked = option("log")
    return asked != "" and not {topic, "all"}.isdisjoint(str(asked).replace(" ", "").split(","))


@contextmanager
def timing(what: str) -> Iterator[None]:
    """Logs the times of the stages in the block, under the topic time. Nested blocks do not log."""
    if is_collected() or not is_logged("time"):
        yield
        return
    start = perf_counter()
    with collected() as times:
        yield
    total = perf_counter() - start
    parts = ", ".join(f"{stage} {1e3 * spent.seconds:.1f}" for stage, spent in times.items())
    log("time", lambda: f"{what}: {1e3 * total:.1f} ms: {parts}")
