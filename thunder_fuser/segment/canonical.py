# SPDX-License-Identifier: Apache-2.0
"""Part -> the same part with its values and axes numbered in the order of their first use.

    inputs T7, S2; T9[i4, i6] = mul(T7[i4, i6], S2)
->  inputs T0, S1; T2[i0, i1] = mul(T0[i0, i1], S1)

So the text of a segment does not depend on the fusion around it, and equal segments of different
fusions share a compiled kernel. Axes of one class get one name, so the new part needs no classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from thunder_fuser.analysis.domain_map import DomainMap
from thunder_fuser.analysis.part import Part
from thunder_fuser.ir.domain import Domain
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.record import rename


def canonical(part: Part) -> tuple[Part, Mapping[str, str]]:
    """The renumbered part, and the new name of each of its values."""
    values = dict.fromkeys([*part.inputs, *(name for e in part.exprs for name in e.outputs)])
    names = {name: f"{name[0]}{at}" for at, name in enumerate(values)}
    numbers: dict[str, int] = {}  # of classes of axes, in the order in which they are met

    def axes(domain: Domain) -> Domain:
        pairs = [(a, numbers.setdefault(part.domain_map.axis(a), len(numbers))) for a in domain]
        return tuple(replace(axis, name=f"{axis.name[0]}{number}") for axis, number in pairs)

    def view(name: str) -> TensorView:
        old = part.tensors[name]
        logical, loop = axes(old.domain.logical), axes(old.domain.loop)
        domain = replace(old.domain, logical=logical, loop=loop)
        return replace(old, name=names[name], domain=domain)

    renamed = Part(
        tuple(
            replace(rename(expr, names), outputs=tuple(names[name] for name in expr.outputs))
            for expr in part.exprs
        ),
        tuple(names[name] for name in part.inputs),
        tuple(names[name] for name in part.outputs),
        {new: view(old) for old, new in names.items()},
        DomainMap({}, ()),
        {new: part.strides[old] for old, new in names.items()},
        tuple((names[o], names[read]) for o, read in part.overwrites if read in names),
    )
    return renamed, names
