# SPDX-License-Identifier: Apache-2.0
"""Reductions over views: the kernel walks the view in the order of the memory that it is read from,
also if no argument or result has its axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from helpers.cases import TARGETS, rand
from helpers.kernels import scheduled

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.target import CPU, H200, Target

Shapes = list[tuple[int, ...]]
View = Callable[..., Tensor]


def _halves(ops: Any, shape: Sequence[int], x: Tensor) -> tuple[Tensor, Tensor]:
    *outer, width = shape
    none, half = [0] * len(outer), width // 2
    left = ops.slice(x, [*none, 0], [*outer, half])
    return left, ops.slice(x, [*none, half], [*outer, width])


def _last_of_first(ops: Any, shape: Sequence[int], x: Tensor) -> Tensor:
    first, _ = _halves(ops, shape, x)
    return _halves(ops, (shape[0], shape[1] // 2), first)[1]


def _side_by_side(ops: Any, shape: Sequence[int], x: Tensor) -> Tensor:
    """[batch, heads, length, width] -> [batch * length, heads * width], halves exchanged"""
    batch, heads, length, width = shape
    left, right = _halves(ops, shape, x)
    turned = ops.permute(ops.cat([right, left], -1), [0, 2, 1, 3])
    return ops.reshape(turned, [batch * length, heads * width])


def _pieces(ops: Any, shape: Sequence[int], x: Tensor) -> Tensor:
    return ops.reshape(_halves(ops, shape, x)[0], [shape[0], 4, shape[1] // 8])


def _rows_of_a_table(ops: Any, shape: Sequence[int], table: Tensor) -> Tensor:
    """[words, width] -> [8, words / 8, width]"""
    places = ops.reshape(ops.iota(shape[0]), [8, shape[0] // 8])
    return ops.embedding_fwd(places, table)


def _permuted(ops: Any, shape: Sequence[int], x: Tensor) -> Tensor:
    return ops.permute(_halves(ops, shape, x)[0], [1, 0, 2])


# {name: (view, shapes of arguments for an H200, small ones)}
VIEWS: dict[str, tuple[View, Shapes, Shapes]] = {
    "slice": (lambda ops, shape, x: _halves(ops, shape, x)[1], [(2048, 512)], [(130, 12)]),
    "pad": (lambda ops, shape, x: ops.pad(x, [0, 8]), [(2048, 512)], [(130, 12)]),
    "flip": (lambda ops, shape, x: ops.flip(x, [0]), [(2048, 512)], [(130, 12)]),
    "cat": (
        lambda ops, shape, *x: ops.cat(x, 1), [(2048, 512), (2048, 256)], [(130, 12), (130, 8)]
    ),
    "slice of a slice": (_last_of_first, [(2048, 1024)], [(130, 24)]),
    "permutation": (_permuted, [(64, 32, 1024)], [(6, 22, 24)]),
    "heads side by side": (_side_by_side, [(4, 8, 512, 64)], [(2, 2, 65, 8)]),
    "rows of a table": (_rows_of_a_table, [(2048, 512)], [(48, 12)]),
    "pieces": (_pieces, [(2048, 1024)], [(130, 32)]),
}  # fmt: skip


def reduced(name: str, dims: list[int], *, small: bool) -> tuple[FusionDefinition, list[Any]]:
    """The sum of a view, in double its size, over axes."""
    view, *shapes = VIEWS[name]
    values = [rand(*shape) for shape in shapes[small]]
    with FusionDefinition() as fd:
        whole = view(fd.ops, shapes[small][0], *map(fd.from_pytorch, values))
        fd.add_output(fd.ops.sum(fd.ops.mul(whole, 2.0), dims))
    return fd, values


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
@pytest.mark.parametrize("name", VIEWS)
def test_columns_are_read_side_by_side(name: str, target: Target) -> None:
    first, _ = scheduled(reduced(name, [0], small=False), target)
    assert not first.params.inner
    assert first.params.vectorize > 1


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
@pytest.mark.parametrize("name", VIEWS)
def test_rows_are_read_along_themselves(name: str, target: Target) -> None:
    first, _ = scheduled(reduced(name, [-1], small=False), target)
    assert first.params.inner
    assert first.params.vectorize > 1


@pytest.mark.parametrize("dims", [[0], [-1]])
@pytest.mark.parametrize("name", VIEWS)
def test_results(name: str, dims: list[int]) -> None:
    fd, values = reduced(name, dims, small=True)
    (exact,) = evaluate(fd.fusion, values, torch.float64)
    for target in TARGETS:
        (total,) = fd.execute(values, target=target)
        torch.testing.assert_close(total.double(), exact, rtol=1e-5, atol=1e-4)
