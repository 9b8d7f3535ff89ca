# SPDX-License-Identifier: Apache-2.0
"""Converts arguments into the memory that kernels read, and the memory that they write to results.

An argument is matched against the allocation domain of its tensor:

    logical [i0{6}], allocation [i0.i*i0.o{6}]             the storage, or an AllocatedTensor
    logical [i0{8}], allocation [i0.o{2}@mesh_x, i0.i{4}]  one device's part, [1, 4] or [4]

A whole tensor whose memory strides describe is passed unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch

from thunder_fuser.errors import InputError
from thunder_fuser.host.call.arguments import is_bound
from thunder_fuser.ir import binding
from thunder_fuser.ir.domain import TensorDomain
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.record import LAYOUT, Definition
from thunder_fuser.ir.rules.layouts import local_domain
from thunder_fuser.ir.scalar import const
from thunder_fuser.presegment.lay_out import from_storage, to_storage
from thunder_fuser.presegment.rewrite import Chain
from thunder_fuser.presegment.specialise import InputKey, specialise
from thunder_fuser.runtime.eager.evaluate import move

BoundRun = Callable[..., list[Any]]
# (argument, its logical sizes)
Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, eq=False)
class AllocatedTensor:
    """A tensor whose memory no strides describe. domain: its domains, whose sizes are numbers.

        storage 0 3 1 4 2 5, allocation [i0.i*i0.o{6}] of logical [i0{6}] split by 2
        .logical()  ->  0 1 2 3 4 5, if place k of the storage holds element 2 * (k % 3) + k // 3
    """

    storage: torch.Tensor
    domain: TensorDomain

    @property
    def shape(self) -> torch.Size:
        """The logical sizes."""
        return torch.Size(axis.extent.value for axis in self.domain.no_reductions)

    @property
    def dtype(self) -> torch.dtype:
        return self.storage.dtype

    @property
    def device(self) -> torch.device:
        return self.storage.device

    def logical(self) -> torch.Tensor:
        """The logical tensor, as a row-major copy."""
        chain = from_storage(self.domain, Chain("s", "from"))
        return reduce(move, chain.records, self.storage).contiguous()

    @staticmethod
    def of(tensor: torch.Tensor, domain: TensorDomain) -> AllocatedTensor:
        """The storage of a logical tensor; the inverse of `logical`."""
        chain = to_storage(domain, Chain("s", "to"))
        return AllocatedTensor(reduce(move, chain.records, tensor).contiguous(), domain)

    def __repr__(self) -> str:
        memory = ", ".join(map(str, self.domain.memory))
        return f"AllocatedTensor(shape={tuple(self.shape)}, allocation=[{memory}], {self.storage})"


class Bound:
    """Converts between a fusion's arguments or results and their memory."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.has_layouts = any(record.op in LAYOUT for record in fusion.definition)
        views = [fusion.tensors[name] for name in fusion.inputs] if self.has_layouts else []
        # The rank of each argument's memory; -1: strides describe it. Cached, as it is slow.
        self._ranks = [len(local_domain(v).memory) if is_bound(v) else -1 for v in views]

    def storages(self, arguments: Sequence[Any]) -> tuple[list[Any], Shapes]:
        """The memory of each argument, and the logical shapes that the memory does not determine.

        Raises InputError for an argument with other axes.
        """
        values, shapes = [], []
        for name, rank, value in zip(self.fusion.inputs, self._ranks, arguments, strict=True):
            if rank < 0 or (type(value) is torch.Tensor and value.dim() == rank):
                values.append(value)
                continue
            view = self.fusion.tensors[name]
            value, shape = _parts(view, value)
            if isinstance(value, torch.Tensor) and value.dim() != rank:
                value = _without_devices(view, value, rank)
            values.append(value)
            if shape is not None and not _determines(view, value, shape):
                shapes.append((name, shape))
        return values, tuple(shapes)

    def with_shapes(self, shapes: Shapes) -> Definition:
        """The definition for arguments with these logical sizes."""
        known = dict(shapes)
        return tuple(
            replace(r, attrs=tuple({**dict(r.attrs), "shape": known[r.outputs[0]]}.items()))
            if r.op == "define_tensor" and r.outputs[0] in known else r
            for r in self.fusion.definition
        )

    def runner(self, run: BoundRun, keys: tuple[InputKey, ...]) -> BoundRun:
        """`run`, whose results become AllocatedTensors where no strides describe their memory."""
        if not self.has_layouts:
            return run
        special = specialise(self.fusion, keys)
        names = [output.name for output in special.outputs if output.alias is None]
        domains = [local_domain(special.tensors[name]) for name in names]

        def bound(*arguments: Any) -> list[Any]:
            results = run(*arguments)
            return [
                AllocatedTensor(result, domain) if domain.transforms else result
                for domain, result in zip(domains, results, strict=True)
            ]

        return bound


