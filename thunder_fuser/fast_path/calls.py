# SPDX-License-Identifier: Apache-2.0
"""thunder.jit with the fuser, and a shorter way through Thunder for calls that it has compiled.

    jit(model)  ->  the result of thunder.jit, but each call runs these steps:

    environment()                   reads torch's global state, once a call
    structure_of(args, kwargs)      what Thunder's guards do not compare, such as None
    guard(args, kwargs)             Thunder's guards, of the newest compilation first
    computation(*inputs)            the regions and torch's operations
    connect(...)                    puts the results into autograd's graph, with one Function
    epilogue(...)                   the results as the function returns them

A call that no guard accepts goes to Thunder, which compiles it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from inspect import unwrap
from time import perf_counter_ns
from typing import Any, NamedTuple
from weakref import ref

import thunder
import torch
from thunder import CacheEntry
from thunder.common import CompileStats
from thunder.core.module import ThunderModule
from thunder.core.options import CACHE_OPTIONS
from thunder.core.trace import _tracectx
from thunder.core.update_aliases import _is_inplace_op
from thunder.executors.torch_autograd import connect_to_autograd
from thunder.extend import Executor, FusionExecutor, get_default_executors, resolve_executors
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

from thunder_fuser.errors import OptionError, shown
from thunder_fuser.executors.cuda_graphs.transform import pieces_in
from thunder_fuser.executors.fuser import fuser
from thunder_fuser.fast_path.guards import Guarded, Inputs, guarded
from thunder_fuser.fast_path.torch_state import Environment, environment, without_autocast
from thunder_fuser.source.jit_options import refuse_words
from thunder_fuser.thunder_patches.fixes.arguments import structure_of
from thunder_fuser.thunder_patches.fixes.autograd import Grads, refusing_another
from thunder_fuser.trace.proxies import bytes_of

JitCall = Callable[..., Any]
LARGE = 16 << 20  # bytes
SPLIT = "thunderfx_disable_split_autograd"  # Thunder's name of the option
_NONE: Any = ...  # no argument; None is a wrong argument


def jit(
    function: Callable[..., Any] = _NONE,
    *,
    executors: Sequence[Executor | str] | None = None,
    **options: Any,
) -> Any:
    """thunder.jit with the fuser before Thunder's default executors; its calls run less Python.

    Without a function it is a decorator: @thunder_fuser.jit(fuser_strict=True).

    executors: must contain the fuser. The default is the fuser and Thunder's default executors
    without those that fuse: for these, Thunder would cut the fuser's regions again. options: as for
    thunder.jit.

    Three things differ from thunder.jit(function, executors=[fuser]):

    - One autograd Function instead of two if the results have less than 16 MiB, or the backward
      runs in CUDA graphs: gradients of results are kept until the backward ends.
      thunderfx_disable_split_autograd=False always gives two.
    - A call checks which arguments share memory only if the program writes in place.
    - The times in thunder.compile_stats are those of the last call that compiled.

    Raises OptionError for what cannot be called, for executors without the fuser, and for keywords
    of torch.compile.
    """
    refuse_words("thunder_fuser.jit", options)
    checked = _checked(executors)
    if function is _NONE:
        return partial(jit, executors=checked, **options)
    if not callable(function):
        raise OptionError(
            "thunder_fuser.jit", expected="a function or a module", got=shown(function),
            do="write jit(function), or @jit above its definition",
        )  # fmt: skip
    _refuse_hooks(function)
    of_thunder = thunder.jit(function, executors=checked, **{SPLIT: True, **options})
    fast = FastPath(of_thunder, function, may_split=SPLIT not in options)
    fast.recipe = (jit, options)
    if isinstance(of_thunder, ThunderModule):
        of_thunder._forward_fn = fast.around(of_thunder._forward_fn)
        return of_thunder
    return fast.around(of_thunder)


def _refuse_hooks(function: Callable[..., Any]) -> None:
    """Raises OptionError for a module with parts of FSDP2, whose hooks Thunder does not read."""
    module = getattr(function, "__self__", function)
    parts = [*module.modules()] if isinstance(module, torch.nn.Module) else []
    if any(each.__name__ == "FSDPModule" for part in parts for each in type(part).__mro__):
        raise OptionError(
            "thunder_fuser.jit", expected="a module without FSDP2", got=type(module).__name__,
            do="write model.compile(backend=ThunderCompiler(executors=[fuser]))",
        )  # fmt: skip


def _checked(executors: Sequence[Executor | str] | None) -> tuple[Executor, ...]:
    if executors is None:
        others = (each for each in get_default_executors() if not isinstance(each, FusionExecutor))
        return (fuser, *others)
    resolved = tuple(resolve_executors(executors)) if isinstance(executors, (list, tuple)) else ()
    if fuser not in resolved:
        got = str([executor.name for executor in resolved] or shown(executors))
        what, do = "thunder_fuser.jit(executors=...)", "write executors=[fuser, ...]"
        raise OptionError(what, expected="a list with the fuser", got=got, do=do)
    return resolved


class CompiledEntry(NamedTuple):
    """An entry of Thunder's cache, its guards (None if only Thunder can check them), and its
    functions without decorators."""

    entry: CacheEntry
    guarded: Guarded | None
    computation: JitCall
    backward: JitCall | None
    epilogue: JitCall
    splits: bool  # True: two autograd Functions, as Thunder


class FastPath:
    """The calls of one jitted function. It holds a jitted module weakly, to avoid a cycle."""

    def __init__(self, of_thunder: Any, function: Callable[..., Any], *, may_split: bool) -> None:
        self.stats: CompileStats = thunder.compile_stats(of_thunder)
        data = thunder.compile_data(of_thunder)
        self.constant = data.cache_option is CACHE_OPTIONS.CONSTANT_VALUES
        self.one_function = bool(data.compile_options[SPLIT])
        self.differentiable = data.compile_options.get("is_differentiable_outputs")
        self.may_split = may_split and self.differentiable is None
        self.module = ref(of_thunder) if isinstance(of_thunder, ThunderModule) else None
        self.attributes: dict[str, Any] = getattr(function, "__dict__", {})
        self.known: list[CompiledEntry] = []
        self.recipe: tuple[JitCall, dict[str, Any]]  # `jit` and its keywords, to copy a module

    def around(self, of_thunder: JitCall) -> JitCall:
        """The function that users call."""

        @wraps(of_thunder)  # copies the attributes by which Thunder knows a jitted function
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_special():
                return of_thunder(*args, **kwargs)
            here, structure = environment(), structure_of(args, kwargs)
            for known in reversed(self.all_known()):
                guards = known.guarded
                if guards is None:
                    break
                if guards.environment == here and guards.structure in (None, structure):
                    try:
                        inputs = guards.guard(args, kwargs)
                    except Exception:  # a guard that failed, as for Thunder
                        continue
                    if inputs is not None:
                        self.count(known.entry)
                        return self.run(known, inputs, here)
            return self.compiled(of_thunder, args, kwargs, here)

        vars(call)["fast_path"] = self
        return call

    def compiled(
        self, of_thunder: JitCall, args: tuple[Any, ...], kwargs: dict[str, Any], here: Environment
    ) -> Any:
        """A call that Thunder compiles, or finds with guards that are not known here. Where it has
        gradients they are connected as in the calls after it.
        """
        _, _, grad, _ = here
        if not (grad and self.constant and self.one_function) or self.differentiable is not None:
            return of_thunder(*args, **kwargs)
        self.stats.calls += 1
        self.stats.last_trace_host_start = perf_counter_ns()
        data = thunder.compile_data(of_thunder if self.module is None else self.module())
        entry, *inputs = data.get_computation_and_inputs(*args, **kwargs)
        prologue = entry.prologue_fn
        known = next(each for each in self.all_known() if each.entry.prologue_fn is prologue)
        try:
            return self.run(known, (inputs[0], inputs[1]), here)
        finally:
            self.stats.last_computation = entry.computation_fn
            self.stats.last_trace_host_stop = perf_counter_ns()

    def all_known(self) -> list[CompiledEntry]:
        """What is known of each entry of Thunder's cache, in its order."""
        cache, known = self.stats.interpreter_cache, self.known
        if len(cache) != len(known) or (cache and cache[-1] is not known[-1].entry):
            before = {id(each.entry): each for each in known}
            self.known = known = [before.get(id(each)) or self.know(each) for each in [*cache]]
        return known

    def know(self, entry: CacheEntry) -> CompiledEntry:
        writes = any(map(_is_inplace_op, entry.computation_traces[0].bound_symbols))
        plain = self.constant and not entry.return_none_instead_of_grads
        guards = guarded(entry.prologue_traces[-1], self.module, writes=writes) if plain else None
        backward = entry.backward_fn and unwrap(entry.backward_fn)
        splits = not self.one_function
        if backward and self.may_split and not splits and not _is_in_graphs(entry):
            # Freeing large gradients of results early is worth its time.
            returned, _ = entry.computation_traces[-1].bound_symbols[-1].args
            splits = sum(map(bytes_of, returned["flat_output"])) >= LARGE
        return CompiledEntry(
            entry, guards, unwrap(entry.computation_fn), backward, unwrap(entry.epilogue_fn), splits
        )

    def is_special(self) -> bool:
        """True if Thunder, or autograd's Function, must look at more than guards."""
        return (
            _tracectx.get(None) is not None
            or _is_transforming()
            or "use_ddp" in self.attributes
            or "use_fsdp" in self.attributes
        )

    def count(self, entry: CacheEntry) -> None:
        """Notes a hit of Thunder's cache, as Thunder does."""
        stats = self.stats
        stats.calls += 1
        stats.cache_hits += 1
        if stats.last_traces is not entry.computation_traces or stats.last_interpreter_log:
            stats.last_traces = entry.computation_traces
            stats.last_prologue_traces = entry.prologue_traces
            stats.last_prologue = entry.prologue_fn
            stats.last_computation = entry.computation_fn
            stats.last_interpreter_log = stats.last_interpreted_instructions = None

    def run(self, known: CompiledEntry, inputs: Inputs, here: Environment) -> Any:
        of_computation, of_epilogue = inputs
        _, _, grad, autocast = here
        _set_grad(False)
        try:
            if autocast is None:
                results = known.computation(*of_computation)
            else:
                results = without_autocast(known.computation, of_computation)
            if known.backward is not None:
                results = self.connect(known, known.backward, *results)
            return known.epilogue(*of_epilogue, *results)
        finally:
            _set_grad(grad)

    def connect(self, known: CompiledEntry, backward: JitCall, data: Any, kept: Any) -> Any:
        """The results, in autograd's graph."""
        _set_grad(True)
        if not known.splits and self.differentiable is None:
            connect(backward, data, kept)
        else:
            connect_to_autograd(
                backward_fn=known.entry.backward_fn, flat_args=data["flat_args"],
                flat_output=data["flat_output"], saved_tensors=kept[0], saved_other=kept[1],
                return_none_instead_of_grads=False, disable_split_autograd=not known.splits,
                is_differentiable_outputs=self.differentiable,
            )  # fmt: skip
        _set_grad(False)
        return data["output"]


