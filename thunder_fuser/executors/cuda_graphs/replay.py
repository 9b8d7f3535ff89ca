# SPDX-License-Identifier: Apache-2.0
"""Calls of a piece of a trace -> runs of its function, or replays of its CUDA graph.

    first call on a thread      the function runs: kernels are compiled, libraries start
    second call                 the graph is captured, which runs nothing, and replayed
    later calls                 arguments are copied in, and the graph is replayed

The key of a graph is the layout of the arguments, the addresses of those that are not copied, and
torch's settings. What a forward saves for its backward and what callers get stays in the memory of
the graph, except small results. While somebody holds it, that graph is not replayed, and another
one is used. A backward takes the memory of what its forward saved. See docs/adr/0015, 0042, 0055.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from weakref import WeakSet

import torch

from thunder_fuser.base.logs import log
from thunder_fuser.base.threads import Recent, cached_property, first_time
from thunder_fuser.base.warn import warn_at
from thunder_fuser.errors import CaptureBusyError, GraphWarning
from thunder_fuser.executors.cuda_graphs.graph import Capturer, Graph, storage_of
from thunder_fuser.executors.regions.comments import counted
from thunder_fuser.host.call.dispatch import make_dispatch
from thunder_fuser.options import OptionValue, in_force
from thunder_fuser.runtime.cuda_graphs import Capturable

_IN_SEGMENTS = 1 << 20, 10 << 20  # bytes: what is larger has a segment of its own
MOST_HELD = 2  # graphs whose results callers may keep before another one copies them


@dataclass(frozen=True, slots=True)
class Input:
    """An argument of a piece.

    is_fixed: its memory stays the same, as a parameter's does, so it is not copied. is_saved: a
    forward saved it for this backward, perhaps in the memory of a graph. is_freed: no call outside
    of this piece has it as an argument. is_written: written in place.
    """

    name: str
    is_number: bool = False
    is_fixed: bool = False
    is_saved: bool = False
    is_freed: bool = False
    is_written: bool = False


@dataclass(slots=True)
class Counts:
    """How the calls of a piece ran. waits: why none was captured yet, though one may be later.

    copying: the graphs that copy all results, because those of earlier ones were kept. graphs:
    those that are kept.
    """

    plain: int = 0
    captured: int = 0
    copying: int = 0
    replayed: int = 0
    graphs: WeakSet[Graph] = field(default_factory=WeakSet)
    failures: list[str] = field(default_factory=list)
    waits: str = ""


class Graphs:
    """The graphs of one jitted function on one device; the least recently replayed go first.

    A first call is remembered only until `most` others came. So a function that is called with more
    shapes than that in turn captures no graph, instead of one at each call.
    """

    def __init__(self, recorder: Capturer, most: int) -> None:
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

    def drop(self, key: Hashable) -> None:
        """Forgets a graph, and those that read what it saved."""
        memory = self.kept.pop(key).places
        readers = [key for key, graph in self.kept.items() if not graph.reads.isdisjoint(memory)]
        for reader in readers:
            del self.kept[reader]

    def lender(self, args: Sequence[Any], freed: Sequence[int]) -> Graph | None:
        """The graph that owns most of these arguments, and has lent to no other graph."""
        storages = [args[at].untyped_storage() for at in freed]
        sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}

        def lent(graph: Graph) -> int:
            return sum(sizes.get(address, 0) for address in graph.owners)

        return max(filter(lent, self.kept.values()), key=lent, default=None)

    def lasting(self, args: Sequence[Any], places: Sequence[int]) -> tuple[int, ...]:
        """The places of those arguments that lie in the memory of a graph."""
        memory = {place for graph in self.kept.values() for place in graph.places}
        return tuple(at for at in places if storage_of(args[at]) in memory)


class GraphSegment:
    """Several calls of a trace as one; the trace calls `call` instead of them.

    run: a function that runs them one by one. apart: gives a function that does so and calls
    `keep`, as `_apart` of transform.py shows. names: their names. saved: the places of the results
    that only the backward reads. lent: those of them that no other call of the forward reads.
    handed: the places of the results that callers get without a copy. options: those of the jit.
    """

    def __init__(
        self, name: str, run: Capturable, inputs: Sequence[Input], graphs: Graphs,
        *, apart: Callable[[], Capturable], names: Sequence[str], saved: Sequence[int],
        lent: Sequence[int], handed: Sequence[int], options: Mapping[str, OptionValue],
    ) -> None:  # fmt: skip
        self.name, self.run, self.inputs, self.graphs = name, run, inputs, graphs
        self.text, self.length = counted(names), len(names)
        self.saved, self.lent, self.handed, self.options = saved, lent, handed, options
        self._apart = apart
        self.counts = Counts()
        kinds = [(f"a{at}", "size" if i.is_number else "tensor") for at, i in enumerate(inputs)]
        self.call: Any = make_dispatch(kinds, self._miss, checked=False, name=name)
        self.context = {name: self.call}  # as Thunder's bound symbols have it

    @cached_property
    def apart(self) -> Capturable:
        """Runs the calls during a capture."""
        return self._apart()

    def meta(self, *args: Any) -> None:
        """Thunder's symbols must have one, but nothing calls it for a final trace."""
        raise NotImplementedError(f"{self.name} is part of a final trace")

    def _miss(self, args: Sequence[Any]) -> Capturable:
        pairs = zip(self.inputs, args, strict=True)
        is_plain = all(each.is_number or _is_plain(arg) for each, arg in pairs)
        return _Calls(self, args) if is_plain else self.run


