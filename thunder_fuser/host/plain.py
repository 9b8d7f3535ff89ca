# SPDX-License-Identifier: Apache-2.0
"""Which tensors a kernel may read through their pointer, and how others are prepared.

    a pending negation or conjugation    -> resolved: a copy with the bits applied
    no memory, or a special class        -> refused: the reason as text
    everything else                      -> itself

Everything that this depends on is in the key of a call (dispatch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import has_torch_function_unary

from thunder_fuser.errors import InputError

Runner = Callable[..., Any]


def refusal(tensor: torch.Tensor) -> str:
    """Why no kernel may read the tensor's memory; empty if one may."""
    if _computes_itself(tensor):
        return f"a {type(tensor).__name__}, a class with rules of its own"
    if tensor.layout is not torch.strided:
        return f"a {str(tensor.layout).removeprefix('torch.')} tensor"
    if tensor.is_nested:
        return "a nested tensor"
    if not torch._C._has_storage(tensor):
        return "a tensor inside a transform of torch.func"
    if tensor._is_zerotensor() or torch._is_functional_tensor(tensor):
        return "a tensor without memory"
    return ""


def _computes_itself(tensor: torch.Tensor) -> bool:
    """True for classes that override torch functions. Parameter does not."""
    own = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return own or has_torch_function_unary(tensor)


def check_plain(thing: str, tensor: torch.Tensor) -> None:
    """InputError if no kernel may read the tensor's memory. Torch may still take the tensor."""
    reason = refusal(tensor)
    if reason:
        raise InputError(thing, expected="a plain strided tensor", got=reason)


def check_memory(thing: str, tensor: torch.Tensor) -> None:
    """InputError if the storage was freed, for torch's ops too."""
    if refusal(tensor) or tensor.is_meta or not tensor.numel() or tensor.data_ptr():
        return
    raise InputError(
        thing, expected="a tensor with memory",
        got=f"one of shape {tuple(tensor.shape)} whose storage was freed",
        do="allocate its storage again before the call",
    )  # fmt: skip


def resolved(value: Any) -> Any:
    """The value, with pending bits of a tensor applied to a copy.

    >>> resolved(torch._neg_view(torch.ones(2))).is_neg()
    False
    """
    if not isinstance(value, torch.Tensor) or refusal(value):
        return value
    return value.resolve_conj().resolve_neg()


def on_resolved(make: Callable[[Sequence[Any]], Runner], arguments: Sequence[Any]) -> Runner:
    """make(arguments), with pending bits of the arguments resolved.

    The runner takes original arguments. Each call resolves them, copies back what the program
    wrote, and returns an argument in place of its copy.
    """
    plain = [resolved(value) for value in arguments]
    run = make(plain)
    if all(new is old for new, old in zip(plain, arguments, strict=True)):
        return run

    def resolving(*values: Any) -> list[Any]:
        copies = [resolved(value) for value in values]
        results = run(*copies)
        _write_back(values, copies)
        originals = {id(new): old for new, old in zip(copies, values, strict=True)}
        return [originals.get(id(result), result) for result in results]

    return resolving


def _write_back(values: Sequence[Any], copies: Sequence[Any]) -> None:
    """Copies what the program wrote back. An unwritten copy has version 0."""
    for old, new in zip(values, copies, strict=True):
        if new is not old and new._version:
            old.copy_(new)
