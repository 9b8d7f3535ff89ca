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

from collections.abc import Iterator, Mapping
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
from thunder_fuser.sharding.placements import Placement, annotated, read, whole, words_of
from thunder_fuser.sharding.propagate import mesh_of, propagate, without_broadcasts
from thunder_fuser.sharding.rules import Same, TensorAxis, Whole, rule_of

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
        try:
            return _in_place(fusion)
        except CommunicationError:
            pass  # some expression needs elements of other devices
    return _Placer(fusion, mesh).placed()


def _in_place(fusion: Fusion) -> Placed:
    places = {name: Placement(axes) for name, axes in propagate(fusion).items()}
    sizes = {name: view.sizes for name, view in fusion.tensors.items()}
    return Placed(fusion.definition, places, sizes)


class _Placer:
    """Walks a fusion and writes its records with redistributes."""

    def __init__(self, fusion: Fusion, mesh: Mesh) -> None:
        self.fusion, self.mesh = fusion, mesh
        self.views = dict(fusion.tensors)
        self.tensors = {name: without_broadcasts(v) for name, v in fusion.tensors.items()}
        self.records: list[OpRecord] = []
        self.places: dict[str, Placement] = {}
        self.sizes: dict[str, tuple[int, ...]] = {}
        self.moved: dict[tuple[str, Placement], str] = {}
        self.wanted = _wanted(fusion, mesh, self.tensors)

    def placed(self) -> Placed:
        for record in self.fusion.definition:
            if record.op in ("define_tensor", "define_scalar"):
                self._define(record, record.outputs[0], self._input_placement(record.outputs[0]))
            elif record.op == "add_output":
                self._output(record)
            elif record.op == "redistribute":
                self._redistribute(record)
            elif record.op == "size" or not record.outputs:
                self._kept(record)
            else:
                self._expression(record)
        return Placed(tuple(self.records), self.places, self.sizes)

    # ---- records

    def _input_placement(self, name: str) -> Placement:
        view = self.views[name]
        return annotated(view) if view.mesh else whole(len(view.shape))

    def _kept(self, record: OpRecord) -> None:
        self.records.append(record)
        for name in record.outputs:
            self._note(name, whole(0), ())

    def _define(self, record: OpRecord, name: str, placement: Placement) -> None:
        self.records.append(record)
        self._note(name, placement, self.tensors[name].sizes)

    def _note(self, name: str, placement: Placement, sizes: tuple[int, ...]) -> None:
        self.places[name], self.sizes[name] = placement, sizes

    def _output(self, record: OpRecord) -> None:
        """A result is Partial only if the definition says so. A result that overwrites an argument
        takes its placement."""
        (name,) = names_of(record)
        alias = record.attr("alias")
        view = self.views[name]
        target = replace(self.places[name], partial=view.partial)
        target = target if alias is None else self.places[str(alias)]
        self.records.append(rename(record, {name: self._at(name, target)}))

    def _redistribute(self, record: OpRecord) -> None:
        (source,), (name,) = names_of(record), record.outputs
        target = _read(record, self.tensors[source], self.mesh)
        _check_divides(record, self.tensors[source], target.axes, self.mesh)
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
        has_bias = expr.op == "linear" and len(names_of(expr)) == 3
        if has_bias and choice.result_placement(expr.outputs[0]).partial:
            self._bias_after_sum(expr)
            return
        operands = {name: self._at(name, choice.operand(name)) for name in names_of(expr)}
        names = {out: self._name(out, choice.result_placement(out)) for out in expr.outputs}
        outputs = tuple(names[out] for out in expr.outputs)
        self.records.append(replace(rename(expr, operands), outputs=outputs))
        for out, name in names.items():
            self._note(name, choice.result_placement(out), self.tensors[out].sizes)
            if name != out:
                self._move(name, out, self._annotated(out))  # type: ignore[arg-type]

    def _name(self, out: str, placement: Placement) -> str:
        """The name of the computed value. It differs from the result's name if the definition
        wants the result in another placement."""
        target = self._annotated(out)
        return out if target is None or target == placement else f"{out}.made"

    def _annotated(self, name: str) -> Placement | None:
        """The placement that the definition gives a computed value, if any."""
        view = self.views[name]
        if view.mesh is None or not (view.partial or any(shards(view))):
            return None
        return annotated(view)

    def _bias_after_sum(self, expr: OpRecord) -> None:
        """linear(a, b, bias) where each device has a part of the sum: the bias is added after it
        is reduced."""
        (name,), bias = expr.outputs, names_of(expr)[2]
        view = replace(self.views[name], mesh=None, partial=())
        *rows, column = view.domain.no_reductions
        raised = tuple(replace(axis, extent=const(1)) for axis in rows)
        product, added, wide = (f"{name}.{word}" for word in ("product", "added", "bias"))
        domain = TensorDomain.of((*raised, column))
        for tensor in (replace(view, name=product), replace(view, name=added),
                     replace(view, name=wide, domain=domain)):  # fmt: skip
            self.views[tensor.name], self.tensors[tensor.name] = tensor, without_broadcasts(tensor)
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
        for fact in self.rule.facts(expr, placer.tensors):
            if isinstance(fact, Whole):
                self.must.append(fact.node)
                self.nodes[fact.node] = None
            else:
                self.classes.join(fact.first, fact.second)
                self.nodes |= {fact.first: None, fact.second: None}
        self.used: dict[str, set[object]] = {name: set() for name, _ in self.nodes}
        self.chosen: dict[TensorAxis, On] = {}
        self._choose()

    def operand(self, name: str) -> Placement:
        """The placement that an operand must have."""
        rank = len(self.placer.tensors[name].shape) if name in self.placer.tensors else 0
        return Placement(tuple(self._on((name, at)) for at in range(rank)))

    def result_placement(self, name: str) -> Placement:
        """The placement of a result."""
        rank = len(self.placer.tensors[name].shape)
        word = _REDUCE.get(self.expr.op, "sum")
        terms = tuple((kind, word) for node in self.summed() for kind in self._on(node))
        return Placement(tuple(self._on((name, at)) for at in range(rank)), terms)

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
                self.used.setdefault(name, set()).update(best)

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
        is_free = all(self.used.get(name, set()).isdisjoint(on) for name in names)
        sizes = (self.placer.tensors[name].sizes[at] for name, at in members)
        return is_free and all(size % self.placer.mesh.devices(on) == 0 for size in sizes)


