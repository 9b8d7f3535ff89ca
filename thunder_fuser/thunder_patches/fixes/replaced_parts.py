# SPDX-License-Identifier: Apache-2.0
"""What a jitted module's model holds at a call -> what the call reads.

    jitted = thunder.jit(model); jitted(x)    before                       now
    model.norm.weight = Parameter(...)        the old parameter is read    the new one is read
    jitted.double()                           an error about old buffers   the new ones are read
    model.act = ReLU(); a hook comes, goes    the old program              traced again
    jitted.mean = tensor                      an attribute nobody reads    the model's buffer
    jitted.scale = 5.0                        an error about 5.0 and 3.0   the model's number
    self.mean = tensor, in forward            a copy in the jitted module  the model's buffer

Replaced: ThunderModule.__init__, forward, set_buffer and __setattr__. Thunder notes the parameters,
buffers and submodules once, at `jit`. Each call compares them by identity. A tensor that a
transform gave (parts of FSDP, 4 bits) stays.
"""

from __future__ import annotations

from collections.abc import Mapping, ValuesView
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from operator import is_
from typing import Any

import thunder
from thunder.core.interpreter import make_opaque
from thunder.core.module import ThunderModule
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from thunder_fuser.thunder_patches.patch import Hooks

_TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def follow_replaced_parts(_: Hooks) -> None:
    """From now on, a jitted module reads the parts that its model has at the call."""
    of_thunder, of_torch = ThunderModule.__init__, nn.Module.__setattr__

    @wraps(of_thunder)
    def init(self: Any, *args: Any) -> None:
        of_thunder(self, *args)
        self._parts = parts_of(self._model)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        follow(self)
        return self._forward_fn(*args, **kwargs)

    def set_attribute(self: Any, name: str, value: Any) -> None:
        model = vars(self).get("_modules", {}).get("_model")
        is_here = model is None or name in vars(self) or hasattr(ThunderModule, name)
        is_part = isinstance(value, (nn.Parameter, nn.Module))
        of_torch(self if is_here or not (is_part or name in dir(model)) else model, name, value)

    ThunderModule.__init__ = init
    ThunderModule.forward = forward
    ThunderModule.__setattr__ = set_attribute
    ThunderModule.set_buffer = _set_buffer


@dataclass
class ModelParts:
    """The parts of a model, as the last call saw them.

    tables: live views of those of its modules that are not empty; names: of all their entries, from
    the root; values: a tensor, a module or None for each. hooks: the keys of all hooks by module;
    registered: torch's number of the next hook.
    """

    tables: list[ValuesView[Any]]
    names: list[str]
    values: list[Any]
    hooked: list[Mapping[int, Any]]
    hooks: list[tuple[int, ...]]
    registered: int


def parts_of(model: nn.Module) -> ModelParts:
    registered = RemovableHandle.next_id
    modules = [(f"{name}." if name else "", vars(each)) for name, each in model.named_modules()]
    tables = [(name, each[kind]) for name, each in modules for kind in _TABLES if each[kind]]
    hooked = [each[kind] for _, each in modules for kind in _HOOKS if each[kind]]
    names = [prefix + name for prefix, table in tables for name in (*table.keys(),)]
    hooks = [*map(tuple, hooked)]
    views = [table.values() for _, table in tables]
    return ModelParts(views, names, [*chain(*views)], hooked, hooks, registered)


def parts_now(model: nn.Module, parts: ModelParts) -> ModelParts:
    """The same object if nothing was replaced since."""
    now = [*chain.from_iterable(parts.tables)]
    is_same = len(now) == len(parts.values) and all(map(is_, now, parts.values))
    has_same_hooks = parts.registered == RemovableHandle.next_id and (
        [*map(tuple, parts.hooked)] == parts.hooks
    )
    return parts if is_same and has_same_hooks else parts_of(model)


def need_another_program(before: ModelParts, after: ModelParts) -> bool:
    """True unless only tensors were replaced."""

    def of_programs(parts: ModelParts) -> tuple[Any, ...]:
        kinds = [Tensor if isinstance(value, Tensor) else value for value in parts.values]
        return parts.names, kinds, parts.hooks

    return of_programs(before) != of_programs(after)


@make_opaque
def follow(jitted: ThunderModule) -> None:
    """Makes a jitted module read the parts that its model has now."""
    before: ModelParts = jitted._parts
    if (after := parts_now(jitted._model, before)) is before:
        return
    jitted._parts = after
    if need_another_program(before, after):
        _forget_programs(jitted, before)
        return
    for name, old, new in zip(before.names, before.values, after.values, strict=True):
        for read in (jitted._overrides_parameters, jitted._overrides_buffers):
            if old is not new and read.get(name) is old:
                read[name] = new


def _set_buffer(jitted: ThunderModule, name: str, value: Any) -> None:
    """Sets a buffer that forward assigned, in the original module too if it reads the same one."""
    before, jitted._overrides_buffers[name] = jitted._overrides_buffers.get(name), value
    holder, _, short = name.rpartition(".")
    buffers, parts = jitted._model.get_submodule(holder)._buffers, jitted._parts
    if buffers.get(short) is before:
        buffers[short] = parts.values[parts.names.index(name)] = value


def _forget_programs(jitted: ThunderModule, parts: ModelParts) -> None:
    """Empties the cache of the module, and what Thunder noted of names that are other ones now."""
    model = jitted._model
    jitted._module_cache = dict(model.named_modules())
    before = dict(zip(parts.names, parts.values, strict=True))
    for read, current in (
        (jitted._overrides_parameters, dict(model.named_parameters())),
        (jitted._overrides_buffers, dict(model.named_buffers())),
    ):
        for name in [name for name in read if before.get(name) is read[name]]:
            del read[name]
        read.update((name, value) for name, value in current.items() if name not in read)
    thunder.compile_stats(jitted).interpreter_cache.clear()
