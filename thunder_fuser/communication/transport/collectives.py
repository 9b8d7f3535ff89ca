# SPDX-License-Identifier: Apache-2.0
"""Collectives of a group of devices through torch.distributed: posted now, awaited later.

    sent = all_gather(x, dim=0, mesh=((0, 1)), on="mesh_x")    # [4, 3] on each of two devices
    y = wait(sent, "T1", seconds=300)                          # [8, 3]

A group is a line of the mesh: devices whose coordinates differ only along `on`. All devices of a
group must post the same collectives in the same order. Elements that are only moved are sent as
bytes, so any dtype will do. The operand may have any strides; the result is row-major.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from thunder_fuser.errors import MeshError, PeerError
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.mesh import Mesh

_OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT,
        "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}  # fmt: skip


@dataclass(frozen=True)
class Posted:
    """A collective that has begun.

    what: its name, for messages. work: torch's handle, None if there is none. result: makes the
    result from the elements that arrived. tensor: what is read until then.
    """

    what: str
    work: Any
    result: Callable[[], torch.Tensor]
    tensor: torch.Tensor


def wait(
    sent: Posted, buffer: str, seconds: float = 300.0, strides: tuple[int, ...] | None = None
) -> torch.Tensor:
    """Waits for the result, which is row-major unless strides are given.

    PeerError names this rank, the collective and the buffer if a device of the group is dead, or
    does not take part within `seconds` (on a GPU: within the group's own time-out).
    """
    try:
        if sent.work is not None:
            on_cpu = sent.tensor.device.type == "cpu"
            sent.work.wait(*[timedelta(seconds=seconds)] * on_cpu)
    except RuntimeError as error:
        raise _peer_error(sent.what, buffer, seconds, error) from error
    result = sent.result()
    if strides is None or result.stride() == strides:
        return result
    copied = torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)
    return copied.copy_(result)


def _peer_error(what: str, buffer: str, seconds: float, error: RuntimeError) -> PeerError:
    return PeerError(
        f"rank {dist.get_rank()}: {buffer} = {what}",
        expected=f"the other devices of the group within {seconds:g} s",
        got=str(error).partition("\n")[0],
        do="look at the logs of the other ranks: one has ended or runs another program",
    )


# ---- the collectives


def all_gather(tensor: torch.Tensor, *, dim: int, mesh: Any, on: str) -> Posted:
    """Concatenates the tensors of the group's devices along `dim`.

    tensor: [.., s, ..], the same sizes on all devices; the result: [.., devices * s, ..].
    """
    group = group_of(mesh, on, tensor.device.type)
    dim %= tensor.ndim
    sent = tensor.contiguous()
    every = _stacked(sent, group)
    work = _post(dist.all_gather_into_tensor, _as_bytes(every), _as_bytes(sent), group=group)
    return _sent("all_gather", mesh, on, work, lambda: _joined(every, dim), sent)


def reduce_scatter(
    tensor: torch.Tensor, *, dim: int, mesh: Any, on: str, reduce: str = "sum"
) -> Posted:
    """Reduces the group's tensors, and gives each device its part of the result along `dim`.

    tensor: [.., s, ..]; the result: [.., s / devices, ..].
    """
    group = group_of(mesh, on, tensor.device.type)
    parts = _split(_reducible(tensor), dim, group.size())
    if _keeps_nan(tensor, reduce):
        work, every = _exchanged(parts, group)
        return _sent("reduce_scatter", mesh, on, work, lambda: _extreme(every, reduce), parts)
    out = torch.empty_like(parts[0])
    work = _post(
        dist.reduce_scatter_tensor, _real(out), _real(parts), op=_OPS[reduce], group=group
    )
    end = _end(out, tensor.dtype, reduce, group.size())
    return _sent("reduce_scatter", mesh, on, work, end, parts)


def all_reduce(tensor: torch.Tensor, *, mesh: Any, on: str, reduce: str = "sum") -> Posted:
    """Reduces the group's tensors, element by element."""
    group = group_of(mesh, on, tensor.device.type)
    if _keeps_nan(tensor, reduce):
        sent = tensor.contiguous()
        every = _stacked(sent, group)
        work = _post(dist.all_gather_into_tensor, _as_bytes(every), _as_bytes(sent), group=group)
        return _sent("all_reduce", mesh, on, work, lambda: _extreme(every, reduce), sent)
    out = _reducible(tensor).clone(memory_format=torch.contiguous_format)
    work = _post(dist.all_reduce, _real(out), op=_OPS[reduce], group=group)
    return _sent(
        "all_reduce", mesh, on, work, _end(out, tensor.dtype, reduce, group.size()), out
    )


def all_to_all(
    tensor: torch.Tensor, *, split_dim: int, cat_dim: int, mesh: Any, on: str
) -> Posted:
    """Takes this device's part along `split_dim` of each device's tensor, and concatenates them
    along `cat_dim`.

    tensor: [s, t]; with split_dim=0, cat_dim=1 the result is [s / devices, devices * t].
    """
    group = group_of(mesh, on, tensor.device.type)
    parts = _split(tensor, split_dim, group.size())
    work, every = _exchanged(parts, group)
    cat_dim %= tensor.ndim
    return _sent("all_to_all", mesh, on, work, lambda: _joined(every, cat_dim), parts)


def broadcast_from(tensor: torch.Tensor, *, root: int, mesh: Any, on: str) -> Posted:
    """The tensor of the device with the coordinate `root`."""
    group = group_of(mesh, on, tensor.device.type)
    out = tensor.clone(memory_format=torch.contiguous_format)
    source = dist.get_global_rank(group, root % group.size())
    work = _post(dist.broadcast, _as_bytes(out), source, group=group)
    return _sent("broadcast_from", mesh, on, work, lambda: out, out)


COLLECTIVES: dict[str, Callable[..., Posted]] = {
    collective.__name__: collective
    for collective in (all_gather, reduce_scatter, all_reduce, all_to_all, broadcast_from)
}


def _post(call: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """Calls, and returns torch's handle. PeerError if torch notices already that a device died."""
    try:
        return call(*args, async_op=True, **more)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise _peer_error(call.__name__, "what is sent", 0, error) from error


def _sent(  # noqa: PLR0917 - the fields of Posted
    name: str, mesh: Any, on: str, work: Any, result: Callable[[], torch.Tensor],
    tensor: torch.Tensor,
) -> Posted:
    return Posted(f"{name}(mesh={mesh}, on={on!r})", work, result, tensor)


def _exchanged(parts: torch.Tensor, group: Any) -> tuple[Any, torch.Tensor]:
    """[devices, ..] -> (torch's handle, [devices, ..] whose part i comes from device i)."""
    every = torch.empty_like(parts)
    return _post(dist.all_to_all_single, _as_bytes(every), _as_bytes(parts), group=group), every


# ---- tensors


def _stacked(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    return tensor.new_empty((group.size(), *tensor.shape))


def _joined(every: torch.Tensor, dim: int) -> torch.Tensor:
    """[devices, .., s, ..] -> [.., devices * s, ..]"""
    return every.movedim(0, dim).flatten(dim, dim + 1).contiguous()


def _split(tensor: torch.Tensor, dim: int, parts: int) -> torch.Tensor:
    """[.., s, ..] -> [parts, .., s / parts, ..], contiguous"""
    dim %= tensor.ndim
    sizes = (parts, tensor.shape[dim] // parts)
    return tensor.unflatten(dim, sizes).movedim(dim, 0).contiguous()


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as bytes, for calls that only move elements."""
    return tensor.view(-1).view(torch.uint8)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as real numbers: complex numbers are added part by part."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).view(-1)


def _reducible(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a type that every backend can reduce."""
    return tensor.to(torch.int32) if tensor.dtype is torch.int16 else tensor


def _keeps_nan(tensor: torch.Tensor, reduce: str) -> bool:
    """True where torch's reduction gives NaN, but a backend's may give a number."""
    return reduce in ("min", "max") and tensor.is_floating_point()


def _extreme(every: torch.Tensor, reduce: str) -> torch.Tensor:
    return every.amax(0) if reduce == "max" else every.amin(0)


def _end(
    out: torch.Tensor, dtype: torch.dtype, reduce: str, devices: int
) -> Callable[[], torch.Tensor]:
    def end() -> torch.Tensor:
        return (out / devices if reduce == "avg" else out).to(dtype)

    return end


# ---- groups


class _DeviceMeshes:
    """The DeviceMesh of each mesh and device type. It is cleared when the process group changes."""

    def __init__(self) -> None:
        self.world: Any = None
        self.meshes: dict[tuple[Mesh, str], DeviceMesh] = {}

    def of_this_group(self) -> dict[tuple[Mesh, str], DeviceMesh]:
        world = dist.group.WORLD
        if world is not self.world:
            self.world, self.meshes = world, {}
            _line.cache_clear()
        return self.meshes


_device_meshes = _DeviceMeshes()


def remember(device_mesh: DeviceMesh) -> None:
    """Uses the process groups of the caller's DeviceMesh from now on."""
    known = _device_meshes.of_this_group()
    known.setdefault((Mesh.of(device_mesh), device_mesh.device_type), device_mesh)


def group_of(mesh: Any, on: str, device: str) -> Any:
    """torch's process group of this device's line along a dimension of a mesh.

    The first call for a mesh makes its groups, which is itself a collective of all ranks.
    MeshError without a process group, if this rank is not in the mesh, or if the line is not in
    the order of its ranks, as torch's groups are.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise MeshError(
            "this process", expected="a process group for communication", got="none",
            do="call torch.distributed.init_process_group",
        )  # fmt: skip
    _device_meshes.of_this_group()
    return _line(_tuples(mesh), on, device)


def _tuples(mesh: Any) -> Any:
    return tuple(map(_tuples, mesh)) if isinstance(mesh, (list, tuple)) else mesh


@lru_cache(maxsize=256)
def _line(nested: Any, on: str, device: str) -> Any:
    mesh, known = Mesh.of(nested), _device_meshes.of_this_group()
    if dist.get_rank() not in mesh.ranks:
        expected = f"a rank of the mesh {mesh}"
        raise MeshError(f"rank {dist.get_rank()}", expected=expected)
    for rank in mesh.ranks:
        line = mesh.line(rank, ParallelType(on))
        if line != tuple(sorted(line)):
            raise MeshError(
                f"mesh {mesh}", expected=f"ascending ranks along {on}, for communication",
                got=", ".join(map(str, line)), do="list the ranks of each line in ascending order",
            )  # fmt: skip
    if (mesh, device) not in known:
        known[mesh, device] = DeviceMesh(device, torch.tensor(nested, device="cpu"))
    return known[mesh, device].get_group(mesh.dimension(ParallelType(on)))