def _wanted(
    fusion: Fusion, mesh: Mesh, tensors: Mapping[str, TensorView]
) -> dict[str, Sharding]:
    """{value: its wanted sharding}: as defined or redistributed, or from a one-operand result."""
    shardings: dict[str, Sharding] = {}
    for name, view in fusion.tensors.items():
        if view.mesh is not None and name not in fusion.inputs and any(shards(view)):
            shardings[name] = shards(view)
    for expr in reversed(fusion.exprs):
        names = [name for name in names_of(expr) if not tensors[name].is_scalar]
        if expr.op == "redistribute":
            shardings.setdefault(names[0], _read(expr, tensors[names[0]], mesh).axes)
        elif len(names) == 1 and expr.outputs[0] in shardings:
            asked = _through(expr, names[0], shardings[expr.outputs[0]], tensors)
            shardings.setdefault(names[0], asked)
    return shardings


def _through(
    expr: OpRecord, name: str, asked: Sharding, tensors: Mapping[str, TensorView]
) -> Sharding:
    """The sharding of an operand that gives the result the sharding `asked`."""
    axes: list[On] = [() for _ in tensors[name].shape]
    for fact in rule_of(expr).facts(expr, tensors):
        if isinstance(fact, Same):
            ends = dict((fact.first, fact.second))
            if name in ends and expr.outputs[0] in ends:
                axes[ends[name]] = asked[ends[expr.outputs[0]]]
    return tuple(axes)


def _read(record: OpRecord, view: TensorView, mesh: Mesh) -> Placement:
    words, what = record.attr("placements"), f"redistribute of {view.name}"
    return read(words, mesh, len(view.shape), what)  # type: ignore[arg-type]


def _check_divides(record: OpRecord, view: TensorView, axes: Sharding, mesh: Mesh) -> None:
    for at, on in enumerate(axes):
        devices = mesh.devices(on)
        if view.sizes[at] % devices:
            expected = f"a multiple of {devices} devices: a split over devices must divide"
            raise CommunicationError(
                f"{record.op} of {view}: axis {at}", expected=expected,
                got=f"size {view.sizes[at]}", do="pad the axis first",
            )  # fmt: skip
