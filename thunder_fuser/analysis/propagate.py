# SPDX-License-Identifier: Apache-2.0
"""Shardings of some tensors -> shardings of all: axes that an op walks in step are sharded alike.

    T0[i0@mesh_x, i1], T1[i1 whole];  T2 = mul(T0, T1)         T2[i0@mesh_x, i1]
    T3 = iota(8); T4 = add(T0[i0@mesh_x], T3)                  T3[i3@mesh_x], made where it is used
    T5 = sum(T0, dims=[0])                                     CommunicationError: i0 is on mesh_x

Axes that an op sums, sorts or cuts must be whole on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from thunder_fuser.errors import CommunicationError, MeshError
from thunder_fuser.ir import shapes
from thunder_fuser.ir.domain import Domain, ParallelType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.indexed import indexed_axis
from thunder_fuser.ir.layouts import Sharding, shards
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import Literal, OpRecord, names_of, record_text
from thunder_fuser.union_find import UnionFind

Node = tuple[str, int]  # a tensor and one of its axes
On = tuple[ParallelType, ...]


@dataclass(frozen=True, slots=True)
class Same:
    """Two axes that the op walks in step."""

    first: Node
    second: Node


@dataclass(frozen=True, slots=True)
class Whole:
    """An axis that must be whole on every device."""

    node: Node


Rule = Callable[[OpRecord, Mapping[str, TensorView]], Iterator[Same | Whole]]


def mesh_of(fusion: Fusion) -> Mesh | None:
    """The mesh of a fusion; None if it has none. MeshError if an argument lacks it."""
    found = {view.mesh: name for name, view in fusion.tensors.items() if view.mesh is not None}
    if len(found) > 1:
        listed = ", ".join(f"{name} on {mesh}" for mesh, name in found.items())
        raise MeshError("tensors", expected="one mesh", got=listed)
    if not found:
        return None
    (mesh,) = found
    for name in fusion.inputs:
        view = fusion.tensors[name]
        if view.shape and view.mesh is None:
            raise MeshError(
                f"argument {name}", expected=f"the mesh {mesh}, as {found[mesh]} has", got="none",
                do="call set_device_mesh, which is enough for a tensor that is whole everywhere",
            )  # fmt: skip
    return mesh


def propagate(fusion: Fusion) -> dict[str, Sharding]:
    """The sharding of every tensor of a specialised fusion.

    Raises CommunicationError naming an expression that needs elements of other devices.
    """
    mesh = mesh_of(fusion)
    classes = _Classes(fusion)
    for expr in fusion.exprs:
        for fact in _facts(expr, fusion.tensors):
            if isinstance(fact, Same):
                classes.join(fact.first, fact.second, expr)
    found = {
        name: tuple(classes.on((name, at)) for at in range(len(view.shape)))
        for name, view in fusion.tensors.items()
    }
    for expr in fusion.exprs:
        for fact in _facts(expr, fusion.tensors):
            if isinstance(fact, Whole):
                _check_whole(expr, fact.node, found, fusion)
        for name in expr.outputs:
            _check_result(expr, fusion.tensors[name], found[name], mesh)
    return found


class _Classes:
    """Classes of axes in step. A class has the sharding of one of its tensors."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self._classes: UnionFind[Node] = UnionFind()
        self._said: dict[Node, tuple[On, Node]] = {}
        for name, view in fusion.tensors.items():
            if view.mesh is None:
                continue
            spread = shards(view)
            # A result with a mesh but no sharding takes the propagated one.
            if name in fusion.inputs or any(spread):
                for at, on in enumerate(spread):
                    self._said[name, at] = (on, (name, at))

    def on(self, node: Node) -> On:
        """The dimensions an axis is spread over."""
        return self._said.get(self._classes.find(node), ((), node))[0]

    def join(self, a: Node, b: Node, expr: OpRecord) -> None:
        """Joins two classes; CommunicationError if their shardings differ."""
        first, second = self._classes.find(a), self._classes.find(b)
        if first == second:
            return
        ours, theirs = self._said.get(first), self._said.get(second)
        if ours and theirs and ours[0] != theirs[0]:
            raise CommunicationError(
                record_text(expr),
                expected=f"axis {a[1]} of {a[0]} and axis {b[1]} of {b[0]} sharded alike",
                got=f"{_words(ours[0])} and {_words(theirs[0])}",
                do="redistribute one of them first",
            )
        self._classes.join(first, second)
        if theirs and not ours:
            self._said[first] = theirs


