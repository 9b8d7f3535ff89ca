# SPDX-License-Identifier: Apache-2.0
"""Which kernels of a graph may start early: none that reads ahead what may still be written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.kernel_texts import make_source

from thunder_fuser.codegen.source import KernelSource, Param
from thunder_fuser.runtime import captured
from thunder_fuser.runtime.captured import EVERYTHING, may_start_early, note_launch, unwritten

NORM = replace(
    make_source("norm", "", [Param("T0", "bf16", "input", 64), Param("T1", "bf16", "output", 64)]),
    early=True,
)
AT_ONCE = replace(NORM, lets_next_start=True)
PRODUCT = replace(
    make_source("product", "", [
        Param("T0", "bf16", "input", 1000, ahead=True), Param("T1", "bf16", "input", 64),
        Param("T2", "bf16", "output", 64), Param("size0", "i32", "size"),
    ]),
    early=True,
)  # fmt: skip
STREAM = 3


@pytest.fixture(autouse=True)
def nothing_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "_last", {})


def product(matrix: int, place: tuple[int, ...]) -> bool:
    return may_start_early(PRODUCT, (matrix, 0, 0, 8), unwritten(STREAM, place))


def launch(place: tuple[int, ...], result: int, source: KernelSource = NORM) -> None:
    """One kernel that writes 64 bytes, launched early where the one in front is known."""
    behind = unwritten(STREAM, (*place[:-1], place[-1] - 1) if place[-1] > 1 else place[:1])
    note_launch(STREAM, place, source, (0, result), behind)


@pytest.mark.parametrize(
    ("matrix", "expected"), [(0, True), (4000, True), (5064, True), (4001, False), (5063, False)]
)
def test_memory_that_the_kernel_in_front_writes(matrix: int, expected: bool) -> None:
    """Its 64 bytes begin at 5000; the matrix has 1000."""
    launch((9, 1), 5000)
    assert product(matrix, (9, 1)) is expected


def test_the_first_kernel_of_a_graph() -> None:
    assert product(0, (9,)) and unwritten(STREAM, (9,)) == ()


@pytest.mark.parametrize("place", [(9, 2), (9, 1, 2), (8, 1), ()], ids=str)
def test_another_node_in_front(place: tuple[int, ...]) -> None:
    """A call of torch, two streams that join, another capture, none: anything may be written."""
    launch((9, 1), 5000)
    assert unwritten(STREAM, place) == EVERYTHING and not product(0, place)
    assert may_start_early(NORM, (0, 0), EVERYTHING)


def test_a_stream_that_is_not_captured() -> None:
    for _ in range(2):
        assert unwritten(STREAM, ()) == EVERYTHING
        note_launch(STREAM, (), NORM, (0, 5000), ())


def test_another_stream() -> None:
    launch((9, 1), 5000)
    assert unwritten(STREAM + 1, (9, 1)) == EVERYTHING


def test_a_kernel_that_waited_is_all_that_is_in_front() -> None:
    launch((9, 1), 5000)
    launch((9, 2), 8000)
    assert product(5000, (9, 2)) and not product(8000, (9, 2))


def test_a_kernel_that_lets_the_next_one_start_at_once() -> None:
    """Kernels before it may still run."""
    launch((9, 1), 5000)
    launch((9, 2), 8000, AT_ONCE)
    launch((9, 3), 12000, AT_ONCE)
    assert not any(product(matrix, (9, 3)) for matrix in (5000, 8000, 12000))
    launch((9, 4), 16000)
    assert product(5000, (9, 4)) and not product(16000, (9, 4))


def test_a_long_kernel_never_starts_early() -> None:
    assert not may_start_early(replace(NORM, early=False), (0, 0), ())
