# SPDX-License-Identifier: Apache-2.0
"""Recipes of thunder.compile: Thunder's own, with this fuser in place of nvFuser.

    thunder.compile(model, recipe="thunder_fuser")
    thunder.compile(model)                                 where nvFuser is not installed
    thunder.compile(model, recipe=FuserRecipe(fuser_strict=True, interpreter="thunder.fx"))

Thunder's own recipes look for nvFuser, and hand None to thunder.jit where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from thunder.core.recipe import Plugin, Recipe
from thunder.extend import get_executor
from thunder.plugins import FP8, QuantizeInt4, ReduceOverhead
from thunder.recipes import BaseRecipe, register_recipe

from thunder_fuser.errors import OptionError
from thunder_fuser.executors.fuser import fuser
from thunder_fuser.source.jit_options import refuse_words

# {a plugin of Thunder: (what it needs, whether that is here)}; Thunder's own errors say less
NEEDS: dict[type[Plugin], tuple[str, Callable[[], bool]]] = {
    FP8: ("transformer_engine", lambda: find_spec("transformer_engine") is not None),
    QuantizeInt4: ("bitsandbytes", lambda: find_spec("bitsandbytes") is not None),
    ReduceOverhead: ("a CUDA device", lambda: bool(torch.cuda.is_available())),
}


class FuserRecipe(BaseRecipe):  # type: ignore[misc]
    """Thunder's default recipe with the fuser: thunder.jit, without checks of parameters at calls.

    options: keywords of thunder.jit, as fuser_strict=True. The others are Thunder's:
    show_progress, interpreter ("thunder.jit" or "thunder.fx") and plugins.
    """

    def __init__(
        self,
        show_progress: bool = False,
        interpreter: str = "thunder.jit",
        plugins: list[Plugin] | None = None,
        **options: Any,
    ) -> None:
        refuse_words("FuserRecipe", options)
        for name in options.keys() & {"fuser", "executors", "transforms"}:
            raise OptionError(
                "FuserRecipe", expected="keywords of thunder.jit, without those that a recipe sets",
                got=name, do="leave it out; or call thunder.jit, which takes executors",
            )  # fmt: skip
        super().__init__(show_progress=show_progress, interpreter=interpreter, plugins=plugins)
        self.options = options

    def setup_fuser(self) -> None:
        """Called by Thunder once, where its own recipes add nvFuser."""
        self.executor_names.append(fuser.name)

    def setup_config(self) -> dict[str, Any]:
        return {**super().setup_config(), **self.options}

    def apply(self, model: Any) -> Any:
        """Raises OptionError for a plugin that lacks what it needs."""
        for plugin in self.plugins:
            if missing := missing_of(plugin):
                raise OptionError(
                    f"Thunder's plugin {type(plugin).__name__}", expected=missing, got="none here",
                    do="leave the plugin out",
                )  # fmt: skip
        return super().apply(model)


def missing_of(plugin: Plugin) -> str:
    """What a plugin needs and this machine lacks; empty if there is nothing."""
    needs = (need for kind, need in NEEDS.items() if isinstance(plugin, kind))
    return next((name for name, is_here in needs if not is_here()), "")


register_recipe("thunder_fuser", FuserRecipe)
if get_executor("nvfuser") is None and Recipe._registry.get("") is BaseRecipe:
    Recipe.register("")(FuserRecipe)
