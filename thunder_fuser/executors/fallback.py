# SPDX-License-Identifier: Apache-2.0
"""A Region -> a function of torch ops with the same arguments and results.

It is what runs where a region cannot be compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.codeutils import SigInfo
from thunder.core.prims import PrimIDs
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torch_executor

from thunder_fuser.executors.regions import Region
from thunder_fuser.trace.proxies import makes


def torch_function(region: Region, name: str) -> Callable[..., Any]:
    """The region's primitives, each run by Thunder's torch executor."""
    trace = _trace_of(region, name)
    return transform_for_execution(trace, (torch_executor,)).python_callable()  # type: ignore[no-any-return]


def _trace_of(region: Region, name: str) -> TraceCtx:
    trace = TraceCtx(None)
    trace.args, trace.kwargs = list(region.inputs), {}
    trace.names = {proxy.name for proxy in region.inputs}
    with tracectx(trace):
        for proxy in region.inputs:
            prims.unpack_trivial(proxy, name=proxy.name)
    leaves = [_with_torch_impl(leaf) for leaf in region.leaves]
    _add_names(trace, leaves)
    trace.bound_symbols += [*leaves, prims.python_return.bind(list(region.outputs), output=None)]
    trace._siginfo = SigInfo(name)
    trace._siginfo.args = [(proxy.name, None) for proxy in region.inputs]
    return trace


def _with_torch_impl(leaf: BoundSymbol) -> BoundSymbol:
    """prims.lerp is the one primitive of the table that torch runs only as its composite."""
    if leaf.sym.id is not PrimIDs.LERP:
        return leaf
    return ltorch.lerp.bind(*leaf.args, output=leaf.output, subsymbols=(leaf,))


def _add_names(trace: TraceCtx, leaves: Sequence[BoundSymbol]) -> None:
    for leaf in leaves:
        trace.names.update(proxy.name for proxy in makes(leaf))
