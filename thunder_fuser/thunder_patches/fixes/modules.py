# SPDX-License-Identifier: Apache-2.0
"""Jitted modules inside other modules, copied and pickled.

    self.net = thunder.jit(net); self.state_dict()     before                now
        names                                          net..0.weight         net.0.weight
        self.load_state_dict(self.state_dict())        Missing key(s)        loads
    deepcopy(thunder.jit(net)), pickle.dumps(...)      AssertionError        jitted again
    thunder.jit(net).generate(...)                     eager                 eager, told

Replaced: ThunderModule.state_dict, to which torch passes a prefix that ends in a dot, where Thunder
wants one without; and ThunderModule._load_from_state_dict, through which torch loads a module that
another one holds. It takes the original's names, and those that Thunder wrote so far. Added:
ThunderModule.__deepcopy__ and __reduce_ex__. Without them Python copies Thunder's traces and
closures. Now the original module and the keywords of `jit` are copied, and jitted again.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from typing import Any, NamedTuple

import thunder
from thunder.core.langctxs import Languages, resolve_language
from thunder.core.module import ThunderModule
from thunder.extend import TemporaryExecutor, get_always_executors, get_executor

from thunder_fuser.base.warn import warn_at
from thunder_fuser.errors import CopyError, FallbackWarning
from thunder_fuser.thunder_patches.patch import Hooks

_EAGER = (
    "jitted.generate() runs the original model in eager torch. To fix it: write"
    " model.compile(backend='thunder_fuser') for the original model, and call model.generate()."
)
_OF_THUNDER = {  # attributes that a new jitted module has of its own
    "_modules", "_forward_fn", "_overrides_parameters", "_overrides_buffers", "_module_cache",
    "_null", "_parts", "_lc_cd", "_lc_cs", "_lc_transforms",
}  # fmt: skip


def repair_modules(_: Hooks) -> None:
    """From now on, jitted modules can be held by others, copied and pickled."""
    _write_names_of_the_original()
    _load_names_of_the_original()
    ThunderModule.__deepcopy__ = _deepcopy
    ThunderModule.__reduce_ex__ = lambda self, protocol: (_jit_again, tuple(_recipe_of(self)))
    _tell_of_generate()


def _tell_of_generate() -> None:
    of_thunder = ThunderModule.__getattr__

    def attribute(self: Any, name: str) -> Any:
        if name == "generate":
            asks = sys._getframe(1).f_globals.get("__name__", "")
            if not asks.startswith("thunder."):  # as Thunder's recipe does
                warn_at("", _EAGER, FallbackWarning)
        return of_thunder(self, name)

    ThunderModule.__getattr__ = attribute


# ------------------------------------------------------------------------------------- checkpoints


def _write_names_of_the_original() -> None:
    of_thunder = ThunderModule.state_dict

    def state_dict(
        self: Any, *, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> Any:
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()
        entries = of_thunder(self, keep_vars=keep_vars)
        destination.update((prefix + name, value) for name, value in entries.items())
        return destination

    ThunderModule.state_dict = state_dict


def _load_names_of_the_original() -> None:
    of_torch = ThunderModule._load_from_state_dict

    def load(
        self: Any, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any], *rest: Any
    ) -> None:
        """state_dict: the entries below the prefix, in a dict of torch's own."""
        *_, errors = rest
        if metadata.get("assign_to_params_buffers"):
            errors.append(f"{prefix[:-1]} is jitted: load with assign=False, or load before jit.")
        known, read = dict(self._model.named_parameters()), self._overrides_parameters
        if any(known.get(name, read[name]) is not read[name] for name in read):
            errors.append(f"{prefix[:-1]} has transforms: call its own load_original_state_dict.")
        for name in [name for name in state_dict if name.startswith(prefix)]:
            short = name.removeprefix(prefix).removeprefix("_model.").removeprefix(".")
            state_dict[f"{prefix}_model.{short}"] = state_dict.pop(name)
        of_torch(self, state_dict, prefix, metadata, *rest)

    ThunderModule._load_from_state_dict = load


# ------------------------------------------------------------------------------------------ copies


class _PickledModule(NamedTuple):
    """What a jitted module is made of. Python pickles all of it."""

    model: Any
    jit: Callable[..., Any]  # thunder.jit or thunder_fuser.jit
    executors: list[tuple[str, str]]  # (module that registers it, name)
    options: dict[str, Any]  # the keywords of jit
    parameters: dict[str, Any]
    buffers: dict[str, Any]
    others: dict[str, Any]  # attributes that the user gave to the jitted module


def _recipe_of(module: Any) -> _PickledModule:
    data, way = module._lc_cd, getattr(module._forward_fn, "fast_path", None)
    if module._lc_transforms or data.langctx is not resolve_language(Languages.TORCH):
        raise CopyError(
            "a jitted module with transforms", expected="one without, to copy or pickle it",
            do="copy or pickle the original module, then jit the copy; or save its state_dict",
        )  # fmt: skip
    jit, options = thunder.jit, {
        "cache": data.cache_option, "sharp_edges": data.sharp_edges,
        "disable_torch_autograd": data.disable_torch_autograd_support,
        "debug_options": data.debug_options, **data.compile_options,
    }  # fmt: skip
    if way is not None:
        jit, options = way.recipe
    executors = [
        (type(each).__module__, each.name)
        for each in data.executors_list
        # Every jit adds the others.
        if not isinstance(each, TemporaryExecutor) and each not in get_always_executors()
    ]
    others = {name: value for name, value in vars(module).items() if name not in _OF_THUNDER}
    tensors = module._overrides_parameters, module._overrides_buffers
    return _PickledModule(module._model, jit, executors, options, *tensors, others)


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    recipe = _recipe_of(self)
    copied = deepcopy((recipe.model, *recipe[4:]), memo)  # options may hold the user's callables
    memo[id(self)] = jitted = _jit_again(copied[0], *recipe[1:4], *copied[1:])
    return jitted


def _jit_again(
    model: Any, jit: Callable[..., Any], executors: Any, options: Any, *rest: Any
) -> Any:
    """The jitted module of a recipe."""
    for place, _ in executors:
        import_module(place)
    chosen = [get_executor(name) for _, name in executors]
    jitted = jit(model, executors=chosen, **options)
    jitted._overrides_parameters, jitted._overrides_buffers, others = rest
    vars(jitted).update(others)
    return jitted
