# SPDX-License-Identifier: Apache-2.0
"""A Region -> the function a trace calls: looked up by layout, defined and compiled on a miss.

    arguments -> layouts -> (miss) Definition -> compile -> a runner kept for these layouts
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial, wraps
from typing import Any, TypeVar

import torch
from thunder.core import dtypes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.torch.experimental.dtensor_proxy import is_dtensor_proxy

from thunder_fuser.base.dump import drop, temporary_folder
from thunder_fuser.base.failures import OF_SYSTEM, build_error, cause_of, with_innermost_frame
from thunder_fuser.base.logs import timing
from thunder_fuser.base.stages import stage
from thunder_fuser.base.threads import BACKGROUND, first_time
from thunder_fuser.base.warn import line_of_the_call, warn_at
from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.errors import (
    CacheMissError,
    EmulatorError,
    FallbackWarning,
    FuserError,
    LaunchError,
    OptionError,
    OutOfRangeError,
    ToolchainError,
)
from thunder_fuser.executors.record.record import (
    Layout,
    layout_of,
    record_region,
    whole_layout,
)
from thunder_fuser.executors.record.torch_function import torch_function, view_function, views_for
from thunder_fuser.executors.regions.plan import RegionMemory
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.executors.support.dtensor import on_dtensors, on_locals, sharded
from thunder_fuser.executors.support.index_rows import AT_INDICES
from thunder_fuser.host.call.arguments import check_memory, check_plain
from thunder_fuser.host.call.dispatch import CHECKED, WRITTEN, make_dispatch, on_resolved
from thunder_fuser.host.call.recompiles import note_miss
from thunder_fuser.host.script import repro_text
from thunder_fuser.ir.record import Definition
from thunder_fuser.options import OptionValue, in_force, option
from thunder_fuser.source.lines import line_of, span_of
from thunder_fuser.trace.proxies import makes, reads

RegionRunner = Callable[..., Sequence[torch.Tensor]]
Compile = Callable[[Definition, str, Sequence[Any]], RegionRunner]
T = TypeVar("T")

_OP = re.compile(r"fd\.ops\.(\w+)\(.*?(?:\bdim=(\d+))?\)")
_IN_SELF = "index out of range in self"
_AT_AXIS = "index {got} is out of bounds for dimension {dim} with size {size}"
# Only losses read along an axis at indices that nothing has brought into the range.
_WORDS = {
    "take_along_axis": "Target {got} is out of bounds.",
    "index_select": _IN_SELF,
    "embedding_fwd": _IN_SELF,
}


class RegionCallable:
    """Makes `call`, the function of a region. All work waits for its first call.

    `options` are those of the jit call, in force while the region is compiled. A model has many
    regions, and each lives as long as the compiled function: what they have in common is shared.
    fallbacks: why torch runs calls of it.
    """

    __slots__ = (
        "__weakref__", "_compile", "_expected", "_freeing", "_keeping", "_options", "call",
        "context", "definitions", "fallbacks", "memory", "name", "on_mesh", "one_by_one", "region",
    )

    def __init__(
        self,
        name: str,
        region: Region,
        memory: RegionMemory,
        compile_region: Compile,
        options: Mapping[str, OptionValue],
    ) -> None:
        self.name, self.region, self.memory = name, region, memory
        self.definitions: tuple[Definition, ...] = ()
        self.fallbacks: tuple[str, ...] = ()
        self._compile = compile_region
        self._options = options
        # What was recorded ahead of the first call: for which layouts, and the definition.
        self._expected: tuple[Any, Definition] | None = None
        self.one_by_one: RegionRunner | None = None
        # Not the proxies' names: a user may call an argument `key`.
        inputs = [(f"a{at}", _kind(proxy)) for at, proxy in enumerate(region.inputs)]
        self._keeping: Any = None
        self._freeing: Any = None
        how: dict[str, Any] = {"checked": False, "name": name}
        if memory.writes:
            how |= {"marks": _marks(region, memory), "in_turn": self._in_turn}
        if not region.makes_views:
            self._keeping = make_dispatch(inputs, self._miss, **how)
        if memory.donated_if_freed:
            donated = (*memory.donated, *memory.donated_if_freed)
            self._freeing = make_dispatch(inputs, partial(self._compiled, donated), **how)
        self.call: Any = self._call()
        self.on_mesh = any(map(is_dtensor_proxy, region.outputs))
        if self.on_mesh:
            self.call = on_locals(self.call, region.inputs, region.outputs)
        self.context = {name: self.call}  # as Thunder's bound symbols have it

    def meta(self, *args: Any) -> list[Proxy]:
        """What Thunder is told of the results."""
        return list(self.region.outputs)

    def _call(self) -> RegionRunner:
        keeping, freeing = self._keeping, self._freeing
        if keeping is None:
            return view_function(self.region)
        if freeing is None:
            return keeping  # type: ignore[no-any-return]

        def call(*args: Any) -> Sequence[torch.Tensor]:
            """`freeing` writes over what autograd has kept, where that is about to be freed."""
            return (freeing if may_be_freed() else keeping)(*args)  # type: ignore[no-any-return]

        return call

    @property
    def tables(self) -> list[dict[Any, RegionRunner]]:
        """The runners by layouts and shapes: of calls that keep all operands, and of calls that
        may write over some."""
        return [call.runners for call in (self._keeping, self._freeing) if call is not None]

    @property
    def runners(self) -> list[RegionRunner]:
        """What its calls have run, for each layout and shape of theirs."""
        return [run for known in self.tables for run in known.values()]

    def views(self, args: Sequence[Any]) -> RegionRunner | None:
        """A function that returns the results as views, if they are views of such arguments."""
        return views_for(self.region, args) if self.region.moves_only else None

    def _in_turn(self, *args: Any) -> Sequence[torch.Tensor]:
        """Runs the ops by torch, where what one writes shares memory with what another reads."""
        if self.one_by_one is None:
            self.one_by_one = torch_function(self.region, self.name)
        return self.one_by_one(*args)

    def _miss(self, args: Sequence[Any]) -> RegionRunner:
        return self.views(args) or self._compiled(self.memory.donated, args)

    def _compiled(self, donated: tuple[str, ...], args: Sequence[Any]) -> RegionRunner:
        for name, tensor in self._tensors(args):
            check_memory(name, tensor)  # the fallback would read freed memory too
        with in_force(self._options):
            names = [proxy.name for proxy in self.region.inputs]
            note_miss(self, self.name, names, args, variant=donated)
        return on_resolved(lambda plain: self._compiled_for(donated, plain), args)

    def _tensors(self, args: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
        """(name in messages, tensor) for each tensor among the arguments."""
        for at, arg in enumerate(args):
            if isinstance(arg, torch.Tensor):
                yield f"argument {at} of {self.name}", arg

    def _compiled_for(self, donated: tuple[str, ...], args: Sequence[Any]) -> RegionRunner:
        with in_force(self._options), timing(self.name):
            definition: Definition = ()
            try:
                definition = self._define(donated, args)
                return in_words(self._compile(definition, self.name, args), self.name, self.region)
            except (LaunchError, EmulatorError, OptionError, CacheMissError, Warning):
                raise  # a kernel that misbehaves, or a broken promise, is never papered over
            except KeyboardInterrupt:
                BACKGROUND.abandon()  # it may be what the call was waiting for
                raise
            except Exception as error:  # no other name for it: its frames hold the arguments
                return self._fallback(build_error(error), definition, args)

    def _fallback(
        self, failure: FuserError, definition: Definition, args: Sequence[Any]
    ) -> RegionRunner:
        """The torch ops, with a warning; raises the failure if the option strict is set."""
        where = self.region.where or line_of_the_call()
        if option("strict"):
            cause = with_innermost_frame(failure.__cause__)
            # Anew: the frames of the compiler would be a hundred lines.
            raise failure.at(f"{self.name}, {where}").with_traceback(None) from cause
        self.fallbacks = tuple(dict.fromkeys((*self.fallbacks, str(failure))))
        ops = len(self.region.leaves)
        warn_of_fallback(failure, definition, args, name=self.name, ops=ops, where=where)
        run = torch_function(self.region, self.name)
        return on_dtensors(run, self.region.inputs) if self.on_mesh else run

    def ahead(
        self, prepare: Callable[[Definition, Sequence[Any]], T], args: Sequence[Any]
    ) -> T | None:
        """`prepare` applied to the definition that a call will look up, under its options.

        args: like those of the call, tensors on the meta device. None on a mesh, and where views
        are enough.
        """
        if self.on_mesh or self.views(args) is not None:
            return None
        freed = self.memory.donated_if_freed  # most often a backward frees what it reads
        donated, layouts = (*self.memory.donated, *freed), self._layouts(args)
        with in_force(self._options):
            definition = self._recorded(donated, layouts)
            self._expected = (donated, layouts), definition
            return prepare(definition, args)

    def _define(self, donated: tuple[str, ...], args: Sequence[Any]) -> Definition:
        for name, tensor in self._tensors(args):
            check_plain(name, tensor)
        layouts, expected = self._layouts(args), self._expected
        self._expected = None
        if expected is not None and expected[0] == (donated, layouts):
            definition = FusionCache.get().interned(expected[1])
        else:
            definition = self._recorded(donated, layouts)
        if definition not in self.definitions:  # other sizes are most often the same one
            self.definitions += (definition,)
        return definition

    @stage("record")
    def _recorded(
        self, donated: tuple[str, ...], layouts: Sequence[Layout | None]
    ) -> Definition:
        definition = record_region(self.region, self.memory, layouts, donated)
        return FusionCache.get().interned(sharded(definition, self.region.inputs))

    def _layouts(self, args: Sequence[Any]) -> list[Layout | None]:
        return [
            (whole_layout(proxy) if self.on_mesh else layout_of(arg))
            if isinstance(arg, torch.Tensor) else None
            for proxy, arg in zip(self.region.inputs, args, strict=True)
        ]  # fmt: skip


def compile_region(definition: Definition, name: str, args: Sequence[Any]) -> RegionRunner:
    """The program of a region's definition for arguments like these, from the process's cache."""
    return FusionCache.get().look_up(definition).program_for(args, name=name).run


def bind_callable(bsym: BoundSymbol) -> None:
    """Makes a bound symbol call the owner of its meta. Thunder asks for it at each new copy."""
    bsym._call_ctx = bsym.sym.meta.__self__.context


def callable_of(bsym: BoundSymbol) -> RegionCallable | None:
    """What a bound symbol of a trace calls, if it is a region of ours."""
    owner = getattr(bsym.sym.meta, "__self__", None)
    return owner if isinstance(owner, RegionCallable) else None


# ------------------------------------------------------------------------ what a call may write


_freed = ContextVar("freed", default=False)


@contextmanager
def as_if_freed() -> Iterator[None]:
    """Runs a backward by hand, on this thread, as autograd would for the last time."""
    token = _freed.set(True)
    try:
        yield
    finally:
        _freed.reset(token)


def may_be_freed() -> bool:
    """Whether the running backward is the last one to read what the forward has kept.

    False outside of autograd. A CUDA graph is captured once and replayed under whatever its caller
    wants.
    """
    return _freed.get() or not (
        torch._C._autograd._get_current_graph_task_keep_graph()
        or (_has_cuda() and torch.cuda.is_current_stream_capturing())
    )


_has_cuda = cache(torch.cuda.is_available)  # it does not change, and is asked at every call


def _marks(region: Region, memory: RegionMemory) -> bytes:
    """For each input, what `may_write` has to know of it."""
    writes = {write.target: write for write in memory.writes}

    def mark(proxy: Proxy) -> int:
        if not isinstance(proxy, TensorProxy):
            return 0
        write = writes.get(proxy.name)
        flags = 0 if write is None else WRITTEN | CHECKED * write.is_checked
        return flags | proxy.dtype.bytes

    return bytes(map(mark, region.inputs))


def _kind(proxy: Proxy) -> str:
    if not isinstance(proxy, TensorProxy):
        return "number"
    return "complex" if dtypes.is_complex_dtype(proxy.dtype) else "tensor"


# -------------------------------------------------------------- a region that cannot be compiled


def warn_of_fallback(
    error: FuserError,
    definition: Definition,
    args: Sequence[Any],
    *,
    name: str,
    ops: int,
    where: str,
) -> None:
    """Gives a FallbackWarning at a line of the user's program, one for all regions that fail alike.

    definition: empty if the region has none. ops: the number of torch ops that run instead. where:
    file:line.
    """
    if not first_time(("fallback", cause_of(error))):
        drop(error.folder)  # no message names it
        return
    lines = [
        f"{name} ({where}) falls back to torch for {ops} ops: compilation failed:"
        f" {error.sentence.rstrip('.')}.",
        *error.facts["lines"],
        "Other regions that fail so are not reported.",
    ]
    is_of_machine = isinstance(error, ToolchainError) or isinstance(error.__cause__, OF_SYSTEM)
    if definition and not is_of_machine:
        lines.append(_again(name, error, definition, args))
    warn_at(where, "\n".join(lines), FallbackWarning)


def _again(name: str, error: FuserError, definition: Definition, args: Sequence[Any]) -> str:
    """Writes the script beside the text of the stages, else into a folder of its own."""
    try:
        path = (error.folder or temporary_folder()) / f"{name}.py"
        path.write_text(repro_text(name, error.sentence, definition, args), encoding="utf-8")
    except OSError as full:
        return f"No script that reproduces it could be written ({full.strerror or full})."
    return f"To reproduce it without Thunder: python {path}"


# --------------------------------------------------------------------------- an index out of range


def in_words(run: Callable[..., Any], name: str, region: Region) -> Callable[..., Any]:
    """The runner of a region, called `name`, whose index out of range is an error with the user's
    line, and torch's words; itself if it reads no indices.

        T13 = fd.ops.take_along_axis(T2, T12, dim=1): index: expected numbers from 0 to 6, got 7
    ->  thunderFusion0: take_along_axis: index: expected numbers from 0 to 6, got 7 (at train.py:12)
        torch says: Target 7 is out of bounds.
    """
    if not any(leaf.sym.id in AT_INDICES for leaf in region.leaves):
        return run

    @wraps(run)
    def call(*args: Any) -> Sequence[Any]:
        try:
            return run(*args)  # type: ignore[no-any-return]
        except OutOfRangeError as error:
            raise _in_words(error, name, region).with_traceback(None) from error

    return call


def _in_words(error: OutOfRangeError, name: str, region: Region) -> OutOfRangeError:
    indexing = [leaf for leaf in region.leaves if leaf.sym.id in AT_INDICES]
    where = span_of([*map(line_of, indexing)]) or region.where
    match = _OP.search(error.thing)
    op, dim = match.groups() if match else ("", None)
    facts, got = error.facts, int(error.facts["got"])
    size, words = int(facts["expected"].rpartition(" ")[2]) + 1, _WORDS.get(op, _AT_AXIS)
    if op == "index_select" and _counts_from_the_end(region):
        facts, words = {**facts, "expected": f"numbers from {-size} to {size - 1}"}, _AT_AXIS
        got, dim = got - size * (got < 0), "0"  # torch counts the axes that are indexed
    words = words.format(got=got, dim=dim or 0, size=size)
    facts = {**facts, "got": str(got), "where": where, "lines": (f"torch says: {words}",)}
    return OutOfRangeError(f"{name}: {op}: index", **facts)


def _counts_from_the_end(region: Region) -> bool:
    """True for x[i], which adds the size to an index below 0: i + where(i < 0, size, 0)"""
    kinds = {out.name: leaf.sym.id for leaf in region.leaves for out in makes(leaf)}
    wrapped = {
        makes(leaf)[0].name for leaf in region.leaves
        if leaf.sym.id is PrimIDs.ADD
        and PrimIDs.WHERE in [kinds.get(proxy.name) for proxy in reads(leaf)]
    }  # fmt: skip
    takes = (leaf for leaf in region.leaves if leaf.sym.id is PrimIDs.TAKE)
    return all(leaf.args[1].name in wrapped for leaf in takes)
