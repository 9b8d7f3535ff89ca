# SPDX-License-Identifier: Apache-2.0
"""Shardings of some tensors -> shardings of all: axes that an op walks in step are sharded alike.

    T0[i0@mesh_x, i1], T1[i1 whole];  T2 = mul(T0, T1)         T2[i0@mesh_x, i1]
    T3 = iota(8); T4 = add(T0[i0@mesh_x], T3)                  T3[i3@mesh_x], made where it is used
    T5 = sum(T0, dims=[0])                                     CommunicationError: i0 is on mesh_x

rules.py says which axes an op walks in step. Axes that it sums, sorts or cuts must be whole on
every device.
"""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.base.union_find import UnionFind
from thunder_fuser.errors import CommunicationError, MeshError
from thunder_fuser.ir.domain import IterType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.mesh import Mesh, On, Sharding
from thunder_fuser.ir.record import OpRecord, record_text
from thunder_fuser.ir.rules.layouts import shards
from thunder_fuser.sharding.rules import TensorAxis, rule_of


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
    facts = [(expr, list(rule_of(expr).facts(expr, tensors))) for expr in fusion.exprs]
    for expr, expr_facts in facts:
        for first, second in expr_facts:
            if second is not None:
                classes.join(first, second, expr)
    spread = {
        name: tuple(classes.on((name, at)) for at in range(len(view.shape)))
        for name, view in fusion.tensors.items()
    }
    for expr, expr_facts in facts:
        for (name, at), second in expr_facts:
            if second is None:
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
            spread = shards(view)
            # A result without a sharding takes the propagated one.
            if name in fusion.inputs or any(spread):
                self._shardings |= {(name, at): on for at, on in enumerate(spread)}

    def on(self, node: TensorAxis) -> On:
        """The dimensions of the mesh that an axis is spread over."""
        return self._shardings.get(self._classes.find(node), ())

    def join(self, a: TensorAxis, b: TensorAxis, expr: OpRecord) -> None:
        """Joins two classes; CommunicationError if their shardings differ."""
        first, second = self._classes.find(a), self._classes.find(b)
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
        devices = mesh.devices(on) if mesh is not None else 1
        if view.sizes[at] % devices:
            raise CommunicationError(
                record_text(expr), expected=f"axis {at} a multiple of {devices} devices",
                got=str(view), do="redistribute an operand first",
            )  # fmt: skip


def without_broadcasts(view: TensorView) -> TensorView:
    """The tensor with plain axes in place of broadcasts, since size 1 may be on one device."""
    kinds = {IterType.BROADCAST: IterType.ITERATION}
    axes = (replace(axis, kind=kinds.get(axis.kind, axis.kind)) for axis in view.domain.logical)
    return replace(view, domain=replace(view.domain, logical=tuple(axes)))
