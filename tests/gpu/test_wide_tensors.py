# SPDX-License-Identifier: Apache-2.0
"""Tensors of more than 2**31 elements on a CUDA device, in at most 40 GiB."""

from __future__ import annotations

import os

import pytest
import torch

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType

DEVICE = os.environ.get("FUSER_TEST_DEVICE", "cuda")
NEEDED = 40 * 2**30
ROWS, COLUMNS = 2**16 + 8, 2**15  # 8 rows more than 2**31 elements


def _free() -> int:
    """Bytes of the device."""
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE != "cuda" or _free() < NEEDED, reason="no CUDA device of 40 GiB"),
]


@pytest.fixture(params=[torch.float16, torch.int8], ids=str)
def wide(request: pytest.FixtureRequest) -> torch.Tensor:
    """Zeros, and what tells about the ends and the middle, where the index of 32 bits is spent."""
    x = torch.zeros(ROWS, COLUMNS, dtype=request.param, device=DEVICE)
    x[0, 0], x[2**15, 5], x[-1, -1], x[-9, -1], x[-8, 0] = 1, 2, 5, 3, 4
    return x


def test_pointwise(wide: torch.Tensor) -> None:
    with FusionDefinition() as fd:
        t = fd.from_pytorch(wide)
        fd.add_output(fd.ops.neg(t))
    (made,) = fd.execute([wide])
    assert made.count_nonzero() == 5
    for row, column in ((0, 0), (2**15, 5), (-1, -1), (-9, -1), (-8, 0)):
        assert made[row, column] == -wide[row, column]


def test_reductions(wide: torch.Tensor) -> None:
    """Of rows, of columns, of all, and where the largest element is."""
    with FusionDefinition() as fd:
        t = fd.from_pytorch(wide)
        fd.add_output(fd.ops.sum(t, [1]))
        fd.add_output(fd.ops.sum(t, [0]))
        fd.add_output(fd.ops.sum(t))
        fd.add_output(fd.ops.argmax(t))
        fd.add_output(fd.ops.max(t, [1]))
    rows, columns, total, place, largest = fd.execute([wide])
    assert rows.double().nonzero().flatten().tolist() == [0, 2**15, ROWS - 9, ROWS - 8, ROWS - 1]
    assert columns[0] == 5 and columns[5] == 2 and columns[-1] == 8
    assert (int(total), int(place)) == (15, ROWS * COLUMNS - 1)
    assert largest[-1] == 5 and largest[-9] == 3 and not largest[1]


def test_in_one_row() -> None:
    """A flat tensor: one axis of more than 2**31 elements, transposed and by its index."""
    x = torch.zeros(2**31 + 24, dtype=torch.int8, device=DEVICE)
    x[-1], x[2**31] = 3, 2
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.argmax(t, 0))
        fd.add_output(fd.ops.sum(t))
        places = fd.ops.iota(fd.ops.size(t, 0), 0, 1, DataType.Int)
        fd.add_output(fd.ops.max(fd.ops.where(fd.ops.eq(t, 2), places, 0), [0]))
    place, total, second = fd.execute([x])
    assert (int(place), int(total), int(second)) == (2**31 + 23, 5, 2**31)
