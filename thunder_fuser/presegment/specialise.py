# SPDX-License-Identifier: Apache-2.0
"""(Fusion, InputKey) -> Fusion: symbolic sizes become numbers, layouts become the arguments' own.

    T0 = define_tensor(shape=[-1, -1], contiguity=[True, True])   called with a [4, 1], strides 1, 1
->  T0 = define_tensor(shape=[4, 1], contiguity=[True, None], strides=[1, 1])
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from thunder_fuser.ir import binding
from thunder_fuser.ir.build import define
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.layouts import global_sizes, local_domain
from thunder_fuser.ir.record import NAMED_ATTRS, AttrValue, Literal, OpRecord
from thunder_fuser.ir.strides import (
    allocation_of,
    compute_tensor_descriptor,
    contiguous_strides,
)
from thunder_fuser.presegment.rewrite import with_attrs


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
    value: int | None = None


def specialise(fusion: Fusion, keys: tuple[InputKey, ...]) -> Fusion:
    """The fusion for arguments of exactly these sizes, strides and shape scalars."""
    by_name = dict(zip(fusion.inputs, keys, strict=True))
    integers = _known_integers(fusion, by_name)
    return define(tuple(_record(r, fusion, by_name, integers) for r in fusion.definition))


def _known_integers(fusion: Fusion, keys: Mapping[str, InputKey]) -> dict[str, int]:
    """The integer scalars that shapes may name: arguments, sizes, and what is computed of them.

    S0 is 3; S2 = size(T1 of size 4, 0); S3 = mul(S0, S2)  ->  {S0: 3, S2: 4, S3: 12}
    """
    known = {
        name: key.value for name, key in keys.items()
        if name in fusion.shape_scalars and key.value is not None
    }
    symbols = {**known, **_axis_sizes(fusion, keys)}
    for record in fusion.exprs:
        name = record.outputs[0]
        operands = [o.value if isinstance(o, Literal) else known.get(o) for o in record.inputs]
        if record.op == "size":
            shape = fusion.tensors[str(record.inputs[0])].shape
            extent = shape[record.attr("dim")].substitute(symbols)  # type: ignore[index]
            known.update({name: extent.value} if extent.is_const else {})
        elif record.op in _INTEGER_OPS and all(type(o) is int for o in operands):
            known[name] = _INTEGER_OPS[record.op](*operands)
    return known


def _axis_sizes(fusion: Fusion, keys: Mapping[str, InputKey]) -> dict[str, int]:
    """The symbols that stand for sizes of arguments, with their values."""
    found: dict[str, int] = {}
    for name, key in keys.items():
        view = fusion.tensors[name]
        for extent, size in zip(view.shape, logical_sizes(view, key), strict=True):
            found.update(dict.fromkeys(extent.symbols, size))
    return found


_INTEGER_OPS: Mapping[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": lambda a, b: a // b if (a < 0) == (b < 0) else -(-a // b),  # toward zero
}


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
    integers: Mapping[str, int],
) -> OpRecord:
    if record.op == "define_tensor":
        return _tensor(record, fusion.tensors[record.outputs[0]], keys[record.outputs[0]])
    attrs = tuple((k, _sizes(v, integers) if k in NAMED_ATTRS else v) for k, v in record.attrs)
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


def _sizes(value: AttrValue, integers: Mapping[str, int]) -> AttrValue:
    if isinstance(value, tuple):
        return tuple(_sizes(item, integers) for item in value)
    return integers[value] if isinstance(value, str) and value in integers else value
