# SPDX-License-Identifier: Apache-2.0
"""(Fusion, InputKey) -> Fusion: symbolic sizes become numbers, and arguments get their own layouts.

    T0 = define_tensor(shape=[-1, -1], contiguity=[True, True])   called with a [4, 1], strides 1, 1
->  T0 = define_tensor(shape=[4, 1], contiguity=[True, None], strides=[1, 1])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from thunder_fuser.ir import binding
from thunder_fuser.ir.domain import StreamAxis
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.record import AttrValue, Number, OpRecord, rename
from thunder_fuser.ir.rules.build import define
from thunder_fuser.ir.rules.host_scalars import numbers_at
from thunder_fuser.ir.rules.layouts import global_sizes, local_domain
from thunder_fuser.ir.rules.streams import products_in_streams
from thunder_fuser.ir.strides import (
    allocation_of,
    compute_tensor_descriptor,
    contiguous_strides,
)
from thunder_fuser.presegment.rewrite import with_attrs


@dataclass(frozen=True, slots=True)
class InputKey:
    """Everything about one argument that a kernel may depend on.

    Of a tensor: sizes, strides and alignment (bytes that divide its address, at most 16). They are
    those of its storage if strides cannot describe its allocation domain. Of a scalar: its value if
    shapes depend on it, else None.
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


def in_streams(fusion: Fusion) -> Fusion:
    """Turns axes over streams into attributes of products that walk them; see ir/rules/streams.py.

        T2 = matmul(T0, T1); T2.split(0, 4, False); T2.parallelize(0, "stream")
    ->  T2 = matmul(T0, T1, streams=[0, 4]); ...
    """
    products = products_in_streams(fusion.definition, fusion.tensors)
    if not products:
        return fusion
    return define(tuple(
        with_attrs(record, streams=_streams(products[record.outputs[0]]))
        if record.outputs and record.outputs[0] in products else record
        for record in fusion.definition
    ))  # fmt: skip


def _streams(stream: StreamAxis) -> tuple[int, ...]:
    devices = stream.devices
    return (stream.axis, stream.pieces * devices, *([devices] * (devices > 1)))


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
        extent = shape[record.integer("dim")].substitute({**values, **axes})
        return extent.value if extent.is_const else None

    scalars = [record for record in fusion.exprs if fusion.tensors[record.outputs[0]].is_scalar]
    return numbers_at(scalars, known, lambda name: fusion.tensors[name].dtype, size_of)


def _axis_sizes(fusion: Fusion, keys: Mapping[str, InputKey]) -> dict[str, int]:
    """The symbols that stand for sizes of arguments, with their values."""
    sizes: dict[str, int] = {}
    for name, key in keys.items():
        view = fusion.tensors[name]
        for extent, size in zip(view.shape, logical_sizes(view, key), strict=True):
            sizes.update(dict.fromkeys(extent.symbols, size))
    return sizes


def logical_sizes(view: TensorView, key: InputKey) -> tuple[int, ...]:
    """The logical sizes of an argument, over all devices, from those of its memory."""
    local = local_domain(view)
    sizes = key.sizes
    if local.transforms:
        sizes = tuple(size.value for size in binding.logical_sizes(local, key.sizes, view.name))
    return global_sizes(view, sizes)


def _record(
    record: OpRecord, fusion: Fusion, keys: Mapping[str, InputKey], scalars: Mapping[str, Number],
) -> OpRecord:  # fmt: skip
    if record.op == "define_tensor":
        return _tensor(record, fusion.tensors[record.outputs[0]], keys[record.outputs[0]])
    attrs = rename(record, scalars).attrs  # type: ignore[arg-type]  # sizes become numbers
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
    """The contiguity of the definition, with None for axes of size 1."""
    flags: tuple[bool | None, ...] = record.attr("contiguity")  # type: ignore[assignment]
    places = allocation_of(record.ints("stride_order"))
    return tuple(None if sizes[a] == 1 else f for a, f in zip(places, flags, strict=True))
