# SPDX-License-Identifier: Apache-2.0
"""The nodes of a host program. Each prints as the Python that runs.

    Allocate       T4 = empty_strided((4, 6), (6, 1), dtype=float32, device=device)
    View           T4 = T1
    CopyInto       T0.copy_(T5)
    Free           del T2
    LaunchKernel   kernel_0(T1.data_ptr(), T4.data_ptr(), 24, threads())
    Call           T5, = torch_1(T4, T0)
    Draw           seed, offset = draw(device, 1)
    Pieces         matmul(T0[0:3], T1, out=T2[0:3]), ..., each on a stream
    Collective     T3_sent = all_reduce(T2, mesh=(0, 1), on='mesh_x', reduce='sum')
    Wait           T3 = wait(T3_sent, 'T3')
    Return         return [T5, T3.view((2, 12))]
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from thunder_fuser.ir.record import AttrValue, Literal

Names = tuple[str, ...]
Ints = tuple[int, ...]


class HostNode:
    """A node. READS, MAKES, WRITES and FREES name the fields that hold its values.

    reads: the values that it needs. makes: the names that it assigns. writes: the values whose
    memory it fills, which another node has made. frees: the names that it deletes.
    """

    __slots__ = ()
    READS: ClassVar[Names] = ()
    MAKES: ClassVar[Names] = ()
    WRITES: ClassVar[Names] = ()
    FREES: ClassVar[Names] = ()

    @property
    def reads(self) -> Names:
        return self._values(self.READS)

    @property
    def makes(self) -> Names:
        return self._values(self.MAKES)

    @property
    def writes(self) -> Names:
        return self._values(self.WRITES)

    @property
    def frees(self) -> Names:
        return self._values(self.FREES)

    def _values(self, fields: Names) -> Names:
        """The values in these fields: each a name, or a list of names or of tuples that begin with
        one."""
        values: list[str] = []
        for field in fields:
            value: str | Sequence[str | tuple[str, object]] = getattr(self, field)
            listed = [value] if isinstance(value, str) else value
            values += [item if isinstance(item, str) else item[0] for item in listed]
        return tuple(dict.fromkeys(values))

    def lines(self, in_c: Container[str] = ()) -> Iterator[str]:
        """The lines of the program. in_c: the names of functions in C, which are called instead."""
        yield str(self)


# ---- memory


@dataclass(frozen=True, slots=True)
class Allocate(HostNode):
    """Memory for a value."""

    MAKES = ("name",)
    name: str
    sizes: Ints
    strides: Ints
    dtype: torch.dtype

    @property
    def in_c(self) -> str:
        """The name of a function that allocates the same."""
        return f"empty_{self.name}"

    def lines(self, in_c: Container[str] = ()) -> Iterator[str]:
        yield f"{self.name} = {self.in_c}()" if self.in_c in in_c else str(self)

    def __str__(self) -> str:
        where, word = f"{self.sizes!r}, {self.strides!r}", str(self.dtype).removeprefix("torch.")
        return f"{self.name} = empty_strided({where}, dtype={word}, device=device)"


@dataclass(frozen=True, slots=True)
class View(HostNode):
    """A name for the memory of another value."""

    READS, MAKES = ("of",), ("name",)
    name: str
    of: str

    def __str__(self) -> str:
        return f"{self.name} = {self.of}"


@dataclass(frozen=True, slots=True)
class CopyInto(HostNode):
    """Copies the elements of a value into memory."""

    READS, WRITES = ("source",), ("target",)
    target: str
    source: str

    def __str__(self) -> str:
        return f"{self.target}.copy_({self.source})"


@dataclass(frozen=True, slots=True)
class Free(HostNode):
    """Deletes names."""

    FREES = ("names",)
    names: Names

    def __str__(self) -> str:
        return f"del {', '.join(self.names)}"


# ---- work


class KernelArgument(NamedTuple):
    """An argument of a kernel. form: "{}" for a value, "{}.item()" for that of a tensor, None for a
    tensor's memory."""

    name: str
    form: str | None = None


@dataclass(frozen=True, slots=True)
class LaunchKernel(HostNode):
    """Runs a kernel.

    call, pointer: the Launcher's. inputs: what the kernel reads; outputs: what it writes; sizes:
    the numbers behind them.
    """

    READS, WRITES = ("inputs",), ("outputs",)
    number: int
    call: str
    pointer: str
    inputs: tuple[KernelArgument, ...]
    outputs: Names
    sizes: Ints = ()

    @property
    def in_c(self) -> str:
        """The name of a function that launches with tensors and numbers."""
        return f"kernel_{self.number}_in_c"

    def lines(self, in_c: Container[str] = ()) -> Iterator[str]:
        yield f"push_range(range_{self.number})"
        is_in_c = self.in_c in in_c
        yield f"{self.in_c}({', '.join(self._arguments('{}'))})" if is_in_c else str(self)
        yield "pop_range()"

    def __str__(self) -> str:
        arguments = [*self._arguments(self.pointer), *map(str, self.sizes)]
        return self.call.format(run=f"kernel_{self.number}", arguments=", ".join(arguments))

    def _arguments(self, pointer: str) -> list[str]:
        arguments = (*self.inputs, *map(KernelArgument, self.outputs))
        return [(pointer if form is None else form).format(name) for name, form in arguments]


