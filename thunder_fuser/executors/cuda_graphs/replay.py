# SPDX-License-Identifier: Apache-2.0
"""Calls of a piece of a trace -> runs of its function, or replays of its CUDA graph.

    first call on a thread      the function runs: kernels are compiled, libraries start
    second call                 the graph is captured, which runs nothing, and replayed
    later calls                 arguments are copied in, the graph is replayed, results copied out

The key of a graph is the layout of the arguments, the addresses of those that are not copied, and
torch's settings. Each call gets results in fresh memory, so a caller may keep them. Values that
only the backward reads are not copied: they stay in the memory of the forward's graph. While the
backward still holds them, that graph is not replayed, and another one is used. See docs/adr/0015.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from typing import Any, Protocol

import torch

from thunder_fuser.base.logs import log
from thunder_fuser.base.threads import Recent, first_time
from thunder_fuser.base.warn import warn_at
from thunder_fuser.errors import CaptureBusyError, GraphWarning
from thunder_fuser.executors.regions.comments import counted
from thunder_fuser.host.call.dispatch import make_dispatch
from thunder_fuser.options import Value, in_force
from thunder_fuser.runtime.cuda_graphs import Function, Recording

# (arguments, fresh copies of a replay's results) -> a result
Result = Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]


class Recorder(Protocol):
    """An object that captures functions on one device; see runtime/cuda_graphs.py."""

    lock: threading.Lock  # noqa: TID251  a type
    device_type: str

    def is_capturing(self) -> bool: ...
    def settings(self) -> Hashable: ...
    def take_turn(self) -> None: ...
    def capture(
        self, run: Function, args: Sequence[Any], copied: Container[int], *, keeps: bool
    ) -> Recording: ...


@dataclass(frozen=True, slots=True)
class Input:
    """An argument of a piece.

    is_fixed: its memory stays the same, as a parameter's does, so it is not copied. is_saved: a
    forward saved it for this backward, perhaps in the memory of a graph. is_written: written in
    place.
    """

    name: str
    is_number: bool = False
    is_fixed: bool = False
    is_saved: bool = False
    is_written: bool = False


@dataclass(slots=True)
class Counts:
    """How the calls of a piece ran. waits: why none was captured yet, though one may be later."""

    plain: int = 0
    captured: int = 0
    replayed: int = 0
    failures: list[str] = field(default_factory=list)
    waits: str = ""


class Graphs:
    """The graphs of one jitted function on one device; the least recently replayed go first.

    A first call is remembered only until `most` others came. So a function that is called with more
    shapes than that in turn captures no graph, instead of one at each call.
    """

    def __init__(self, recorder: Recorder, most: int) -> None:
        self.recorder = recorder
        self.kept: Recent[Graph] = Recent(lambda: most)
        self._called: Recent[bool] = Recent(lambda: most)

    def find(self, key: Hashable, capture: Callable[[], Graph | None]) -> Graph | None:
        """The graph of a call, captured at the second such call of a thread; else None."""
        # A thread's first calls create handles of libraries, which a capture must not do.
        call = (threading.get_ident(), key)
        if not self._called.pop(call, False):
            self._called[call] = True
            return None
        graph = capture()
        if graph is not None:
            self.kept[key] = graph
        return graph

    def lasting(self, args: Sequence[Any], places: Sequence[int]) -> tuple[int, ...]:
        """The places of those arguments that lie in the memory of a graph."""
        memory = {place for graph in self.kept.values() for place in graph.places}
        return tuple(at for at in places if storage_of(args[at]) in memory)


class GraphSegment:
    """Several calls of a trace as one; the trace calls `call` instead of them.

    run: a function that runs them one by one. names: their names. saved: the places of the results
    that only the backward reads. options: those of the jit.
    """

    def __init__(
        self, name: str, run: Function, inputs: Sequence[Input], graphs: Graphs,
        *, names: Sequence[str], saved: Container[int], options: Mapping[str, Value],
    ) -> None:  # fmt: skip
        self.name, self.run, self.inputs, self.graphs = name, run, inputs, graphs
        self.text, self.length = counted(names), len(names)
        self.saved, self.options = saved, options
        self.counts = Counts()
        kinds = [(f"a{at}", "size" if i.is_number else "tensor") for at, i in enumerate(inputs)]
        self.call: Any = make_dispatch(kinds, self._miss, checked=False, name=name)
        self.context = {name: self.call}  # as Thunder's bound symbols have it

    def meta(self, *args: Any) -> None:
        """Thunder's symbols must have one, but nothing calls it for a final trace."""
        raise NotImplementedError(f"{self.name} is part of a final trace")

    def _miss(self, args: Sequence[Any]) -> Function:
        pairs = zip(self.inputs, args, strict=True)
        is_plain = all(each.is_number or _is_plain(arg) for each, arg in pairs)
        return _Calls(self, args) if is_plain else self.run


