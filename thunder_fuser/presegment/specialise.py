# SPDX-License-Identifier: Apache-2.0
"""(Fusion, InputKey) -> Fusion: symbolic sizes become numbers, layouts become the arguments' own.

    T0 = define_tensor(shape=[-1, -1], contiguity=[True, True])   called with a [4, 1], strides 1, 1
->  T0 = define_tensor(shape=[4, 1], contiguity=[True, None], strides=[1, 1])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from thunder_fuser.ir import binding
from thunder_fuser.ir.build import define
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.host_scalars import numbers_at
from thunder_fuser.ir.layouts import global_sizes, local_domain
from thunder_fuser.ir.record import NAMED_ATTRS, AttrValue, Number, OpRecord
from thunder_fuser.ir.strides import (
    allocation_of,
    compute_tensor_descriptor,
    contiguous_strides,
)
from thunder_fuser.presegment.rewrite import with_attrs
from thunder_fuser.presegment.streams import in_streams


@dataclass(frozen=True, slots=True)
class InputKey:
    """All that a kernel may depend on in one argument.

    A tensor gives sizes, strides and alignment (bytes that divide its address, at most 16) of the
    memory it is in: the storage, if its allocation domain is one that strides cannot say;
    a scalar gives its value if shapes depend on it, else None.
    """

    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    alignment: int = 16
    value: Number | None = None


def specialise(fusion: Fusion, keys: tuple[InputKey, ...]) -> Fusion:
    """The fusion for arguments of exactly these sizes, strides and shape scalars."""
    by_name = dict(zip(fusion.inputs, keys, strict=True))
    scalars = _known_scalars(fusion, by_name)
    records = (_record(record, fusion, by_name, scalars) for record in fusion.definition)
    return in_streams(define(tuple(records)))


def _known_scalars(fusion: Fusion, keys: Mapping[str, InputKey]) -> Mapping[str, Number]:
    """The scalars that the host knows at this call, by name."""
    known = {
        name: bool(key.value) if fusion.tensors[name].dtype is DataType.Bool else key.value
        for name, key in keys.items()
        if name in fusion.shape_scalars and key.value is not None
    }
    axes = _axis_sizes(fusion, keys)

    def size_of(record: OpRecord, known: Mapping[str, Number]) -> int | None:
        shape = fusion.tensors[str(record.inputs[0])].shape
        values = {name: value for name, value in known.items() if isinstance(value, int)}
        extent = shape[record.attr("dim")].substitute({**values, **axes})  # type: ignore[index]
        return extent.value if extent.is_const else None

    scalars = [record for record in fusion.exprs if fusion.tensors[record.outputs[0]].is_scalar]
    return numbers_at(scalars, known, lambda name: fusion.tensors[name].dtype, size_of)


def _axis_sizes(fusion: Fusion, keys: Mapping[str, InputKey]) -> dict[str, int]:
    """The symbols that stand for sizes of arguments, with their values."""
    found: dict[str, int] = {}
    for name, key in keys.items():
        view = fusion.tensors[name]
        for extent, size in zip(view.shape, logical_sizes(view, key), strict=True):
            found.update(dict.fromkeys(extent.symbols, size))
    return found


def logical_sizes(view: TensorView, key: InputKey) -> tuple[int, ...]:
    """The sizes of an argument as the definition means it, from those of its memory."""
    local = local_domain(view)
    sizes = key.sizes
    if local.transforms:
        sizes = tuple(size.value for size in binding.logical_sizes(local, key.sizes, view.name))
    return global_sizes(view, sizes)


def _record(
    record: OpRecord,
    fusion: Fusion,
    keys: Mapping[str, InputKey],
    scalars: Mapping[str, Number],
) -> OpRecord:
    if record.op == "define_tensor":
        return _tensor(record, fusion.tensors[record.outputs[0]], keys[record.outputs[0]])
    attrs = tuple((k, _sizes(v, scalars) if k in NAMED_ATTRS else v) for k, v in record.attrs)
    return record if attrs == record.attrs else replace(record, attrs=attrs)


def _tensor(record: OpRecord, view: TensorView, key: InputKey) -> OpRecord:
    if view.mesh is None and not view.domain.transforms:
        return strided(record, key.sizes, key.strides)
    sizes = logical_sizes(view, key)
    return with_attrs(
        record, shape=sizes, contiguity=_of_sizes(record, sizes), strides=key.strides
    )


def strided(record: OpRecord, sizes: tuple[int, ...], strides: AttrValue) -> OpRecord:
    """A define_tensor with these sizes and strides; row-major if `strides` is None."""
    strides = contiguous_strides(sizes) if strides is None else strides
    contiguity, order = compute_tensor_descriptor(sizes, strides)  # type: ignore[arg-type]
    return with_attrs(
        record, shape=sizes, contiguity=contiguity, stride_order=order, strides=strides
    )


def _of_sizes(record: OpRecord, sizes: tuple[int, ...]) -> tuple[bool | None, ...]:
    """The contiguity of the definition, None where an axis turned out to be of size 1."""
    order: tuple[int, ...] = record.attr("stride_order")  # type: ignore[assignment]
    flags: tuple[bool | None, ...] = record.attr("contiguity")  # type: ignore[assignment]
    places = allocation_of(order)
    return tuple(None if sizes[a] == 1 else f for a, f in zip(places, flags, strict=True))


def _sizes(value: AttrValue, scalars: Mapping[str, Number]) -> AttrValue:
    if isinstance(value, tuple):
        return tuple(_sizes(item, scalars) for item in value)
    return scalars[value] if isinstance(value, str) and value in scalars else value