@dataclass(frozen=True, slots=True)
class Call(HostNode):
    """Calls a function, which returns a value.

    arguments: their texts. operands: the values in these. is_listed: a list is returned.
    """

    READS, MAKES = ("operands",), ("results",)
    function: str
    arguments: Names
    operands: Names = ()
    results: Names = ()
    is_listed: bool = False

    def __str__(self) -> str:
        comma = "," * self.is_listed
        targets = "".join(f"{name}{comma} " for name in self.results)
        equals = "= " if self.results else ""
        return f"{targets}{equals}{self.function}({', '.join(self.arguments)})"


@dataclass(frozen=True, slots=True)
class Draw(HostNode):
    """Draws a seed, and offsets behind one another. values: (name, None for the seed, else the
    number of the offset)."""

    MAKES = ("values",)
    values: tuple[tuple[str, int | None], ...]

    def lines(self, in_c: Container[str] = ()) -> Iterator[str]:
        yield str(self)
        for name, at in self.values:
            yield f"{name} = {'seed' if at is None else f'offset + {at}'}"

    def __str__(self) -> str:
        return f"seed, offset = draw(device, {sum(at is not None for _, at in self.values)})"


@dataclass(frozen=True, slots=True)
class Pieces(HostNode):
    """A matrix product that is computed in pieces along an axis, on streams in turn.

        E0 = record_event()
        with on_stream(1):
            wait_event(E0)
            matmul(T0[0:3], T1, out=T2[0:3])
            E1 = record_event()
        with on_stream(2):
            wait_event(E0)
            matmul(T0[3:6], T1, out=T2[3:6])
            E2 = record_event()
        wait_event(E1)
        wait_event(E2)

    The caller's stream waits for all pieces. So other nodes may use and free the memory as if there
    were no streams.

    operands: each with its axis in step with the pieces, None if each piece reads all of it.
    axis: of the result; size: its length. event: the number of the first event.
    """

    READS, WRITES = ("operands",), ("result",)
    product: str
    operands: tuple[tuple[str, int | None], ...]
    result: str
    axis: int
    size: int
    pieces: int
    streams: int
    event: int = 0

    @property
    def events(self) -> int:
        """The number of events: one to begin, and one for each stream."""
        return 1 + min(self.streams, self.pieces)

    def lines(self, in_c: Container[str] = ()) -> Iterator[str]:
        used, first = self.events - 1, f"E{self.event}"
        ends = [f"E{self.event + 1 + number}" for number in range(used)]
        yield f"{first} = record_event()"
        for piece in range(self.pieces):
            yield f"with on_stream({piece % used + 1}):"
            if piece < used:
                yield f"    wait_event({first})"
            yield f"    {self._piece(piece)}"
            if piece >= self.pieces - used:
                yield f"    {ends[piece - self.pieces + used]} = record_event()"
        yield from (f"wait_event({end})" for end in ends)

    def __str__(self) -> str:
        return f"{self._piece(0)}, as the first of {self.pieces} pieces"

    def _piece(self, piece: int) -> str:
        """matmul(T0[0:3], T1, out=T2[0:3])"""
        step = self.size // self.pieces
        span = f"{piece * step}:{(piece + 1) * step}"
        *operands, result = (
            name if axis is None else f"{name}[{':, ' * axis}{span}]"
            for name, axis in (*self.operands, (self.result, self.axis))
        )
        return f"{self.product}({', '.join(operands)}, out={result})"


# ---- communication


@dataclass(frozen=True, slots=True)
class Wait(HostNode):
    """Waits for what a collective brings. strides: of the value, None if it is row-major."""

    READS, MAKES = ("sent",), ("name",)
    name: str
    strides: Ints | None = None

    @property
    def sent(self) -> str:
        """The name of what the collective has posted."""
        return f"{self.name}_sent"

    def __str__(self) -> str:
        strides = "" if self.strides is None else f", strides={self.strides!r}"
        return f"{self.name} = wait({self.sent}, {self.name!r}{strides})"


@dataclass(frozen=True, slots=True)
class Collective(HostNode):
    """Posts a collective. wait: the node that waits for it."""

    READS, MAKES = ("operand",), ("sent",)
    op: str
    operand: str
    wait: Wait
    attrs: tuple[tuple[str, AttrValue], ...]

    @property
    def sent(self) -> str:
        return self.wait.sent

    def __str__(self) -> str:
        attrs = ", ".join(f"{key}={literal(value)}" for key, value in self.attrs)
        return f"{self.sent} = {self.op}({self.operand}, {attrs})"


def literal(value: AttrValue) -> str:
    """An attribute as Python source, in which lists are tuples."""
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    return repr(value.value if isinstance(value, Literal) else value)


# ---- the end


class ReturnedValue(NamedTuple):
    """A value that is returned. shape: None for its own. is_detached: an argument's memory without
    its history of gradients."""

    name: str
    shape: Ints | None = None
    is_detached: bool = False

    def __str__(self) -> str:
        detached = ".detach()" if self.is_detached else ""
        return self.name + detached + ("" if self.shape is None else f".view({self.shape!r})")


@dataclass(frozen=True, slots=True)
class Return(HostNode):
    """Ends the program."""

    READS = ("results",)
    results: tuple[ReturnedValue, ...]

    def __str__(self) -> str:
        return f"return [{', '.join(map(str, self.results))}]"