class _Calls:
    """Calls of a piece with arguments of one layout."""

    __slots__ = (
        "_failed", "_fixed", "_lasting", "_piece", "_run", "_saved", "_tensors", "_written",
    )  # fmt: skip

    def __init__(self, piece: GraphSegment, args: Sequence[Any]) -> None:
        self._piece, self._run, self._failed = piece, piece.run, False
        inputs = piece.inputs
        places = range(len(inputs))
        self._tensors = tuple(at for at in places if not inputs[at].is_number)
        self._fixed = tuple(
            at for at in self._tensors
            if inputs[at].is_fixed or type(args[at]) is torch.nn.Parameter
        )  # fmt: skip
        self._saved = tuple(at for at in places if inputs[at].is_saved)
        self._written = tuple(at for at in places if inputs[at].is_written)
        self._lasting: tuple[int, ...] = ()

    def __call__(self, *args: Any) -> Sequence[Any]:
        counts, recorder = self._piece.counts, self._piece.graphs.recorder
        if recorder.is_capturing():
            return self._run(*args)
        if not self._failed:
            settings = recorder.settings()
            with recorder.lock:
                graph = self._find(settings, args)
                if graph is not None:
                    recorder.take_turn()
                    counts.replayed += 1
                    results = graph.replay(args)
                    torch.autograd.graph.increment_version([args[at] for at in self._written])
                    return results
        counts.plain += 1
        return self._run(*args)

    def _find(self, settings: Hashable, args: Sequence[Any]) -> Graph | None:
        """The first graph of this key whose results are not in use. If there is none, it is
        captured if such a call was seen before; else None."""
        graphs = self._piece.graphs
        for number in count():
            graph: Graph | None = graphs.kept.get(self._key(number, settings, args))
            if graph is None:
                break
            if not graph.is_in_use():
                return graph
        # Once a saved value came in the memory of a forward's graph, a call that has it elsewhere
        # is not captured.
        lasting = graphs.lasting(args, self._saved)
        if not set(self._lasting) <= set(lasting):
            return None
        self._lasting = lasting
        return graphs.find(self._key(number, settings, args), lambda: self._capture(args))

    def _key(self, number: int, settings: Hashable, args: Sequence[Any]) -> Hashable:
        places = (*self._fixed, *self._lasting)
        return (self, number, settings, places, *[args[at].data_ptr() for at in places])

    def _capture(self, args: Sequence[Any]) -> Graph | None:
        """The graph, or None with a warning if the function cannot be captured."""
        stays = {*self._fixed, *self._lasting}
        copied = tuple(at for at in self._tensors if at not in stays)
        device_type = self._piece.graphs.recorder.device_type
        if any(args[at].device.type != device_type for at in copied):
            return None  # torch may keep the seed of attention's dropout on the CPU
        piece = self._piece
        # A buffer made in inference mode could not be written to outside of it.
        with in_force(piece.options), torch.inference_mode(False), torch.no_grad():
            try:
                graph = Graph(piece.graphs.recorder, piece, args, copied)
            except Exception as error:  # from torch, the driver or a library: they share no class
                self._failed = not isinstance(error, CaptureBusyError)
                self._tell(error)
                return None
            piece.counts.captured += 1
            piece.counts.waits = ""
            log("graphs", lambda: f"{piece.name}: captured {piece.text}, {graph}")
            return graph

    def _tell(self, error: BaseException) -> None:
        piece, first = self._piece, _first(error)
        reason = f"{type(first).__name__}: {str(first).partition(chr(10))[0]}"
        if self._failed:
            piece.counts.failures.append(reason)
        else:
            piece.counts.waits = reason
        log("graphs", lambda: f"{piece.name}: not captured: {reason}")
        if first_time(("graph", reason if self._failed else CaptureBusyError)):
            warn_at(
                "",
                f"{piece.name} ({piece.text}) could not be captured in a CUDA graph: {reason}. Its"
                " calls are launched one by one. Other pieces that fail so are not reported.",
                GraphWarning,
            )


