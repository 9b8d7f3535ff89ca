# SPDX-License-Identifier: Apache-2.0
"""Shardings of some tensors -> shardings of all: axes that an op walks in step are sharded alike.

    T0[i0@mesh_x, i1], T1[i1 whole];  T2 = mul(T0, T1)         T2[i0@mesh_x, i1]
    T3 = iota(8); T4 = add(T0[i0@mesh_x], T3)                  T3[i3@mesh_x], made where it is used
    T5 = sum(T0, dims=[0])                                     CommunicationError: i0 is on mesh_x

Two axes are in step if the op reads element x of one for element x of the other, by its index rule
(index_map.py). Axes that an op sums, sorts or cuts must be whole on every device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from thunder_fuser.analysis.index_map import ZERO, accesses
from thunder_fuser.base.union_find import UnionFind
from thunder_fuser.errors import CommunicationError, MeshError
from thunder_fuser.ir.domain import IterType, ParallelType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import OpRecord, names_of, record_text
from thunder_fuser.ir.rules import shapes
from thunder_fuser.ir.rules.layouts import Sharding, shards
from thunder_fuser.ir.scalar import Scalar, symbol
from thunder_fuser.ir.strides import reshape_groups

TensorAxis = tuple[str, int]  # a tensor and one of its axes
On = tuple[ParallelType, ...]


@dataclass(frozen=True, slots=True)
class Same:
    """Two axes that the op walks in step."""

    first: TensorAxis
    second: TensorAxis


@dataclass(frozen=True, slots=True)
class Whole:
    """An axis that must be whole on every device."""

    node: TensorAxis


AxisFacts = Iterator[Same | Whole]


def mesh_of(fusion: Fusion) -> Mesh | None:
    """The mesh of a fusion; None if it has none. MeshError if an argument lacks it."""
    meshes = {view.mesh: name for name, view in fusion.tensors.items() if view.mesh is not None}
    if len(meshes) > 1:
        listed = ", ".join(f"{name} on {mesh}" for mesh, name in meshes.items())
        raise MeshError("tensors", expected="one mesh", got=listed)
    if not meshes:
        return None
    (mesh,) = meshes
    for name in fusion.inputs:
        view = fusion.tensors[name]
        if view.shape and view.mesh is None:
            raise MeshError(
                f"argument {name}", expected=f"the mesh {mesh}, as {meshes[mesh]} has", got="none",
                do="call set_device_mesh, which is enough for a tensor that is whole everywhere",
            )  # fmt: skip
    return mesh


def propagate(fusion: Fusion) -> dict[str, Sharding]:
    """The sharding of every tensor of a specialised fusion.

    Raises CommunicationError naming an expression that needs elements of other devices.
    """
    mesh, classes = mesh_of(fusion), _Classes(fusion)
    tensors = {name: without_broadcasts(view) for name, view in fusion.tensors.items()}
    facts = [(expr, list(facts_of(expr, tensors))) for expr in fusion.exprs]
    for expr, expr_facts in facts:
        for fact in expr_facts:
            if isinstance(fact, Same):
                classes.join(fact.first, fact.second, expr)
    spread = {
        name: tuple(classes.on((name, at)) for at in range(len(view.shape)))
        for name, view in fusion.tensors.items()
    }
    for expr, expr_facts in facts:
        for fact in expr_facts:
            if isinstance(fact, Whole):
                name, at = fact.node
                _check_whole(expr, fusion.tensors[name], at, spread[name][at])
        for name in expr.outputs:
            _check_result(expr, fusion.tensors[name], spread[name], mesh)
    return spread


class _Classes:
    """Classes of axes in step. A class has the sharding that the definition gives one of them."""

    def __init__(self, fusion: Fusion) -> None:
        self._classes: UnionFind[TensorAxis] = UnionFind()
        self._shardings: dict[TensorAxis, On] = {}
        for name, view in fusion.tensors.items():
            if view.mesh is None:
                continue
            spread = shards(view)
            # A result with a mesh but no sharding takes the propagated one.
            if name in fusion.inputs or any(spread):
                self._shardings |= {(name, at): on for at, on in enumerate(spread)}

    def on(self, node: TensorAxis) -> On:
        """The dimensions of the mesh that an axis is spread over."""
        return self._shardings.get(self._classes.find(node), ())

    def join(self, a: TensorAxis, b: TensorAxis, expr: OpRecord) -> None:
        """Joins two classes; CommunicationError if their shardings differ."""
        first, second = self._classes.find(a), self._classes.find(b)
        if first == second:
            return
        ours, theirs = self._shardings.get(first), self._shardings.get(second)
        if ours is not None and theirs is not None and ours != theirs:
            raise CommunicationError(
                record_text(expr),
                expected=f"axis {a[1]} of {a[0]} and axis {b[1]} of {b[0]} sharded alike",
                got=f"{_words(ours)} and {_words(theirs)}",
                do="redistribute one of them first",
            )
        self._classes.join(first, second)
        if ours is None and theirs is not None:
            self._shardings[first] = theirs


def _words(on: On) -> str:
    return " and ".join(kind.value for kind in on) or "whole"


def _check_whole(expr: OpRecord, view: TensorView, at: int, on: On) -> None:
    if on:
        raise CommunicationError(
            record_text(expr), expected=f"axis {at} of {view} whole on every device",
            got=f"it is on {_words(on)}", do="redistribute the tensor first",
        )  # fmt: skip


def _check_result(expr: OpRecord, view: TensorView, sharding: Sharding, mesh: Mesh | None) -> None:
    """A tensor has each dimension of the mesh at most once, and parts of equal size."""
    used = sum(sharding, ())
    if len(set(used)) != len(used):
        raise CommunicationError(
            record_text(expr), expected="at most one axis for each dimension of the mesh",
            do="redistribute an operand first",
            got=f"{view} with {', '.join(map(_words, sharding))}",
        )  # fmt: skip
    for at, on in enumerate(sharding):
        devices = prod(mesh.size(kind) for kind in on) if mesh is not None else 1
        if view.sizes[at] % devices:
            raise CommunicationError(
                record_text(expr), expected=f"axis {at} a multiple of {devices} devices",
                got=str(view), do="redistribute an operand first",
            )  # fmt: skip


# ---- the rules


def facts_of(expr: OpRecord, tensors: Mapping[str, TensorView]) -> AxisFacts:
    """Which axes of an expression are in step, and which must be whole."""
    if expr.op == "reshape":
        return _reshape(expr, tensors)
    if expr.op in ("linear", "matmul"):
        return _product(expr, tensors)
    if expr.row.kind is OpKind.SCAN or expr.op in ("sort", "argsort", "topk"):
        return _along(expr, tensors)
    if expr.row.kind is OpKind.EXTERNAL:
        names = (*names_of(expr), *expr.outputs)
        return (Whole((name, at)) for name in names for at in range(_rank(tensors, name)))
    return _by_index(expr, tensors)


def _rank(tensors: Mapping[str, TensorView], name: str) -> int:
    return len(tensors[name].shape)


def without_broadcasts(view: TensorView) -> TensorView:
    """The tensor with plain axes in place of broadcasts, since size 1 may be on one device."""
    kinds = {IterType.BROADCAST: IterType.ITERATION}
    axes = (replace(axis, kind=kinds.get(axis.kind, axis.kind)) for axis in view.domain.logical)
    return replace(view, domain=replace(view.domain, logical=tuple(axes)))


def _by_index(expr: OpRecord, tensors: Mapping[str, TensorView]) -> AxisFacts:
    """An axis that is read at an index of the result is in step with it; other axes must be whole,
    and so must the axes of the result in their index.

    T1 = slice(T0, [0, 2], [8, 6]);  T1[x, y] reads T0[x, y + 2]     x is in step, y is whole
    """
    reduced = (ZERO,) * max((_rank(tensors, name) for name in names_of(expr)), default=0)
    for out in expr.outputs:
        index = tuple(symbol(str(at)) for at in range(_rank(tensors, out)))
        for access in accesses(expr, index, tensors, reduced):
            yield from (Whole((out, int(at))) for at in access.condition.symbols)
            for at, read in enumerate(access.index):
                yield from _read(tensors, out, (access.name, at), read)


def _read(tensors: Mapping[str, TensorView], out: str, node: TensorAxis, read: Scalar) -> AxisFacts:
    """The facts that follow from the index at which one axis of an operand is read."""
    size = tensors[node[0]].sizes[node[1]]
    # If the index is an element of another tensor, the read of that tensor gives the facts.
    ours = [] if read.op == "element" else [(out, int(name)) for name in read.symbols]
    if read.op == "sym" and tensors[out].sizes[ours[0][1]] == size:
        yield Same(ours[0], node)
    elif read.op == "sym" and size == 1:
        yield Whole(node)  # it is broadcast
    else:
        yield from map(Whole, (node, *ours))


def _along(expr: OpRecord, tensors: Mapping[str, TensorView]) -> AxisFacts:
    """The scanned or sorted axis must be whole."""
    yield from _by_index(expr, tensors)
    rank = _rank(tensors, expr.outputs[0])
    if rank:
        dim = shapes.normalise_axis(expr.attr("dim"), rank, expr.op)
        yield from (Whole((name, dim)) for name in (*names_of(expr), *expr.outputs))


def _reshape(expr: OpRecord, tensors: Mapping[str, TensorView]) -> AxisFacts:
    """In each group of axes with equal products, the outermost ones are in step."""
    source, out = names_of(expr)[0], expr.outputs[0]
    for before, after in groups(tensors[source].sizes, tensors[out].sizes):
        if before and after:
            yield Same((out, after[0]), (source, before[0]))
        yield from (Whole((source, at)) for at in before[1:])
        yield from (Whole((out, at)) for at in after[1:])


def groups(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Groups of axes with equal products, without axes of size 1.

    >>> groups((4, 6, 5), (24, 1, 5))
    [([0, 1], [0]), ([2], [2])]
    """
    pairs = (
        ([at for at in ours if before[at] != 1], [at for at in theirs if after[at] != 1])
        for ours, theirs in reshape_groups(before, after)
    )
    return [pair for pair in pairs if any(pair)]


def _product(expr: OpRecord, tensors: Mapping[str, TensorView]) -> AxisFacts:
    """The axis that a product sums must be whole.

    matmul  [.., m, k], [.., k, n] -> [.., m, n]
    linear  [.., k], [n, k], [n] -> [.., n]
    """
    names, out = names_of(expr), expr.outputs[0]
    a, b = names[:2]
    left, right, rank = (_rank(tensors, name) for name in (a, b, out))
    summed, other = max(right - 2, 0), right - 1
    if expr.op == "linear":
        summed, other = other, summed
    yield Same((a, left - 1), (b, summed))
    yield Whole((a, left - 1))
    if expr.attr("streams") is not None and len(expr.ints("streams")) == 2:
        yield Whole((out, expr.ints("streams")[0]))  # each device has all pieces
    if left > 1:
        yield Same((out, rank - 1 - (right > 1)), (a, left - 2))
    if right > 1:
        yield Same((out, rank - 1), (b, other))
        yield from (Same((out, rank - 1), (c, 0)) for c in names[2:] if _rank(tensors, c))
    for name, operand_rank in ((a, left), (b, right)):
        for back in range(3, operand_rank + 1):
            yield from _read(tensors, out, (name, operand_rank - back), symbol(str(rank - back)))
