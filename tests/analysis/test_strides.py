# SPDX-License-Identifier: Apache-2.0
"""The strides that values have if they are stored between two kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from thunder_fuser import FusionDefinition
from thunder_fuser.analysis.part import tensor_strides
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.presegment.specialise import specialise

ROWS, TURNED = torch.empty(2, 3, 4), torch.empty(3, 4, 2).permute(2, 0, 1)  # strides 1, 8, 2


def of(build: Callable[..., Any], *inputs: torch.Tensor) -> list[tuple[int, ...]]:
    """The strides of what the expressions compute, in order."""
    with FusionDefinition() as fd:
        fd.add_output(build(fd, *(fd.from_pytorch(tensor) for tensor in inputs)))
    keys = input_keys(fd.fusion, inputs)
    fusion: Fusion = specialise(fd.fusion, keys)
    strides = tensor_strides(fusion)
    return [strides[expr.outputs[0]] for expr in fusion.exprs]


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], list[tuple[int, ...]]]] = {
    "rows": (
        lambda fd, x: fd.ops.sum(fd.ops.exp(x), [0, 1, 2]), (ROWS,), [(12, 4, 1), ()],
    ),
    "as the operand": (
        lambda fd, x: fd.ops.sum(fd.ops.exp(x), [0, 1, 2]), (TURNED,), [(1, 8, 2), ()],
    ),
    "as the first operand": (
        lambda fd, x, y: fd.ops.sum(fd.ops.add(x, y), [0]), (TURNED, ROWS), [(1, 8, 2), (4, 1)],
    ),
    "through several": (
        lambda fd, x: fd.ops.sum(fd.ops.neg(fd.ops.exp(x)), [2]), (TURNED,),
        [(1, 8, 2), (1, 8, 2), (3, 1)],
    ),
    "a copy behind a boundary": (
        lambda fd, x: fd.ops.sum(fd.ops.segment_set(fd.ops.exp(x)), [2]), (TURNED,),
        [(12, 4, 1), (1, 8, 2), (3, 1)],
    ),
    "views are of rows": (
        lambda fd, x: fd.ops.sum(fd.ops.reshape(fd.ops.exp(x), [6, 4]), [0]), (TURNED,),
        [(12, 4, 1), (4, 1), (1,)],
    ),
    "behind a permutation": (
        lambda fd, x: fd.ops.sum(fd.ops.exp(fd.ops.permute(x, [1, 2, 0])), [0]), (ROWS,),
        [(8, 2, 1), (4, 1, 12), (2, 1)],
    ),
    "results are of rows": (lambda fd, x: fd.ops.exp(x), (TURNED,), [(12, 4, 1)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_order(name: str) -> None:
    build, inputs, strides = CASES[name]
    assert of(build, *inputs) == strides


def test_results_have_the_order_that_is_asked_for() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.from_pytorch(ROWS)), stride_order=[0, 2, 1])
    fusion = specialise(fd.fusion, input_keys(fd.fusion, (ROWS,)))
    assert tensor_strides(fusion)[fusion.exprs[0].outputs[0]] == (1, 8, 2)
