# SPDX-License-Identifier: Apache-2.0
"""Compares the programs of all ranks of a mesh once, before anything is sent.

It compares what must be equal, because ranks would otherwise deadlock: the expressions, and the
collectives with sizes and types in their order. Strides and alignments are left out: they change
kernels, but may differ from rank to rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import torch
import torch.distributed as dist

from thunder_fuser.communication.transport.collectives import all_gather, wait
from thunder_fuser.errors import PeerError
from thunder_fuser.host.programs.nodes import Collective, HostNode
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.record import record_text
from thunder_fuser.ir.rules.communication import is_communication
from thunder_fuser.multi_device import LowerParams
from thunder_fuser.presegment.localise import localise
from thunder_fuser.presegment.specialise import InputKey, specialise

FAILED = -1  # replaces the digest of a rank that could not compile its program


def meshes_of(fusion: Fusion, keys: tuple[InputKey, ...]) -> tuple[Mesh, ...]:
    """The meshes over which a fusion communicates for such arguments; none if it does not.

    They are known before anything is compiled, and are the same on all ranks.
    """
    on_mesh = any(view.mesh is not None for view in fusion.tensors.values())
    if not on_mesh and not any(map(is_communication, fusion.exprs)):
        return ()
    local = localise(specialise(fusion, keys))
    found = (Mesh.of(one.attr("mesh")) for one in local.exprs if is_communication(one))
    return tuple(dict.fromkeys(found))


def digest(fusion: Fusion, nodes: Iterable[HostNode], lower: LowerParams) -> int:
    """A number of 63 bits. It is equal on ranks that can run the program together."""
    sizes = (
        f"{one.outputs[0]}: {fusion.tensors[one.outputs[0]]}"
        for one in fusion.exprs if is_communication(one)
    )
    expressions = map(record_text, fusion.exprs)
    posts = (str(node) for node in nodes if isinstance(node, Collective))
    text = "\n".join([*expressions, *sizes, *posts, repr(lower)])
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") >> 1


def agree(number: int, meshes: Iterable[Mesh], device: torch.device, seconds: float) -> None:
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


def _compare(found: dict[int, int]) -> None:
    rank = dist.get_rank()
    if failed := [other for other, number in found.items() if number == FAILED]:
        raise PeerError(
            f"rank {rank}: the program", expected="a program on all ranks",
            got=f"none on rank {failed[0]}, which could not compile it",
            do=f"look at the error of rank {failed[0]}",
        )  # fmt: skip
    if len(set(found.values())) == 1:
        return
    listed = "; ".join(f"rank {other}: {number:016x}" for other, number in found.items())
    raise PeerError(
        f"rank {rank}: the program", expected="the same digest on all ranks",
        got=listed, do="run the same definition, with the same sizes, on all ranks",
    )  # fmt: skip
