# SPDX-License-Identifier: Apache-2.0
"""Recipes of thunder.compile: Thunder's own, with this fuser in place of nvFuser.

    thunder.compile(model, recipe="thunder_fuser")
    thunder.compile(model, recipe="thunder_fuser-hf-transformers")
    thunder.compile(model)                                 where nvFuser is not installed
    thunder.compile(model, recipe=FuserRecipe(fuser_strict=True, interpreter="thunder.fx"))

Thunder's own recipes look for nvFuser, and hand None to thunder.jit where there is none.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from thunder.core.recipe import Plugin, Recipe
from thunder.extend import get_executor
from thunder.plugins import FP8, QuantizeInt4, ReduceOverhead
from thunder.recipes import BaseRecipe, HFTransformers, register_recipe

from thunder_fuser.errors import OptionError
from thunder_fuser.executors.fuser import fuser

# {a plugin of Thunder: what it needs, of which Thunder says less}
NEEDS = {FP8: "transformer_engine", QuantizeInt4: "bitsandbytes", ReduceOverhead: "a CUDA device"}


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
            missing = missing_of(plugin)
            if missing:
                raise OptionError(
                    f"Thunder's plugin {type(plugin).__name__}", expected=missing, got="none here",
                    do="leave the plugin out",
                )  # fmt: skip
        return super().apply(model)


class FuserHFTransformers(FuserRecipe, HFTransformers):  # type: ignore[misc]
    """Thunder's recipe for models of Hugging Face's transformers, with the fuser."""


def missing_of(plugin: Plugin) -> str:
    """What a plugin needs and this machine lacks; empty if there is nothing."""
    need = next((need for kind, need in NEEDS.items() if isinstance(plugin, kind)), "")
    is_here = torch.cuda.is_available() if " " in need else bool(need) and find_spec(need)
    return "" if is_here else need


register_recipe("thunder_fuser", FuserRecipe)
register_recipe("thunder_fuser-hf-transformers", FuserHFTransformers)
if get_executor("nvfuser") is None:
    Recipe.register("")(FuserRecipe)
