# SPDX-License-Identifier: Apache-2.0
"""One captured CUDA graph: its arguments go in, and its results go out, copied or where they lie.

    memory of the graph    [ saved for a backward | a gradient of 4 MiB | a loss ]
    what a replay gives      the same memory        the same memory       a copy

Whoever holds a value in the memory of a graph keeps it from being replayed. Small results of a
forward are copied, since a caller may keep them for long, as a list of losses. See docs/adr/0042.
A forward may lend what it saved to its backward's graph, see docs/adr/0055.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, Protocol

import torch

from thunder_fuser.runtime.cuda_graphs import Capturable, Recording, is_view
from thunder_fuser.runtime.graph_pools import Owners, Pool, over, storage_of

LEAST_HANDED = 1 << 16  # bytes of a forward's result that is not copied
# (arguments, {memory: the tensor over it, or over its copy, that goes out}) -> a result
Result = Callable[[Sequence[Any], Mapping[int, torch.Tensor]], Any]


class Capturer(Protocol):
    """An object that captures functions on one device; see runtime/cuda_graphs.py."""

    lock: threading.Lock  # noqa: TID251  a type
    device_type: str

    def is_capturing(self) -> bool: ...
    def settings(self) -> Hashable: ...
    def take_turn(self) -> None: ...
    def make_pool(self) -> Pool: ...
    def capture(
        self, run: Capturable, args: Sequence[Any], copied: Container[int], *, kept: Sequence[int],
        room: int, pool: Pool | None, lent: Owners | None,
    ) -> Recording: ...  # fmt: skip


class Graph:
    """A recording. It holds no argument: a saved value counts as in use while anybody holds it.

    copied: the numbers of the arguments that are copied in. lasting: those that lie in the memory
    of another graph. saved: the numbers of the results that only a backward reads. handed: those of
    the results that callers get without a copy. room: see `room_of`. lent: those of the saved
    results that a backward's graph may take. apart: that graph puts its gradients elsewhere.
    lender: of a backward, the graph of the forward from which it takes.
    """

    def __init__(
        self, recorder: Capturer, run: Capturable, args: Sequence[Any], *, copied: Sequence[int],
        lasting: Sequence[int], saved: Sequence[int], handed: Sequence[int], room: int = 0,
        lent: Sequence[int] = (), apart: bool = False, lender: Graph | None = None,
    ) -> None:  # fmt: skip
        self._device_type, self._saved, self.handed = recorder.device_type, saved, handed
        self._lent, self._apart, self.owners = lent, apart, Owners({})
        self._guest: Graph | None = None  # the backward's, if its gradients lie in this memory
        self._outputs = _Outputs({}, {}, [], [])
        self.places: dict[int, int] = {}  # {memory handed out without a copy: its own holders}
        self._pool: Pool | None = lender._pool if lender else recorder.make_pool() if lent else None
        is_apart = self._pool is None or (lender is not None and lender._apart)
        self._recording: Recording | None = recorder.capture(
            run, args, copied, kept=(*saved, *handed) if is_apart else (), room=room,
            pool=self._pool, lent=lender._lend(self) if lender else None,
        )  # fmt: skip
        self._replay, self.bytes = self._recording.replay, self._recording.bytes
        self._copied = tuple(copied)
        self.reads = {storage_of(args[at]) for at in lasting}
        buffers = [self._recording.inputs[at] for at in copied]
        self._in = _Copies([*map(compact, buffers)])
        # Of an expanded axis, the one element in memory is copied.
        self._expanded = [at for at, buffer in enumerate(buffers) if 0 in buffer.stride()]
        self._out = _Copies([])
        self._idle_holders: list[int] = []

    def __str__(self) -> str:
        bytes = sum(tensor.nbytes for tensor in self._in.tensors)
        return f"{len(self._copied)} arguments ({bytes} bytes) copied in, {self.bytes} bytes"

    def _lend(self, guest: Graph) -> Owners:
        """The owners of what it saved, which the only graph that may take them frees."""
        owners, self.owners = self.owners, {}
        self._guest = None if self._apart else guest
        return owners

    def is_in_use(self) -> bool:
        """True if anybody holds memory of the last replay: a saved value or a result."""
        return self._holders() != self._idle_holders or self.has_guests()

    def has_guests(self) -> bool:
        """True if a caller holds a gradient that lies in its memory."""
        return self._guest is not None and self._guest.is_held()

    def is_held(self) -> bool:
        """True if a caller holds a result of the last replay."""
        count_of = torch._C._storage_Use_Count
        return any(count_of(place) > self.places[place] for place in self._outputs.handed)

    def _holders(self) -> list[int]:
        """How many hold each memory, and each saved tensor: in C++ and in Python.

        A saved tensor is the same object at each replay: to make new ones, which would count in
        their memory alone, is a call for each.
        """
        saved = self._outputs.saved
        return [
            *map(torch._C._storage_Use_Count, self.places), *map(torch.Tensor._use_count, saved),
            *map(sys.getrefcount, saved),
        ]  # fmt: skip

    def pays_twice(self) -> bool:
        """True if a second graph beside it saves copies of at least the bytes that it takes."""
        handed = sum(tensor.nbytes for tensor in self._outputs.handed.values())
        return handed >= sum(tensor.nbytes for tensor in self._outputs.saved)

    def replay(self, args: Sequence[Any]) -> Sequence[Any]:
        """The results for arguments of the captured layout."""
        sources = [args[at] for at in self._copied]
        for at in self._expanded:
            sources[at] = compact(sources[at])
        self._in.copy(self._in.tensors, sources)
        self._replay()
        if self._recording is not None:
            self._plan()
        outputs = self._outputs
        memory = {place: torch.empty_like(tensor) for place, tensor in outputs.copied.items()}
        self._out.copy([*memory.values()], self._out.tensors)
        memory.update((place, tensor.detach()) for place, tensor in outputs.handed.items())
        return [make(args, memory) for make in outputs.results]

    def _plan(self) -> None:
        """Sorts the outputs, which are there after the first replay."""
        recording, self._recording = self._recording, None
        assert recording is not None
        inputs, outputs = recording.inputs, [*recording.outputs]
        if self._pool is not None:
            on_device = [at for at in self._lent if _is_on(outputs[at], self._device_type)]
            self.owners = _disown(inputs, outputs, on_device, self._pool)
        self._outputs = _sorted(inputs, outputs, self._device_type, self._saved, self.handed)
        del recording, inputs, outputs  # they hold what is counted below
        self._out = _Copies([*self._outputs.copied.values()])
        kept = {*self._outputs.handed, *map(storage_of, self._outputs.saved)}
        self.places = {place: torch._C._storage_Use_Count(place) for place in kept}
        self._idle_holders = self._holders()


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


class _Outputs(NamedTuple):
    """What becomes of the outputs of a recording.

    copied, handed: {memory: the tensor that stands for it}. saved: those that only a backward
    reads. results: how each result is made.
    """

    copied: dict[int, torch.Tensor]
    handed: dict[int, torch.Tensor]
    saved: list[torch.Tensor]
    results: list[Result]


def _disown(
    inputs: Sequence[Any], outputs: list[Any], saved: Sequence[int], pool: Pool
) -> Owners:
    """Replaces saved outputs by tensors that do not own their memory. Its owners.

        [loss, t1]  ->  [loss, t1'], {their address: [memory of t1]}

    A saved output stays if an argument or another result has its memory. Somebody may write to it
    then, and autograd notices that by the version that a tensor shares with its views.
    """
    rest = (x for at, x in enumerate(outputs) if at not in saved)
    shared = {storage_of(x) for x in (*inputs, *rest) if isinstance(x, torch.Tensor)}
    spans = pool.spans()
    owners, aliases = Owners({}), dict[int, torch.UntypedStorage]()
    for at in saved:
        owner = outputs[at]
        storage = owner.untyped_storage()
        is_in = any(start <= storage.data_ptr() < end for start, end in spans)
        place = storage_of(owner)
        if place in shared or not is_in or owner.is_neg() or owner.is_conj():
            continue
        if place not in aliases:
            aliases[place] = pool.alias(storage)
        outputs[at] = over(aliases[place], owner)
        owners.setdefault(storage.data_ptr(), []).append(storage)
    return owners


def _sorted(
    inputs: Sequence[Any], outputs: Sequence[Any], device_type: str, saved: Container[int],
    handed: Sequence[int],
) -> _Outputs:  # fmt: skip
    """A view of an argument becomes the same view of the call's argument. Results that share memory
    share one copy of it. Numbers, and tensors that torch keeps on the CPU, are the same at each
    call.
    """
    owners = {
        storage_of(arg): at for at, arg in enumerate(inputs) if _is_on(arg, device_type)
    }
    together: dict[int, list[torch.Tensor]] = {}
    for at, output in enumerate(outputs):
        if at not in saved and _is_on(output, device_type):
            together.setdefault(storage_of(output), []).append(output)
    tensors = [outputs[at] for at in handed if _is_on(outputs[at], device_type)]
    lasting = {*map(storage_of, tensors)}
    kinds = _Outputs({}, {}, [], [])

    def result(at: int, output: Any) -> Result:
        if not _is_on(output, device_type):
            return lambda args, memory: output
        place = storage_of(output)
        owner = owners.get(place)
        if owner is not None and is_view(output, inputs[owner]):
            return _view(output, inputs[owner], owner)
        if at in saved:
            kinds.saved.append(output)
            return lambda args, memory: output
        root = _root(together[place])
        if place in lasting and all(is_view(other, root) for other in together[place]):
            return _part(output, place, kinds.handed.setdefault(place, root))
        return _part(output, place, kinds.copied.setdefault(place, _copied(together[place])))

    kinds.results.extend(result(at, output) for at, output in enumerate(outputs))
    return kinds


def _root(results: Sequence[torch.Tensor]) -> torch.Tensor:
    """The result of which the others are views, if there is one; else any."""
    return next((result for result in results if result._base is None), results[0])


def _copied(results: Sequence[torch.Tensor]) -> torch.Tensor:
    """What is copied of a memory: the result of which the others are views, or else all of it.

    Copies of results that share memory are views of one tensor, as the results are: so autograd
    sees that a write to one of them changes the others, and what a backward has saved.
    """
    root = _root(results)
    is_all = root.nbytes == root.untyped_storage().nbytes()
    reaches = is_all and all(is_view(root, result) for result in results)
    return root if _is_dense(root) and (reaches or len(results) == 1) else _whole(root)


def _is_on(value: object, device_type: str) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == device_type


def _is_dense(tensor: torch.Tensor) -> bool:
    """True if it is dense without overlaps, so that empty_like has its strides."""
    return bool(torch.empty_like(tensor, device="meta").stride() == tensor.stride())


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of its storage as a vector of integers."""
    storage = tensor.untyped_storage()
    dtype = torch.uint8 if storage.nbytes() % 8 else torch.int64
    size = storage.nbytes() // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=tensor.device).set_(storage, 0, (size,), (1,))


def _part(tensor: torch.Tensor, place: int, whole: torch.Tensor) -> Result:
    if tensor is whole:
        return lambda args, memory: memory[place]
    layout, dtype = (tensor.shape, tensor.stride(), tensor.storage_offset()), tensor.dtype
    flips = [torch.conj] * tensor.is_conj() + [torch._neg_view] * tensor.is_neg()

    def part(args: Sequence[Any], memory: Mapping[int, torch.Tensor]) -> torch.Tensor:
        copy = memory[place] if whole.dtype is dtype else memory[place].view(dtype)
        return reduce(lambda seen, flip: flip(seen), flips, copy.as_strided(*layout))

    return part


def _view(tensor: torch.Tensor, argument: torch.Tensor, at: int) -> Result:
    if tensor is argument:
        return lambda args, memory: args[at]
    size, stride = tensor.shape, tensor.stride()
    shift = tensor.storage_offset() - argument.storage_offset()
    return lambda args, memory: args[at].as_strided(size, stride, args[at].storage_offset() + shift)
