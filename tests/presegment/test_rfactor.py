# SPDX-License-Identifier: Apache-2.0
"""Long reductions in two steps: where the pass fires, where not, and what it computes."""

from __future__ import annotations

import pytest
import torch
from helpers.graphs import Graph, meta, rows, softmax, summed
from helpers.rows import after_row

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import DefinitionError
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.rules.verify import verify
from thunder_fuser.options import compile_options, options
from thunder_fuser.presegment import run_passes
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.target import CPU, H200, TARGETS, Target


def split(graph: Graph, target: Target) -> tuple[Fusion, Fusion]:
    """The fusion before and after."""
    fd, inputs = graph
    before = run_passes(specialise(fd.fusion, input_keys(fd.fusion, inputs)), compile_options())
    return before, after_row("rfactor", before, target, compile_options())


def chunks(fusion: Fusion) -> list[object]:
    return [e.attr("chunk") for e in fusion.exprs if e.attr("chunk") is not None]


def weighted(places: int) -> Graph:
    """The last step of attention of one query, behind a mask: p [4, s] times v [s, 64], 8 times."""
    values = [meta(8, 4, places), meta(8, places, 64, dtype=DataType.BFloat16)]
    values.append(meta(places, dtype=DataType.Bool))
    with FusionDefinition() as fd:
        p, v, mask = map(fd.from_pytorch, values)
        seen = fd.ops.where(fd.ops.broadcast(mask, [True, True, False]), p, fd.define_scalar(0.0))
        wide = fd.ops.broadcast(fd.ops.cast(v, DataType.Float), [False, True, False, False])
        y = fd.ops.mul(fd.ops.broadcast(seen, [False, False, False, True]), wide)
        fd.add_output(fd.ops.sum(y, [2]))
    return fd, values


FIRES = {
    "a long cache": (weighted(8192), H200),
    "few columns": (summed(65536, 64, dims=[0]), H200),
    "long columns": (summed(2048, 2048, dims=[0]), H200),
    "short columns, few of them": (summed(1024, 256, dims=[0]), H200),
    "one result": (summed(1 << 20, dims=[0]), H200),
    "few rows": (summed(4, 1 << 18, dims=[1]), H200),
    "long softmax, few rows": (softmax(4, 1 << 20), H200),
    "one result, cpu": (summed(1 << 20, dims=[0]), CPU),
}
KEEPS = {
    "many columns": (summed(4096, 1 << 15, dims=[0]), H200),
    "many rows": (summed(1 << 15, 4096, dims=[1]), H200),
    "little work": (summed(256, 128, dims=[0]), H200),
    "a short cache": (weighted(512), H200),
    "short columns": (summed(1024, 2048, dims=[0]), H200),
    "the row stays on chip": (softmax(64, 8192), H200),
    "rows enough, cpu": (summed(64, 8192, dims=[1]), CPU),
}


@pytest.mark.parametrize("name", FIRES)
def test_fires(name: str) -> None:
    before, after = split(*FIRES[name])
    assert not chunks(before)
    assert chunks(after)
    assert rebuild(str(verify(after))) == after
    assert after_row("rfactor", after, FIRES[name][1], compile_options()) == after


@pytest.mark.parametrize("name", KEEPS)
def test_keeps(name: str) -> None:
    before, after = split(*KEEPS[name])
    assert after is before


def keepdim(fd: FusionDefinition, x: Tensor) -> None:
    fd.add_output(fd.ops.sum(x, [0], keepdim=True))


def with_a_full_result(fd: FusionDefinition, x: Tensor) -> None:
    """A gradient and the bias gradient that sums it."""
    y = fd.ops.mul(x, 2.0)
    fd.add_output(y)
    fd.add_output(fd.ops.sum(y, [0]))


def extremes(fd: FusionDefinition, x: Tensor) -> None:
    fd.add_output(fd.ops.max(x, [0]))
    fd.add_output(fd.ops.min(x, [0]))


def over_both(fd: FusionDefinition, x: Tensor) -> None:
    fd.add_output(fd.ops.sum(x, [0, 1]))


def normalised_columns(fd: FusionDefinition, x: Tensor) -> None:
    variance, mean = fd.ops.var_mean(x, [0], 0, keepdim=True)
    fd.add_output(fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5))))


DEFINITIONS = (keepdim, with_a_full_result, extremes, over_both, normalised_columns)


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("shape", [(4096, 24), (2111, 35)])
@pytest.mark.parametrize("body", DEFINITIONS, ids=lambda f: f.__name__)
def test_results(body: object, shape: tuple[int, ...], target: str) -> None:
    fd, x = rows(*shape)
    body(fd, x)  # type: ignore[operator]
    value = torch.randn(shape)
    assert chunks(split((fd, [value]), TARGETS[target])[1])
    wanted = evaluate(fd.fusion, [value], torch.float64)
    for got, want in zip(fd.execute([value], target=target), wanted, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=2e-4)


def whole_images(fd: FusionDefinition, x: Tensor) -> None:
    """As a loss of images."""
    fd.add_output(fd.ops.sum(fd.ops.mul(x, x), [0, 1, 2, 3], keepdim=True))


def channels(fd: FusionDefinition, x: Tensor) -> None:
    fd.add_output(fd.ops.sum(fd.ops.exp(x), [0, 2, 3]))


def heads_in_another_order(fd: FusionDefinition, x: Tensor) -> None:
    """A gradient over heads, tokens and batch, stored in another order, as of a rotary embedding
    behind a norm: it ran in one block for 32 columns."""
    y = fd.ops.permute(fd.ops.mul(x, 2.0), (0, 3, 2, 1))
    fd.add_output(y)
    fd.add_output(fd.ops.sum(fd.ops.mul(y, y), [0, 1, 2]))


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("body", [whole_images, channels, heads_in_another_order])
def test_axes_in_another_order_than_in_memory(
    body: object, repeatable: bool, target: str
) -> None:
    """The runs are contiguous: the operand is permuted."""
    value = torch.randn(18, 7, 34, 65).permute(0, 3, 1, 2)
    with options(repeatable=repeatable):
        with FusionDefinition() as fd:
            body(fd, fd.from_pytorch(value))  # type: ignore[operator]
        after = split((fd, [value]), TARGETS[target])[1]
        assert chunks(after) or target == "cpu"
        wanted = evaluate(fd.fusion, [value], torch.float64)
        for got, want in zip(fd.execute([value], target=target), wanted, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("repeatable", [False, True])
def test_runs_in_another_order_than_in_memory(repeatable: bool, target: str) -> None:
    """The runs follow the result, of more bytes than the argument: no scheduler took the sum, whose
    operand lies as the argument."""
    value = torch.randn(63, 882, 3).bfloat16().permute(1, 0, 2)
    with options(repeatable=repeatable):
        with FusionDefinition() as fd:
            x = fd.ops.cast(fd.from_pytorch(value), DataType.Float)
            total = fd.ops.sum(x, [0, 1], keepdim=True)
            fd.add_output(fd.ops.sum(x, [1, 2]))
            fd.add_output(fd.ops.sub(x, total))
        assert chunks(split((fd, [value]), H200)[1])
        wanted = evaluate(fd.fusion, [value], torch.float64)
        for got, want in zip(fd.execute([value], target=target), wanted, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=2e-3)


def test_a_chunk_is_a_positive_number() -> None:
    fd, x = rows(8, 8)
    with pytest.raises(DefinitionError, match="sum: chunk"):
        fd.ops.sum(x, [0], chunk=0)
        fd.plan([meta(8, 8)])
