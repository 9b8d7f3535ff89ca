# SPDX-License-Identifier: Apache-2.0
"""The coordinates of this process in a mesh."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch.distributed as dist

from thunder_fuser.errors import MeshError
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.mesh import Mesh


def coordinate(ranks: Any, word: str) -> int:
    """The coordinate of this process along a dimension ("mesh_x", ...) of a nested mesh."""
    if not dist.is_available() or not dist.is_initialized():
        raise MeshError(
            "this process", expected="a process group for tensors on a mesh", got="none",
            do="call torch.distributed.init_process_group",
        )  # fmt: skip
    return _coordinate(ranks, word, dist.get_rank())


@lru_cache(maxsize=256)
def _coordinate(ranks: Any, word: str, rank: int) -> int:
    return Mesh.of(ranks).coordinate(rank, ParallelType(word))
