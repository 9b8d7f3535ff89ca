# SPDX-License-Identifier: Apache-2.0
"""(Fusion, InputKey) -> Fusion: symbolic sizes become numbers, layouts become the arguments' own.

    T0 = define_tensor(shape=[-1, -1], contiguity=[True, True])   called with a [4, 1], strides 1, 1
->  T0 = define_tensor(shape=[4, 1], contiguity=[True, None], strides=[1, 1])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from thunder_fuser.ir import layout
from thunder_fuser.ir.build import define
from thunder_fuser.ir.fusion import NAMED_ATTRS, AttrValue, Fusion, OpRecord


@dataclass(frozen=True, slots=True)
class InputKey:
    """All that a kernel may depend on in one argument.

    A tensor gives sizes, strides and alignment (bytes that divide its address, at most 16);
    a scalar gives its value if shapes depend on it, else None.
    """

    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    alignment: int = 16
    value: int | None = None


def specialise(fusion: Fusion, keys: tuple[InputKey, ...]) -> Fusion:
    """The fusion for arguments of exactly these sizes, strides and shape scalars."""
    by_name = dict(zip(fusion.inputs, keys, strict=True))
    integers = {n: k.value for n, k in by_name.items() if n in fusion.shape_scalars}
    return define(tuple(_record(r, by_name, integers) for r in fusion.definition))


def _record(
    record: OpRecord, keys: Mapping[str, InputKey], integers: Mapping[str, int | None]
) -> OpRecord:
    if record.op == "define_tensor":
        return replace(record, attrs=_tensor_attrs(record, keys[record.outputs[0]]))
    attrs = tuple((k, _sizes(v, integers) if k in NAMED_ATTRS else v) for k, v in record.attrs)
    return record if attrs == record.attrs else replace(record, attrs=attrs)


def _tensor_attrs(record: OpRecord, key: InputKey) -> tuple[tuple[str, AttrValue], ...]:
    contiguity, order = layout.compute_tensor_descriptor(key.sizes, key.strides)
    new: dict[str, AttrValue] = {
        "shape": key.sizes,
        "contiguity": contiguity,
        "stride_order": order,
        "strides": key.strides,
    }
    return tuple({**dict(record.attrs), **new}.items())


def _sizes(value: AttrValue, integers: Mapping[str, int | None]) -> AttrValue:
    if isinstance(value, tuple):
        return tuple(_sizes(item, integers) for item in value)
    return integers[value] if isinstance(value, str) and value in integers else value
