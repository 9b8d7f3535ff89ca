# SPDX-License-Identifier: Apache-2.0
"""A final trace -> the same trace with runs of calls joined to pieces, which replay.py replays.

    i0, i1 = draw_random_state(...)          i0, i1 = draw_random_state(...)
    [t2] = thunderFusion0(i0, i1, x)    ->   [t3] = cudaGraph0(i0, i1, x, w)
    t3 = linear(t2, w)                           # [t2] = thunderFusion0(...), t3 = linear(...)
    i4 = item(t3)                            i4 = item(t3)

The option cuda_graphs adds this transform to those of a jitted function, as the last one. Calls
that need the host each time, such as reading a number, stay between the pieces.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from types import MappingProxyType
from typing import Any
from weakref import ref

import thunder
import torch
from thunder.common import CompileData
from thunder.core import prims
from thunder.core.codeutils import SigInfo
from thunder.core.compile_data import get_compile_data
from thunder.core.devices import to_torch_device
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, Proxy, ProxyTag, TensorProxy
from thunder.core.pytree import tree_iter
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace
from thunder.core.transform_common import Transform
from thunder.torch.experimental.dtensor_proxy import is_dtensor_proxy
from thunder.transforms.cudagraph import CUDAGraphTransform

from thunder_fuser.base.logs import log
from thunder_fuser.base.threads import cached_property
from thunder_fuser.errors import OptionError
from thunder_fuser.executors.cuda_graphs.graph import LEAST_HANDED, Capturer
from thunder_fuser.executors.cuda_graphs.replay import Graphs, GraphSegment, Input
from thunder_fuser.executors.run.region_callable import bind_callable
from thunder_fuser.executors.support.check import ACROSS_RANKS
from thunder_fuser.options import OptionValue, in_force, option
from thunder_fuser.runtime.cuda_graphs import CudaRecorder, cuda_recorder
from thunder_fuser.runtime.driver_graphs import keep
from thunder_fuser.runtime.graph_pools import taken
from thunder_fuser.source.jit_options import options_of_jit
from thunder_fuser.trace.proxies import (
    COLLECTIVES,
    COPIES,
    FENCES,
    TORCH_VIEWS,
    VIEWS,
    bytes_of,
    makes,
    overwritten,
    parts,
    reads,
)

_LEAST = 2  # launches of a piece: a replay costs more than one
# Thunder's prims and the symbols of its executor for torch.
_WITHOUT_LAUNCH = VIEWS | FENCES | {"shallow_copy", "torch_slice_prim_impl"}
_MAY_VIEW = TORCH_VIEWS | {"torch_prims_reshape_impl"}
_STRUCTURE = frozenset(
    {
        PrimIDs.UNPACK_TRIVIAL, PrimIDs.UNPACK_SEQUENCE, PrimIDs.UNPACK_KEY,
        PrimIDs.UNPACK_EMPTY_DICT, PrimIDs.RETURN, PrimIDs.DEL, PrimIDs.COMMENT,
        "clear_mutable_collection",
    }
)  # fmt: skip
_ON_HOST = {
    **dict.fromkeys((PrimIDs.ITEM, "item"), "it reads a number from the device"),
    **dict.fromkeys(
        ("draw_random", "draw_random_state", PrimIDs.GET_AND_UPDATE_RNG_STATE,
         "get_and_update_rng_state"),
        "it draws from torch's generator",
    ),
    **dict.fromkeys(
        (*COLLECTIVES, "torch_all_to_all_single", "torch_reduce_to"),
        "it communicates",
    ),
}  # fmt: skip


class CudaGraphs(Transform):  # type: ignore[misc]
    """The transform that makes pieces in the final traces of one jitted function.

    recorder: replaces the recorders of the devices, for tensors of its device_type.
    """

    keeps_order = True  # no call moves (run/bind.py)

    def __init__(self, data: CompileData | None = None, recorder: Capturer | None = None) -> None:
        self._data = data and ref(data)
        self._recorder = recorder
        self.graphs: dict[torch.device, Graphs] = {}
        self.saved: frozenset[str] = frozenset()

    def transform_trace_post_optimization(self, trace: TraceCtx, **_: Any) -> TraceCtx:
        """The trace with pieces. Thunder calls this for the forward, then for the backward.

        A list of transforms may be passed to several calls of thunder.jit, and each adds one of
        these transforms: only the one of the running compilation acts.
        """
        if not self.belongs_to(get_compile_data()):
            return trace
        is_backward = trace.siginfo().name == "backward_fn"
        returned = trace.bound_symbols[-1].args
        if not is_backward and len(returned) == 1:  # there is no backward
            self.saved = frozenset()
        elif not is_backward:  # the names that the backward gets, and nobody else
            to_caller, (tensors, _) = returned
            names = {proxy.name for proxy in tree_iter(to_caller) if isinstance(proxy, Proxy)}
            self.saved = frozenset(p.name for p in tensors if p.name not in names)
        split, options = from_trace(trace), options_of_jit()
        with in_force(options):
            pieces = _CaptureRuns(trace.bound_symbols, self, is_backward, options)
            split.bound_symbols = [*pieces.bound_symbols()]
        split.set_provenance(TraceProvenance("CUDA graphs"))
        return split

    def belongs_to(self, data: CompileData | None) -> bool:
        """True if it was made for this jitted function."""
        return self._data is None or self._data() is data

    @property
    def device_type(self) -> str:
        return self._recorder.device_type if self._recorder else CudaRecorder.device_type

    def graphs_on(self, device: torch.device) -> Graphs:
        """The graphs of the function on a device."""
        if device not in self.graphs:
            recorder = self._recorder or cuda_recorder(device.index or 0)
            self.graphs[device] = Graphs(recorder, int(option("max_cuda_graphs")))
        return self.graphs[device]


def add_cuda_graphs() -> None:
    """Adds the transform to those of the running compilation, once for each jitted function.

    Raises OptionError if Thunder's own transform is there: one cannot capture the other's graphs.
    """
    data = get_compile_data()
    if data is None:
        return
    if any(isinstance(each, CUDAGraphTransform) for each in data.transforms):
        raise OptionError(
            "option cuda_graphs", expected="no CUDAGraphTransform among the transforms", got="one",
            do="leave out the option or the transform",
        )  # fmt: skip
    if _transform_of(data) is None:
        data.transforms.append(CudaGraphs(data))


def cuda_graphs_of(jitted: Any) -> CudaGraphs | None:
    """The transform of a jitted function; None without the option."""
    return _transform_of(thunder.compile_data(jitted))


def _transform_of(data: CompileData) -> CudaGraphs | None:
    graphs = (each for each in data.transforms if type(each) is CudaGraphs)
    return next((each for each in graphs if each.belongs_to(data)), None)


# ------------------------------------------------------------------------------- what is captured


@dataclass(frozen=True, slots=True)
class OnHost:
    """A call that is in no graph, and why."""

    name: str
    reason: str


def why_on_host(bsym: BoundSymbol, device_type: str, fixed: Container[str]) -> str:
    """Why a call of a final trace cannot be captured; empty if it can.

    fixed: the names of parameters and buffers, see `fixed_names`.
    """
    for part in parts(bsym):
        if part.sym.id in _ON_HOST:
            return _ON_HOST[part.sym.id]
    if bsym.sym.name.startswith(ACROSS_RANKS):
        return "it communicates"
    used = [*reads(bsym), *makes(bsym)]
    if odd := next((p for p in used if not isinstance(p, (TensorProxy, NumberProxy))), None):
        return f"{odd.name} is neither a tensor nor a number"
    tensors = [proxy for proxy in used if isinstance(proxy, TensorProxy)]
    if any(map(is_dtensor_proxy, tensors)):
        return "it has a DTensor"
    if any(_device(tensor).type != device_type for tensor in tensors) or not tensors:
        return f"it has no tensor on {device_type}, or has tensors elsewhere too"
    if len(set(map(_device, tensors))) > 1:
        return "its tensors are on several devices"
    if any(proxy.name not in fixed for proxy in overwritten(bsym)):
        return "it writes to an argument whose memory changes"
    return ""


def on_host(trace: TraceCtx, device_type: str) -> tuple[OnHost, ...]:
    """The calls of a final trace that are in no piece, each with its reason."""
    fixed = fixed_names(trace.bound_symbols)
    short = f"fewer than {_LEAST} launches in a row"
    return tuple(
        OnHost(call.sym.name, why_on_host(call, device_type, fixed) or short)
        for call in trace.bound_symbols
        if call.sym.id not in _STRUCTURE and _launches(call) and piece_of(call) is None
    )


def _launches(bsym: BoundSymbol) -> bool:
    """True if it may launch a kernel; a graph of views alone would be empty."""
    return any(part.sym.id not in _WITHOUT_LAUNCH for part in parts(bsym))


def _device(proxy: TensorProxy) -> torch.device:
    return to_torch_device(proxy.device)


def fixed_names(bsyms: Iterable[BoundSymbol]) -> dict[str, str]:
    """{name: the module's parameter or buffer that it stands for, also after fences and writes}"""
    fixed: dict[str, str] = {}
    calls = ([bsym] if piece_of(bsym) is None else bsym.subsymbols for bsym in bsyms)
    for bsym in chain.from_iterable(calls):
        of_module = (p.name for p in reads(bsym) if ProxyTag.STATIC_MEMORY_LOCATION in p.tags)
        fixed.update((name, fixed.get(name, name)) for name in of_module)
        for part in (each for each in parts(bsym) if each.sym.id in FENCES | COPIES):
            pairs = zip(reads(part)[part.sym.id in COPIES :], makes(part), strict=False)
            fixed.update((new.name, fixed[old.name]) for old, new in pairs if old.name in fixed)
    return fixed


# --------------------------------------------------------------------------------------- pieces


class _CaptureRuns:
    """The calls of a trace in order, with runs of capturable calls as pieces."""

    def __init__(
        self, bsyms: Sequence[BoundSymbol], owner: CudaGraphs, is_backward: bool,
        options: Mapping[str, OptionValue],
    ) -> None:  # fmt: skip
        self.bsyms, self.owner, self.is_backward = bsyms, owner, is_backward
        self.options = options
        self.names = (f"cudaGraph{'Backward' * is_backward}{number}" for number in count())

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """{name: the places of its readers, in order}"""
        places: dict[str, list[int]] = {}
        for at, call in enumerate(self.bsyms):
            for proxy in () if _is_del(call) else reads(call):
                places.setdefault(proxy.name, []).append(at)
        return places

    @cached_property
    def fixed(self) -> dict[str, str]:
        return fixed_names(self.bsyms)

    def bound_symbols(self) -> Iterator[BoundSymbol]:
        run: list[BoundSymbol] = []
        where: torch.device | None = None
        for at, bsym in enumerate(self.bsyms):
            if run and _is_del(bsym):
                run.append(bsym)
                continue
            place = self._capture_device(bsym)
            if run and place != where:
                yield from self._ended(run, at)
                run = []
            if place is None:
                yield bsym
            else:
                run.append(bsym)
            where = place
        yield from self._ended(run, len(self.bsyms))

    def _capture_device(self, bsym: BoundSymbol) -> torch.device | None:
        """The device of a call that can be captured; None for any other call."""
        if bsym.sym.id in _STRUCTURE:
            return None
        reason = why_on_host(bsym, self.owner.device_type, self.fixed)
        if reason:
            log("graphs", lambda: f"{bsym.sym.name} is in no graph: {reason}")
        return None if reason else _device_of(bsym)

    def _ended(self, run: list[BoundSymbol], end: int) -> Iterator[BoundSymbol]:
        calls = [bsym for bsym in run if not _is_del(bsym)]
        if sum(map(_launches, calls)) < _LEAST:
            yield from run
            return
        values = {proxy.name: proxy for bsym in calls for proxy in makes(bsym)}
        results = [p for name, p in values.items() if self.readers.get(name, [-1])[-1] >= end]
        inputs = {p.name: p for bsym in calls for p in reads(bsym) if p.name not in values}
        yield self._piece(run, [*inputs.values()], results, range(end - len(run), end))
        deleted = (arg for bsym in run if _is_del(bsym) for arg in bsym.args)
        gone = [arg for arg in deleted if arg.name not in values]
        if gone:
            yield prims.python_del.bind(*gone, output=None)

    def _piece(
        self, run: Sequence[BoundSymbol], inputs: Sequence[Proxy], results: Sequence[Proxy],
        places: range,
    ) -> BoundSymbol:  # fmt: skip
        """places: those of the calls of `run`."""
        name = next(self.names)
        calls = [bsym for bsym in run if not _is_del(bsym)]
        written = {self.fixed[proxy.name] for bsym in calls for proxy in overwritten(bsym)}
        saved = tuple(at for at, proxy in enumerate(results) if proxy.name in self.owner.saved)
        saved = () if self.is_backward else saved
        # Another call may have made a view of it, which somebody holds.
        returned = len(self.bsyms) - 1
        lent = tuple(at for at in saved if self._is_alone(results[at].name, (*places, returned)))
        least = 0 if self.is_backward else LEAST_HANDED
        handed = tuple(
            at for at, proxy in enumerate(results)
            if at not in saved and isinstance(proxy, TensorProxy) and bytes_of(proxy) >= least
        )  # fmt: skip
        kept = {results[at].name for at in (*saved, *handed)}
        takes = [self._input(proxy, places, written) for proxy in inputs]
        freed = [proxy for proxy, each in zip(inputs, takes, strict=True) if each.is_freed]
        piece = GraphSegment(
            name,
            _function(name, run, inputs, results),
            takes,
            self.owner.graphs_on(_device_of(calls[0])),
            apart=lambda: _function(name, [*_apart(run, kept)], inputs, results, freed),
            names=[bsym.sym.name for bsym in calls],
            saved=saved,
            lent=lent,
            handed=handed,
            options=self.options,
        )
        symbol = Symbol(name, piece.meta, is_prim=True, _bind_postprocess=bind_callable)
        return symbol.bind(*inputs, output=list(results), subsymbols=calls)

    def _is_alone(self, name: str, places: Container[int]) -> bool:
        """True if only the calls in these places read it."""
        return all(at in places for at in self.readers.get(name, ()))

    def _input(self, proxy: Proxy, places: range, written: Container[str]) -> Input:
        name, is_number = proxy.name, isinstance(proxy, NumberProxy)
        is_saved = self.is_backward and not is_number and name in self.owner.saved
        return Input(
            name, is_number, name in self.fixed, is_saved,
            is_freed=is_saved and self._is_alone(name, places),
            is_written=self.fixed.get(name) in written,
        )  # fmt: skip


def piece_of(bsym: BoundSymbol) -> GraphSegment | None:
    """The piece that a bound symbol of a final trace calls, if any."""
    owner = getattr(bsym.sym.meta, "__self__", None)
    return owner if isinstance(owner, GraphSegment) else None


def pieces_in(bsyms: Iterable[BoundSymbol]) -> list[GraphSegment]:
    return [piece for piece in map(piece_of, bsyms) if piece is not None]


def _is_del(bsym: BoundSymbol) -> bool:
    return bool(bsym.sym.id is PrimIDs.DEL)


def _device_of(bsym: BoundSymbol) -> torch.device:
    """The device of a capturable call's tensors."""
    used = (*makes(bsym), *reads(bsym))
    return next(_device(proxy) for proxy in used if isinstance(proxy, TensorProxy))


def _apart(run: Sequence[BoundSymbol], kept: set[str]) -> Iterator[BoundSymbol]:
    """The calls, told where their memory is: what is kept lies apart from what is not.

        t1 = f(x)              t1 = f(x)
        t2 = g(t1)       ->    keep(True)
        t3 = h(t2)             t2 = g(t1)      # kept
                               keep(False)
                               t3 = h(t2)

    kept: the names. A call may make a value whose memory is an operand's, so the operand is kept.
    """
    names_of = [{proxy.name for proxy in makes(call)} for call in run]
    for call, names in zip(reversed(run), reversed(names_of), strict=True):
        is_view = not _launches(call) or call.sym.name in _MAY_VIEW
        may_share = is_view or [*overwritten(call)]
        if may_share and not kept.isdisjoint(names):
            kept = kept | {proxy.name for proxy in reads(call)}
    is_kept = False
    for call, names in zip(run, names_of, strict=True):
        if names and is_kept == kept.isdisjoint(names):
            is_kept = not is_kept
            yield _KEEP.bind(is_kept, output=None)
        yield call
    if is_kept:
        yield _KEEP.bind(False, output=None)


class _During:
    """The owner of symbols that calls `keep` or `taken` of runtime/ during a capture."""

    context = MappingProxyType({"keep": keep, "taken": taken})

    def meta(self, *args: Any) -> None:
        """Thunder's symbols must have one."""


_KEEP = Symbol("keep", _During().meta, is_prim=True, _bind_postprocess=bind_callable)
_TAKEN = Symbol("taken", _During().meta, is_prim=True, _bind_postprocess=bind_callable)


def _function(
    name: str, run: Sequence[BoundSymbol], inputs: Sequence[Proxy], results: Sequence[Proxy],
    freed: Sequence[Proxy] = (),
) -> Any:  # fmt: skip
    """A Python function that runs the calls and returns a tuple.

    freed: the inputs that a capture frees after their last reader.
    """
    trace = TraceCtx(None)
    trace.args, trace.kwargs = tuple(inputs), {}
    trace._siginfo = SigInfo.from_name_and_args(name, inputs)
    of_caller = {proxy.name for proxy in inputs} - {proxy.name for proxy in freed}
    if freed:
        trace.bound_symbols.append(_TAKEN.bind(*freed, output=[*freed]))
    for bsym in run:
        if not _is_del(bsym):
            trace.bound_symbols.append(bsym)
        elif local := [arg for arg in bsym.args if arg.name not in of_caller]:
            trace.bound_symbols.append(prims.python_del.bind(*local, output=None))
    trace.bound_symbols.append(prims.python_return.bind(tuple(results), output=None))
    return trace.python_callable()
