# SPDX-License-Identifier: Apache-2.0
"""A Region -> a function of torch ops with the same arguments and results.

It runs if a region cannot be compiled. A region of views alone needs no kernel: its function calls
torch as little as possible.

    t1 = prims.transpose(x: [12, 2], (1, 0)); t2 = prims.reshape(t1, (2, 3, 4)); return t2
->  def views(a0):
        if a0.is_contiguous():
            v2 = a0.as_strided((2, 3, 4), (1, 8, 2))
        else:
            v1 = a0.permute((1, 0))
            v2 = v1.reshape((2, 3, 4))
        return [v2]

The results share memory with the arguments wherever torch's results do, so that writes through one
are seen through the other.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import prims
from thunder.core.codeutils import SigInfo
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors import passes
from thunder.executors.torchex import ex as torch_executor

from thunder_fuser.executors.regions.region import Region
from thunder_fuser.ir.strides import contiguous_strides
from thunder_fuser.trace.proxies import makes

ViewFunction = Callable[..., list[torch.Tensor]]


def torch_function(region: Region, name: str) -> Callable[..., Any]:
    """The region's primitives, each run by Thunder's torch executor, which keeps no value longer
    than it is needed."""
    trace = TraceCtx(None)
    trace.args, trace.kwargs = list(region.inputs), {}
    trace.names = {proxy.name for leaf in region.leaves for proxy in makes(leaf)}
    trace.names.update(proxy.name for proxy in region.inputs)
    with tracectx(trace):
        for proxy in region.inputs:
            prims.unpack_trivial(proxy, name=proxy.name)
        for leaf in region.leaves:
            trace.bound_symbols.append(_run_by_torch(leaf))
    trace.bound_symbols.append(prims.python_return.bind(list(region.outputs), output=None))
    trace._siginfo = SigInfo(name)
    trace._siginfo.args = [(proxy.name, None) for proxy in region.inputs]
    # Not Thunder's function itself, for thunder_patches/passes.py replaces it.
    trace = passes.transform_for_execution(trace, (torch_executor,))
    return passes.del_last_used(trace).python_callable()  # type: ignore[no-any-return]


def _run_by_torch(leaf: BoundSymbol) -> BoundSymbol:
    """torch has lerp only as its composite, and no fmod of a number: that is filled in."""
    if leaf.sym.id is PrimIDs.LERP:
        return ltorch.lerp.bind(*leaf.args, output=leaf.output, subsymbols=(leaf,))
    if leaf.sym.id is PrimIDs.FMOD and not isinstance(leaf.args[0], TensorProxy):
        return leaf.from_bsym(args=(ltorch.full_like(*leaf.args[::-1]), leaf.args[1]))
    return leaf


# ------------------------------------------------------------------------------------------ views


class _NeedsCopyError(Exception):
    """A view cannot make this change of layout."""


def view_function(region: Region) -> ViewFunction:
    """The calls of torch as one function; a reshape copies if it must."""
    return _function(region, "reshape")


def views_for(region: Region, args: Sequence[torch.Tensor]) -> ViewFunction | None:
    """The function for arguments with such strides; None if a result must be a copy."""
    views = _function(region, "view")
    try:
        views(*args)
    except (_NeedsCopyError, RuntimeError):  # torch raises RuntimeError for an impossible view
        return None
    return views


def _function(region: Region, reshape: str) -> ViewFunction:
    names = {proxy.name: f"a{at}" for at, proxy in enumerate(region.inputs)}
    sources, steps = dict(names), {name: list[str]() for name in names.values()}
    for leaf in region.leaves:
        operand, result, name = leaf.args[0].name, makes(leaf)[0].name, f"v{len(names)}"
        source = sources[result] = sources[operand]
        steps[source].append(f"{name} = {_call(leaf, names[operand], reshape)}")
        names[result] = name
    results = [(names[proxy.name], sources[proxy.name]) for proxy in region.outputs]
    lines = [f"def views({', '.join(steps)}):"]
    for proxy, (a, of_a) in zip(region.inputs, steps.items(), strict=True):
        wanted = tuple(dict.fromkeys(name for name, source in results if source == a))
        lines += _lines_of(a, tuple(proxy._shape), tuple(of_a), wanted)
    lines.append(f"    return [{', '.join(name for name, _ in results)}]")
    return FunctionType(_code("\n".join(lines)), _SCOPE)


@lru_cache(maxsize=256)
def _code(text: str) -> CodeType:
    """The code of the function. It is cached, since equal layers have equal views."""
    scope: dict[str, Any] = {**_SCOPE}
    exec(compile(text, "<views>", "exec"), scope)
    return scope["views"].__code__  # type: ignore[no-any-return]


@lru_cache(maxsize=256)
def _lines_of(
    a: str, shape: Sequence[Any], steps: Sequence[str], wanted: Sequence[str]
) -> Sequence[str]:
    """The lines for the views of one argument: if it is contiguous, one call for each result."""
    chain, direct = [f"    {step}" for step in steps], []
    calls, text = [step.count(".") for step in steps], "\n".join(chain)
    saves = sum(calls) > len(wanted) or ".reshape" in text  # it costs more than as_strided
    if saves and ".real" not in text and ".imag" not in text:
        whole = f"def views({a}):\n{text}\n    return [{', '.join(wanted)}]"
        direct = _direct(FunctionType(_code(whole), _SCOPE), a, shape, wanted)
    if not direct:
        return chain
    either = [f"    if {a}.is_contiguous():", *direct, "    else:"]
    return [*either, *(f"    {line}" for line in chain)]


def _direct(views: ViewFunction, a: str, shape: Sequence[Any], wanted: Sequence[str]) -> list[str]:
    """The lines for a contiguous argument; none if a result would be no view of it."""
    if not all(type(size) is int for size in shape):
        return []
    arg, lines = torch.empty(shape, device="meta"), []
    try:
        for name, x in zip(wanted, views(arg), strict=True):
            if x.untyped_storage()._cdata != arg.untyped_storage()._cdata:
                return []
            offset = f", {a}.storage_offset() + {begin}" if (begin := x.storage_offset()) else ""
            lines.append(f"        {name} = {a}.as_strided({(*x.shape,)}, {x.stride()}{offset})")
    except (_NeedsCopyError, RuntimeError):
        return []
    return lines


def _call(leaf: BoundSymbol, a: str, reshape: str) -> str:
    """The expression of one primitive on the value `a`."""
    source, *arguments = leaf.args
    match leaf.sym.id:
        case PrimIDs.SHALLOW_COPY:
            return a
        case PrimIDs.REAL | PrimIDs.IMAG as part:
            return f"{a}.{part.name.lower()}"
        case PrimIDs.RESHAPE:
            return f"{a}.{reshape}({tuple(arguments[0])})"
        case PrimIDs.TRANSPOSE:
            return f"{a}.permute({tuple(arguments[0])})"
        case PrimIDs.SQUEEZE:
            return f"{a}.squeeze({tuple(arguments[0])})"
        case PrimIDs.SLICE:
            return a + _slices(source._shape, *arguments)
        case PrimIDs.BROADCAST_IN_DIM:
            return a + _broadcast(source._shape, *arguments)
        case _:
            return f"stride_order({a}, {tuple(arguments[0])})"


def _slices(
    shape: Sequence[int], starts: Sequence[int], ends: Sequence[int],
    strides: Sequence[int] | None = None,
) -> str:  # fmt: skip
    """Only the axes that change: indexing costs torch half a microsecond an axis.

    (4, 8), [0, 2], [4, 8]  ->  .narrow(1, 2, 6)
    """
    text = ""
    for axis, (size, start, end) in enumerate(zip(shape, starts, ends, strict=True)):
        step = 1 if strides is None else strides[axis]
        if step != 1:
            text += f"[{':, ' * axis}{start}:{end}:{step}]"
        elif (start, end) != (0, size):
            text += f".narrow({axis}, {start}, {end - start})"
    return text or "[...]"


def _broadcast(shape: Sequence[int], wanted: Sequence[int], dims: Sequence[int]) -> str:
    """(4,) to (2, 4, 1) at [1]  ->  .unsqueeze(0).unsqueeze(2).expand((2, 4, 1))"""
    text = "".join(f".unsqueeze({axis})" for axis in range(len(wanted)) if axis not in dims)
    sizes = dict(zip(dims, shape, strict=True))
    same = all(sizes.get(axis, 1) == size for axis, size in enumerate(wanted))
    return text if same and text else f"{text}.expand({tuple(wanted)})"


def _stride_order(a: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The tensor itself if it is dense in this stride order; else _NeedsCopyError."""
    dense = contiguous_strides(a.shape, order)
    if any(n > 1 and st != d for n, st, d in zip(a.shape, a.stride(), dense, strict=True)):
        raise _NeedsCopyError
    return a


# With builtins: torch imports where a mode sees its calls, and looks for them here.
_SCOPE: dict[str, Any] = {"stride_order": _stride_order, "__builtins__": builtins}
