# SPDX-License-Identifier: Apache-2.0
"""The log's lines on a trace: its fusions, and why Thunder traced a function again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from thunder.core.compile_data import get_compile_data
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.base.logs import is_logged, log
from thunder_fuser.executors.plan_text import typed
from thunder_fuser.executors.regions.comments import counted
from thunder_fuser.executors.run.region_callable import RegionCallable, callable_of
from thunder_fuser.host.call.recompiles import note
from thunder_fuser.source.lines import span_of
from thunder_fuser.trace.proxies import makes


def note_fusions(bsyms: Iterable[BoundSymbol], lines: Mapping[str, str]) -> None:
    """Logs each fusion of a trace. lines: {value: the user's line}."""
    for bsym in bsyms if is_logged("fusions") else ():
        call = callable_of(bsym)
        if call is not None and bsym.sym.is_fusion:
            log("fusions", partial(_fusion_text, call, lines))


def note_arguments(arguments: Iterable[Proxy]) -> None:
    """Logs the arguments of a trace that differ from the last trace of the same function."""
    data = get_compile_data()
    if data is not None and is_logged("recompiles"):
        call = {proxy.name: _guarded(proxy) for proxy in arguments}
        name = getattr(data.fn, "__name__", type(data.fn).__name__)
        note(data, f"{name}, traced again by Thunder", call)


def _fusion_text(call: RegionCallable, lines: Mapping[str, str]) -> str:
    region = call.region
    names = (out.name for leaf in region.leaves for out in makes(leaf))
    where = span_of([lines[name] for name in names if name in lines])
    inputs = (
        typed(proxy) if isinstance(proxy, TensorProxy) else f"{proxy.name} (a number)"
        for proxy in region.inputs
    )
    facts = [
        f"{call.name}: {'backward' if region.is_backward else 'forward'}",
        f"ops {counted(leaf.sym.name for leaf in region.leaves)}",
        f"inputs {', '.join(inputs)}",
    ]
    return "; ".join([*facts, f"from {where}"] if where else facts)


def _guarded(proxy: Proxy) -> dict[str, Any]:
    """The facts on an argument that Thunder checks before it runs a trace again."""
    if not isinstance(proxy, TensorProxy):
        return {"value": getattr(proxy, "value", None)}
    return {
        "sizes": tuple(proxy.shape),
        "dtype": proxy.dtype,
        "device": proxy.device,
        "requires_grad": proxy.requires_grad,
    }
