# SPDX-License-Identifier: Apache-2.0
"""Generates the warm path as straight-line Python: arguments -> key -> program.

    def call(T0, S1):
        try:
            key = (type(T0), T0.shape, T0.stride(), T0.is_neg(), (T0.data_ptr() or null) & 15, S1)
        except Exception:  # a sparse tensor has no strides and no address
            return miss((T0, S1))(T0, S1)
        run = runners.get(key)
        if run is None:
            run = keep(runners, key, miss((T0, S1)))
        return run(T0, S1)

If a region writes arguments (`marks`) and such an argument shares memory with another one, torch
runs the region's ops in turn.

If the system has a compiler, native.cpp does the same in C for plain tensors, and calls this
function for all others.

The key has all that a program depends on: sizes, strides and alignment of tensors, whether a kernel
may read their memory (the class, pending bits, address 0), and the scalars that shapes use. With
`checked` it also has dtype and device; without it, a Thunder trace has checked them already.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.autograd.profiler import record_function

from thunder_fuser.base.threads import Bounded
from thunder_fuser.host.call.arguments import refusal
from thunder_fuser.host.call.native import native
from thunder_fuser.host.ranges import ranged
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import Number
from thunder_fuser.options import option
from thunder_fuser.presegment.specialise import InputKey

Runner = Callable[..., Any]

LETTERS = {"tensor": "t", "complex": "t", "size": "s", "number": "n"}  # see put_all in native.cpp


def make_dispatch(
    inputs: Sequence[tuple[str, str]],
    miss: Callable[[tuple[Any, ...]], Runner],
    *,
    checked: bool,
    name: str = "",
    marks: bytes | None = None,
    in_turn: Runner | None = None,
) -> Runner:
    """The function that looks up the runner of a call and calls it. miss(arguments) makes one.

    Its attribute `runners` is the table.

    inputs: (name, kind) of each argument. kind: tensor, complex (a complex tensor), size (a scalar
    that shapes use) or number. name: a profile shows the call under it; empty: it does not. marks:
    see `may_write`. in_turn: is called instead if that is False.
    """
    code = _code(call_text(inputs, checked=checked))
    runners: dict[Any, Runner] = {}
    # The scope does not hold the function: a cycle would keep kernels until a collection. Torch
    # imports where a mode sees its calls, and looks for builtins in the scope.
    scope = {"runners": runners, "keep": _keep, "miss": miss, "null": NULL}
    call = FunctionType(code, {**scope, "__builtins__": builtins})
    in_c = native()
    if marks is not None and in_turn is not None:
        call = _either(call, marks, in_turn)  # type: ignore[assignment]
    if in_c is None:
        call = ranged(name, call) if name else call  # type: ignore[assignment]
        call.runners = runners  # type: ignore[attr-defined]
        return call
    kinds = "".join(LETTERS[kind] for _, kind in inputs)
    known = (
        kinds.encode(), runners, miss, _keep, call, checked, record_function, name or None,
        marks, in_turn,
    )  # fmt: skip
    return in_c.dispatch(known)  # type: ignore[no-any-return]


def _either(call: Runner, marks: bytes, in_turn: Runner) -> Runner:
    def either(*values: Any) -> Any:
        return (call if may_write(values, marks) else in_turn)(*values)

    return either


WRITTEN, CHECKED = 0x80, 0x40


def may_write(values: Sequence[Any], marks: bytes) -> bool:
    """False if a written tensor shares memory with another one, or must not be written.

    marks: a byte for each value. It has the bytes of an element, WRITTEN, and CHECKED for a tensor
    that must not require a gradient; it is 0 for a number. True for what has no plain memory: the
    program refuses it in words.
    """
    spans = []
    for value, mark in zip(values, marks, strict=True):
        if not mark:
            continue
        if refusal(value):
            return True
        if mark & CHECKED and value.requires_grad:
            return False
        steps = zip(value.shape, value.stride(), strict=True)
        last = sum((size - 1) * stride for size, stride in steps)
        start = value.data_ptr()
        spans.append((start, start + (last + 1) * (mark & ~(WRITTEN | CHECKED)), mark & WRITTEN))
    return not any(
        written and other is not span and span[0] < other[1] and other[0] < span[1]
        for span in spans for other in spans for written in (span[2],)
    )  # fmt: skip


def call_text(inputs: Sequence[tuple[str, str]], *, checked: bool) -> str:
    """The function's Python source."""
    names = ", ".join(name for name, _ in inputs)
    arguments = f"({names}{',' if len(inputs) == 1 else ''})"
    return (
        f"def call({names}):\n"
        "    try:\n"
        f"        key = ({''.join(key_part(*pair, checked) for pair in inputs) or 'None, '})\n"
        "    except Exception:\n"
        f"        return miss({arguments})({names})\n"
        "    run = runners.get(key)\n"
        "    if run is None:\n"
        f"        run = keep(runners, key, miss({arguments}))\n"
        f"    return run({names})\n"
    )


