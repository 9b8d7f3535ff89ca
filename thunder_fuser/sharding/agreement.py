# SPDX-License-Identifier: Apache-2.0
"""Compares the programs of all ranks of a mesh once, before anything is sent.

It compares what must be equal, because ranks would otherwise deadlock: the expressions, and the
collectives with sizes and types in their order. Strides and alignments are left out: they change
kernels, but may differ from rank to rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist

from thunder_fuser.communication.transport.collectives import all_gather, wait
from thunder_fuser.errors import PeerError
from thunder_fuser.host.programs.nodes import Collective
from thunder_fuser.host.programs.program import HostProgram
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.record import record_text
from thunder_fuser.ir.rules.communication import is_communication
from thunder_fuser.multi_device import LowerParams, MultiDeviceParams
from thunder_fuser.presegment.specialise import InputKey, specialise
from thunder_fuser.sharding.localise import localise

_FAILED = -1  # replaces the digest of a rank that could not compile its program


class Agreement:
    """The calls of a fusion for which the ranks have compared their programs."""

    def __init__(self, fusion: Fusion) -> None:
        self._fusion = fusion
        self._agreed: set[tuple[Any, ...]] = set()

    def program(
        self, compiled: Callable[[], HostProgram], keys: tuple[InputKey, ...],
        params: MultiDeviceParams, device: torch.device,
    ) -> HostProgram:  # fmt: skip
        """Compiles a program. If it communicates, it is compared with the other ranks' programs.

        That happens once for such sizes, because strides and addresses may differ from rank to
        rank. PeerError on all ranks if programs differ, or if a rank cannot compile its own.
        """
        key = (params, tuple((key.sizes, key.value) for key in keys))
        meshes = () if key in self._agreed else _meshes_of(self._fusion, keys)
        if not meshes:
            return compiled()
        seconds = params.executor.seconds
        try:
            program = compiled()
        except Exception:
            with suppress(PeerError):  # the other ranks raise it; here the cause says more
                _agree(_FAILED, meshes, device, seconds)
            raise
        _agree(_digest(program, params.lower), meshes, device, seconds)
        self._agreed.add(key)
        return program


def _meshes_of(fusion: Fusion, keys: tuple[InputKey, ...]) -> tuple[Mesh, ...]:
    """The meshes over which a fusion communicates for such arguments; none if it does not.

    They are known before anything is compiled, and are the same on all ranks.
    """
    on_mesh = any(view.mesh is not None for view in fusion.tensors.values())
    if not on_mesh and not any(map(is_communication, fusion.exprs)):
        return ()
    local = localise(specialise(fusion, keys))
    meshes = (Mesh.of(expr.attr("mesh")) for expr in local.exprs if is_communication(expr))
    return tuple(dict.fromkeys(meshes))


def _digest(program: HostProgram, lower: LowerParams) -> int:
    """A number of 63 bits. It is equal on ranks that can run the program together."""
    fusion = program.segmented.fusion
    sizes = (
        f"{expr.outputs[0]}: {fusion.tensors[expr.outputs[0]]}"
        for expr in fusion.exprs if is_communication(expr)
    )
    expressions = map(record_text, fusion.exprs)
    posts = (str(node) for node in program.nodes if isinstance(node, Collective))
    text = "\n".join([*expressions, *sizes, *posts, repr(lower)])
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") >> 1


def _agree(number: int, meshes: Iterable[Mesh], device: torch.device, seconds: float) -> None:
    """Compares a program's digest with those of the other ranks of its meshes, in a collective.

    PeerError on every rank if they differ, or if a rank does not answer in time.
    """
    if dist.is_initialized() and dist.get_backend() == "fake":
        return  # a single process simulates a rank: there is nothing to compare with
    for mesh in meshes:
        table = torch.tensor([number], device=device)
        for dimension in reversed(range(len(mesh.sizes))):
            on = mesh.parallel(dimension).value
            sent = all_gather(table, dim=0, mesh=mesh.nested, on=on)
            table = wait(sent, "the comparison of programs", seconds)
        _compare(dict(zip(mesh.ranks, table.tolist(), strict=True)))


def _compare(digests: dict[int, int]) -> None:
    rank = dist.get_rank()
    if failed := [other for other, number in digests.items() if number == _FAILED]:
        raise PeerError(
            f"rank {rank}: the program", expected="a program on all ranks",
            got=f"none on rank {failed[0]}, which could not compile it",
            do=f"look at the error of rank {failed[0]}",
        )  # fmt: skip
    if len(set(digests.values())) == 1:
        return
    listed = "; ".join(f"rank {other}: {number:016x}" for other, number in digests.items())
    raise PeerError(
        f"rank {rank}: the program", expected="the same digest on all ranks",
        got=listed, do="run the same definition, with the same sizes, on all ranks",
    )  # fmt: skip
