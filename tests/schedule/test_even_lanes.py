# SPDX-License-Identifier: Apache-2.0
"""Lanes of a CPU's loops: whole rows, or the runs of them within which no branch changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thunder_fuser import FusionDefinition

HEADS, TOKENS = 3, 37


def rotation(x: torch.Tensor, angles: torch.Tensor, summed: bool) -> FusionDefinition:
    """[tokens, heads * width], each head turned by its token's angles; or the sum over tokens."""
    width = x.shape[1] // HEADS
    with FusionDefinition() as fd:
        given, table = fd.from_pytorch(x), fd.from_pytorch(angles)
        heads = fd.ops.reshape(given, [TOKENS, HEADS, width])
        cuts: list[Any] = [
            fd.ops.slice(heads, [0, 0, at], [TOKENS, HEADS, at + width // 2], [1, 1, 1])
            for at in (0, width // 2)
        ]
        turned = fd.ops.cat([fd.ops.neg(cuts[1]), cuts[0]], dim=2)
        wide = fd.ops.broadcast(table, [False, True, False])
        made = fd.ops.add(heads, fd.ops.mul(turned, wide))
        flat = fd.ops.reshape(made, [TOKENS, HEADS * width])
        fd.add_output(fd.ops.sum(flat, [0]) if summed else flat)
    return fd


def expected(x: torch.Tensor, angles: torch.Tensor, summed: bool) -> torch.Tensor:
    heads = x.double().view(TOKENS, HEADS, -1)
    first, second = heads.chunk(2, -1)
    made = heads + torch.cat((-second, first), -1) * angles.double()[:, None]
    return made.view(TOKENS, -1).sum(0) if summed else made.view(TOKENS, -1)


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize(("width", "lanes"), [(32, 16), (48, 8), (128, 64)])
def test_a_rotation_has_runs_of_half_a_head(width: int, lanes: int, summed: bool) -> None:
    x, angles = torch.randn(TOKENS, HEADS * width), torch.randn(TOKENS, width)
    fd = rotation(x, angles, summed)
    assert [one.params.vectorize for one in fd.schedules([x, angles])] == [lanes]
    (result,) = fd.execute([x, angles])
    torch.testing.assert_close(result.double(), expected(x, angles, summed), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("summed", [False, True])
def test_halves_that_no_run_divides_keep_whole_rows(summed: bool) -> None:
    x, angles = torch.randn(TOKENS, HEADS * 20), torch.randn(TOKENS, 20)
    fd = rotation(x, angles, summed)
    (schedule,) = fd.schedules([x, angles])
    # Sums of columns have a lane for each of a head.
    assert schedule.params.vectorize >= (20 if summed else HEADS * 20)
    (result,) = fd.execute([x, angles])
    torch.testing.assert_close(result.double(), expected(x, angles, summed), rtol=1e-5, atol=1e-4)


def test_rows_without_branches_stay_whole() -> None:
    x, bias = torch.randn(TOKENS, 96), torch.randn(96)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.from_pytorch(x), fd.from_pytorch(bias)))
    assert [one.params.vectorize for one in fd.schedules([x, bias])] == [96]
