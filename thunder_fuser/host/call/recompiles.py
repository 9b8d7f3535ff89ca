# SPDX-License-Identifier: Apache-2.0
"""Explains recompiles: compares a call that no program fits with earlier calls (topic recompiles).

    thunderFusion3, compiled again: argument x: sizes (4, 8) -> (5, 8), alignment 16 -> 4

While the topic is logged, the last few calls of each function are remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from thunder_fuser.base.logs import is_logged, log
from thunder_fuser.host.call.dispatch import alignment_of

REMEMBERED = 8  # calls of a function, the newest

Facts = Mapping[str, object]
SeenCall = Mapping[str, Facts]  # by the name of the argument


def note_miss(
    owner: object,
    thing: str,
    names: Sequence[str],
    arguments: Sequence[Any],
    variant: object = None,
) -> None:
    """Logs why a function is compiled again.

    owner: calls are forgotten when it is deleted. variant: distinguishes several functions of it.
    """
    if is_logged("recompiles"):
        call = {name: facts_of(value) for name, value in zip(names, arguments, strict=True)}
        note(owner, f"{thing}, compiled again", call, variant)


def note(owner: object, thing: str, call: SeenCall, variant: object = None) -> None:
    """The same for a call given by its facts."""
    calls = _SEEN.setdefault(owner, {}).setdefault(variant, deque(maxlen=REMEMBERED))
    if calls:
        differences = [changes(before, call) for before in reversed(calls)]
        why = min(differences, key=lambda facts: sum(map(len, facts.values())))
        reason = "; ".join(f"argument {name}: {', '.join(facts)}" for name, facts in why.items())
        reason = reason or "no known fact of its arguments has changed"
        log("recompiles", lambda: f"{thing}: {reason}")
    calls.append(call)


def facts_of(value: Any) -> Facts:
    """The properties of an argument on which a program may depend."""
    if not isinstance(value, torch.Tensor):
        return {"type": type(value).__name__, "value": value}
    facts: dict[str, object] = {
        "class": type(value).__name__,
        "dtype": value.dtype,
        "device": value.device,
        "layout": value.layout,
        "sizes": tuple(value.shape),
    }
    if value.layout is torch.strided:
        pending = [name for name in ("neg", "conj") if getattr(value, f"is_{name}")()]
        facts |= {"strides": value.stride(), "pending": "+".join(pending) or "nothing"}
    if value.layout is torch.strided and value.device.type != "meta":
        facts["alignment"] = alignment_of(value.data_ptr())
    return facts


def changes(before: SeenCall, now: SeenCall) -> dict[str, list[str]]:
    """{argument that differs: a text for each fact that differs}"""
    differences = {}
    for name, facts in now.items():
        old = before.get(name, {})
        texts = [
            f"{fact} {old.get(fact)} -> {facts.get(fact)}"
            for fact in {**old, **facts}
            if old.get(fact) != facts.get(fact)
        ]
        if texts:
            differences[name] = texts
    return differences


_SEEN: WeakKeyDictionary[object, dict[object, deque[SeenCall]]] = WeakKeyDictionary()
