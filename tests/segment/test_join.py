# SPDX-License-Identifier: Apache-2.0
"""Short pointwise kernels that read one tensor share a launch, if that changes no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import rand

from thunder_fuser.definition import FusionDefinition

Body = Callable[[FusionDefinition, Any, Any], None]


def both(fd: FusionDefinition, x: Any, bias: Any) -> None:
    """A result of each size."""
    fd.add_output(fd.ops.add(x, bias))
    fd.add_output(fd.ops.mul(bias, bias))


def in_turn(fd: FusionDefinition, x: Any, bias: Any) -> None:
    """The second result needs the first, over axes of its own."""
    first = fd.ops.add(x, bias)
    fd.add_output(first)
    turned = fd.ops.permute(fd.ops.reshape(first, [128, 64]), [1, 0])
    fd.add_output(fd.ops.mul(fd.ops.segment_set(turned), 2.0))


def plan(body: Body, rows: int = 64, donated: bool = False, target: str = "h200") -> list[str]:
    """The schedulers of the plan; results are equal to those of the CPU target."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], donated=donated)
        bias = fd.define_tensor(shape=[-1], contiguity=[True])
        body(fd, x, bias)
    values = [rand(rows, 128), rand(128, seed=1)]
    if rows == 64:
        expected = fd.execute([one.clone() for one in values], target="cpu")
        found = fd.execute([one.clone() for one in values], target="emulator")
        assert all(map(torch.equal, found, expected))
    return [one.scheduler.name for one in fd.plan(values, target=target).segments]


def test_two_sizes_share_a_launch() -> None:
    assert plan(both) == ["joined"]


@pytest.mark.parametrize(
    "options", [{"rows": 1 << 16}, {"donated": True}, {"target": "cpu"}], ids=str
)
def test_others_do_not(options: dict[str, Any]) -> None:
    """Large ones, those of which one writes over what it reads, and those of a CPU."""
    assert plan(both, **options) == ["pointwise", "pointwise"]


def test_a_kernel_that_needs_the_other_one_does_not() -> None:
    assert "joined" not in plan(in_turn)
