# SPDX-License-Identifier: Apache-2.0
"""A mesh: devices in up to three dimensions.

    Mesh.of([[0, 1, 2], [3, 4, 5]])    mesh_x: 3 devices a row, the last dimension; mesh_y: 2 rows

Rank 4 has the coordinates (1, 1): row 1, column 1.

A sharding lists, for each logical axis, the dimensions of the mesh it is spread over. A definition
says where a tensor lies by words, one for each dimension of the mesh: Shard(0), Partial(sum).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

from thunder_fuser.errors import MeshError, shown
from thunder_fuser.ir.domain import ParallelType

On = tuple[ParallelType, ...]  # dimensions of a mesh, outermost first
Sharding = tuple[On, ...]
REDUCTIONS = ("sum", "avg", "product", "min", "max")

_TYPES = (ParallelType.MESH_X, ParallelType.MESH_Y, ParallelType.MESH_Z)
_SHARD = re.compile(r"S(?:hard)?\((?:dim=)?(-?\d+)\)")
_PARTIAL = re.compile(r"P(?:artial)?(?:\((\w*)\))?")


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks in row-major order, and the sizes of the dimensions."""

    sizes: tuple[int, ...]
    ranks: tuple[int, ...]

    @staticmethod
    def of(nested: Any) -> Mesh:
        """The mesh of nested lists of ranks, or of torch's DeviceMesh; MeshError unless it is
        regular with distinct ranks."""
        nested = getattr(nested, "mesh", nested)
        nested = nested.tolist() if hasattr(nested, "tolist") else nested
        sizes: list[int] = []
        level = [nested]
        while level and not all(type(entry) is int for entry in level):
            lengths = {len(entry) if isinstance(entry, (list, tuple)) else -1 for entry in level}
            if len(lengths) != 1 or min(lengths) < 1:
                raise MeshError("mesh", expected="lists of equal length", got=shown(nested))
            sizes.append(lengths.pop())
            level = [entry for row in level for entry in row]
        if not 1 <= len(sizes) <= len(_TYPES) or len(set(level)) != len(level):
            expected = "distinct ranks in one to three dimensions"
            raise MeshError("mesh", expected=expected, got=shown(nested))
        return Mesh(tuple(sizes), tuple(level))

    @property
    def nested(self) -> Any:
        """The ranks as nested tuples, which `of` takes."""
        rows: list[Any] = list(self.ranks)
        for size in self.sizes[:0:-1]:
            rows = [tuple(rows[at : at + size]) for at in range(0, len(rows), size)]
        return tuple(rows)

    def dimension(self, parallel: ParallelType) -> int:
        """The dimension of a parallel type, from 0; MeshError if the mesh has no such dimension."""
        at = len(self.sizes) - 1 - _TYPES.index(parallel)
        if at < 0:
            what, expected = f"axis on {parallel.value}", "a mesh with more dimensions"
            raise MeshError(what, expected=expected, got=str(self))
        return at

    def parallel(self, dimension: int) -> ParallelType:
        """The inverse of `dimension`."""
        return _TYPES[len(self.sizes) - 1 - dimension]

    def size(self, parallel: ParallelType) -> int:
        """The number of devices along a dimension."""
        return self.sizes[self.dimension(parallel)]

    def devices(self, on: On) -> int:
        """The number of devices that an axis over these dimensions is spread over."""
        return prod(map(self.size, on))

    def coordinate(self, rank: int, parallel: ParallelType) -> int:
        """The coordinate of a rank along a dimension; MeshError if the mesh lacks the rank."""
        if rank not in self.ranks:
            raise MeshError(f"rank {rank}", expected=f"a rank of the mesh {self}", got=str(rank))
        dimension = self.dimension(parallel)
        below = prod(self.sizes[dimension + 1 :])
        return self.ranks.index(rank) // below % self.sizes[dimension]

    def line(self, rank: int, parallel: ParallelType) -> tuple[int, ...]:
        """The ranks along a dimension that have all other coordinates of a rank."""
        below = prod(self.sizes[self.dimension(parallel) + 1 :])
        first = self.ranks.index(rank) - below * self.coordinate(rank, parallel)
        return tuple(self.ranks[first + at * below] for at in range(self.size(parallel)))

    def __str__(self) -> str:
        return str(self.nested)


def word_of(placement: Any) -> str:
    """A placement of torch, or its text, as records store it; ValueError if it is none.

    >>> word_of("S(0)"), word_of("Replicate()"), word_of("P(sum)")
    ('Shard(0)', 'Replicate()', 'Partial(sum)')
    """
    text = str(placement)
    if shard := _SHARD.fullmatch(text):
        return f"Shard({shard[1]})"
    if text in ("R", "Replicate()"):
        return "Replicate()"
    term = _PARTIAL.fullmatch(text)
    if term and (term[1] or "sum") in REDUCTIONS:
        return f"Partial({term[1] or 'sum'})"
    raise ValueError(text)