def _words(on: On) -> str:
    return " and ".join(kind.value for kind in on) or "whole"


def _check_whole(
    expr: OpRecord, node: Node, found: Mapping[str, Sharding], fusion: Fusion
) -> None:
    name, at = node
    if found[name][at]:
        view = fusion.tensors[name]
        raise CommunicationError(
            record_text(expr), expected=f"axis {at} of {view} whole on every device",
            got=f"it is on {_words(found[name][at])}", do="redistribute the tensor first",
        )  # fmt: skip


def _check_result(expr: OpRecord, view: TensorView, found: Sharding, mesh: Mesh | None) -> None:
    """Each dimension of the mesh at most once in a tensor, and parts of equal size."""
    used = sum(found, ())
    if len(set(used)) != len(used):
        raise CommunicationError(
            record_text(expr), expected="at most one axis for each dimension of the mesh",
            got=f"{view} with {', '.join(map(_words, found))}", do="redistribute an operand first",
        )  # fmt: skip
    for at, on in enumerate(found):
        devices = 1
        for kind in on:
            devices *= mesh.size(kind) if mesh is not None else 1
        if view.sizes[at] % devices:
            raise CommunicationError(
                record_text(expr), expected=f"axis {at} a multiple of {devices} devices",
                got=str(view), do="redistribute an operand first",
            )  # fmt: skip


# ---- the rules


def _facts(expr: OpRecord, tensors: Mapping[str, TensorView]) -> Iterator[Same | Whole]:
    rule = _RULES.get(expr.op) or _KINDS.get(expr.row.kind, _nothing_moves)
    return rule(expr, tensors)


def _axes(tensors: Mapping[str, TensorView], name: str) -> Domain:
    return tensors[name].domain.no_reductions


def _is_one(tensors: Mapping[str, TensorView], node: Node) -> bool:
    return tensors[node[0]].sizes[node[1]] == 1


def _same(tensors: Mapping[str, TensorView], a: Node, b: Node) -> Iterator[Same | Whole]:
    """Two axes of equal length are in step. An axis of length 1 is whole beside any other."""
    if tensors[a[0]].sizes[a[1]] == tensors[b[0]].sizes[b[1]]:
        yield Same(a, b)
    else:
        yield from (Whole(node) for node in (a, b) if _is_one(tensors, node))


def _columns(
    expr: OpRecord, tensors: Mapping[str, TensorView], but: tuple[int, ...] = ()
) -> Iterator[Same | Whole]:
    """Axes at equal positions are in step; those in `but` are whole."""
    for out in expr.outputs:
        for name in names_of(expr):
            for at in range(len(_axes(tensors, name))):
                if at in but:
                    yield Whole((name, at))
                else:
                    yield from _same(tensors, (out, at), (name, at))
        yield from (Whole((out, at)) for at in but)


def _nothing_moves(expr: OpRecord, tensors: Mapping[str, TensorView]) -> Iterator[Same | Whole]:
    """Ops that need all axes whole."""
    for name in (*names_of(expr), *expr.outputs):
        yield from (Whole((name, at)) for at in range(len(_axes(tensors, name))))


def _along(expr: OpRecord, tensors: Mapping[str, TensorView]) -> Iterator[Same | Whole]:
    rank = len(_axes(tensors, expr.outputs[0]))
    dim = expr.attr("dim")
    return _columns(expr, tensors, (shapes.normalise_axis(dim, rank, expr.op),) if rank else ())


def _flip(expr: OpRecord, tensors: Mapping[str, TensorView]) -> Iterator[Same | Whole]:
    rank = len(_axes(tensors, expr.outputs[0]))
    return _columns(expr, tensors, shapes.normalise_axes(expr.attr("dims"), rank, "flip"))


def _made(expr: OpRecord, tensors: Mapping[str, TensorView]) -> Iterator[Same | Whole]:
    """An op without operands makes the elements on the device that uses them."""
    return iter(())


