# SPDX-License-Identifier: Apache-2.0
"""`import thunder_fuser`  ->  Thunder has the recipe, and torch.compile the backend, of that name.

Each name is registered when the module that keeps such names has been imported. So this import
waits neither for torch nor for Thunder.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from threading import local
from types import ModuleType
from typing import Any

from thunder_fuser.thunder_patches.torch_names import watch_for_thunder

# {a module that keeps names: the module of ours that registers one there}
REGISTERS = {
    "thunder.recipes": "thunder_fuser.doors.recipes",
    "thunder.dynamo.compiler": "thunder_fuser.thunder_patches.fixes.torch_func",
    "torch._dynamo.backends.registry": "thunder_fuser.doors.backend_name",
}


class _Behind(MetaPathFinder):
    """Finds one module, as Python does; once that has run, it imports the module that registers."""

    def __init__(self, name: str) -> None:
        self.name, self._asking = name, local()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> ModuleSpec | None:
        if name != self.name or getattr(self._asking, "is_on", False):
            return None
        self._asking.is_on = True
        try:
            spec = find_spec(name)
        finally:
            self._asking.is_on = False
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_register(module: ModuleType) -> None:
            run(module)
            with suppress(ValueError):  # another thread was first
                sys.meta_path.remove(self)
            try:
                import_module(REGISTERS[name])
            except Exception as error:  # who imports the module may not use the fuser
                warnings.warn(f"thunder_fuser is not registered in {name}: {error}", stacklevel=2)

        spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def watch_imports() -> None:
    """Registers each name, now or behind the import; gives Thunder what a newer torch lacks."""
    watch_for_thunder()
    for name, registers in REGISTERS.items():
        if name in sys.modules:
            import_module(registers)
        else:
            sys.meta_path.insert(0, _Behind(name))
