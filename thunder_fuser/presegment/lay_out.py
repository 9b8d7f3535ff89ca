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

from collections.abc import Iterator
from dataclasses import replace

from thunder_fuser.ir import binding
from thunder_fuser.ir.build import define
from thunder_fuser.ir.domain import Domain, Reorder, Split, TensorDomain, apply
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.record import LAYOUT, AttrValue, Literal, OpRecord, names_of, rename
from thunder_fuser.ir.strides import compute_tensor_descriptor, contiguous_strides, stride_order_of


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


def _input(record: OpRecord, view: TensorView) -> Iterator[OpRecord]:
    """The storage that is given, and what the tensor is of it."""
    domain, strides = view.domain, record.attr("strides")
    if not domain.transforms:
        yield record
        return
    sizes = tuple(size.value for size in binding.allocation_sizes(domain, view.shape))
    if strides is None:
        strides = contiguous_strides(sizes)
    contiguity, order = compute_tensor_descriptor(sizes, strides)  # type: ignore[arg-type]
    new: dict[str, AttrValue] = {
        "shape": sizes,
        "contiguity": contiguity,
        "stride_order": order,
        "strides": strides,
    }
    attrs = tuple({**dict(record.attrs), **new}.items())
    storage = f"{view.name}.storage"
    yield replace(record, outputs=(storage,), attrs=attrs)
    yield from _named(from_storage(domain, storage), view.name)


def _output(record: OpRecord, fusion: Fusion, stands: dict[str, str]) -> Iterator[OpRecord]:
    """A result laid out as its own domain says, or as the input it is written into."""
    (name,) = names_of(record)
    alias = record.attr("alias")
    view = fusion.tensors[name if alias is None else str(alias)]
    source = stands.get(name, name)
    if not view.domain.transforms:
        yield replace(record, inputs=(source,))
        return
    made = list(to_storage(view.domain, source))
    attrs = tuple((k, f"{v}.storage" if k == "alias" else v) for k, v in record.attrs)
    yield from made
    yield replace(record, inputs=made[-1].outputs, attrs=attrs)


def _intermediate(view: TensorView, is_result: bool) -> list[OpRecord]:
    """What stands for a computed tensor that was given a place in memory of its own."""
    domain = view.domain
    if not domain.transforms:
        plain = TensorDomain.of(domain.logical)
        if domain.allocation == plain.allocation or not domain.allocation:
            return []
        order = stride_order_of(domain.allocation)
        return [_op("stride_order", view.name, f"{view.name}.o", stride_order=order)]
    if is_result:
        return []  # its storage is written where it is given back
    there = list(to_storage(domain, view.name))
    kept = _op("segment_set", there[-1].outputs[0], f"{view.name}.memory")
    return [*there, kept, *from_storage(domain, kept.outputs[0])]


def to_storage(domain: TensorDomain, name: str) -> Iterator[OpRecord]:
    """logical -> memory: a split is a reshape, after a pad where it does not divide."""
    axes = domain.no_reductions
    source, count = name, 0
    for transform in domain.transforms:
        made = apply(axes, transform)
        if isinstance(transform, Split):
            padded = _padded(axes, made, transform)
            if padded != _sizes(axes):
                widths = [w for a, b in zip(_sizes(axes), padded, strict=True) for w in (b - a, 0)]
                count += 1
                padding = tuple(reversed(widths))
                out = f"{name}.to{count}"
                record = _op("pad", source, out, pad_widths=padding, value=Literal.of(0))
                yield record
                source = record.outputs[0]
        count += 1
        if isinstance(transform, Reorder):
            names = [axis.name for axis in axes]
            dims = tuple(names.index(axis.name) for axis in made)
            record = _op("permute", source, f"{name}.to{count}", dims=dims)
        else:
            record = _op("reshape", source, f"{name}.to{count}", new_shape=_sizes(made))
        yield record
        source, axes = record.outputs[0], made
    if domain.allocation != tuple(range(len(axes))):
        yield _op("permute", source, f"{name}.to", dims=domain.allocation)


def from_storage(domain: TensorDomain, name: str) -> list[OpRecord]:
    """memory -> logical, the transforms undone: a split that did not divide leaves a slice."""
    steps = [domain.no_reductions]
    for transform in domain.transforms:
        steps.append(apply(steps[-1], transform))
    places = tuple(domain.allocation.index(at) for at in range(len(domain.allocation)))
    moved = places != tuple(range(len(places)))
    found = [_op("permute", name, f"{name}.from", dims=places)] if moved else []
    for count, transform in enumerate(reversed(domain.transforms)):
        before, after = steps[-2 - count], steps[-1 - count]
        source, out = found[-1].outputs[0] if found else name, f"{name}.from{count}"
        if isinstance(transform, Reorder):
            names = [axis.name for axis in after]
            dims = tuple(names.index(axis.name) for axis in before)
            found.append(_op("permute", source, out, dims=dims))
            continue
        padded = _sizes(before)
        if isinstance(transform, Split):
            padded = _padded(before, after, transform)
        found.append(_op("reshape", source, out, new_shape=padded))
        if padded != _sizes(before):
            starts = (0,) * len(padded)
            ends = _sizes(before)
            found.append(
                _op("slice", out, f"{out}s", start_indices=starts, end_indices=ends)
            )
    return found


def _padded(before: Domain, after: Domain, split: Split) -> tuple[int, ...]:
    """The sizes before a split, the axis as long as both of its parts together."""
    by_name = {axis.name: axis.extent.value for axis in after}
    whole = by_name[split.axis + ".o"] * by_name[split.axis + ".i"]
    return tuple(whole if a.name == split.axis else a.extent.value for a in before)


def _sizes(axes: Domain) -> tuple[int, ...]:
    return tuple(axis.extent.value for axis in axes)


def _op(op: str, source: str, out: str, **attrs: AttrValue) -> OpRecord:
    return OpRecord(op, (source,), (out,), tuple(attrs.items()))


def _named(records: list[OpRecord], name: str) -> list[OpRecord]:
    """The records, the last of which gives `name`."""
    return [*records[:-1], replace(records[-1], outputs=(name,))]
