# SPDX-License-Identifier: Apache-2.0
"""Which values computed from an exp a pass keeps for the next one."""

from __future__ import annotations

import pytest
import torch
from helpers.cases import Runner, rand
from helpers.graphs import Graph
from helpers.kernels import scheduled

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.options import options
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.target import H200

D = DataType


def with_inputs(*shape: int, device: str) -> tuple[FusionDefinition, list[Tensor], Graph]:
    values = [rand(*shape, seed=at).bfloat16().to(device) for at in range(2)]
    fd = FusionDefinition()
    return fd, [fd.ops.cast(fd.from_pytorch(value), D.Float) for value in values], (fd, values)


def silu_gradient(rows: int, columns: int, device: str = "meta") -> Graph:
    """dx of SiLU, less its mean: the second pass reads one value that the exp is part of."""
    fd, (x, dy), graph = with_inputs(rows, columns, device=device)
    gate = fd.ops.reciprocal(fd.ops.add(1.0, fd.ops.exp(fd.ops.neg(x))), short=True)
    dx = fd.ops.mul(fd.ops.mul(dy, gate), fd.ops.add(1.0, fd.ops.mul(x, fd.ops.sub(1.0, gate))))
    mean = fd.ops.mul(fd.ops.sum(dx, [1], keepdim=True), 1 / columns)
    fd.add_output(fd.ops.cast(fd.ops.sub(dx, mean), D.BFloat16))
    return graph


def two_ends(rows: int, columns: int, device: str = "meta") -> Graph:
    """The second pass reads two values computed from one exp: the exp is less to keep."""
    fd, (x, dy), graph = with_inputs(rows, columns, device=device)
    e = fd.ops.exp(fd.ops.neg(fd.ops.abs(x)))
    one, other = fd.ops.mul(e, dy), fd.ops.add(e, 1.0)
    total = fd.ops.sum(fd.ops.mul(one, other), [1], keepdim=True)
    made = fd.ops.add(fd.ops.mul(one, total), fd.ops.sub(other, total))
    fd.add_output(fd.ops.cast(made, D.BFloat16))
    return graph


KEPT = {silu_gradient: ["mul"], two_ends: ["exp"]}


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("graph", KEPT)
def test_what_is_kept(graph, repeatable: bool) -> None:  # type: ignore[no-untyped-def]
    with options(repeatable=repeatable):
        made, source = scheduled(graph(4096, 4096), H200)
    ops = [made.part.producer.get(buffer.point.name) for buffer in made.persistent]
    assert [expr.op for expr in ops if expr is not None] == KEPT[graph]
    body = source.text[source.text.rindex('extern "C"') :]
    assert body.count("_exp(") + body.count(" expf(") == 1  # in one pass, not in both


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("shape", [(3, 512), (2, 1001)])
@pytest.mark.parametrize("graph", KEPT)
def test_values(graph, shape: tuple[int, int], repeatable: bool, run: Runner) -> None:  # type: ignore[no-untyped-def]
    fd, values = graph(*shape, device="cpu")
    (wanted,) = evaluate(fd.fusion, values, torch.float64)
    with options(repeatable=repeatable):
        (got,) = run.execute(fd, values)
    assert (got.double() - wanted).abs().max() < 8e-3 * wanted.abs().max()
