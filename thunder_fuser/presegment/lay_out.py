# SPDX-License-Identifier: Apache-2.0
"""Allocation domains that strides cannot describe become reads and writes of plain storage.

    T0 = define_tensor(shape=[6]); T0.split(0, 2); T0.merge(1, 0); ...; add_output(T1)
->  T2 = define_tensor(shape=[6]); T3 = reshape(T2, [2, 3]); T4 = permute(T3, [1, 0])
    T0 = reshape(T4, [6]); ...
    T5 = reshape(T1, [3, 2]); T6 = permute(T5, [1, 0]); T7 = reshape(T6, [6]); add_output(T7)

Kernels read through such ops by index expressions (docs/adr/0001), so no elements move. An
intermediate with such a layout is written to memory, because only there a layout has a meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, pairwise

from thunder_fuser.ir import binding
from thunder_fuser.ir.domain import Domain, Reorder, Split, TensorDomain, Transform, apply
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import LAYOUT, Literal, OpRecord, names_of, rename
from thunder_fuser.ir.rules.build import define
from thunder_fuser.ir.strides import stride_order_of
from thunder_fuser.presegment.rewrite import Chain
from thunder_fuser.presegment.specialise import strided


def with_set_layout(fusion: Fusion) -> list[str]:
    """The tensors whose layouts the definition sets."""
    names = [name for r in fusion.definition if r.op in LAYOUT for name in names_of(r)]
    return list(dict.fromkeys(names))


def lay_out(fusion: Fusion) -> Fusion:
    """The fusion without LAYOUT records, on tensors that strides describe."""
    assert all(view.mesh is None for view in fusion.tensors.values())  # see sharding/localise.py
    domains = {name: fusion.tensors[name].domain for name in with_set_layout(fusion)}
    return define(tuple(on_storage(fusion.definition, domains))) if domains else fusion


def on_storage(
    records: Iterable[OpRecord], domains: Mapping[str, TensorDomain]
) -> Iterator[OpRecord]:
    """The records without LAYOUT, which read and write the storage of these domains instead."""
    records = [record for record in records if record.op not in LAYOUT]
    results = {name for r in records if r.op == "add_output" for name in names_of(r)}
    replaced: dict[str, str] = {}
    for record in records:
        if record.op == "define_tensor":
            yield from _input(record, domains.get(record.outputs[0]))
        elif record.op == "add_output":
            yield from _output(record, domains, replaced)
        else:
            yield rename(record, replaced)
            for name in (name for name in record.outputs if name in domains):
                stored = _intermediate(name, domains[name], name in results)
                yield from stored.records
                replaced[name] = stored.last


def _input(record: OpRecord, domain: TensorDomain | None) -> list[OpRecord]:
    """The storage that the caller gives, and the records that read the tensor from it."""
    if domain is None or not domain.transforms:
        return [record]
    (name,) = record.outputs
    shape = [axis.extent for axis in domain.no_reductions]
    sizes = tuple(size.value for size in binding.allocation_sizes(domain, shape))
    storage = strided(record, sizes, record.attr("strides"))
    logical = from_storage(domain, Chain(f"{name}.storage", "from"))
    return [replace(storage, outputs=(f"{name}.storage",)), *logical.named(name)]


def _output(
    record: OpRecord, domains: Mapping[str, TensorDomain], replaced: Mapping[str, str]
) -> list[OpRecord]:
    """A result in the layout of its own domain, or of the input that it is written into."""
    (name,) = names_of(record)
    alias = record.attr("alias")
    domain = domains.get(name if alias is None else str(alias))
    source = replaced.get(name, name)
    if domain is None or not domain.transforms:
        return [replace(record, inputs=(source,))]
    storage = to_storage(domain, Chain(source, "to"))
    attrs = tuple((k, f"{v}.storage" if k == "alias" else v) for k, v in record.attrs)
    return [*storage.records, replace(record, inputs=(storage.last,), attrs=attrs)]


def _intermediate(name: str, domain: TensorDomain, is_result: bool) -> Chain:
    """The records after a computed tensor whose layout is set."""
    chain = Chain(name, "laid")
    if not domain.transforms:
        plain = TensorDomain.of(domain.logical)
        if domain.allocation not in (plain.allocation, ()):
            chain.add("stride_order", stride_order=stride_order_of(domain.allocation))
    elif not is_result:  # `_output` writes the storage of a result
        to_storage(domain, chain).add("segment_set")
        from_storage(domain, chain)
    return chain


def to_storage(domain: TensorDomain, chain: Chain) -> Chain:
    """Adds logical -> memory. A split is a reshape, after a pad where it does not divide."""
    for transform, (before, after) in _steps(domain):
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


def from_storage(domain: TensorDomain, chain: Chain) -> Chain:
    """Adds memory -> logical, the inverse. A slice removes the padding of an uneven split."""
    places = tuple(domain.allocation.index(at) for at in range(len(domain.allocation)))
    if places != tuple(range(len(places))):
        chain.add("permute", dims=places)
    for transform, (before, after) in reversed(_steps(domain)):
        sizes, padded = _sizes(before), _padded(transform, before, after)
        if isinstance(transform, Reorder):
            chain.add("permute", dims=_places(before, after))
            continue
        chain.add("reshape", new_shape=padded)
        if padded != sizes:
            chain.add("slice", start_indices=(0,) * len(sizes), end_indices=sizes)
    return chain


def _steps(domain: TensorDomain) -> list[tuple[Transform, tuple[Domain, Domain]]]:
    """The transforms, each with the axes before and after it."""
    axes = accumulate(domain.transforms, apply, initial=domain.no_reductions)
    return list(zip(domain.transforms, pairwise(axes), strict=True))


def _places(axes: Domain, among: Domain) -> tuple[int, ...]:
    names = [axis.name for axis in among]
    return tuple(names.index(axis.name) for axis in axes)


def _padded(transform: Transform, before: Domain, after: Domain) -> tuple[int, ...]:
    """The sizes before a transform, with an axis that a split does not divide rounded up."""
    if not isinstance(transform, Split):
        return _sizes(before)
    by_name = {axis.name: axis.extent.value for axis in after}
    whole = by_name[transform.axis + ".o"] * by_name[transform.axis + ".i"]
    return tuple(whole if a.name == transform.axis else a.extent.value for a in before)


def _sizes(axes: Domain) -> tuple[int, ...]:
    return tuple(axis.extent.value for axis in axes)