def _first(error: BaseException) -> BaseException:
    """The first error of the chain: the end of a broken capture raises another one."""
    return error if error.__context__ is None else _first(error.__context__)


class Graph:
    """A recording, with the copies of arguments into it and of results out of it.

    It holds no argument: a saved value counts as in use while anybody holds it.
    """

    def __init__(
        self, recorder: Recorder, piece: GraphSegment, args: Sequence[Any], copied: Sequence[int]
    ) -> None:
        self._device_type, self._saved = recorder.device_type, piece.saved
        self._recording: Recording | None
        self._recording = recorder.capture(piece.run, args, copied, keeps=bool(piece.saved))
        self._replay = self._recording.replay
        self._copied = tuple(copied)
        buffers = [self._recording.inputs[at] for at in copied]
        self._in = _Copies([*map(compact, buffers)])
        # Of an expanded axis, the one element in memory is copied.
        self._expanded = [at for at, buffer in enumerate(buffers) if 0 in buffer.stride()]
        self._out = _Copies([])
        self._results: list[Result] = []
        self.places: dict[int, int] = {}  # {memory handed out without a copy: its own holders}

    def __str__(self) -> str:
        bytes = sum(tensor.nbytes for tensor in self._in.tensors)
        return f"{len(self._copied)} arguments ({bytes} bytes) copied at each call"

    def is_in_use(self) -> bool:
        """True if anybody holds a value that the last replay saved for a backward."""
        count_of = torch._C._storage_Use_Count
        return any(count_of(place) > held for place, held in self.places.items())

    def replay(self, args: Sequence[Any]) -> Sequence[Any]:
        """The results for arguments of the captured layout."""
        sources = [args[at] for at in self._copied]
        for at in self._expanded:
            sources[at] = compact(sources[at])
        self._in.copy(self._in.tensors, sources)
        self._replay()
        if self._recording is not None:
            self._plan(self._recording)
        fresh = [torch.empty_like(tensor) for tensor in self._out.tensors]
        self._out.copy(fresh, self._out.tensors)
        return [make(args, fresh) for make in self._results]

    def _plan(self, recording: Recording) -> None:
        self._out, self._results, kept = _planned(recording, self._device_type, self._saved)
        places = {*map(storage_of, kept)}
        del recording, kept
        self._recording = None
        self.places = {place: torch._C._storage_Use_Count(place) for place in places}


# torch's unsigned integers of more than 8 bits and its narrow floats are copied one by one.
_COPIED_TOGETHER = frozenset({
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
})  # fmt: skip


class _Copies:
    """Copies from or to these tensors; those that torch can copy together take one launch."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tensors
        alike: dict[Hashable, list[int]] = {}
        for at, tensor in enumerate(tensors):
            together = tensor.dtype in _COPIED_TOGETHER and _is_dense(tensor)
            alike.setdefault(tensor.dtype if together else at, []).append(at)
        self._groups = [*alike.values()]

    def copy(self, to: Sequence[torch.Tensor], of: Sequence[torch.Tensor]) -> None:
        for places in self._groups:
            if len(places) == 1:
                to[places[0]].copy_(of[places[0]])
            else:
                torch._foreach_copy_([to[at] for at in places], [of[at] for at in places])


# ------------------------------------------------------------------------------------- arguments


def _is_plain(arg: object) -> bool:
    """True for a plain strided tensor, without a pending negation or conjugation."""
    if type(arg) not in (torch.Tensor, torch.nn.Parameter) or arg.layout is not torch.strided:  # type: ignore[attr-defined]
        return False
    return not (arg.is_neg() or arg.is_conj())  # type: ignore[attr-defined]


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, with size 1 on expanded axes.

    >>> compact(torch.ones(1).expand(3)).shape
    torch.Size([1])
    """
    if 0 not in tensor.stride():
        return tensor
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    sizes = [min(size, 1) if stride == 0 else size for size, stride in axes]
    return tensor.as_strided(sizes, tensor.stride(), tensor.storage_offset())