class _Calls:
    """Calls of a piece with arguments of one layout."""

    __slots__ = (
        "_apart", "_copies", "_failed", "_fixed", "_lasting", "_moving", "_room", "_run", "_saved",
        "_tensors", "_written", "piece",
    )  # fmt: skip

    def __init__(self, piece: GraphSegment, args: Sequence[Any]) -> None:
        self.piece, self._run, self._failed = piece, piece.run, False
        self._copies = self._apart = False
        self._room: int | None = None  # known once it ran
        inputs = piece.inputs
        places = range(len(inputs))
        self._tensors = tuple(at for at in places if not inputs[at].is_number)
        self._fixed = tuple(
            at for at in self._tensors
            if inputs[at].is_fixed or type(args[at]) is torch.nn.Parameter
        )  # fmt: skip
        self._moving = tuple(sorted({*self._tensors} - {*self._fixed}))
        self._saved = tuple(at for at in places if inputs[at].is_saved)
        self._written = tuple(at for at in places if inputs[at].is_written)
        self._lasting: tuple[int, ...] = ()

    def __call__(self, *args: Any) -> Sequence[Any]:
        counts, recorder = self.piece.counts, self.piece.graphs.recorder
        if recorder.is_capturing():
            return self._run(*args)
        if not self._failed and not (self._written and self._reads_written(args)):
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
        results = self._run(*args)
        if self._room is None:
            self._room = room_of([results[at] for at in self.piece.handed], args)
        return results

    def _find(self, settings: Hashable, args: Sequence[Any]) -> Graph | None:
        """The first graph of this key whose memory nobody holds. If there is none, it is captured
        if such a call was seen before; else None."""
        graphs, held, shares = self.piece.graphs, 0, self._shares()
        for number in count():
            key = self._key(number, (settings, shares), args)
            graph: Graph | None = graphs.kept.get(key)
            if graph is None:
                break
            if not graph.is_in_use():
                return graph
            if graph.has_guests():  # the next backward's gradients lie elsewhere
                self._apart = True
                graphs.drop(key)
                break
            if graph.is_held():
                held += 1
                if not graph.pays_twice():  # one that copies takes its place
                    self._copies = True
                    graphs.drop(key)
                    break
        # Once a saved value came in the memory of a forward's graph, a call that has it elsewhere
        # is not captured.
        lasting = graphs.lasting(args, self._saved)
        if not set(self._lasting) <= set(lasting):
            return None
        self._lasting = lasting
        handed = () if self._copies or held >= MOST_HELD else self.piece.handed
        key = self._key(number, (settings, shares), args)  # by what lasts now
        return graphs.find(key, lambda: self._capture(args, handed, shares))

    def _reads_written(self, args: Sequence[Any]) -> bool:
        """True if an argument that is copied shares memory with one that is written: the copy is
        made before the write, so the function would not see it."""
        places = [args[at].data_ptr() for at in self._written]
        for memory in (args[at].untyped_storage() for at in self._moving):
            start, size = memory.data_ptr(), memory.nbytes()
            if any(0 <= place - start < size for place in places):
                return True
        return False

    def _shares(self) -> bool:
        """Of a backward: True if nobody reads what the forward saved after it. Of a forward: True
        if no hook of the user may keep what it saves."""
        if self._saved:
            return not torch._C._autograd._get_current_graph_task_keep_graph()
        hooks = torch._C._autograd._top_saved_tensors_default_hooks
        return bool(self.piece.saved) and hooks(True) is None

    def _key(self, number: int, settings: Hashable, args: Sequence[Any]) -> Hashable:
        places = (*self._fixed, *self._lasting)
        addresses = map(torch.Tensor.data_ptr, map(args.__getitem__, places))
        return (self, number, settings, places, *addresses)

    def _capture(self, args: Sequence[Any], handed: Sequence[int], shares: bool) -> Graph | None:
        """The graph, or None with a warning if the function cannot be captured."""
        stays = {*self._fixed, *self._lasting}
        copied = tuple(at for at in self._tensors if at not in stays)
        device_type = self.piece.graphs.recorder.device_type
        if any(args[at].device.type != device_type for at in copied):
            return None  # torch may keep the seed of attention's dropout on the CPU
        piece = self.piece
        freed = [at for at in self._saved if piece.inputs[at].is_freed] if shares else []
        # A buffer made in inference mode could not be written to outside of it.
        with in_force(piece.options), torch.inference_mode(False), torch.no_grad():
            try:
                graph = Graph(
                    piece.graphs.recorder, piece.apart, args, copied=copied, lasting=self._lasting,
                    saved=piece.saved, handed=handed, room=self._room or 0 if handed else 0,
                    lent=piece.lent if shares else (), apart=self._apart,
                    lender=piece.graphs.lender(args, freed),
                )  # fmt: skip
            except Exception as error:  # from torch, the driver or a library: they share no class
                self._failed = not isinstance(error, CaptureBusyError)
                self._tell(error)
                return None
            piece.counts.captured += 1
            piece.counts.copying += handed != piece.handed
            piece.counts.graphs.add(graph)
            piece.counts.waits = ""
            log("graphs", lambda: f"{piece.name}: captured {piece.text}, {graph}")
            return graph

    def _tell(self, error: BaseException) -> None:
        piece, first = self.piece, _first(error)
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


def room_of(results: Sequence[Any], args: Sequence[Any]) -> int:
    """The bytes of new memory of results that torch would put into segments of 20 MiB."""
    sizes = {storage_of(x): x.untyped_storage().nbytes() for x in results if _is_plain(x)}
    for x in filter(_is_plain, args):
        sizes.pop(storage_of(x), None)
    return sum(size for size in sizes.values() if _IN_SEGMENTS[0] < size < _IN_SEGMENTS[1])


def _first(error: BaseException) -> BaseException:
    """The first error of the chain: the end of a broken capture raises another one."""
    return error if error.__context__ is None else _first(error.__context__)


def _is_plain(arg: object) -> bool:
    """True for a plain strided tensor, without a pending negation or conjugation."""
    if type(arg) not in (torch.Tensor, torch.nn.Parameter) or arg.layout is not torch.strided:  # type: ignore[attr-defined]
        return False
    return not (arg.is_neg() or arg.is_conj())  # type: ignore[attr-defined]
