# SPDX-License-Identifier: Apache-2.0
"""Writes a product with communication as sends and receives: lower.backend="point_to_point".

    T3 = all_gather_matmul(T0, T1, mesh=(0, 1), on='mesh_x', chunks=1)
->  T3 = empty_strided((8, 6), (6, 1), dtype=float32, device=device)
    T2_peers = empty_strided((4, 8), (8, 1), dtype=float32, device=device)
    P0 = post(receive(T2_peers[0:4], 1), send(T0[0:4], -1), mesh=(0, 1), on='mesh_x')
    matmul(T0, T1, out=part(T3, 0, mesh=(0, 1), on='mesh_x'))
    wait(P0, 'T2_peers')
    del P0
    matmul(T2_peers[0:4], T1, out=part(T3, 1, mesh=(0, 1), on='mesh_x')[0:4])
    del T2_peers

The order is that of communication/pipelines.py. Gather: rank r multiplies its own part, then those
of r + 1, r + 2, ...; all sends and receives are posted before the first product. Scatter: the sum
for a rank travels around the ring, and each rank adds its product to it; while one chunk is sent,
the next one is multiplied. All-reduce: a scatter, and each finished chunk is sent to all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from thunder_fuser.communication.pipelines import spans
from thunder_fuser.host.overlap import Overlapped
from thunder_fuser.host.posts import literal
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import names_of
from thunder_fuser.ir.rules.communication import devices
from thunder_fuser.ir.rules.streams import walks
from thunder_fuser.ir.strides import contiguous_strides
from thunder_fuser.runtime.torch_types import to_torch_dtype


def ring_lines(
    fusion: Fusion, call: Overlapped, chunks: int, numbers: Iterator[int]
) -> list[str]:
    """The lines of the call. The line before them allocates its result. chunks: of each device's
    part."""
    ring = _Ring(fusion, call, chunks, numbers)
    lines = ring.gather() if call.post.op == "all_gather" else ring.scatter()
    return [f"    {line}" for line in lines]


@dataclass(frozen=True)
class _Ring:
    fusion: Fusion
    call: Overlapped
    chunks: int
    numbers: Iterator[int]

    @property
    def world(self) -> int:
        return devices(self.call.post)

    @property
    def rows(self) -> int:
        """The rows of each device's part."""
        (read,) = names_of(self.call.post)
        rows = self.fusion.tensors[read].sizes[0]
        return rows if self.call.post.op == "all_gather" else rows // self.world

    @property
    def where(self) -> str:
        """mesh=(0, 1), on='mesh_x'"""
        return ", ".join(f"{key}={literal(self.call.post.attr(key))}" for key in ("mesh", "on"))

    def part(self, name: str, distance: int, span: slice | None = None, dim: int = 0) -> str:
        """part(T3, 1, dim=1, mesh=(0, 1), on='mesh_x')[:, 0:4]"""
        found = f"part({name}, {distance}{f', dim={dim}' * (dim > 0)}, {self.where})"
        return found + (f"[{':, ' * dim}{span.start}:{span.stop}]" if span else "")

    def posted(self, into: str, given: str, distance: int) -> tuple[str, str]:
        """The name of a post and its line. `given` is sent to the device at the distance."""
        name = f"P{next(self.numbers)}"
        moved = f"receive({into}, {-distance}), send({given}, {distance})"
        return name, f"{name} = post({moved}, {self.where})"

    def memory(self, name: str, parts: int, like: str) -> str:
        """The line that allocates memory for the rows of so many devices' parts."""
        view = self.fusion.tensors[like]
        sizes = (parts * self.rows, *view.sizes[1:])
        dtype = str(to_torch_dtype(view.dtype)).removeprefix("torch.")
        strides = contiguous_strides(sizes)
        return f"{name} = empty_strided({sizes!r}, {strides!r}, dtype={dtype}, device=device)"

    # ---- gather

    def gather(self) -> Iterator[str]:
        (shard,), (whole,) = names_of(self.call.post), self.call.post.outputs
        if self.world == 1:
            yield self.product(shard, 0)
            return
        peers, under_way = f"{whole}_peers", []
        yield self.memory(peers, self.world - 1, shard)
        for distance in range(1, self.world):
            for span in spans(self.rows, self.chunks):
                place = _rows(peers, span, (distance - 1) * self.rows)
                name, line = self.posted(place, _rows(shard, span), -distance)
                under_way.append((name, place, distance, span))
                yield line
        yield self.product(shard, 0)
        for name, place, distance, span in under_way:
            yield from _awaited(name, peers)
            yield self.product(place, distance, span)
        yield f"del {peers}"

    def product(self, gathered: str, distance: int, span: slice | None = None) -> str:
        """The line that multiplies the part of the device at a distance, or rows of it."""
        product = self.call.product
        names, (whole,) = names_of(product), self.call.post.outputs
        maps = walks(product.op, [len(self.fusion.tensors[name].shape) for name in names])
        axis = names.index(whole)  # of the result
        operands = [
            gathered if name == whole
            else self.part(name, distance, span, axes[axis]) if axis in axes
            else name
            for name, axes in zip(names, maps, strict=True)
        ]
        out = self.part(self.call.result, distance, span, axis)
        return f"{product.op}({', '.join(operands)}, out={out})"

    # ---- scatter

    def scatter(self) -> Iterator[str]:
        """The lines of a scatter. Steps alternate between two buffers: one is sent, and the next
        step's sum arrives in the other."""
        sums, last = f"{self.call.product.outputs[0]}_sums", self.world - 1
        if last:
            yield self.memory(sums, min(2, last), self.call.product.outputs[0])
        under_way, shared = dict[int, str](), list[str]()
        for step in range(self.world):
            for at, span in enumerate(spans(self.rows, self.chunks)):
                if step:
                    yield from _awaited(under_way[at], sums if step < last else self.call.result)
                own = self.sum(sums, step, span)
                yield self.added(step, span, own)
                if step < last:
                    into = self.sum(sums, step + 1, span)
                    under_way[at], line = self.posted(into, own, 1)
                    yield line
                elif self.call.post.op == "all_reduce":
                    yield from self.to_all(span, own, shared)
        yield from [f"del {sums}"] * (last > 0)
        for name in shared:
            yield from _awaited(name, self.call.result)

    def sum(self, sums: str, step: int, span: slice) -> str:
        """Where the sum of a step is; the last step's is in the result."""
        if step < self.world - 1:
            return _rows(sums, span, step % 2 * self.rows)
        is_scatter = self.call.post.op == "reduce_scatter"
        name = self.call.result
        return _rows(name, span) if is_scatter else self.part(name, 0, span)

    def added(self, step: int, span: slice, out: str) -> str:
        """The line that adds this rank's product to the sum for another device's rows."""
        a, b = self.call.reads
        distance = -1 - step if step < self.world - 1 else 0
        name = "add_product" if step else "matmul"
        right = b + ".t()" * self.call.transposed
        return f"{name}({self.part(a, distance, span)}, {right}, out={out})"

    def to_all(self, span: slice, own: str, names: list[str]) -> Iterator[str]:
        """The lines that send a chunk of the result to all ranks, and receive theirs. Appends the
        posts' names."""
        for distance in range(1, self.world):
            name, line = self.posted(self.part(self.call.result, distance, span), own, -distance)
            names.append(name)
            yield line


def _rows(name: str, span: slice, first: int = 0) -> str:
    return f"{name}[{first + span.start}:{first + span.stop}]"


def _awaited(post: str, buffer: str) -> list[str]:
    return [f"wait({post}, {buffer!r})", f"del {post}"]
