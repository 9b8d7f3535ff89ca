# SPDX-License-Identifier: Apache-2.0
"""Allocation domains that strides cannot say become reads and writes of plain storage.

    T0 = define_tensor(shape=[6]); T0.split(0, 2); T0.merge(1, 0); ...; add_output(T1)
->  T2 = define_tensor(shape=[6]); T3 = reshape(T2, [2, 3]); T4 = permute(T3, [1, 0])
    T0 = reshape(T4, [6]); ...
    T5 = reshape(T1, [3, 2]); T6 = permute(T5, [1, 0]); T7 = reshape(T6, [6]); add_output(T7)

Kernels read through such ops at index expressions (docs/adr/0001), so nothing moves. An
intermediate so laid out is written to memory, where alone a layout has a meaning.
"""

from __future__ import annotations

from dataclasses import replace

from thunder_fuser.ir import binding
from thunder_fuser.ir.build import define
from thunder_fuser.ir.domain import Domain, Reorder, Split, TensorDomain, Transform, apply
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.record import LAYOUT, Literal, OpRecord, names_of, rename
from thunder_fuser.ir.strides import stride_order_of
from thunder_fuser.presegment.rewrite import Chain
from thunder_fuser.presegment.specialise import strided


def lay_out(fusion: Fusion) -> Fusion:
    """The fusion without LAYOUT records: on tensors that lie as their strides say."""
    if not any(record.op in LAYOUT for record in fusion.definition):
        return fusion
    results = {output.name for output in fusion.outputs}
    laid = {name for r in fusion.definition if r.op in LAYOUT for name in names_of(r)}
    stands: dict[str, str] = {}
    records: list[OpRecord] = []
    for record in fusion.definition:
        if record.op in LAYOUT:
            continue
        if record.op == "define_tensor":
            records += _input(record, fusion.tensors[record.outputs[0]])
        elif record.op == "add_output":
            records += _output(record, fusion, stands)
        else:
            records.append(rename(record, stands))
            for name in laid.intersection(record.outputs):
                more = _intermediate(fusion.tensors[name], name in results)
                records += more
                stands.update({name: more[-1].outputs[0]} if more else {})
    return define(tuple(records))


def _input(record: OpRecord, view: TensorView) -> list[OpRecord]:
    """The storage that is given, and what the tensor is of it."""
    if not view.domain.transforms:
        return [record]
    sizes = tuple(size.value for size in binding.allocation_sizes(view.domain, view.shape))
    storage = f"{view.name}.storage"
    given = strided(record, sizes, record.attr("strides"))
    logical = from_storage(view.domain, storage).named(view.name)
    return [replace(given, outputs=(storage,)), *logical]


def _output(record: OpRecord, fusion: Fusion, stands: dict[str, str]) -> list[OpRecord]:
    """A result laid out as its own domain says, or as the input it is written into."""
    (name,) = names_of(record)
    alias = record.attr("alias")
    view = fusion.tensors[name if alias is None else str(alias)]
    source = stands.get(name, name)
    if not view.domain.transforms:
        return [replace(record, inputs=(source,))]
    storage = to_storage(view.domain, source)
    attrs = tuple((k, f"{v}.storage" if k == "alias" else v) for k, v in record.attrs)
    return [*storage.records, replace(record, inputs=(storage.last,), attrs=attrs)]


def _intermediate(view: TensorView, is_result: bool) -> list[OpRecord]:
    """What stands for a computed tensor that was given a place in memory of its own."""
    domain = view.domain
    if not domain.transforms:
        plain = TensorDomain.of(domain.logical)
        if domain.allocation == plain.allocation or not domain.allocation:
            return []
        chain = Chain(view.name, "order")
        chain.add("stride_order", stride_order=stride_order_of(domain.allocation))
        return chain.records
    if is_result:
        return []  # its storage is written where it is given back
    chain = to_storage(domain, view.name)
    chain.add("segment_set")
    return [*chain.records, *from_storage(domain, chain.last).records]


def to_storage(domain: TensorDomain, name: str) -> Chain:
    """logical -> memory: a split is a reshape, after a pad where it does not divide."""
    chain = Chain(name, "to")
    for transform, before, after in _steps(domain):
        sizes, padded = _sizes(before), _padded(transform, before, after)
        if isinstance(transform, Reorder):
            chain.add("permute", dims=_places(after, before))
            continue
        if padded != sizes:
            widths = [w for a, b in zip(sizes, padded, strict=True) for w in (b - a, 0)]
            chain.add("pad", pad_widths=tuple(reversed(widths)), value=Literal.of(0))
        chain.add("reshape", new_shape=_sizes(after))
    if domain.allocation != tuple(range(len(domain.allocation))):
        chain.add("permute", dims=domain.allocation)
    return chain


def from_storage(domain: TensorDomain, name: str) -> Chain:
    """memory -> logical, the transforms undone: a split that did not divide leaves a slice."""
    chain = Chain(name, "from")
    places = tuple(domain.allocation.index(at) for at in range(len(domain.allocation)))
    if places != tuple(range(len(places))):
        chain.add("permute", dims=places)
    for transform, before, after in reversed(_steps(domain)):
        sizes, padded = _sizes(before), _padded(transform, before, after)
        if isinstance(transform, Reorder):
            chain.add("permute", dims=_places(before, after))
            continue
        chain.add("reshape", new_shape=padded)
        if padded != sizes:
            chain.add("slice", start_indices=(0,) * len(sizes), end_indices=sizes)
    return chain


def _steps(domain: TensorDomain) -> list[tuple[Transform, Domain, Domain]]:
    """The transforms, each with the axes before and after it."""
    steps: list[tuple[Transform, Domain, Domain]] = []
    axes = domain.no_reductions
    for transform in domain.transforms:
        steps.append((transform, axes, apply(axes, transform)))
        axes = steps[-1][2]
    return steps


def _places(axes: Domain, among: Domain) -> tuple[int, ...]:
    names = [axis.name for axis in among]
    return tuple(names.index(axis.name) for axis in axes)


def _padded(transform: Transform, before: Domain, after: Domain) -> tuple[int, ...]:
    """The sizes before a transform, where an axis that it splits is as long as both parts."""
    if not isinstance(transform, Split):
        return _sizes(before)
    by_name = {axis.name: axis.extent.value for axis in after}
    whole = by_name[transform.axis + ".o"] * by_name[transform.axis + ".i"]
    return tuple(whole if a.name == transform.axis else a.extent.value for a in before)


def _sizes(axes: Domain) -> tuple[int, ...]:
    return tuple(axis.extent.value for axis in axes)
