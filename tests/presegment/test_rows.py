# SPDX-License-Identifier: Apache-2.0
"""The table of passes: rows for a target in golden text, what a dump says of a row, skip_passes.

test_passes.py has the rows that do not depend on a target.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Golden
from helpers.graphs import Graph, after_passes, group_norm
from helpers.rows import ROWS, after_row

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import OptionError
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.options import compile_options, options
from thunder_fuser.presegment import PASSES, run_passes
from thunder_fuser.presegment.rewrite import Fired
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.sharding.localise import FUSION_PASSES
from thunder_fuser.target import CPU, H200, Target

D = DataType
FOR_A_TARGET = [row.name for row in PASSES if row.for_target]


def meta(*shape: int, dtype: torch.dtype = torch.float32, last: bool = False) -> torch.Tensor:
    order = torch.channels_last if last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device="meta", memory_format=order)


def two_sums(columns: int) -> Graph:
    """Sums of a weight and of groups, over rows of so many columns."""
    x, fd = meta(32, 8, 16, columns), FusionDefinition()
    t = fd.from_pytorch(x)
    fd.add_output(fd.ops.sum(t, [0, 3]))
    fd.add_output(fd.ops.sum(t, [2, 3]))
    return fd, [x]


def columns(rows: int) -> Graph:
    x, fd = meta(rows, 256), FusionDefinition()
    fd.add_output(fd.ops.sum(fd.from_pytorch(x), [0]))
    return fd, [x]


def products(last: bool) -> Graph:
    """The sum of products of a contiguous image and another one, channels last or not."""
    half = torch.bfloat16
    values = [meta(8, 320, 64, 64, dtype=half, last=order) for order in (last, False)]
    fd = FusionDefinition()
    a, b = (fd.ops.cast(fd.from_pytorch(value), D.Float) for value in values)
    fd.add_output(fd.ops.sum(fd.ops.mul(a, b), [0, 1, 2, 3]))
    return fd, values


def rotation(op: str) -> Graph:
    values, fd = [meta(1, 1, 2048, 128), meta(4, 16, 2048, 128)], FusionDefinition()
    angle, t = map(fd.from_pytorch, values)
    fd.add_output(fd.ops.mul(getattr(fd.ops, op)(angle), t))
    return fd, values


def statistics(last: bool) -> Graph:
    """Of images, channels last or first; a channel of the latter stays on chip."""
    x, fd = meta(32, 64, 56, 56, dtype=torch.bfloat16, last=last), FusionDefinition()
    for value in fd.ops.var_mean(fd.ops.cast(fd.from_pytorch(x), D.Float), [0, 2, 3], 0):
        fd.add_output(value)
    return fd, [x]


def product(rows: int) -> Graph:
    """bias + weight @ silu(x), for so many rows."""
    half, fd = torch.bfloat16, FusionDefinition()
    values = [meta(rows, 1, 512, dtype=half), meta(256, 512, dtype=half), meta(256, dtype=half)]
    x, weight, bias = map(fd.from_pytorch, values)
    fd.add_output(fd.ops.linear(fd.ops.cast(fd.ops.silu(x), D.BFloat16), weight, bias))
    return fd, values


# {row: (a definition where it fires on an H200, one where it must not)}
CASES: dict[str, tuple[Callable[[], Graph], Callable[[], Graph]]] = {
    "few_rows": (lambda: product(2), lambda: product(9)),
    "two_stage_reductions": (lambda: two_sums(1024), lambda: two_sums(4)),
    "unify_memory_order": (lambda: products(last=True), lambda: products(last=False)),
    "short_runs": (
        lambda: group_norm((32, 64, 64, 320), 32), lambda: group_norm((32, 64, 64, 1024), 32)
    ),
    "rfactor": (lambda: columns(65536), lambda: columns(100)),
    "materialize_broadcasts": (lambda: rotation("cos"), lambda: rotation("neg")),
    "one_pass_variance": (lambda: statistics(last=True), lambda: statistics(last=False)),
    "materialize_straddled": (
        lambda: group_norm((32, 64, 64, 320), 32), lambda: group_norm((64, 56, 56, 256), 32)
    ),
}


def before_row(name: str, graph: Graph) -> Fusion:
    """The fusion as the row gets it."""
    fusion = after_passes(graph)
    for earlier in FOR_A_TARGET[: FOR_A_TARGET.index(name)]:
        fusion = after_row(earlier, fusion, H200, compile_options())
    return fusion


def names_of_fired(fusion: Fusion, target: Target) -> list[str]:
    log: list[list[Fired]] = [[]]
    run_passes(fusion, compile_options(), target, log.append)
    return [fired.name for fired in log[-1]]


@pytest.mark.parametrize("name", FOR_A_TARGET)
def test_a_row_for_a_target(name: str, golden: Golden) -> None:
    fires, stays = CASES[name]
    before = before_row(name, fires())
    fired = ROWS[name].fire(before, H200, compile_options())
    assert fired is not None and fired.after != before
    golden(f"{before}\n\n{fired}")
    assert ROWS[name].fire(fired.after, H200, compile_options()) is None
    assert ROWS[name].fire(before_row(name, stays()), H200, compile_options()) is None
    assert name in names_of_fired(before, H200)
    with options(skip_passes=name):
        assert name not in names_of_fired(before, H200)


# ---- one definition in which most rows do something


FIRE_IN_MANY = [row.name for row in PASSES[:-1] if not (row.needed or row.for_target)]
FIRE_IN_MANY.append("rfactor")


def many(fd: FusionDefinition) -> None:
    x, short = fd.define_tensor([64, 8], True), fd.define_tensor([64, 0], True)
    half = fd.define_tensor([64, 8], True, D.BFloat16)
    wide = fd.ops.cast(half, D.Float)
    fd.ops.sin(x)
    rounded = fd.ops.cast(fd.ops.mul(x, 0.3), D.BFloat16)
    count = fd.ops.cast(fd.ops.size(x, 1), D.Float)
    mean = fd.ops.truediv(fd.ops.sum(x, [1], keepdim=True), count)
    single = fd.ops.sum(fd.ops.neg(mean), [1])
    parts = fd.ops.sum(fd.ops.reshape(x, [4, 16, 8]), [0])
    between = fd.ops.sum(fd.ops.reshape(x, [16, 4, 8]), [1])
    merged = fd.ops.reshape(fd.ops.exp(fd.ops.reshape(x, [64, 4, 2])), [64, 8])
    for value in (
        fd.ops.add(fd.ops.exp(x), fd.ops.exp(x)),
        fd.ops.neg(fd.ops.cast(wide, D.BFloat16)),
        fd.ops.cat([half, rounded], 1),
        fd.ops.exp(fd.ops.cast(fd.ops.cast(fd.ops.neg(wide), D.BFloat16), D.Float)),
        fd.ops.add(1.0, fd.ops.tanh(x)),
        fd.ops.neg(fd.ops.cat([x, short], 1)),
        fd.ops.exp(single),
        fd.ops.pad(parts, [1, 0]),
        fd.ops.exp(between),
        fd.ops.truediv(merged, fd.ops.sum(merged, [1], keepdim=True)),
    ):
        fd.add_output(value)
    fd.add_output(fd.ops.reshape(fd.define_tensor([4, 4], True, strides=[4, 1]), [16]), shares=True)
    long = fd.define_tensor([65536, 4], True)
    fd.add_output(fd.ops.sum(long, [0]))
    cache, places = fd.define_tensor([9, 8], True, donated=True), fd.define_tensor([2], True, D.Int)
    whole = fd.ops.index_copy(cache, places, fd.ops.exp(fd.ops.slice(x, [0, 0], [2, 8])), 0)
    fd.add_output(whole, alias_input=cache)
    fd.add_output(whole)


def arguments() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = [(64, 8), (64, 0), (64, 8), (4, 4), (65536, 4), (9, 8)]
    values = [torch.randn(*shape, generator=generator) for shape in shapes]
    values[2] = values[2].bfloat16()
    return [*values, torch.tensor([7, 2])]


def run(folder: Path, name: str, *, repeatable: bool) -> tuple[list[torch.Tensor], str]:
    """The results without a row, and what the dump says of passes."""
    with options(repeatable=repeatable, skip_passes=name, dump=str(folder)):
        with FusionDefinition() as fd:
            many(fd)
        found = fd.execute(arguments())
    return found, next(folder.rglob("1_passes.txt")).read_text()


@pytest.mark.parametrize("repeatable", [False, True])
def test_a_dump_says_which_row_replaced_what(
    repeatable: bool, tmp_path: Path, golden: Golden
) -> None:
    _, text = run(tmp_path, "", repeatable=repeatable)
    golden(text)


@pytest.mark.parametrize("name", FIRE_IN_MANY)
def test_a_row_may_be_left_out(name: str, tmp_path: Path) -> None:
    repeatable = name == "unroll_middle_sums"
    with FusionDefinition() as fd:
        many(fd)
    expected = evaluate(fd.fusion, arguments())
    known = specialise(fd.fusion, input_keys(fd.fusion, tuple(arguments())))
    with options(repeatable=repeatable):
        assert name in names_of_fired(known, CPU)
    found, text = run(tmp_path, f" {name},", repeatable=repeatable)
    assert f"== {name}\n" not in text
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", [row.name for row in FUSION_PASSES if row.needed])
def test_a_needed_row_says_why(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="can be left out") as caught:
        run(tmp_path, name, repeatable=False)
    assert ROWS[name].needed in str(caught.value)


def test_an_unknown_row_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="write remove_common"):
        run(tmp_path, "remove_commn", repeatable=False)
