# SPDX-License-Identifier: Apache-2.0
"""A bound symbol of a program -> its results that are views, each with the step that makes it one.

    t2 = getitem(b, 1)      ->  t1: slice_prim of b; t2: squeeze of t1
    t3 = reshape(b, (-1,))  ->  t3: reshape of b, in doubt: a view or a copy, as strides decide
    t4 = detach(b)          ->  t4: detach of b, the call itself
    t5 = repeat(b, 1)       ->  nothing: torch copies, though Thunder's primitives are views

torch knows which of its functions return views. It is asked by calls on meta tensors, which have
strides and memory of their own but no elements. A result that shares memory for some strides only
is in doubt, unless the strides of the call are known: see EagerLayouts.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from thunder.core.compile_data import _compile_data
from thunder.core.devices import Device, to_torch_device
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.pytree import tree_iter, tree_map
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.transforms.extraction_only_prologue_transform import ExtractionOnlyPrologueTransform
from torch._subclasses.fake_tensor import FakeTensorMode

from thunder_fuser.executors.record.result_dtypes import as_meta, function_named
from thunder_fuser.executors.stride_orders.orders import channels_last
from thunder_fuser.executors.stride_orders.simulate import noted_of
from thunder_fuser.executors.support.dtypes import data_type, is_known_number
from thunder_fuser.ir.strides import contiguous_strides
from thunder_fuser.thunder_patches.fixes.arguments import add_check
from thunder_fuser.trace.proxies import MOVES, TORCH_VIEWS, makes, parts, reads

Pairs = set[tuple[str, str]]  # a result, and the operand whose memory it has
ArgumentStrides = dict[str, tuple[int, ...]]  # of arguments


# ----------------------------------------------------------------------- the strides of eager torch


class EagerLayouts:
    """The tensors of a trace as fake tensors: none if an operation or an argument is not known.

        x: f32[4, 3], transposed; b = sin(x); c = reshape(b, (-1,))   ->  c is a copy, for such an x

    Eager torch's functions run on fake tensors, as torch.compile decides it. Thunder does not guard
    strides, so the prologue compares those on which an answer depends: for others it traces again.
    doubted: the views that may be copies, of which it is asked.
    """

    def __init__(self, trace: TraceCtx, doubted: Set[str]) -> None:
        self.doubted = doubted
        self._prologue = _prologue()
        returned = reads(self._prologue.bound_symbols[-1]) if self._prologue is not None else ()
        self._arguments = {proxy.name: proxy for proxy in returned}
        self._values: dict[str, torch.Tensor] = {}
        self._deciding: dict[str, ArgumentStrides] = {}
        self._guarded: ArgumentStrides = {}
        with FakeTensorMode():
            self._take(trace)
            for bsym in trace.bound_symbols:
                self._follow(bsym)

    def pairs(self, bsym: BoundSymbol) -> Pairs | None:
        """Which results share memory with which operands, if that is asked and known."""
        results, read = _tensors(makes(bsym)), _tensors(reads(bsym))
        if not results & self.doubted or not results <= self._values.keys():
            return None
        self._guarded.update(*(self._deciding[name].items() for name in read))
        return pairs_of(bsym, self._operand)

    def guard(self) -> None:
        """Lets the prologue of the call compare the strides that have decided."""
        expected = [*self._guarded.values()]

        def check_strides(*tensors: torch.Tensor) -> None:
            if [tensor.stride() for tensor in tensors] != expected:
                raise LookupError("arguments with other strides")

        if expected and self._prologue is not None:
            read = [self._arguments[name] for name in self._guarded]
            at = len(self._prologue.bound_symbols) - 1
            add_check(self._prologue, at, "check_strides", check_strides, *read)

    def _take(self, trace: TraceCtx) -> None:
        """The arguments, which the prologue returns under the same names."""
        for name, noted in noted_of(trace).items():
            if (proxy := self._arguments.get(name)) is not None:
                self._values[name] = torch.empty_strided(
                    noted.shape, noted.stride(), dtype=noted.dtype,
                    device=to_torch_device(proxy.device), requires_grad=proxy.requires_grad,
                )  # fmt: skip
                self._deciding[name] = {name: noted.stride()}

    def _follow(self, bsym: BoundSymbol) -> None:
        proxies = [proxy for proxy in makes(bsym) if isinstance(proxy, TensorProxy)]
        read = _tensors(reads(bsym))
        results = (call(bsym, self._operand) if read <= self._values.keys() else None) or ()
        shapes = [tuple(proxy._shape) for proxy in proxies]
        if not proxies or [tuple(result.shape) for result in results] != shapes:
            return
        deciding = dict(ChainMap(*(self._deciding[name] for name in read)))
        for proxy, result in zip(proxies, results, strict=True):
            self._values[proxy.name], self._deciding[proxy.name] = result, deciding

    def _operand(self, value: Any) -> Any:
        if isinstance(value, TensorProxy):
            return self._values[value.name]
        if isinstance(value, NumberProxy) and not is_known_number(value):
            raise TypeError(f"{value.name} is not known")
        is_device = isinstance(value, (Device, torch.device))
        return to_torch_device(value) if is_device else as_meta(value, {})


def _prologue() -> TraceCtx | None:
    """The prologue of the call that is compiled; None where transforms change its arguments."""
    data, stats = _compile_data.get()
    traces = getattr(stats, "last_prologue_traces", None)
    transforms = getattr(data, "transforms", ())
    if not traces or {*map(type, transforms)} - {ExtractionOnlyPrologueTransform}:
        return None
    prologue: TraceCtx = traces[-1]
    return prologue if prologue.bound_symbols[-1].sym.id is PrimIDs.RETURN else None


def call(bsym: BoundSymbol, operand: Callable[[Any], Any]) -> list[torch.Tensor] | None:
    """The tensors that torch returns for such operands; None if torch refuses."""
    functions = function_named(bsym.sym.id), getattr(torch.Tensor, bsym.sym.name, None)
    for function in filter(None, functions):
        with suppress(Exception):  # whatever torch raises without data, or for such strides
            args, kwargs = tree_map(operand, (bsym.args, bsym.kwargs))
            results = tree_iter(function(*args, **kwargs))
            return [result for result in results if isinstance(result, torch.Tensor)]
    return None


def pairs_of(bsym: BoundSymbol, operand: Callable[[Any], Any]) -> Pairs | None:
    """Which results share memory with which of such operands; None if torch refuses them."""
    memory: dict[int, str] = {}

    def noted(value: Any) -> Any:
        result = operand(value)
        if isinstance(value, TensorProxy):
            memory[_memory_of(result)] = value.name
        return result

    names = [proxy.name for proxy in makes(bsym) if isinstance(proxy, TensorProxy)]
    results = call(bsym, noted)
    if results is None or len(results) != len(names):
        return None
    places = zip(names, map(_memory_of, results), strict=True)
    return {(name, memory[place]) for name, place in places if place in memory}


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _tensors(proxies: Iterable[object]) -> set[str]:
    return {proxy.name for proxy in proxies if isinstance(proxy, TensorProxy)}


@dataclass(frozen=True, slots=True)
class Link:
    """How a tensor views another.

    parent: the name of the other. step: the primitive, or else the call, that makes the view; None
    if none does alone. is_sure: False if it may be a copy instead. by: the name of the user's
    operation.
    """

    parent: str
    step: BoundSymbol | None
    is_sure: bool
    by: str

    def is_like(self, other: Link) -> bool:
        """True if both are the same view of equal tensors."""
        steps = [(x.sym.id, x.args[1:], x.kwargs) for x in (self.step, other.step) if x is not None]
        return len(steps) == 2 and steps[0] == steps[1]

    def is_apart(self, other: Link) -> bool:
        """True if both are slices of equal tensors that have no element in common."""
        mine, theirs = self._ends(), other._ends()
        return any(a[0] >= b[1] or b[0] >= a[1] for a, b in zip(mine, theirs, strict=False))

    def _ends(self) -> list[tuple[int, int]]:
        """Where a slice starts and ends on each axis; nothing if that is unknown."""
        if self.step is None or self.step.sym.id is not PrimIDs.SLICE:
            return []
        ends = [*zip(self.step.args[1], self.step.args[2], strict=True)]
        return ends if all(type(end) is int for pair in ends for end in pair) else []


def links_of(bsym: BoundSymbol, layouts: EagerLayouts | None = None) -> dict[str, Link]:
    """{name: its link}, for results that are views of operands, and for values between the two."""
    steps = {
        part.output.name: part for part in parts(bsym)
        if part.sym.id in MOVES and isinstance(part.output, TensorProxy)
    }  # fmt: skip
    if isinstance(bsym.sym.id, PrimIDs):
        is_sure = bsym.sym.id not in (PrimIDs.RESHAPE, PrimIDs.STRIDE_ORDER)
        return {name: _link(bsym, step, is_sure) for name, step in steps.items()}
    links: dict[str, Link] = {}
    for name, operand, is_sure in _shared(bsym, steps, layouts):
        at = name
        while at != operand and at in steps:
            links[at] = _link(bsym, steps[at], is_sure)
            at = links[at].parent
        if at != operand:
            ends = [getattr(value, "name", "") for value in (*bsym.args[:1], bsym.output)]
            step = bsym if ends == [operand, name] else None
            links[name] = Link(operand, step, is_sure, bsym.sym.name)
    return links


def _link(bsym: BoundSymbol, step: BoundSymbol, is_sure: bool) -> Link:
    return Link(step.args[0].name, step, is_sure, bsym.sym.name)


def _shared(
    bsym: BoundSymbol, steps: dict[str, BoundSymbol], layouts: EagerLayouts | None
) -> Iterator[tuple[str, str, bool]]:
    """(a result, the operand whose memory it has, whether for all strides)"""
    results = {proxy.name for proxy in makes(bsym)}
    if bsym.sym.name == "to":  # to another type or device it always copies
        both = bsym.output, bsym.args[0]
        if len({(data_type(each.dtype), each.device.device_str()) for each in both}) > 1:
            return
    listed = bsym.sym.name in TORCH_VIEWS
    if not (listed or not bsym.subsymbols or results & steps.keys()):
        return
    contiguous = partial(as_meta, types={})
    answers = [pairs_of(bsym, layout) for layout in (contiguous, _transposed, _channels_last)]
    if answers[0] is None:  # torch cannot say
        first = next((proxy.name for proxy in reads(bsym) if isinstance(proxy, TensorProxy)), "")
        some = {(name, first) for name in results if listed or name in steps} if first else set()
        every: Pairs = set()
    else:
        known_pairs = [pairs for pairs in answers if pairs is not None]
        some, every = set.union(*known_pairs), set.intersection(*known_pairs)
    known = layouts.pairs(bsym) if layouts is not None and some != every else None
    some, every = (some, every) if known is None else (known, known)
    for name, operand in sorted(some):
        if name != operand:
            yield name, operand, (name, operand) in every


# --------------------------------------------------------------------------------- torch's answer


def _transposed(value: Any) -> Any:
    """The first axis lies innermost, with gaps."""
    tensor = as_meta(value, {})
    if not isinstance(value, TensorProxy):
        return tensor
    strides = contiguous_strides(tensor.shape, tuple(range(tensor.ndim)))
    return tensor.new_empty_strided(tensor.shape, [2 * stride for stride in strides])


def _channels_last(value: Any) -> Any:
    tensor = as_meta(value, {})
    return channels_last(tensor) if isinstance(value, TensorProxy) else tensor
