# SPDX-License-Identifier: Apache-2.0
"""Gradients of group norms: sums of rows in the trace, one pass over the data, the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers.pairs import pairs

from thunder_fuser.explain.jitted import final_traces, fusions_of, jit
from thunder_fuser.explain.programs import compiled

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
TOLERANCE = {F32: 1e-6, F16: 1e-3, BF16: 8e-3}
Function = Callable[..., torch.Tensor]
EMULATE = pytest.mark.parametrize("emulate", [False, True], ids=["cpu", "emulator"])


def norm(groups: int) -> Function:
    def made(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.silu(F.group_norm(x, groups, weight, bias))

    return made


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True)


def of_two(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """In one region, of other groups."""
    return norm(8)(norm(4)(x, weight, bias), weight, bias)


def before_batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Sums over the same axes, of which some are needed again by all elements."""
    return batch_norm(norm(4)(x, weight, bias), weight, bias)


def behind_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The bias is added in another region than the norm's: its gradient is one sum."""
    y = torch.matmul(x + bias[:, None, None], x)
    return norm(4)(y, weight, weight)


def arguments(shape: tuple[int, ...], count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    sizes = (shape, (count,), (count,))
    return [
        torch.randn(size, generator=generator).to(dtype).requires_grad_() for size in sizes
    ]


def gradients(function: Function, args: list[torch.Tensor]) -> list[torch.Tensor]:
    result = function(*args)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(3))
    return list(torch.autograd.grad(result, args, weights.to(result.dtype)))


def sums(function: Function, args: list[torch.Tensor], **given: bool | str) -> list[object]:
    """The axes of the sums of a function's trace."""
    jitted = jit(function, strict=True, **given)
    gradients(jitted, args)
    leaves = [leaf for one in fusions_of(jitted) for leaf in one.region.leaves]
    return [tuple(leaf.args[1]) for leaf in leaves if leaf.sym.name == "sum"]


def backward_schedulers(jitted: Function) -> list[str]:
    """Of the last fusion, which is the backward's."""
    last = fusions_of(jitted)[-1]
    return [s.scheduler.name for program in compiled(last) for s in program.segments]


GROUPED = (
    ((4, 64, 8, 8), 8),
    ((6, 40, 7, 7), 8),  # odd
    ((20, 24, 5, 6), 24),  # an instance norm
    ((20, 24, 5, 6), 1),
    ((3, 48, 33), 16),  # three channels, one axis
)


@pytest.mark.parametrize(
    ("grouped", "dtype", "emulate"), pairs(GROUPED, [*TOLERANCE], [False, True]), ids=str
)
def test_gradients(
    grouped: tuple[tuple[int, ...], int], dtype: torch.dtype, emulate: bool
) -> None:
    shape, groups = grouped
    args = arguments(shape, shape[1], dtype)
    found = gradients(jit(norm(groups), strict=True, emulate=emulate), args)
    exact = [arg.detach().double().requires_grad_() for arg in args]
    for got, want in zip(found, gradients(norm(groups), exact), strict=True):
        off = (got.double() - want).abs().max()
        assert off <= TOLERANCE[dtype] * want.abs().max()


@pytest.mark.parametrize(
    ("function", "shape", "dtype", "emulate"),
    [
        (norm(8), (4, 64, 8, 8), BF16, True),
        (norm(8), (6, 40, 7, 7), F32, False),
        (of_two, (4, 32, 8, 8), F32, True),
    ],
    ids=["even", "odd", "of two"],
)
def test_bits_under_every_policy(
    function: Function, shape: tuple[int, ...], dtype: torch.dtype, emulate: bool
) -> None:
    args = arguments(shape, shape[1], dtype)
    made = [
        gradients(jit(function, strict=True, emulate=emulate, rematerialization=policy), args)
        for policy in ("none", "time", "memory")
    ]
    for found in made[1:]:
        for got, want in zip(found, made[0], strict=True):
            assert torch.equal(got, want)


@EMULATE
def test_one_kernel_reads_the_data(emulate: bool) -> None:
    jitted = jit(norm(8), strict=True, emulate=emulate)
    gradients(jitted, arguments((4, 64, 8, 8), 64, BF16))
    assert backward_schedulers(jitted) == ["nested", "reduction"]
    text = str(final_traces(jitted)[1])
    assert "(2, 3))" in text and "(3, 4))" in text


def test_two_steps_for_one() -> None:
    """Two of channels and two of groups; those over axes of size 1 are left alone."""
    found = sums(norm(8), arguments((4, 64, 8, 8), 64, F32))
    assert sorted(found) == sorted(
        [(2, 3), (0,), (2, 3), (0,), (3, 4), (2,), (3, 4), (2,), (2, 3, 4), (2, 3, 4)]
    )


def test_an_instance_norm_sums_rows_for_both() -> None:
    found = sums(norm(64), arguments((4, 64, 8, 8), 64, F32))
    assert found.count((0,)) == 2
    assert (2,) not in found


@pytest.mark.parametrize(
    ("function", "shape", "count"),
    [
        (layer_norm, (64, 8, 48), 48),
        (batch_norm, (8, 64, 8, 8), 64),
        (norm(1), (4, 64, 8, 8), 64),  # too few groups for the threads of a CPU
        (norm(8), (4, 64, 3, 3), 64),  # rows so short that their sums are half of the data
    ],
    ids=["layer norm", "batch norm", "few groups", "short rows"],
)
def test_others_stay_one_sum(function: Function, shape: tuple[int, ...], count: int) -> None:
    found = sums(function, arguments(shape, count, F32), emulate=True)
    assert found
    assert (0,) not in found


def test_sums_beside_those_that_are_needed_again_share_their_kernel() -> None:
    found = sums(before_batch_norm, arguments((4, 32, 8, 8), 32, F32))
    assert found.count((0, 2, 3)) >= 4
    assert (0,) not in found


def test_sums_of_other_regions_are_not_looked_at() -> None:
    """Two of the norm's are over rows' sums; that of the bias before the product is not."""
    found = sums(behind_linear, arguments((4, 32, 8, 8), 32, F32))
    assert found.count((0,)) == 2
    assert found.count((0, 2, 3)) == 1


@pytest.mark.parametrize("shape", [(0, 32, 8, 8), (4, 32, 0, 8)], ids=str)
def test_no_elements(shape: tuple[int, ...]) -> None:
    """Their sums are zeros; what is beside them has gradients."""

    def total(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        around = torch.sum(x * weight[:, None, None], (0, 2, 3)) * bias
        groups = torch.sum(x.reshape(x.shape[0], 8, 4, *x.shape[2:]) * 2.0, (2, 3, 4))
        return torch.sum(around) + torch.sum(groups) + torch.sum(weight * bias)

    args = arguments(shape, 32, F32)
    found = gradients(jit(total, strict=True), args)
    for got, want in zip(found, gradients(total, args), strict=True):
        torch.testing.assert_close(got, want)
