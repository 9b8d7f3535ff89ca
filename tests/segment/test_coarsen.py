# SPDX-License-Identifier: Apache-2.0
"""Units of large fusions that belong together in any plan; planning takes linear time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.graphs import meta, rows
from helpers.steps import LINEAR, growth

from benchmarks.plans.families import FAMILIES, rope
from benchmarks.plans.run import DOUBLING
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.options import compile_options
from thunder_fuser.presegment import run_passes
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.segment import acceptance
from thunder_fuser.segment.acceptance import Acceptance
from thunder_fuser.segment.fusion_info import FusionInfo
from thunder_fuser.segment.merge import MOST_COARSENED, coarsen
from thunder_fuser.segment.units import Summary, units_of
from thunder_fuser.target import H200


def coarsened(make: Callable[[FusionDefinition, Tensor], Tensor]) -> list[Summary]:
    """The units of a function of one matrix."""
    fd, x = rows(64, 128)
    fd.add_output(make(fd, x))
    return _units(fd, [meta(64, 128)])


def _units(fd: FusionDefinition, inputs: list[object]) -> list[Summary]:
    keys, options = input_keys(fd.fusion, tuple(inputs)), compile_options()
    fusion = run_passes(specialise(fd.fusion, keys), options)
    found = Acceptance(FusionInfo(fusion, H200), options)
    return coarsen(found, units_of(found.info))


def test_what_one_reader_needs_joins_it() -> None:
    (unit,) = coarsened(lambda fd, x: fd.ops.add(fd.ops.tanh(fd.ops.exp(x)), fd.ops.sin(x)))
    assert len(unit.exprs) == 4 and len(unit.stores) == 1 and unit.is_sound


def test_readers_of_the_same_values_join_if_then_those_have_one_reader() -> None:
    def ladder(fd: FusionDefinition, x: Tensor) -> Tensor:
        a, b = fd.ops.exp(x), fd.ops.tanh(x)
        a, b = fd.ops.pow(a, b), fd.ops.atan2(a, b)
        return fd.ops.pow(a, b)

    assert len(coarsened(ladder)) == 1


def test_a_value_of_several_readers_stays_apart_from_each() -> None:
    def forked(fd: FusionDefinition, x: Tensor) -> Tensor:
        y = fd.ops.exp(x)
        fd.add_output(fd.ops.sum(fd.ops.tanh(y), [1]))
        return fd.ops.sum(fd.ops.sin(y), [0])

    first, over_rows, over_columns = coarsened(forked)
    assert len(first.exprs) == 1 and len(over_rows.exprs) == len(over_columns.exprs) == 2


def test_nothing_joins_over_a_boundary() -> None:
    units = coarsened(lambda fd, x: fd.ops.tanh(fd.ops.segment_set(fd.ops.exp(x))))
    assert [len(one.exprs) for one in units] == [2, 1]


def test_units_stay_small() -> None:
    def chain(fd: FusionDefinition, x: Tensor) -> Tensor:
        for _ in range(3 * MOST_COARSENED):
            x = fd.ops.sin(x)
        return x

    assert [len(one.exprs) for one in coarsened(chain)] == [MOST_COARSENED] * 3


def test_what_would_be_computed_at_too_many_places_is_taken_apart() -> None:
    """Every turn wants the value before it at three places."""

    def turned_twice(fd: FusionDefinition, x: Tensor) -> Tensor:
        for _ in range(4):
            y = fd.ops.exp(x)
            left, right = (fd.ops.slice(y, [0, at], [64, at + 64]) for at in (0, 64))
            x = fd.ops.add(y, fd.ops.cat([fd.ops.neg(right), left], 1))
        return x

    units = coarsened(turned_twice)
    assert len(units) > 1 and sum(len(one.exprs) for one in units) == 24
    assert all(one.is_sound for one in units if len(one.units) > 1)


def test_a_turned_head_is_one_unit_and_no_scheduler_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptance.Acceptance, "part", None)
    units = _units(*rope(8 * 12))
    assert len(units) == 4 and all(len(one.stores) == 3 for one in units)


SMALL = 32  # MAX_OPS here: the growth of large fusions, at sizes that are counted fast


def _plan(family: str, ops: int) -> Callable[[], object]:
    fd, inputs = FAMILIES[family](ops)
    _ = fd.fusion
    return lambda: fd.plan(inputs, target="h200")


@pytest.mark.parametrize("family", ["ladder", "rope", "mixed"])
def test_planning_is_linear(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in instructions of the interpreter."""
    monkeypatch.setattr(acceptance, "MAX_OPS", SMALL)
    assert growth(lambda ops: _plan(family, ops), 3 * SMALL) <= LINEAR


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fusion_too_large_for_one_kernel_takes_little_longer(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "MAX_OPS", 2 * SMALL)
    assert growth(lambda ops: _plan(family, ops), 2 * SMALL - 8) <= DOUBLING
