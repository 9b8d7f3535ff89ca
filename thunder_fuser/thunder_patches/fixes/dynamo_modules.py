# SPDX-License-Identifier: Apache-2.0
"""A module that a traced program makes is noted by Dynamo in one call, which Thunder does not read.

Dynamo notes each new module in a dictionary of weak references (`GenerationTracker.tag`). Thunder's
interpreter walks over all of it, and fails where garbage is collected meanwhile. A slice of a
ModuleList makes a module. Imported behind thunder, which imports torch._dynamo.
"""

from __future__ import annotations

from typing import Any

from thunder.core.interpreter import unwrap, wrap_const
from thunder.core.jit_ext import register_general_jit_lookaside
from torch._dynamo.mutation_guard import GenerationTracker


@register_general_jit_lookaside(GenerationTracker.tag.__func__)  # type: ignore[attr-defined]
def _tag(tracker: Any, module: Any) -> Any:
    unwrap(tracker).tag(unwrap(module))
    return wrap_const(None)
