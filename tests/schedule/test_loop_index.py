# SPDX-License-Identifier: Apache-2.0
"""loop_index undoes the transforms of a schedule, element by element."""

from __future__ import annotations

import itertools

from helpers.strategies import transformed
from hypothesis import given, settings

from thunder_fuser.ir.domain import Domain, Transform, apply
from thunder_fuser.schedule.loop_index import LoopIndex, loop_index


@settings(max_examples=150, deadline=None)
@given(transformed())
def test_the_loops_meet_every_element_once(case: tuple[Domain, tuple[Transform, ...]]) -> None:
    """What ragged splits add fails a guard, of an axis that was split further perhaps: splitting
    the i1.i{2} of i1{5} by 3 meets elements twice unless i1.i < 2 is asked for."""
    axes, transforms = case
    loops = axes
    for transform in transforms:
        loops = apply(loops, transform)
    found = loop_index(axes, transforms)
    names = [axis.name for axis in loops]
    steps = itertools.product(*(range(axis.extent.value) for axis in loops))
    elements = [_element(found, axes, dict(zip(names, step, strict=True))) for step in steps]
    met = [element for element in elements if element is not None]
    assert sorted(met) == sorted(itertools.product(*(range(a.extent.value) for a in axes)))


def _element(found: LoopIndex, axes: Domain, step: dict[str, int]) -> tuple[int, ...] | None:
    """The element one step meets; None if a guard keeps it from meeting any."""
    values = {str(found.loops[name]): at for name, at in step.items()}
    for guard in found.guards:
        at = guard.value.substitute(values).value
        if at >= guard.extent.value:
            return None
        values[str(guard.variable)] = at
    return tuple(found.index[axis.name].substitute(values).value for axis in axes)
