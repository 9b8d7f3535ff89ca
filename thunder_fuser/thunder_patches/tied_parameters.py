# SPDX-License-Identifier: Apache-2.0
"""A parameter of two names -> one input of the program, with one gradient.

    def computation(x, t_embed_weight, t_head_weight):      def computation(x, t_embed_weight, _):
      h = embedding(x, t_embed_weight)                  ->    h = embedding(x, t_embed_weight)
      y = linear(h, t_head_weight)                            y = linear(h, t_embed_weight)

Thunder differentiates by each name, and autograd adds the two gradients: it reads both and writes
a third, each as large as the parameter. In one program the sum fuses with what computes them. The
prologue checks that both names still mean one tensor; a call for which they do not is traced.

Replaced: `thunder_general_jit` as thunder.jit calls it. It leaves a module alone whose parameters a
transform changes (ddp, fsdp), for that looks for each name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import thunder
from thunder.core.module import get_thunder_module
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, Variable, variableify
from thunder.core.trace import TraceCtx, TraceResults, from_trace
from torch import nn

from thunder_fuser.thunder_patches.fixes.arguments import add_check
from thunder_fuser.thunder_patches.patch import Hooks

TIED = "check_tied"


def join_tied_parameters(hooks: Hooks) -> None:
    """From now on, a parameter of two names is one value of the program."""
    of_thunder = thunder.thunder_general_jit

    def general_jit(function: Any, *args: Any, **options: Any) -> TraceResults:
        results = of_thunder(function, *args, **options)
        if hooks.compilation() is None or not _has_plain_parameters(function):
            return results
        first_of = {variableify(x): first for first, x in _tied(results.prologue_trace, function)}
        if not first_of:
            return results
        prologue = results.prologue_trace
        for second, first in first_of.items():
            at = len(prologue.bound_symbols) - 1  # before the return
            add_check(prologue, at, TIED, _check_tied, second.proxy, first)
        results.computation_trace = _renamed(results.computation_trace, first_of)
        return results

    thunder.thunder_general_jit = general_jit


def _check_tied(second: Any, first: Any) -> None:
    if second is not first:
        raise LookupError("two parameters that were one")


def _has_plain_parameters(function: Any) -> bool:
    module = get_thunder_module(function) if isinstance(function, nn.Module) else None
    is_sharded = getattr(function, "use_ddp", False) or getattr(function, "use_fsdp", False)
    return module is not None and not is_sharded and not getattr(module, "_lc_transforms", ())


def _tied(prologue: TraceCtx, function: Any) -> Iterator[tuple[Proxy, Proxy]]:
    """(the first name of a parameter, another one), for those of the jitted module."""
    module, known, roots = get_thunder_module(function), dict[int, Proxy](), set[str]()
    for bsym in prologue.bound_symbols:
        of = getattr(bsym.args[0], "name", "") if bsym.args else ""
        is_module = bsym.sym.id is PrimIDs.UNPACK_THUNDER_MODULE and of in roots
        if is_module or bsym.sym.id is PrimIDs.UNPACK_FUNCTION_OBJ:
            roots.add(bsym.output.name)
        elif bsym.sym.id is PrimIDs.UNPACK_PARAMETER and of in roots:
            first = known.setdefault(id(module.get_parameter(bsym.args[1])), bsym.output)
            if first is not bsym.output:
                yield first, bsym.output


def _renamed(trace: TraceCtx, first_of: dict[Variable, Proxy]) -> TraceCtx:
    """The trace, which reads these values by their first names."""
    renamed = from_trace(trace)
    renamed.bound_symbols = [
        bsym if bsym.sym.id is PrimIDs.UNPACK_TRIVIAL else bsym.from_bsym_swap_proxies(first_of)
        for bsym in trace.bound_symbols
    ]
    return renamed