def _reduction(expr: OpRecord, tensors: Mapping[str, TensorView]) -> Iterator[Same | Whole]:
    (source,) = names_of(expr)
    dims: tuple[int, ...] = expr.attr("dims")  # type: ignore[assignment]
    places = iter(range(len(_axes(tensors, expr.outputs[0]))))
    for at in range(len(_axes(tensors, source))):
        if at in dims:
            yield Whole((source, at))
            if expr.attr("keepdim"):
                next(places)
        else:
            yield Same((expr.outputs[0], next(places)), (source, at))


def _mapped(
    expr: OpRecord, tensors: Mapping[str, TensorView], places: Mapping[int, int]
) -> Iterator[Same | Whole]:
    """places: axis of the result -> axis of the operand."""
    source = names_of(expr)[0]
    for out, at in places.items():
        yield from _same(tensors, (expr.outputs[0], out), (source, at))


def _permute(expr: OpRecord, tensors: Mapping[str, TensorView]) -> Iterator[Same | Whole]:
    rank = len(_axes(tensors, expr.outputs[0]))
    dims = shapes.normalise_axes(expr.attr("dims"), rank, "permute")
    return _mapped(expr, tensors, dict(enumerate(dims)))


def _broadcast(expr: OpRecord, tensors: Mapping[str, TensorView]) -> Iterator[Same | Whole]:
    flags: tuple[bool, ...] = expr.attr("is_broadcast_dim")  # type: ignore[assignment]
    kept = [at for at, flag in enumerate(flags) if not flag]
    return _mapped(expr, tensors, {out: at for at, out in enumerate(kept)})


def _broadcast_in_dim(
    expr: OpRecord, tensors: Mapping[str, TensorView]
) -> Iterator[Same | Whole]:
    rank = len(_axes(tensors, expr.outputs[0]))
    dims: tuple[int, ...] = expr.attr("broadcast_dims")  # type: ignore[assignment]
    return _mapped(expr, tensors, {out % rank: at for at, out in enumerate(dims)})


def _squeeze(expr: OpRecord, tensors: Mapping[str, TensorView]) -> Iterator[Same | Whole]:
    rank = len(_axes(tensors, names_of(expr)[0]))
    gone = shapes.normalise_axes(expr.attr("dims"), rank, "squeeze")
    kept = [at for at in range(rank) if at not in gone]
    yield from (Whole((names_of(expr)[0], at)) for at in gone)
    yield from _mapped(expr, tensors, dict(enumerate(kept)))


def _resized(expr: OpRecord, tensors: Mapping[str, TensorView]) -> Iterator[Same | Whole]:
    """slice, pad: an axis that changes is whole."""
    rank = len(_axes(tensors, expr.outputs[0]))
    source = tensors[names_of(expr)[0]]
    if expr.op == "pad":
        changed = [widths != (0, 0) for widths in shapes.pad_widths(expr, rank)]
    else:
        starts: tuple[int, ...] = expr.attr("start_indices")  # type: ignore[assignment]
        steps = shapes.slice_strides(expr, rank)
        sizes = zip(source.sizes, tensors[expr.outputs[0]].sizes, strict=True)
        changed = [
            start != 0 or step != 1 or before != after
            for start, step, (before, after) in zip(starts, steps, sizes, strict=True)
        ]
    return _columns(expr, tensors, tuple(at for at in range(rank) if changed[at]))


def _reshape(expr: OpRecord, tensors: Mapping[str, TensorView]) -> Iterator[Same | Whole]:
    """In each group of axes with equal products, the outermost ones are in step."""
    source, out = names_of(expr)[0], expr.outputs[0]
    for before, after in groups(tensors[source].sizes, tensors[out].sizes):
        if before and after:
            yield Same((out, after[0]), (source, before[0]))
        yield from (Whole((source, at)) for at in before[1:])
        yield from (Whole((out, at)) for at in after[1:])


