# SPDX-License-Identifier: Apache-2.0
"""Part -> the same part under names that say only where a value or an axis stands in it.

    inputs T7, S2; T9[i4, i6] = mul(T7[i4, i6], S2)
->  inputs T0, S1; T2[i0, i1] = mul(T0[i0, i1], S1)

So a segment has one text, whichever fusion it was cut from and whatever else that computes, and
what was compiled for one serves all. Axes of one class get one name: the new part needs no classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from thunder_fuser.analysis.domain_map import DomainMap
from thunder_fuser.analysis.part import Part
from thunder_fuser.ir.domain import Domain
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.record import OpRecord, rename


def canonical(part: Part) -> tuple[Part, Mapping[str, str]]:
    """The part under its own names, and the new name of each of its values."""
    values = dict.fromkeys([*part.inputs, *(name for e in part.exprs for name in e.outputs)])
    names = {name: f"{name[0]}{at}" for at, name in enumerate(values)}
    axes = _Axes(part.domain_map)
    renamed = Part(
        tuple(_expr(one, names) for one in part.exprs),
        tuple(names[name] for name in part.inputs),
        tuple(names[name] for name in part.outputs),
        {new: _view(part.tensors[old], new, axes) for old, new in names.items()},
        DomainMap({}, ()),
        {new: part.strides[old] for old, new in names.items()},
        tuple((names[output], names[target]) for output, target in part.overwrites),
    )
    return renamed, names


class _Axes:
    """Numbers classes of axes in the order in which they are met."""

    def __init__(self, domain_map: DomainMap) -> None:
        self._map = domain_map
        self._numbers: dict[str, int] = {}

    def rename(self, domain: Domain) -> Domain:
        return tuple(
            replace(axis, name=f"{axis.name[0]}{self._number(self._map.axis(axis))}")
            for axis in domain
        )

    def _number(self, axis_class: str) -> int:
        return self._numbers.setdefault(axis_class, len(self._numbers))


def _view(view: TensorView, name: str, axes: _Axes) -> TensorView:
    domain = view.domain
    logical, loop = axes.rename(domain.logical), axes.rename(domain.loop)
    return replace(view, name=name, domain=replace(domain, logical=logical, loop=loop))


def _expr(expr: OpRecord, names: Mapping[str, str]) -> OpRecord:
    return replace(rename(expr, names), outputs=tuple(names[name] for name in expr.outputs))
