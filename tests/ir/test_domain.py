# SPDX-License-Identifier: Apache-2.0
"""Transforms on loop domains: what they give, and what their replay on a tensor gives."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest
from helpers.strategies import transformed
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.errors import ScheduleError
from thunder_fuser.ir import domain as module
from thunder_fuser.ir.domain import (
    Domain,
    IterDomain,
    IterType,
    Merge,
    Parallelize,
    ParallelType,
    Reorder,
    Split,
    TensorDomain,
    Transform,
    apply,
    position,
    replay,
)
from thunder_fuser.ir.scalar import const, symbol

I0, I1 = IterDomain("i0", const(4)), IterDomain("i1", const(100))
B2 = IterDomain("b2", const(1), IterType.BROADCAST)
R3 = IterDomain("r3", const(6), IterType.REDUCTION)


def shown(domain: Domain) -> str:
    return ", ".join(map(str, domain))


@pytest.mark.parametrize(
    ("transform", "text"),
    [
        (Split("i1", 8), "i0{4}, i1.o{13}, i1.i{8}"),
        (Split("i0", 1), "i0.o{4}, i0.i{1}, i1{100}"),
        (Merge("i0", "i1"), "i0*i1{400}"),
        (Reorder(("i1", "i0")), "i1{100}, i0{4}"),
        (Parallelize("i1", ParallelType.TIDX), "i0{4}, i1{100}@threadIdx.x"),
    ],
)
def test_each_transform(transform: Transform, text: str) -> None:
    assert shown(apply((I0, I1), transform)) == text


def test_a_split_keeps_the_kind() -> None:
    outer, inner = apply((R3,), Split("r3", 4))
    assert (outer.kind, inner.kind) == (IterType.REDUCTION, IterType.REDUCTION)
    assert outer.is_reduction and not outer.is_broadcast


def test_a_split_of_a_symbolic_axis_rounds_up() -> None:
    axis = IterDomain("i5", symbol("n", 0))
    assert shown(apply((axis,), Split("i5", 8))) == "i5.o{(n + 7) // 8}, i5.i{8}"


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Split("i7", 8), "axis i7: expected one of i0, i1, got i7"),
        (Split("i0", 0), "split of i0: expected a factor >= 1, got 0"),
        (Reorder(("i0",)), "reorder: expected each of i0, i1, got i0"),
        (Reorder(("i0", "i0")), "reorder: expected each of i0, i1, got i0, i0"),
        (Merge("i1", "i0"), "merge of i1 and i0: expected adjacent axes, got i0{4}, i1{100}"),
        (Parallelize("x", ParallelType.BIDX), "axis x: expected one of i0, i1, got x"),
    ],
)
def test_a_transform_of_what_is_not_there(transform: Transform, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        apply((I0, I1), transform)
    assert str(error.value) == message


@settings(max_examples=100, deadline=None)
@given(transformed(), st.data())
def test_replay_on_a_tensor_that_lacks_axes(
    case: tuple[Domain, tuple[Transform, ...]], data: st.DataObject
) -> None:
    """On the whole domain replay is apply; on a part of it, it names a subset of the same loops."""
    axes, transforms = case
    loops = axes
    for transform in transforms:
        loops = apply(loops, transform)
    assert replay(axes, transforms) == loops
    kept = data.draw(st.sets(st.sampled_from([axis.name for axis in axes])))
    part = replay(tuple(axis for axis in axes if axis.name in kept), transforms)
    order = [axis.name for axis in loops]
    names = [axis.name for axis in part]
    assert names == [name for name in order if name in names]
    assert bool(names) == bool(kept)


def test_replay_follows_each_transform() -> None:
    chain = (Merge("i0", "i1"), Split("i0*i1", 8), Parallelize("i0*i1.i", ParallelType.TIDX))
    assert shown(replay((I0, I1), chain)) == "i0*i1.o{50}, i0*i1.i{8}@threadIdx.x"
    assert shown(replay((I0,), chain)) == "i0*i1.o{1}, i0*i1.i{8}@threadIdx.x"
    assert shown(replay((B2,), chain)) == "b2{1}"


def test_replay_keeps_an_axis_that_the_schedule_does_not_know() -> None:
    chain = (Split("i0", 8), Reorder(("i0.i", "i0.o")))
    assert shown(replay((I1, I0), chain)) == "i0.i{8}, i0.o{1}, i1{100}"
    swap = (Reorder(("i1", "b2", "i0")),)
    assert shown(replay((I0, I1), swap)) == "i1{100}, i0{4}"


def test_a_tensor_domain_prints_its_three_domains() -> None:
    domain = TensorDomain.of((I0, R3, I1, B2))
    assert domain.no_reductions == (I0, I1, B2)
    assert domain.contiguity == (True, True, None)
    domain = replace(domain.with_allocation((1, 0, 2), (True, False, None)), loop=(I1, I0))
    assert str(domain) == (
        "logical[i0{4}, r3{6}, i1{100}, b2{1}] allocation[i1, i0, b2] loop[i1{100}, i0{4}]"
    )
    assert position(domain.loop, "i0") == 1


def test_parallel_types() -> None:
    assert [p.name for p in ParallelType if p.is_block] == ["BIDX", "BIDY", "CLUSTER"]
    assert [p.name for p in ParallelType if p.is_thread] == ["TIDX", "TIDY"]


def test_the_examples_of_the_module() -> None:
    assert doctest.testmod(module).failed == 0
