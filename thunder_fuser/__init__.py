# SPDX-License-Identifier: Apache-2.0
"""thunder_fuser: a fusion compiler for Lightning Thunder, in Python.

from thunder_fuser import fuser  # before thunder, which otherwise warns of a missing package
import thunder
fast = thunder.jit(model, executors=[fuser])

Thunder knows the executor by its name, "thunder_fuser", once `fuser` has been imported.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from thunder_fuser.doors.watch import watch_imports
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.multi_device import MultiDeviceParams
from thunder_fuser.options import OPTIONS, options
from thunder_fuser.target import Target
from thunder_fuser.versions import __version__, check_versions

check_versions()
watch_imports()

# Thunder warns when it is imported, which may be later, that its optional package is missing.
warnings.filterwarnings("ignore", message="transformer_engine module not found!")

if TYPE_CHECKING:
    from thunder_fuser.cache.trie import FusionCache
    from thunder_fuser.definition import FusionDefinition
    from thunder_fuser.executors.fuser import fuser
    from thunder_fuser.fast_path.calls import jit
    from thunder_fuser.host.call.bind import AllocatedTensor
    from thunder_fuser.runtime.torch_types import torch_dtype_to_nvfuser_dtype
    from thunder_fuser.schedule.written.schedule import Schedule
else:
    # Imported at the first use, because torch and Thunder take seconds.
    _MODULES = {
        "AllocatedTensor": "host.call.bind",
        "FusionCache": "cache.trie",
        "FusionDefinition": "definition",
        "Schedule": "schedule.written.schedule",
        "fuser": "executors.fuser",
        "jit": "fast_path.calls",
        "torch_dtype_to_nvfuser_dtype": "runtime.torch_types",
    }

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        return value


__all__ = [
    "OPTIONS",
    "AllocatedTensor",
    "DataType",
    "FusionCache",
    "FusionDefinition",
    "MultiDeviceParams",
    "ParallelType",
    "Schedule",
    "Target",
    "__version__",
    "fuser",
    "jit",
    "options",
    "torch_dtype_to_nvfuser_dtype",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
