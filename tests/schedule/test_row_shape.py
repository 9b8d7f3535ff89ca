# SPDX-License-Identifier: Apache-2.0
"""How threads, blocks and clusters share rows whose sums they carry on."""

from __future__ import annotations

import pytest

from thunder_fuser.schedule.row_shape import (
    MOST_COLUMNS,
    OWN_REGISTERS,
    REGISTERS,
    fits_registers,
    row_shape,
)
from thunder_fuser.target import A100, H200, Target

COLUMNS = (8, 96, 768, 1000, 1023, 1024, 3072, 4095, 4096, 5120, 8192, 10240, 12288, 16384, 24576)


@pytest.mark.parametrize("target", [H200, A100])
@pytest.mark.parametrize("sums", [1, 2])
@pytest.mark.parametrize("columns", COLUMNS)
def test_rows_fit(columns: int, sums: int, target: Target) -> None:
    """The registers of a thread hold its columns, and an SM the blocks that are promised."""
    if not fits_registers(columns, target):
        assert columns > 12288 and target is A100
        return
    shape = row_shape(columns, sums, target)
    (x, y), share = shape.threads, -(-columns // (shape.threads[0] * shape.cluster))
    assert x * shape.cluster * MOST_COLUMNS >= columns
    assert (x % 32 == 0 or 32 % x == 0) and x * y <= 512 and (y == 1 or shape.cluster == 1)
    assert shape.cluster <= target.max_cluster
    each = 4 if columns % 2 else 2 + 2 * sums
    assert shape.blocks * x * y * (OWN_REGISTERS + share * each) <= REGISTERS
    assert 1 <= shape.at_once(target) <= target.sm_count * max(shape.blocks, 1)


def test_fewer_sums_leave_room_for_more_blocks() -> None:
    assert row_shape(768, 1, H200).blocks > row_shape(768, 2, H200).blocks


# GPT-2, Qwen2, Gemma, Phi, Llama: what is no power of two has threads of its own.
@pytest.mark.parametrize(
    "columns", (640, 768, 1152, 1280, 1536, 2048, 2304, 2560, 3072, 3584, 4096, 5120, 6144, 7168)
)
@pytest.mark.parametrize("sums", [1, 2])
def test_few_threads_are_idle(columns: int, sums: int) -> None:
    shape = row_shape(columns, sums, H200)
    threads = shape.threads[0] * shape.cluster
    room = -(-columns // (8 * threads)) * 8 * threads
    assert room <= 1.2 * columns
    assert shape.blocks > 1 or columns > 5120
