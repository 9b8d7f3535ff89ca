# SPDX-License-Identifier: Apache-2.0
"""A function that a user wants a report on -> the results of thunder.jit in it, and its name.

    thunder.jit(f)                                       itself
    thunderfx(f)                                         one for each graph that Thunder runs
    ThunderCompiler(...)                                 the same
    torch.compile(f, backend=ThunderCompiler(...))       the same
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import thunder

from thunder_fuser.errors import InputError

Jitted = Callable[..., Any]


def graphs_of(jitted: Any) -> list[Jitted]:
    """The results of thunder.jit that were called, in the order in which they were compiled.

    Raises InputError for a function that is none of the above, or was not called.
    """
    backend = None
    found = [jitted]
    if thunder.compile_stats(jitted) is None:
        backend = _backend_of(jitted)
        found = [one for info in backend.subgraph_infos for one in info.thunder_compiled_fns]
    called = [one for one in found if thunder.compile_stats(one).last_traces]
    if not called:
        raise InputError("explain", expected="a function that was called", got="one that was not")
    return called


def name_of(jitted: Any) -> str:
    """The name of a function, or the class name of a module."""
    owner = "_model" if thunder.compile_stats(jitted) is not None else "_func"
    for name in (owner, "_orig_mod"):
        inner = getattr(jitted, name, None)
        if inner is not None:  # a compiled module may have no truth value
            return name_of(inner)
    return str(getattr(jitted, "__name__", type(jitted).__name__))


def _backend_of(jitted: Any) -> Any:
    """The ThunderCompiler behind a function. It is known by its attributes, since importing its
    class takes seconds."""
    found = getattr(jitted, "_backend", jitted)
    if context := _dynamo_context(jitted):
        found = context.callback
        while hasattr(found, "_torchdynamo_orig_backend"):
            found = found._torchdynamo_orig_backend
        found = getattr(found, "compiler_fn", found)
    if not hasattr(found, "subgraph_infos"):
        raise InputError(
            "explain", expected="a result of thunder.jit or thunderfx, a ThunderCompiler, or a"
            " function that torch.compile compiles with one", got=repr(jitted)[:80],
        )  # fmt: skip
    return found


def _dynamo_context(jitted: Any) -> Any:
    """The context that torch.compile made for a module or function; None if it made none."""
    code = getattr(jitted, "__code__", None)
    if not hasattr(jitted, "_torchdynamo_orig_callable") or code is None:
        return getattr(jitted, "dynamo_ctx", None)
    cells = dict(zip(code.co_freevars, jitted.__closure__ or (), strict=True))
    return cells["self"].cell_contents if "self" in cells else None