class _Null:
    """Replaces address 0, so that its alignment in the key is None."""

    def __and__(self, mask: int) -> None:
        return None


NULL = _Null()


@lru_cache(maxsize=256)
def _code(text: str) -> CodeType:
    """The compiled text. It is cached because a model's regions have few signatures."""
    scope: dict[str, Any] = {}
    exec(compile(text, "<dispatch>", "exec"), scope)
    return scope["call"].__code__  # type: ignore[no-any-return]


def _keep(runners: dict[Any, Runner], key: Any, run: Runner) -> Runner:
    """Adds a runner to the table, and clears the table first if it is full. Entries in use are
    added again at their next call. So a hit, which must be cheap, keeps no LRU order.
    """
    if len(runners) >= int(option("max_programs")):
        runners.clear()
    runners[_KEYS.keep(key, key)] = run
    return run


# Interns keys, since a model's layers are called with the same shapes.
_KEYS: Bounded[Any] = Bounded(1024)


def key_part(name: str, kind: str, checked: bool) -> str:
    """The part of the key for one argument, as Python."""
    if kind not in ("tensor", "complex"):
        return f"{name}, " if kind == "size" else ""
    address = f"({name}.data_ptr() or null) & 15"
    part = f"type({name}), {name}.shape, {name}.stride(), {name}.is_neg(), {address}, "
    part += f"{name}.is_conj(), " * (kind == "complex")
    return part + f"{name}.dtype, {name}.device, " * checked


def input_keys(fusion: Fusion, arguments: tuple[Any, ...]) -> tuple[InputKey, ...]:
    """The InputKey of each argument."""
    keys = []
    for name, value in zip(fusion.inputs, arguments, strict=True):
        if isinstance(value, torch.Tensor):
            address = value.data_ptr() if value.device.type != "meta" else 0
            keys.append(InputKey(tuple(value.shape), tuple(value.stride()), alignment_of(address)))
        else:
            keys.append(InputKey(value=_number(value) if name in fusion.shape_scalars else None))
    return tuple(keys)


def _number(value: Any) -> Number:
    """A scalar as the number from which the host computes sizes."""
    return value if isinstance(value, float) else int(value)


def alignment_of(address: int) -> int:
    """The largest power of two up to 16 that divides an address.

    >>> alignment_of(32), alignment_of(24), alignment_of(6)
    (16, 8, 2)
    """
    low = address & 15
    return 16 if low == 0 else low & -low


# ---- pending negations and conjugations


def resolved(value: Any) -> Any:
    """The value; a tensor with pending bits becomes a copy in which they are applied.

    >>> resolved(torch._neg_view(torch.ones(2))).is_neg()
    False
    """
    if not isinstance(value, torch.Tensor) or refusal(value):
        return value
    return value.resolve_conj().resolve_neg()


def on_resolved(make: Callable[[Sequence[Any]], Runner], arguments: Sequence[Any]) -> Runner:
    """The runner that make(arguments) makes for arguments without pending bits.

    If some have bits, it is wrapped (`__wrapped__`): a call resolves them into copies, copies back
    what the program wrote, and returns the original where the program returns a copy.
    """
    plain = [resolved(value) for value in arguments]
    run = make(plain)
    if all(new is old for new, old in zip(plain, arguments, strict=True)):
        return run

    def resolving(*values: Any) -> list[Any]:
        copies = [resolved(value) for value in values]
        results = run(*copies)
        for old, new in zip(values, copies, strict=True):
            if new is not old and new._version:  # an unwritten copy has version 0
                old.copy_(new)
        originals = {id(new): old for new, old in zip(copies, values, strict=True)}
        return [originals.get(id(result), result) for result in results]

    resolving.__wrapped__ = run  # type: ignore[attr-defined]
    return resolving
