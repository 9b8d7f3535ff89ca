# SPDX-License-Identifier: Apache-2.0
"""The regions of a fused trace -> jobs that plan and compile them before their first calls.

    def computation(x, w):                  x, w: the layouts that the user passed
      t1 = linear(x, w)                     contiguous, as all products are
      [t2, t3] = thunderFusion0(t1)    ->   a job; t2, t3 in the orders that the definition gives
      t4 = transpose(t2, 0, 1)              torch runs it on a meta tensor
      [t5] = thunderFusion1(t4)        ->   a job

So the regions of forward and backward compile in parallel, while Thunder does the rest of its work.
A call looks its program up by the layouts of its arguments, and the jobs guess these layouts. A
wrong guess costs a compilation. An error in a job is raised by the call that needs its result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from thunder.core.compile_data import get_compile_data
from thunder.core.devices import to_torch_device
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx

from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.executors.regions.plan import NO_MEMORY
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.executors.run.region_callable import RegionCallable, callable_of
from thunder_fuser.executors.stride_orders.simulate import (
    Values,
    arguments_of,
    guessed_results,
    value_of,
)
from thunder_fuser.host.call.dispatch import alignment_of
from thunder_fuser.ir.record import Definition
from thunder_fuser.options import compile_options, option, with_options_as_now
from thunder_fuser.presegment.specialise import InputKey
from thunder_fuser.trace.proxies import makes, reads

Job = Callable[[], object]
KeyedJob = tuple[Hashable, Job]  # (a key that equal jobs share, the job)
Prepare = Callable[[Definition, Sequence[Any], torch.device], KeyedJob | None]


def jobs_of(trace: TraceCtx, prepare: Prepare) -> list[Job]:
    """A job for each region of a trace, in order, equal jobs once; none if a size is unknown.

    There is none either for a trace transformed by hand, outside thunder.jit: nobody may call it.
    """
    values = arguments_of(trace, forget=True)
    proxies = (proxy for bsym in trace.bound_symbols for proxy in makes(bsym))
    sizes = (size for p in proxies if isinstance(p, TensorProxy) for size in p._shape)
    if get_compile_data() is None or not all(type(size) is int for size in sizes):
        return []
    jobs: dict[Hashable, Job] = {}
    for bsym in trace.bound_symbols:
        for proxy in reads(bsym):
            values.setdefault(proxy.name, value_of(proxy))
        call = callable_of(bsym)
        if call is not None and not call.region.makes_views:
            job = _prepared(call, values, prepare)
            jobs.update([] if job is None else [job])
        item, memory = (bsym, NO_MEMORY) if call is None else (call.region, call.memory)
        results = guessed_results(item, memory, values)
        for proxy, value in zip(makes(bsym), results, strict=True):
            values.setdefault(proxy.name, value)  # unpacked arguments are known already
    return [*jobs.values()]


def compiles_ahead() -> bool:
    """False if dumps are written, since this happens call by call."""
    return bool(option("compile_ahead")) and not option("dump")


def prepare_region(
    definition: Definition, args: Sequence[Any], device: torch.device
) -> KeyedJob | None:
    """The job that plans and compiles a definition's program for arguments like these.

    None if that needs numbers of the call.
    """
    entry = FusionCache.get().expect(definition)
    if entry.error is not None or entry.fusion.shape_scalars:
        return None
    what = tuple(map(_key, args)), device, compile_options()
    return (entry.number, *what), with_options_as_now(partial(entry.plan_ahead, *what))


def _key(value: Any) -> InputKey:
    """The key of such an argument; its memory counts as aligned as torch's allocations are."""
    if not isinstance(value, torch.Tensor):
        return InputKey()
    place = value.storage_offset() * value.element_size()
    return InputKey(tuple(value.shape), tuple(value.stride()), alignment_of(place))


def _prepared(call: RegionCallable, values: Values, prepare: Prepare) -> KeyedJob | None:
    """The job of a region, if it has one."""
    args, device = [values[proxy.name] for proxy in call.region.inputs], _device(call.region)
    try:
        return call.ahead(lambda definition, args: prepare(definition, args, device), args)
    except Exception:  # the call will raise the same error again, where the user can see it
        return None


def _device(region: Region) -> torch.device:
    """The device of the region's calls: that of a tensor on a GPU if there is one, else the CPU."""
    proxies = (*region.inputs, *region.outputs)
    devices = {to_torch_device(p.device) for p in proxies if isinstance(p, TensorProxy)}
    device = next((each for each in devices if each.type != "cpu"), torch.device("cpu"))
    return device if device.index is not None or device.type == "cpu" else torch.device("cuda", 0)
