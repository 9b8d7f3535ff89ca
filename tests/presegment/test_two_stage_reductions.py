# SPDX-License-Identifier: Apache-2.0
"""Sums of groups and sums over them, made of sums of rows: where it fires, where not, results."""

from __future__ import annotations

import pytest
import torch
from helpers.graphs import Graph, layer_norm, softmax, summed
from helpers.pairs import pairs
from helpers.rows import after_row

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.rules.verify import verify
from thunder_fuser.options import compile_options, options
from thunder_fuser.presegment import run_passes
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.runtime.torch_types import to_torch_dtype
from thunder_fuser.target import CPU, H200, Target

D = DataType
Shape = tuple[int, int, int, int]


def group_norm_backward(
    shape: Shape,
    groups: int,
    dtype: DataType = D.Float,
    *,
    device: str = "meta",
    order: tuple[int, ...] = (0, 1, 2, 3),
    keepdim: bool = False,
) -> Graph:
    """(x, dy, weight, mean, rstd) -> (dx, dweight, dbias), as a reader of the paper writes it."""
    (n, channels, h, w), fd = shape, FusionDefinition()
    ops, dims = fd.ops, {"dims": [0, 2, 3], "keepdim": keepdim}
    rank = [order.index(at) for at in range(4)]
    stride_order = [3 - at for at in rank]
    x, dy = (fd.define_tensor([-1] * 4, True, dtype, stride_order=stride_order) for _ in range(2))
    weight = fd.define_tensor([1, -1, 1, 1], [None, True, None, None], dtype)
    mean, rstd = (fd.define_tensor([-1, -1, 1, 1, 1], [True, True] + [None] * 3) for _ in range(2))
    split = [n, groups, channels // groups, h, w]
    unit = ops.mul(ops.sub(ops.reshape(ops.cast(x, D.Float), split), mean), rstd)
    scaled = ops.reshape(ops.mul(ops.cast(dy, D.Float), weight), split)
    count = 1 / (channels // groups * h * w)
    along, plain = (
        ops.mul(ops.sum(one, [2, 3, 4], keepdim=True), count)
        for one in (ops.mul(scaled, unit), scaled)
    )
    dx = ops.mul(ops.sub(ops.sub(scaled, ops.mul(unit, along)), plain), rstd)
    flat = ops.reshape(unit, list(shape))
    dweight, dbias = ops.sum(ops.mul(ops.cast(dy, D.Float), flat), **dims), ops.sum(dy, **dims)
    for result in (ops.reshape(dx, list(shape)), dweight, dbias):
        fd.add_output(ops.cast(result, dtype))
    kind = to_torch_dtype(dtype)
    lies = [shape[at] for at in order]
    values = [torch.empty(lies, device=device, dtype=kind).permute(rank) for _ in range(2)]
    values.append(torch.empty(1, channels, 1, 1, device=device, dtype=kind))
    values += [torch.empty(n, groups, 1, 1, 1, device=device) for _ in range(2)]
    return fd, values if device == "meta" else [value.normal_() for value in values]


def batch_norm_backward(shape: Shape) -> Graph:
    """All its sums are over the same axes."""
    fd = FusionDefinition()
    x, dy = (fd.define_tensor([-1] * 4, True) for _ in range(2))
    along, plain = (
        fd.ops.sum(one, [0, 2, 3], keepdim=True) for one in (fd.ops.mul(x, dy), dy)
    )
    fd.add_output(fd.ops.sub(fd.ops.sub(dy, fd.ops.mul(x, along)), plain))
    fd.add_output(along)
    fd.add_output(plain)
    return fd, [torch.empty(shape, device="meta") for _ in range(2)]


def both_wait(shape: Shape) -> Graph:
    """The sums over n are needed again by all elements: rows would not help."""
    fd = FusionDefinition()
    x = fd.define_tensor([-1] * 4, True)
    y = fd.ops.mul(x, fd.ops.sum(x, [0, 2, 3], keepdim=True))
    fd.add_output(fd.ops.mul(y, fd.ops.sum(x, [1, 2, 3], keepdim=True)))
    return fd, [torch.empty(shape, device="meta")]


def layer_norm_backward(rows: int, columns: int) -> Graph:
    fd = FusionDefinition()
    x = fd.define_tensor([-1, -1], True)
    fd.add_output(fd.ops.mul(x, fd.ops.sum(x, [1], keepdim=True)))
    fd.add_output(fd.ops.sum(x, [0]))
    return fd, [torch.empty(rows, columns, device="meta")]


def nested(graph: Graph, target: Target) -> tuple[Fusion, Fusion]:
    """The fusion before and after."""
    fd, inputs = graph
    before = run_passes(specialise(fd.fusion, input_keys(fd.fusion, inputs)), compile_options())
    return before, after_row("two_stage_reductions", before, target, compile_options())


LAST = (0, 2, 3, 1)
FIRES = {
    "8 channels a group": group_norm_backward((8, 256, 32, 32), 32, D.BFloat16),
    "10 channels": group_norm_backward((8, 320, 16, 16), 32),
    "odd": group_norm_backward((8, 96, 7, 7), 32),
    "sizes of 1 stay": group_norm_backward((8, 256, 32, 32), 32, keepdim=True),
    "instance norm": group_norm_backward((8, 256, 32, 32), 256),
}
KEEPS = {
    "batch norm": batch_norm_backward((8, 256, 32, 32)),
    "layer norm": layer_norm(4096, 1024),
    "layer norm backward": layer_norm_backward(4096, 1024),
    "one group": group_norm_backward((8, 256, 32, 32), 1),
    "rows too long": group_norm_backward((2, 64, 256, 256), 32),
    "few columns": group_norm_backward((8, 256, 2, 2), 32),
    "channels last": group_norm_backward((8, 256, 32, 32), 32, order=LAST),
    "both wait": both_wait((8, 256, 32, 32)),
    "softmax": softmax(4096, 1024),
    "a sum": summed(4096, 1024, dims=[0]),
}


@pytest.mark.parametrize("name", FIRES)
def test_fires(name: str) -> None:
    before, after = nested(FIRES[name], H200)
    count = len([e for e in before.exprs if e.op == "sum"])
    more = 2 if name == "instance norm" else count  # its groups are rows
    assert len([e for e in after.exprs if e.op == "sum"]) == count + more
    assert rebuild(str(verify(after))) == after
    assert after_row("two_stage_reductions", after, H200, compile_options()) == after


@pytest.mark.parametrize("name", KEEPS)
def test_keeps(name: str) -> None:
    before, after = nested(KEEPS[name], H200)
    assert after is before


def test_few_groups_keep_the_threads_of_a_cpu_busy_otherwise() -> None:
    before, after = nested(group_norm_backward((1, 64, 16, 16), 8), CPU)
    assert after is before
    before, after = nested(group_norm_backward((2, 64, 16, 16), 8), CPU)
    assert after is not before


def test_repeatable_sums_do_not_depend_on_others() -> None:
    """The executor says which are two sums, for the whole trace."""
    with options(repeatable=True):
        before, after = nested(FIRES["8 channels a group"], H200)
    assert after is before


@pytest.mark.parametrize("target", ["h200", "h100", "a100", "cpu"])
def test_inputs_are_read_once(target: str) -> None:
    fd, values = FIRES["8 channels a group"]
    plan = fd.plan(values, target=target)
    first, second = plan.segments
    assert (first.scheduler.name, second.scheduler.name) == ("nested", "reduction")
    assert not set(plan.fusion.inputs) & set(second.part.inputs)
    assert plan.edge_bytes <= 1.01 * plan.lower_bound


def test_an_instance_norm_is_one_pass_too() -> None:
    fd, values = FIRES["instance norm"]
    plan = fd.plan(values, target="h200")
    assert [s.scheduler.name for s in plan.segments] == ["persistent", "reduction"]
    assert plan.edge_bytes <= 1.01 * plan.lower_bound


@pytest.mark.parametrize("name", ["one group", "channels last"])
def test_others_take_two_passes(name: str) -> None:
    fd, values = KEEPS[name]
    plan = fd.plan(values, target="h200")
    assert "nested" not in [s.scheduler.name for s in plan.segments]
    assert plan.edge_bytes <= 1.7 * plan.lower_bound


CASES = {
    "8 channels a group": ((8, 64, 16, 16), 8, {}),
    "one channel a group": ((3, 32, 8, 9), 32, {}),
    "one group": ((2, 24, 8, 8), 1, {}),
    "three channels, odd": ((3, 24, 7, 7), 8, {}),
    "fewer columns than a warp": ((4, 40, 5, 5), 8, {}),
    "sizes of 1 stay": ((4, 32, 8, 8), 8, {"keepdim": True}),
    "one sample": ((1, 64, 12, 12), 16, {}),
    "channels last": ((4, 32, 8, 8), 8, {"order": LAST}),
    "no samples": ((0, 32, 8, 8), 8, {}),
}


@pytest.mark.parametrize(
    ("name", "dtype", "target"), pairs([*CASES], [D.Float, D.BFloat16, D.Half], ["cpu", "emulator"])
)
def test_results(name: str, dtype: DataType, target: str) -> None:
    shape, groups, given = CASES[name]
    fd, values = group_norm_backward(shape, groups, dtype, device="cpu", **given)  # type: ignore[arg-type]
    wanted = evaluate(fd.fusion, values, torch.float64)
    tolerance = {D.Float: 1e-6, D.Half: 1e-3, D.BFloat16: 8e-3}[dtype]
    for got, want in zip(fd.execute(values, target=target), wanted, strict=True):
        assert got.shape == want.shape
        if want.numel():
            most = want.abs().max().clamp(min=1e-3)
            assert (got.double() - want).abs().max() < tolerance * most