def _parts(view: TensorView, value: Any) -> tuple[Any, tuple[int, ...] | None]:
    """(storage, logical shape, or None if the argument has none).

    InputError unless an AllocatedTensor has the domains of the definition.
    """
    if isinstance(value, AllocatedTensor):
        wanted, actual = _shape_of(local_domain(view)), _shape_of(value.domain)
        if wanted == actual:
            return value.storage, tuple(value.shape)
        raise InputError(
            f"argument {view.name}", expected=f"allocation domain [{wanted[0]}]",
            got=f"one of allocation [{actual[0]}]",
            do="pass .logical() as a strided tensor, or make it by .of(tensor, domain)",
        )  # fmt: skip
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], torch.Tensor):
        return value[0], tuple(value[1].shape)
    return value, None


def _determines(view: TensorView, storage: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """True if the storage determines the logical shape; InputError if they contradict."""
    local = local_domain(view)
    if len(shape) != len(view.shape) or not local.transforms or view.mesh is not None:
        raise InputError(
            f"argument {view.name}: logical shape",
            expected=f"rank {len(view.shape)}, with a storage that strides do not describe",
            got=str(shape),
        )
    for wanted, size in zip(view.shape, shape, strict=True):
        if wanted.is_const and wanted.value != size:
            raise InputError(
                f"argument {view.name}: logical shape", expected=str(view), got=str(shape)
            )
    try:
        return tuple(binding.logical_sizes(local, storage.shape)) == tuple(map(const, shape))
    except InputError:
        return False


def _shape_of(domain: TensorDomain) -> tuple[str, object]:
    """A key of the memory layout, equal for domains that differ only in names of axes."""
    axes = {axis.name: f"i{at}" for at, axis in enumerate(domain.no_reductions)}
    text = ", ".join(axis.name for axis in domain.memory)
    for name in sorted(axes, key=len, reverse=True):
        text = text.replace(name + ".", axes[name] + "_.").replace(name + "*", axes[name] + "_*")
    factors = [getattr(t, "factor", None) for t in domain.transforms]
    return text, factors


def _without_devices(view: TensorView, value: torch.Tensor, rank: int) -> torch.Tensor:
    """The memory of an argument without its axes on devices. rank: of the memory.

    [1, 4] or [4] for allocation [i0.o{2}@mesh_x, i0.i{4}]
    """
    local, memory = local_domain(view), view.domain.memory
    on = [at for at, axis in enumerate(memory) if axis.parallel.is_device]
    whole = [at for at in on if "." not in memory[at].name]
    apart = [at for at in on if at not in whole]
    if value.dim() == rank - len(whole) and whole:
        order = [axis.name for axis in local.no_reductions]
        for at in sorted(order.index(memory[at].name) for at in whole):
            value = value.unsqueeze(at)
        return value
    if value.dim() != len(memory) or not apart:
        raise InputError(
            f"argument {view.name}",
            expected=f"rank {rank}, or {len(memory)} with the axes on devices,"
            f" for the allocation domain [{', '.join(map(str, memory))}]",
            got=f"a tensor of shape {tuple(value.shape)}",
        )
    for at in apart:
        if value.shape[at] != 1:
            raise InputError(
                f"argument {view.name}: axis {memory[at].name} on {memory[at].parallel.value}",
                expected="size 1 on each device", got=f"size {value.shape[at]}",
            )  # fmt: skip
    value = value.squeeze(tuple(apart))
    if local.transforms:
        return value
    return value.permute([local.allocation.index(at) for at in range(rank)])
