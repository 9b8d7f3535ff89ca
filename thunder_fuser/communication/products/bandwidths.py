# SPDX-License-Identifier: Apache-2.0
"""Measures the bandwidths of this machine once and keeps them in a file beside compiled kernels.

The first rank reads the file and broadcasts the numbers, so all ranks decide alike. If there is no
file, all ranks measure together, and the first rank's numbers count. It takes about a second.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from thunder_fuser.base.warn import warn_at
from thunder_fuser.communication.products.cost import Bandwidths
from thunder_fuser.communication.transport.exchange import BufferLayout
from thunder_fuser.communication.transport.rank_consistency import from_first
from thunder_fuser.communication.transport.transports import exchange_for, release, why_not
from thunder_fuser.errors import CacheWarning
from thunder_fuser.store import folder as files
from thunder_fuser.store.folder import RefusedError
from thunder_fuser.store.store import Store, current_store

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_SIZES = {"cuda": (8192, 8 << 20, 128 << 20), "cpu": (256, 4096, 1 << 20)}
_REPEATS = 7
_NAME = re.compile(r"bandwidths-[0-9a-f]{16}\.json\Z")
_GROUPS: WeakKeyDictionary[ProcessGroup, dict[str, Bandwidths]] = WeakKeyDictionary()


def bandwidths(group: ProcessGroup, device: torch.device) -> Bandwidths:
    """The rates between the ranks of a group. All ranks call it, and get equal rates."""
    known = _GROUPS.setdefault(group, {})
    if device.type not in known:
        known[device.type] = _agreed(group, device)
    return known[device.type]


def known_rates(world: int, device: str) -> Bandwidths | None:
    """The rates that this process already has for a group of `world` ranks. Communicates nothing.

    device: cpu or cuda.
    """
    known = (rates.get(device) for group, rates in list(_GROUPS.items()) if group.size() == world)
    return next(filter(None, known), None)


def _agreed(group: ProcessGroup, device: torch.device) -> Bandwidths:
    store, name = current_store(), file_name(group, device)
    is_first = group.rank() == 0
    rates = from_first(read(store, name) if is_first and store else None, group)
    if rates is None:
        rates = from_first(measure(group, device), group)
        if is_first and store:
            write(store, name, rates)
    return rates


def file_name(group: ProcessGroup, device: torch.device) -> str:
    """The file's name, a digest of the device, torch's version, the ranks and their backend."""
    is_cuda = device.type == "cuda"
    what = torch.cuda.get_device_name(device) if is_cuda else f"cpu {torch.get_num_threads()}"
    facts = (what, torch.__version__, group.size(), group.name(), bool(why_not(group, device)))
    return f"bandwidths-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.json"


# ------------------------------------------------------------------------------------------ files


def read(store: Store, name: str) -> Bandwidths | None:
    """The rates that an earlier process wrote, or None. Warns if the file is damaged."""
    try:
        with files.opened(store.root, create=False) as folder:
            content = files.read(folder, name, strict=False, touch=False)
        return None if content is None else _parsed(content)
    except FileNotFoundError:
        return None
    except (RefusedError, OSError, ValueError, TypeError, KeyError) as error:
        _warn(store.root / name, f"{error}. The rates are measured again.")
        return None


def kept(store: Store) -> int:
    """The number of files with rates in the store."""
    try:
        with files.opened(store.root, create=False) as folder:
            return len(files.listed(folder, _NAME))
    except (FileNotFoundError, RefusedError):
        return 0


def _parsed(content: bytes) -> Bandwidths:
    """Reads the JSON; ValueError, TypeError or KeyError unless every rate is a finite number."""
    fields = dict(json.loads(content))
    flops = tuple((str(dtype), float(rate)) for dtype, rate in fields.pop("flops"))
    units = int(fields.pop("units"))
    parsed = Bandwidths(flops=flops, units=units, **{n: float(x) for n, x in fields.items()})
    rates = [rate for _, rate in flops]
    good = [rate > 0 for rate in (*rates, parsed.units)] + [value >= 0 for value in fields.values()]
    if not rates or not all(good) or not all(map(math.isfinite, (*rates, *fields.values()))):
        raise ValueError("a rate is no positive number")
    return parsed


def write(store: Store, name: str, rates: Bandwidths) -> None:
    """Writes the rates. If that fails, a later process measures them again."""
    if store.mode != "rw":
        return
    try:
        with files.opened(store.root, create=True) as folder:
            files.replace(folder, name, (json.dumps(asdict(rates), indent=1) + "\n").encode())
    except (RefusedError, OSError) as error:
        _warn(store.root / name, f"the measured rates are not kept: {error}")


def _warn(path: Path, why: str) -> None:
    warn_at("", f"{path}: {why}", CacheWarning)


# ---------------------------------------------------------------------------------------- measure


def measure(group: ProcessGroup, device: torch.device) -> Bandwidths:
    """Measures the rates, as medians of repeated runs. All ranks call it."""
    side, small, large = _SIZES[device.type]
    flops = [(str(dtype)[6:], 2 * side**3 / _product(side, dtype, device)) for dtype in _DTYPES]
    copy, copy_latency = _rate(small, large, lambda size: _copy(size, group, device))
    collective, latency = _rate(small, large, lambda size: _collective(size, group, device))
    cuda = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    release(group, device)
    return Bandwidths(
        tuple(flops), _launch(device), copy, copy_latency, collective * max(group.size() - 1, 0),
        latency, cuda.multi_processor_count if cuda else torch.get_num_threads(),
    )  # fmt: skip


def _product(side: int, dtype: torch.dtype, device: torch.device) -> float:
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return _seconds(lambda: torch.mm(a, b, out=out), device)


def _launch(device: torch.device) -> float:
    """The seconds of one launch, from a row of many small products."""
    a, count = torch.zeros(16, 16, device=device), 50
    return _seconds(lambda: [torch.mm(a, a, out=a) for _ in range(count)], device) / count


def _rate(small: int, large: int, seconds: Callable[[int], float | None]) -> tuple[float, float]:
    """(bytes a second, latency in seconds) from the times of two sizes; (0, 0) without times."""
    times = seconds(small), seconds(large)
    if times[0] is None or times[1] is None:
        return 0.0, 0.0
    rate = (large - small) / max(times[1] - times[0], 1e-9)
    return rate, max(0.0, times[0] - small / rate)


def _copy(size: int, group: ProcessGroup, device: torch.device) -> float | None:
    """The seconds in which each rank copies so many bytes to the next one; None on a CPU."""
    world, rank = group.size(), group.rank()
    layout = BufferLayout("bandwidth", 1, 1, size, torch.uint8, 1)
    source = torch.zeros(1, size, dtype=torch.uint8, device=device)
    if device.type != "cuda" or world == 1 or exchange_for(layout, group, device) is None:
        return None  # a CPU's copies run in the caller's thread, so they overlap with nothing

    def send() -> None:
        exchange = exchange_for(layout, group, device)
        assert exchange is not None
        peer = (rank + 1) % world
        with exchange.call():
            exchange.put(source, slice(0, 1), peer, 0, 0)
            exchange.await_flag((rank - 1) % world, 0)

    return _seconds(send, device, group)


def _collective(size: int, group: ProcessGroup, device: torch.device) -> float | None:
    shard = torch.zeros(size, dtype=torch.uint8, device=device)
    whole = torch.empty(size * group.size(), dtype=torch.uint8, device=device)
    if group.size() == 1:
        return None
    return _seconds(lambda: dist.all_gather_into_tensor(whole, shard, group=group), device, group)


def _seconds(
    call: Callable[[], object], device: torch.device, group: ProcessGroup | None = None
) -> float:
    """The median of several calls, by CUDA events on a GPU. group: its ranks start together."""
    clock = _cuda_seconds if device.type == "cuda" else _wall_seconds
    for _ in range(2):
        call()
    return statistics.median(clock(call, group) for _ in range(_REPEATS))


def _cuda_seconds(call: Callable[[], object], group: ProcessGroup | None) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)  # the host gets ahead, so its own time is not measured
    if group is not None:
        dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3


def _wall_seconds(call: Callable[[], object], _: ProcessGroup | None) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