def groups(
    before: tuple[int, ...], after: tuple[int, ...]
) -> list[tuple[list[int], list[int]]]:
    """Groups of axes with equal products, without axes of size 1.

    >>> groups((4, 6, 5), (24, 1, 5))
    [([0, 1], [0]), ([2], [2])]
    """
    ours = [at for at, size in enumerate(before) if size != 1]
    theirs = [at for at, size in enumerate(after) if size != 1]
    found = []
    while ours and theirs:
        a, b = [ours.pop(0)], [theirs.pop(0)]
        left, right = before[a[0]], after[b[0]]
        while left != right:
            if left < right:
                a.append(ours.pop(0))
                left *= before[a[-1]]
            else:
                b.append(theirs.pop(0))
                right *= after[b[-1]]
        found.append((a, b))
    return found


def _index(expr: OpRecord, tensors: Mapping[str, TensorView]) -> Iterator[Same | Whole]:
    """The indexed axis is whole; the others are in step."""
    source, index = expr.inputs[expr.row.source], expr.inputs[1 - expr.row.source]
    out, rank = expr.outputs[0], len(_axes(tensors, expr.outputs[0]))
    dim = indexed_axis(expr, len(_axes(tensors, str(source))))
    yield Whole((str(source), dim))
    beside = [] if isinstance(index, Literal) else list(range(len(_axes(tensors, index))))
    if expr.op == "index_select":
        yield from (Same((out, dim), (str(index), at)) for at in beside)
    elif expr.op == "embedding_fwd":
        yield from (Same((out, at), (str(index), at)) for at in beside)
        yield Same((out, rank - 1), (str(source), 1))
        return
    else:
        for at in beside:
            yield from _same(tensors, (out, at), (str(index), at))
    for at in range(len(_axes(tensors, str(source)))):
        if at != dim:
            yield from _same(tensors, (out, at), (str(source), at))


def _linear(expr: OpRecord, tensors: Mapping[str, TensorView]) -> Iterator[Same | Whole]:
    """[.., k], [n, k], [n] -> [.., n]: the summed axis is whole."""
    names = names_of(expr)
    x, weight, out = names[0], names[1], expr.outputs[0]
    rank = len(_axes(tensors, x))
    yield Same((x, rank - 1), (weight, len(_axes(tensors, weight)) - 1))
    yield Whole((x, rank - 1))
    yield from (Same((out, at), (x, at)) for at in range(rank - 1))
    if len(_axes(tensors, weight)) == 2:
        last = len(_axes(tensors, out)) - 1
        yield Same((out, last), (weight, 0))
        yield from (Same((out, last), (bias, 0)) for bias in names[2:] if tensors[bias].shape)


def _matmul(expr: OpRecord, tensors: Mapping[str, TensorView]) -> Iterator[Same | Whole]:
    """[.., m, k], [.., k, n] -> [.., m, n]"""
    (a, b), out = names_of(expr), expr.outputs[0]
    left, right, rank = (len(_axes(tensors, name)) for name in (a, b, out))
    yield Same((a, left - 1), (b, max(right - 2, 0)))
    yield Whole((a, left - 1))
    if left > 1:
        yield Same((out, rank - 1 - (right > 1)), (a, left - 2))
    if right > 1:
        yield Same((out, rank - 1), (b, right - 1))
    for name, own in ((a, left), (b, right)):
        for back in range(3, own + 1):
            yield from _same(tensors, (out, rank - back), (name, own - back))


_KINDS: dict[OpKind, Rule] = {
    OpKind.POINTWISE: _columns,
    OpKind.REDUCTION: _reduction,
    OpKind.SCAN: _along,
    OpKind.FACTORY: _made,
    OpKind.RANDOM: _made,
    OpKind.SCALAR: _made,
    OpKind.INDEX: _index,
}

_RULES: dict[str, Rule] = {
    "set": _columns,
    "segment_set": _columns,
    "stride_order": _columns,
    "expand": _columns,
    "broadcast": _broadcast,
    "broadcast_in_dim": _broadcast_in_dim,
    "squeeze": _squeeze,
    "permute": _permute,
    "reshape": _reshape,
    "slice": _resized,
    "pad": _resized,
    "cat": _along,
    "flip": _flip,
    "linear": _linear,
    "matmul": _matmul,
    "sort": _along,
    "argsort": _along,
    "topk": _along,
}
