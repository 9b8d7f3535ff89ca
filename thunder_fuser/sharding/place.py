# SPDX-License-Identifier: Apache-2.0
"""A specialised fusion on a mesh -> the placement of every value, with redistributes between them.

    T0[i0@mesh_x, i1]; T1 = sum(T0, dims=[0]); T2 = tanh(T1)
->  T1: Partial(sum); T1.0 = redistribute(T1, [Replicate()]); T2 = tanh(T1.0)

If `propagate` finds shardings that need no communication, those are taken. Otherwise expressions
are placed in their order, by these rules:

- Axes that an expression walks in step are sharded alike: as in the operand, or the wanted result,
  that has them over the most devices. Axes on which all operands agree are decided first. Cutting a
  whole operand moves nothing.
- An axis that must be whole is gathered. But if the expression sums it, each device sums its part,
  and the result is Partial.
- A result is moved to the placement of the definition, and terms are reduced before they are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from thunder_fuser.base.union_find import UnionFind
from thunder_fuser.errors import CommunicationError
from thunder_fuser.ir.domain import TensorDomain
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.mesh import Mesh, On, Sharding
from thunder_fuser.ir.record import Definition, OpRecord, names_of, rename
from thunder_fuser.ir.rules.communication import is_communication
from thunder_fuser.ir.rules.layouts import shards
from thunder_fuser.ir.scalar import const
from thunder_fuser.sharding.placements import Placement, annotated, check_even, read, words_of
from thunder_fuser.sharding.propagate import mesh_of, propagate, without_broadcasts
from thunder_fuser.sharding.rules import TensorAxis, Tensors, rule_of

_KEPT = ("define_tensor", "define_scalar", "size")
_REDUCE = {"sum": "sum", "prod": "product", "max": "max", "min": "min"}


@dataclass(frozen=True)
class Placed:
    """The records with redistributes, and the placement and global sizes of each value."""

    definition: Definition
    places: Mapping[str, Placement]
    sizes: Mapping[str, tuple[int, ...]]

    @property
    def moves(self) -> bool:
        """True if a device needs elements of other devices."""
        return any(record.op == "redistribute" for record in self.definition)


def place(fusion: Fusion) -> Placed:
    """The placement of every value of a specialised fusion on a mesh.

    Raises MeshError for placements that do not fit, and CommunicationError for communication of
    local tensors, since the other expressions are about global ones.
    """
    mesh = mesh_of(fusion)
    assert mesh is not None
    for expr in fusion.exprs:
        if is_communication(expr) and expr.op != "redistribute":
            raise CommunicationError(
                f"ops.{expr.op}", expected="redistribute in a fusion on a mesh",
                got=f"{expr.op}, which is of local tensors", do="call fd.ops.redistribute",
            )  # fmt: skip
    is_explicit = any(expr.op == "redistribute" for expr in fusion.exprs)
    if not is_explicit and not any(view.partial for view in fusion.tensors.values()):
        with suppress(CommunicationError):  # some expression needs elements of other devices
            places = {name: Placement(axes) for name, axes in propagate(fusion).items()}
            sizes = {name: view.sizes for name, view in fusion.tensors.items()}
            return Placed(fusion.definition, places, sizes)
    return _Placer(fusion, mesh).placed()


class _Placer:
    """Walks a fusion and writes its records with redistributes."""

    def __init__(self, fusion: Fusion, mesh: Mesh) -> None:
        self.fusion, self.mesh = fusion, mesh
        self.tensors = {name: without_broadcasts(v) for name, v in fusion.tensors.items()}
        self.records: list[OpRecord] = []
        self.places: dict[str, Placement] = {}
        self.sizes: dict[str, tuple[int, ...]] = {}
        self.moved: dict[tuple[str, Placement], str] = {}
        self.wanted = _wanted(fusion, mesh, self.tensors)

    def placed(self) -> Placed:
        for record in self.fusion.definition:
            if record.op == "add_output":
                self._output(record)
            elif record.op == "redistribute":
                self._redistribute(record)
            elif record.op in _KEPT or not record.outputs:
                self.records.append(record)
                for name in record.outputs:
                    self._note(name, annotated(self.fusion.tensors[name]), self.tensors[name].sizes)
            else:
                self._expression(record)
        return Placed(tuple(self.records), self.places, self.sizes)

    # ---- records

    def _note(self, name: str, placement: Placement, sizes: tuple[int, ...]) -> None:
        self.places[name], self.sizes[name] = placement, sizes

    def _output(self, record: OpRecord) -> None:
        """A result is Partial only if the definition says so. A result that overwrites an argument
        takes its placement."""
        (name,) = names_of(record)
        alias = record.attr("alias")
        target = replace(self.places[name], partial=self.fusion.tensors[name].partial)
        target = target if alias is None else self.places[str(alias)]
        self.records.append(rename(record, {name: self._at(name, target)}))

    def _redistribute(self, record: OpRecord) -> None:
        (source,), (name,) = names_of(record), record.outputs
        view = self.tensors[source]
        target, what = _read(record, view, self.mesh), f"redistribute of {view}"
        check_even(target.axes, view.sizes, self.mesh, CommunicationError, what)
        self._move(source, name, target)

    def _at(self, name: str, target: Placement) -> str:
        """The name of the value in a placement, moved there if it is in another one."""
        if self.places[name] == target:
            return name
        if (name, target) not in self.moved:
            copy = f"{name}.{len(self.moved)}"
            self.moved[name, target] = copy
            self._move(name, copy, target)
        return self.moved[name, target]

    def _move(self, source: str, copy: str, target: Placement) -> None:
        attrs = (("placements", words_of(target, self.mesh)),)
        self.records.append(OpRecord("redistribute", (source,), (copy,), attrs))
        self._note(copy, target, self.sizes[source])

    # ---- expressions

    def _expression(self, expr: OpRecord) -> None:
        choice = _OperandPlacements(self, expr)
        places = {out: choice.placement(out) for out in expr.outputs}
        has_bias = expr.op == "linear" and len(names_of(expr)) == 3
        if has_bias and places[expr.outputs[0]].partial:
            self._bias_after_sum(expr)
            return
        operands = {name: self._at(name, choice.placement(name)) for name in names_of(expr)}
        # A result that the definition wants in another placement is computed under another name.
        targets = {out: self._annotated(out) or place for out, place in places.items()}
        names = {out: out if targets[out] == places[out] else f"{out}.made" for out in places}
        self.records.append(replace(rename(expr, operands), outputs=tuple(names.values())))
        for out, name in names.items():
            self._note(name, places[out], self.tensors[out].sizes)
            if name != out:
                self._move(name, out, targets[out])

    def _annotated(self, name: str) -> Placement | None:
        """The placement that the definition gives a computed value, if any."""
        if name not in self.fusion.tensors:
            return None
        placement = annotated(self.fusion.tensors[name])
        return placement if placement.partial or any(placement.axes) else None

    def _bias_after_sum(self, expr: OpRecord) -> None:
        """linear(a, b, bias) where each device has a part of the sum: the bias is added after it
        is reduced."""
        (name,), bias = expr.outputs, names_of(expr)[2]
        view = self.tensors[name]
        *rows, column = view.domain.no_reductions
        raised = tuple(replace(axis, extent=const(1)) for axis in rows)
        product, added, wide = (f"{name}.{word}" for word in ("product", "added", "bias"))
        domain = TensorDomain.of((*raised, column))
        for new, its in ((product, view.domain), (added, view.domain), (wide, domain)):
            self.tensors[new] = replace(view, name=new, domain=its)
        self.wanted |= {added: self.wanted[name]} if name in self.wanted else {}
        flags = (("is_broadcast_dim", (*(True,) * len(rows), False)),)
        dtype = (("dtype", view.dtype),)
        for record in (
            replace(expr, inputs=expr.inputs[:2], outputs=(product,)),
            OpRecord("broadcast", (bias,), (wide,), flags),
            OpRecord("add", (product, wide), (added,)),
            OpRecord("cast", (added,), (name,), dtype),
        ):
            self._expression(record)


class _OperandPlacements:
    """Decides how one expression's operands must be placed, and how its results then are."""

    def __init__(self, placer: _Placer, expr: OpRecord) -> None:
        self.expr, self.placer, self.rule = expr, placer, rule_of(expr)
        self.classes: UnionFind[TensorAxis] = UnionFind()
        self.must: list[TensorAxis] = []
        self.nodes: dict[TensorAxis, None] = {}
        for out in expr.outputs:
            self.nodes |= {(out, at): None for at in range(len(placer.tensors[out].shape))}
        for first, second in self.rule.facts(expr, placer.tensors):
            self.nodes[first] = None
            if second is None:
                self.must.append(first)
            else:
                self.classes.join(first, second)
                self.nodes[second] = None
        self.used: defaultdict[str, set[object]] = defaultdict(set)
        self.chosen: dict[TensorAxis, On] = {}
        self._choose()

    def placement(self, name: str) -> Placement:
        """The placement that an operand must have, and that a result then has."""
        axes = tuple(self._on((name, at)) for at in range(len(self.placer.tensors[name].shape)))
        word = _REDUCE.get(self.expr.op, "sum")
        summed = self.summed() if name in self.expr.outputs else ()
        return Placement(axes, tuple((kind, word) for node in summed for kind in self._on(node)))

    def summed(self) -> list[TensorAxis]:
        """A node for each axis that the expression sums. Each device may sum a part of those."""
        axes = self.rule.summed(self.expr, self.placer.tensors)
        return [(names_of(self.expr)[0], at) for at in axes]

    def _on(self, node: TensorAxis) -> On:
        return self.chosen.get(self.classes.find(node), ())

    def _choose(self) -> None:
        summed = {self.classes.find(node) for node in self.summed()}
        must = {self.classes.find(node) for node in self.must} - summed
        groups: dict[TensorAxis, list[TensorAxis]] = {}
        for node in self.nodes:
            groups.setdefault(self.classes.find(node), []).append(node)
        # Axes on which all operands agree are decided first.
        for root, members in sorted(groups.items(), key=lambda g: not self._is_agreed(g[1])):
            names = {name for name, _ in members}
            names |= set(self.expr.outputs) if root in summed else set()
            fitting = (on for on in self._candidates(members) if self._fits(on, members, names))
            best = () if root in must else max(fitting, key=self.placer.mesh.devices, default=())
            self.chosen[root] = best
            for name in names:
                self.used[name].update(best)

    def _is_agreed(self, members: list[TensorAxis]) -> bool:
        operands = [n for n in members if n[0] not in self.expr.outputs]
        shardings = {self.placer.places[name].axes[at] for name, at in operands}
        return len(shardings) == 1 and shardings != {()}

    def _candidates(self, members: list[TensorAxis]) -> Iterator[On]:
        for name, at in members:
            if name in self.expr.outputs:
                yield from (axes[at] for axes in (self.placer.wanted.get(name),) if axes)
            else:
                yield self.placer.places[name].axes[at]

    def _fits(self, on: On, members: list[TensorAxis], names: set[str]) -> bool:
        """True if no tensor has a dimension on two axes, and the devices divide every axis."""
        is_free = all(self.used[name].isdisjoint(on) for name in names)
        sizes = (self.placer.tensors[name].sizes[at] for name, at in members)
        return is_free and all(size % self.placer.mesh.devices(on) == 0 for size in sizes)


