# SPDX-License-Identifier: Apache-2.0
"""Arguments of one storage -> those that are one tensor, since the program writes them.

    def f(x, y, w):                 f(b[0], b[1], w)         f(b, b, w)           f(b[:2], b[1:], w)
      h = x * 1; h.add_(y); ...     x and y are two          x and y are two      x and y are two
      x.add_(y); ...                x and y are two          y is x               refused

Thunder takes all of them for one tensor, wherever a program writes in place, be it to a tensor of
its own or to the statistics of a batch norm: it puts x for y. And it counts them among the
arguments of the call, then looks for them among those of the program, which has its own order.

Replaced: `insert_alias_updates` as thunder.jit calls it. How arguments of which one is written lie
in memory is a guard then (see arguments.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import thunder
import torch
from thunder.core.pytree import tree_flatten
from thunder.core.trace import TraceCtx

from thunder_fuser.errors import InPlaceError
from thunder_fuser.thunder_patches.patch import Hooks
from thunder_fuser.trace.dataflow import Memory
from thunder_fuser.trace.proxies import reads, shared_by, written_by

SharedLayouts = tuple[tuple[int, int, tuple[int, ...]], ...]
_NOTE = "arguments that are one tensor"  # in Thunder's cache_info, beside what a prologue reads


def tell_arguments_apart(_: Hooks) -> None:
    """From now on, a program takes arguments for one tensor only where note_one_tensors says so."""
    of_thunder = thunder.insert_alias_updates

    def insert_alias_updates(trace: TraceCtx, aliases: list[list[int]]) -> TraceCtx:
        return of_thunder(trace, thunder._get_cache_info().get(_NOTE, aliases))

    thunder.insert_alias_updates = insert_alias_updates


def note_one_tensors(
    trace: TraceCtx, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> SharedLayouts:
    """Notes which arguments of the running compilation are one tensor. Returns the layouts of
    those that share memory, if that depends on them, else ().

    trace: of the computation, as the program wrote it.
    """
    noted = thunder._get_cache_info()
    if not noted.get("alias_tensor_indices"):
        return ()
    proxies, _ = tree_flatten((trace.args, trace.kwargs))
    values = [_value_of(getattr(proxy, "history", None), args, kwargs) for proxy in proxies]
    names, written = [getattr(proxy, "name", "") for proxy in proxies], _written_in(trace)
    groups = [group for group in _groups(values) if any(names[at] in written for at in group)]
    same = {
        tuple(other for other in group if _are_same(values, names, at, other))
        for group in groups for at in group if names[at] in written
    }  # fmt: skip
    noted[_NOTE] = [*map(list, sorted(same))]
    return layouts_of(args, kwargs) if groups else ()


def _written_in(trace: TraceCtx) -> set[str]:
    """The tensors that are written in place, and those whose views are written."""
    memory, written = Memory(), set[str]()
    for bsym in trace.bound_symbols[:-1]:
        writes = [*written_by(bsym)]
        written.update(name for names in writes for name in names)
        memory.join(writes)
        if len({proxy.name for proxy in reads(bsym)}) == 1:  # else no view, but an operation
            memory.join(shared_by(bsym, in_torch=True))
    return memory.sharing(written)


def _value_of(record: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a proxy of the program stands for; None if it is no part of the arguments."""
    kind = getattr(record, "inst", None)
    kind = getattr(kind, "opname", kind)  # an instruction of Python's, or a name of Thunder's
    if kind in ("INPUT_ARGS", "INPUT_KWARGS"):
        return args if kind == "INPUT_ARGS" else kwargs
    if kind not in ("BINARY_SUBSCR", "LOAD_ATTR"):
        return None
    of, key = _value_of(record.inputs[0], args, kwargs), record.inputs[1].value
    try:
        return of[key] if kind == "BINARY_SUBSCR" else getattr(of, key)
    except Exception:  # whatever the user's container raises; the trace may have changed it
        return None


def _are_same(values: list[Any], names: list[str], at: int, other: int) -> bool:
    """Whether two arguments are one tensor; False if they have no element in common."""
    x, y = values[at], values[other]
    if at == other:
        return True
    facts = [(t.storage_offset(), t.numel(), t.dtype, t.requires_grad) for t in (x, y)]
    is_plain = x.is_contiguous() and y.is_contiguous()  # then Thunder reshapes the first
    if facts[0] == facts[1] and (is_plain or (x.shape, x.stride()) == (y.shape, y.stride())):
        return True
    (start, end), (first, last) = _extent(x), _extent(y)
    if end <= first or last <= start:
        return False
    places = " and ".join(f"{[*t.shape]} at {t.storage_offset()}" for t in (x, y))
    raise InPlaceError(
        f"the arguments {names[at]} and {names[other]}, one of which is written in place",
        expected="one tensor twice, or tensors that share no memory",
        got=f"{places} of one storage", do="pass the whole and slice it inside",
    )  # fmt: skip


def _extent(x: torch.Tensor) -> tuple[int, int]:
    """The bytes of the storage where the tensor starts and ends."""
    reach = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True)) + 1
    start, width = x.storage_offset(), x.element_size()
    return start * width, (start + reach * (x.numel() > 0)) * width


def _groups(values: Iterable[Any]) -> list[list[int]]:
    """The places of tensors that share memory with others."""
    groups: dict[int, list[int]] = {}
    for at, value in enumerate(values):
        if type(value) is torch.Tensor and value.layout is torch.strided:
            groups.setdefault(value.untyped_storage().data_ptr(), []).append(at)
    return [group for group in groups.values() if len(group) > 1]


def aliases_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The tensors among the arguments that share memory, as thunder.jit writes it: "0,2-1,3"."""
    if not kwargs and len(args) == 1 and type(args[0]) is torch.Tensor:
        return ""
    groups = _groups(tree_flatten((args, kwargs))[0])
    return "-".join(",".join(map(str, group)) for group in groups)


def layouts_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> SharedLayouts:
    """(place, distance to the first one, strides) of the arguments that share memory."""
    flat, _ = tree_flatten((args, kwargs))
    return tuple(
        (at, flat[at].storage_offset() - flat[group[0]].storage_offset(), flat[at].stride())
        for group in _groups(flat) for at in group
    )  # fmt: skip
