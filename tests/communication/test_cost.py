# SPDX-License-Identifier: Apache-2.0
"""The cost model: what it decides at known points, and rules that hold for all sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.overlap.model import measured_figures, measured_rates
from thunder_fuser.communication.products.cost import (
    H200,
    KINDS,
    LEAST_CHUNK,
    Bandwidths,
    Decision,
    decide,
    pipeline_seconds,
)
from thunder_fuser.errors import CommunicationError

GATHER, SCATTER, ALL_REDUCE = KINDS
MEASURED = measured_figures(2)
sizes = st.integers(1, 20_000)


def made(kind: str, *size: int, world: int = 2, rates: Bandwidths = H200) -> Decision:
    m, k, n = size
    return decide(kind, m, k, n, dtype="bfloat16", world=world, rates=rates)


@pytest.mark.parametrize("point", MEASURED["points"], ids=lambda one: f"{one['kind']}-{one['n']}")
def test_measured_points(point: dict[str, Any]) -> None:
    """On two H200 the times are as predicted, and no other number of chunks is much faster."""
    rates, size, ms = measured_rates(MEASURED), (point["m"], point["k"], point["n"]), point["ms"]
    one = made(point["kind"], *size, rates=rates)
    assert one.pipeline
    assert 1e3 * one.collective_seconds == pytest.approx(ms["NCCL"], rel=0.08)
    for chunks in (1, 2, 4):
        found = pipeline_seconds(
            point["kind"], *size, dtype="bfloat16", world=2, rates=rates, chunks=chunks
        )
        assert 1e3 * found == pytest.approx(ms[f"in {chunks}"], rel=0.12)
    best = min(ms[f"in {chunks}"] for chunks in (1, 2, 4))
    assert ms[f"in {one.chunks}"] <= 1.015 * best


def test_equal_predictions_are_for_more_chunks() -> None:
    """A gather whose product takes long loses nothing by a second chunk."""
    long, short = made(GATHER, 16384, 8192, 8192), made(GATHER, 16384, 8192, 2048)
    assert (long.chunks, short.chunks) == (2, 1)


def test_small_products_are_left_to_collectives() -> None:
    assert not made(GATHER, 128, 64, 64, world=8).pipeline
    assert not made(SCATTER, 128, 64, 64, world=8).pipeline


def test_slow_copies_are_not_used() -> None:
    slow = replace(H200, copy=1e9)
    assert made(GATHER, 16384, 8192, 2048).pipeline
    assert not made(GATHER, 16384, 8192, 2048, rates=slow).pipeline
    none = made(GATHER, 16384, 8192, 2048, rates=replace(H200, copy=0.0))
    assert not none.pipeline
    assert "predicted: pipeline impossible" in str(none)


def test_nothing_to_send() -> None:
    assert not made(GATHER, 16384, 8192, 8192, world=1).pipeline


def test_text() -> None:
    assert str(made(SCATTER, 16384, 4096, 8192)).startswith(
        "matmul_reduce_scatter 16384 x 4096 x 8192 bfloat16, 2 ranks: pipeline in 2 chunks;"
    )


def test_an_unknown_kind() -> None:
    with pytest.raises(CommunicationError, match=r"kind: expected one of all_gather_matmul, .*'x'"):
        made("x", 2, 2, 2)


@given(st.sampled_from(KINDS), sizes, sizes, sizes, st.sampled_from([2, 8, 64]))
def test_rules(kind: str, m: int, k: int, n: int, world: int) -> None:
    one = made(kind, m, k, n, world=world)
    assert one == made(kind, m, k, n, world=world)
    assert one.pipeline == (one.pipeline_seconds < one.collective_seconds)
    assert one.collective_seconds > 0
    if one.pipeline and kind != GATHER:
        assert m % world == 0
    part = -(-m // world) * (k if kind == GATHER else n) * 2
    assert one.chunks <= 2 - (kind == GATHER) or part >= one.chunks * LEAST_CHUNK
    # A faster copy engine never makes a pipeline slower, nor does a faster NCCL the collective.
    faster = replace(H200, copy=2 * H200.copy, collective=2 * H200.collective)
    other = made(kind, m, k, n, world=world, rates=faster)
    assert other.pipeline_seconds <= one.pipeline_seconds
    assert other.collective_seconds <= one.collective_seconds


@given(st.sampled_from(KINDS), st.integers(1, 300).map(lambda one: 64 * one), sizes, sizes)
def test_a_pipeline_is_no_faster_than_its_products(kind: str, m: int, k: int, n: int) -> None:
    one = made(kind, m, k, n)
    least = 2 * m * k * n / H200.rate("bfloat16")
    assert one.pipeline_seconds >= least