def _wanted(fusion: Fusion, mesh: Mesh, tensors: Tensors) -> dict[str, Sharding]:
    """{value: its wanted sharding}: as defined or redistributed, or from a one-operand result."""
    shardings: dict[str, Sharding] = {}
    for name, view in fusion.tensors.items():
        if name not in fusion.inputs and any(shards(view)):
            shardings[name] = shards(view)
    for expr in reversed(fusion.exprs):
        names = [name for name in names_of(expr) if not tensors[name].is_scalar]
        if expr.op == "redistribute":
            shardings.setdefault(names[0], _read(expr, tensors[names[0]], mesh).axes)
        elif len(names) == 1 and expr.outputs[0] in shardings:
            asked = _through(expr, names[0], shardings[expr.outputs[0]], tensors)
            shardings.setdefault(names[0], asked)
    return shardings


def _through(expr: OpRecord, name: str, asked: Sharding, tensors: Tensors) -> Sharding:
    """The sharding of an operand that gives the result the sharding `asked`."""
    axes: list[On] = [() for _ in tensors[name].shape]
    for first, second in rule_of(expr).facts(expr, tensors):
        ends = dict([first, second or first])
        if name in ends and expr.outputs[0] in ends:
            axes[ends[name]] = asked[ends[expr.outputs[0]]]
    return tuple(axes)


def _read(record: OpRecord, view: TensorView, mesh: Mesh) -> Placement:
    words, what = record.attr("placements"), f"redistribute of {view.name}"
    return read(words, mesh, len(view.shape), what)  # type: ignore[arg-type]