def fast_path_of(jitted: Any) -> FastPath:
    """The FastPath of a result of `jit`: what it knows, and the steps of its calls."""
    way: FastPath = getattr(jitted, "_forward_fn", jitted).fast_path
    return way


def _is_in_graphs(entry: CacheEntry) -> bool:
    """True if a graph copies the gradients of results at its start: freeing them saves nothing."""
    return bool(pieces_in(entry.backward_traces[-1].bound_symbols))


# ------------------------------------------------------------------------------ autograd's graph


def _run(ctx: Any, *grads: torch.Tensor) -> Grads:
    saved = list(ctx.saved_tensors)  # the trace empties the list
    ctx.maybe_clear_saved_tensors()
    args = ([saved, ctx.others], list(grads))
    if torch._C._is_any_autocast_enabled():
        return (None, *without_autocast(ctx.backward_of_trace, args))
    return (None, *ctx.backward_of_trace(*args))


class _Connection(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, parts: tuple[Any, ...], *inputs: torch.Tensor) -> Any:
        backward, saved, others, results = parts
        ctx.backward_of_trace, ctx.others = backward, others  # type: ignore[attr-defined]
        # As Thunder does: autograd leaks a kept view of a result. None: a torch op returned none
        # against its type.
        ctx.save_for_backward(*(
            kept if kept is None or kept._base is None else kept.detach() for kept in saved
        ))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        if torch.is_grad_enabled():  # with create_graph=True
            read = (*grads, *ctx.saved_tensors)
            return refusing_another(ctx, read, lambda: _run(ctx, *grads))
        return _run(ctx, *grads)


# Function.apply without its steps for torch.func's transforms: callers exclude these.
_apply: Callable[..., Any] = super(Function, _Connection).apply  # type: ignore[misc]


def connect(backward: Callable[..., Grads], data: Mapping[str, Any], kept: tuple[Any, Any]) -> None:
    """Puts the results of a forward into autograd's graph. Gradients must be on.

    Thunder's second Function frees a gradient of a result as soon as the backward has read it; here
    these gradients live until the backward ends. backward: the function of the trace, undecorated;
    data, kept: as Thunder's forward trace returns them.
    """
    _apply((backward, *kept, data["flat_output"]), *data["flat_args"])

_set_grad = torch._C._set_grad_enabled
_is_transforming = torch._C._are_functorch_transforms_active