# --------------------------------------------------------------------------------------- results


def _planned(
    recording: Recording, device_type: str, saved: Container[int]
) -> tuple[_Copies, list[Result], list[torch.Tensor]]:
    """(the copies after each replay, how each result is made, the tensors handed out uncopied)

    A view of an argument becomes the same view of the call's argument. Results that share memory
    share one copy of it. Numbers, and tensors that torch keeps on the CPU, are the same at each
    call.
    """
    owners = {
        storage_of(arg): at for at, arg in enumerate(recording.inputs) if _is_on(arg, device_type)
    }
    together: dict[int, list[torch.Tensor]] = {}
    for at, output in enumerate(recording.outputs):
        if at not in saved and _is_on(output, device_type):
            together.setdefault(storage_of(output), []).append(output)
    copied: dict[int, torch.Tensor] = {}
    kept: list[torch.Tensor] = []

    def result(at: int, output: Any) -> Result:
        if not _is_on(output, device_type):
            return lambda args, fresh: output
        place = storage_of(output)
        owner = owners.get(place)
        if owner is not None and _is_view(output, recording.inputs[owner]):
            return _view(output, recording.inputs[owner], owner)
        if at in saved:
            kept.append(output)
            return lambda args, fresh: output.detach()
        whole = copied.setdefault(place, _copied(together[place]))
        return _part(output, [*copied].index(place), whole)

    results = [result(at, output) for at, output in enumerate(recording.outputs)]
    return _Copies([*copied.values()]), results, kept


def _copied(results: Sequence[torch.Tensor]) -> torch.Tensor:
    """What is copied of a memory: the result of which the others are views, or else all of it.

    Copies of results that share memory are views of one tensor, as the results are: so autograd
    sees that a write to one of them changes the others, and what a backward has saved.
    """
    root = next((result for result in results if result._base is None), results[0])
    is_all = root.nbytes == root.untyped_storage().nbytes()
    reaches = is_all and all(_is_view(root, result) for result in results)
    return root if _is_dense(root) and (reaches or len(results) == 1) else _whole(root)


def _is_on(value: object, device_type: str) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == device_type


def storage_of(tensor: torch.Tensor) -> int:
    """An identifier of its memory, the same for all views."""
    return int(tensor.untyped_storage()._cdata)


def _is_dense(tensor: torch.Tensor) -> bool:
    """True if it is dense without overlaps, so that empty_like has its strides."""
    return bool(torch.empty_like(tensor, device="meta").stride() == tensor.stride())


def _is_view(tensor: torch.Tensor, argument: torch.Tensor) -> bool:
    """True if as_strided alone makes it from an argument with the same memory."""
    return tensor.dtype is argument.dtype and not (tensor.is_neg() or tensor.is_conj())


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of its storage as a vector of integers."""
    storage = tensor.untyped_storage()
    dtype = torch.uint8 if storage.nbytes() % 8 else torch.int64
    size = storage.nbytes() // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=tensor.device).set_(storage, 0, (size,), (1,))


def _part(tensor: torch.Tensor, number: int, whole: torch.Tensor) -> Result:
    if tensor is whole:
        return lambda args, fresh: fresh[number]
    layout, dtype = (tensor.shape, tensor.stride(), tensor.storage_offset()), tensor.dtype
    flips = [torch.conj] * tensor.is_conj() + [torch._neg_view] * tensor.is_neg()

    def part(args: Sequence[Any], fresh: Sequence[torch.Tensor]) -> torch.Tensor:
        copy = fresh[number] if whole.dtype is dtype else fresh[number].view(dtype)
        return reduce(lambda seen, flip: flip(seen), flips, copy.as_strided(*layout))

    return part


def _view(tensor: torch.Tensor, argument: torch.Tensor, at: int) -> Result:
    if tensor is argument:
        return lambda args, fresh: args[at]
    size, stride = tensor.shape, tensor.stride()
    shift = tensor.storage_offset() - argument.storage_offset()
    return lambda args, fresh: args[at].as_strided(size, stride, args[at].storage_offset() + shift)
