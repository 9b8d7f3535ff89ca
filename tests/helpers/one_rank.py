# SPDX-License-Identifier: Apache-2.0
"""What the scripts that are one rank of a process group have in common: checks, then an end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def join(backend: str = "gloo") -> None:
    """The process group of all ranks, of one thread each. One that waits long has lost a peer."""
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=100))


def run_checks(checks: Iterable[Callable[..., None]], *arguments: Any, **more: Any) -> None:
    """One after the other, with these arguments; each prints its name and seconds."""
    for check in checks:
        start = time.monotonic()
        check(*arguments, **more)
        seconds = time.monotonic() - start
        print(f"rank {dist.get_rank()} {check.__name__}: {seconds:.1f} s", flush=True)


def leave(*, together: bool = True) -> None:
    """Ends the process well. A thread of gloo that still runs would end it badly.

    together: after all ranks are done; else some may be dead.
    """
    if together:
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
