# SPDX-License-Identifier: Apache-2.0
"""Where Thunder calls what an executor adds: the functions of `Hooks`.

    a bound symbol's line        the nearest line of the user's program, not one inside of torch
    a tensor among arguments     -> note_argument, for Thunder forgets its strides
    a trace to differentiate     -> before_gradient, behind_transforms
    a fusion, which Thunder      -> may_be_edited
      would build again

    executors=[fuser, torchcompile_xentropy]: the second executor's pass ends with
    rematerialize(trace)             moves ops between fusions of any executor
    update_fusion_call_ctx(trace)    builds each fusion again, from its ops alone

What a region saves or recomputes was decided by our policy already. And its ops do not say all of
it: what it writes in place, which of its inputs are overwritten later, its options. In a trace that
writes in place Thunder moves none: behind a write, an op reads what was written.
"""

from __future__ import annotations

import sys
from typing import Any

import thunder
import thunder.torch as ltorch
import torch
from thunder.core import proxies, rematerialization
from thunder.core.codeutils import Positions
from thunder.core.interpreter import InterpreterRuntimeCtx
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.executors import passes
from thunder.torch.default_torch_ops import torch_auto_registered_ops

from thunder_fuser.source.lines import place_of
from thunder_fuser.thunder_patches.patch import Hooks
from thunder_fuser.trace.proxies import COPIES, parts


def user_lines_first(hooks: Hooks) -> None:
    """From now on, functions jitted with this executor note lines of the user's program."""
    of_thunder = InterpreterRuntimeCtx.get_current_user_source_location

    def location(self: Any) -> tuple[str | None, Any]:
        place = None if hooks.compilation() is None else place_of(self.frame_stack)
        if place is not None:
            file, line = place
            return file, Positions(line, line, 0, 0)
        return of_thunder(self)  # type: ignore[no-any-return]

    InterpreterRuntimeCtx.get_current_user_source_location = location


def note_arguments(hooks: Hooks) -> None:
    """From now on, the executor is told of the tensors among the arguments of its functions."""
    of_thunder = proxies.tensorproxy

    def tensorproxy(tensor: Any, /, *, name: str | None, history: Any = None) -> TensorProxy:
        data = hooks.compilation()
        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if data is not None and history is not None and is_plain:
            hooks.note_argument(data, history, tensor)
        return of_thunder(tensor, name=name, history=history)

    proxies.tensorproxy = tensorproxy


def change_before_gradient(hooks: Hooks) -> None:
    """From now on, the executor may change a trace before Thunder differentiates it."""
    of_thunder = thunder.insert_alias_updates

    def insert_alias_updates(trace: TraceCtx, aliases: list[list[int]]) -> TraceCtx:
        if hooks.compilation() is None:
            return of_thunder(trace, aliases)
        changed = hooks.before_gradient(trace, aliases)
        return of_thunder(trace, aliases) if changed is None else of_thunder(changed, [])

    thunder.insert_alias_updates = insert_alias_updates


def change_behind_transforms(hooks: Hooks) -> None:
    """From now on, the executor may change what transforms made of a trace (tensor parallel)."""
    of_thunder = thunder.dce

    def dce(trace: TraceCtx, *needed: Any, **named: Any) -> TraceCtx:
        changed = trace if hooks.compilation() is None else hooks.behind_transforms(trace)
        return of_thunder(changed, *needed, **named)

    thunder.dce = dce


def keep_regions(hooks: Hooks) -> None:
    """From now on, Thunder's passes leave fusions as they are that may not be edited."""
    rebuilt = passes._update_fusion_call_ctx

    def rebuilt_if_edited(bsym: BoundSymbol) -> BoundSymbol:
        return rebuilt(bsym) if hooks.may_be_edited(bsym) else bsym

    def pairs(trace: Any, *, proxy_to_consumers: Any = None) -> Any:
        if any(part.sym.id in COPIES for bsym in trace.bound_symbols for part in parts(bsym)):
            return ()
        return rematerialization.find_filtered_producer_consumer_pairs(
            trace, hooks.may_be_edited, proxy_to_consumers=proxy_to_consumers
        )

    passes._update_fusion_call_ctx = rebuilt_if_edited
    rematerialization.find_fusion_producer_consumer_pairs = pairs


def leave_in_graphs(hooks: Hooks) -> None:
    """From now on, thunderfx leaves the executor's functions in graphs for Thunder. It takes out
    those of a list for which Thunder only calls torch, and reads that list when it is imported.
    And sums of three sizes, by which caches that grow are joined; Thunder has a rule for two."""
    ltorch._torch_to_thunder_function_map.setdefault(torch.sym_sum, sum)
    functions = hooks.executor._lookasides
    for ops in torch_auto_registered_ops.values():
        ops[:] = [function for function in ops if function not in functions]
    if (imported := sys.modules.get("thunder.dynamo.utils")) is not None:
        imported.auto_register_ops.difference_update(functions)
