# SPDX-License-Identifier: Apache-2.0
"""thunder_fuser: a fusion compiler for Lightning Thunder, in Python.

import thunder
from thunder_fuser import fuser
fast = thunder.jit(model, executors=[fuser])
"""

from __future__ import annotations

import warnings

from thunder_fuser.versions import __version__, check_versions

check_versions()

from thunder_fuser.cache.trie import FusionCache  # noqa: E402  versions are checked first
from thunder_fuser.definition import FusionDefinition  # noqa: E402
from thunder_fuser.host.bind import AllocatedTensor  # noqa: E402
from thunder_fuser.ir.domain import ParallelType  # noqa: E402
from thunder_fuser.ir.dtypes import DataType  # noqa: E402
from thunder_fuser.options import OPTIONS, options  # noqa: E402
from thunder_fuser.target import Target  # noqa: E402

with warnings.catch_warnings():
    # Thunder says at its import that an optional package of its own is missing.
    warnings.filterwarnings("ignore", message="transformer_engine module not found!")
    from thunder_fuser.executors.fuser import fuser

__all__ = [
    "OPTIONS",
    "AllocatedTensor",
    "DataType",
    "FusionCache",
    "FusionDefinition",
    "ParallelType",
    "Target",
    "__version__",
    "fuser",
    "options",
]
