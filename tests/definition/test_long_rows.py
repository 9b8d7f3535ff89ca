# SPDX-License-Identifier: Apache-2.0
"""Rows that the blocks of a cluster share, in the emulator, against fp64 and eager torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.cases import ints, poisoned, rand
from helpers.kernel_texts import run_expressions

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.options import options
from thunder_fuser.runtime.torch_types import from_torch_dtype
from thunder_fuser.target import EMULATOR

EPS = 1e-5
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
SMALL = replace(EMULATOR, sm_count=1)  # for which two rows are enough to fill every SM


def _shifted(ops: Any, x: Any) -> Any:
    return ops.sub(x, ops.max(x, [-1], keepdim=True))


def _softmax(ops: Any, x: Any) -> Any:
    powers = ops.exp(_shifted(ops, x))
    return ops.truediv(powers, ops.sum(powers, [-1], keepdim=True))


def _log_softmax(ops: Any, x: Any) -> Any:
    shifted = _shifted(ops, x)
    return ops.sub(shifted, ops.log(ops.sum(ops.exp(shifted), [-1], keepdim=True)))


def _layer_norm(ops: Any, x: Any) -> Any:
    variance, mean = ops.var_mean(x, [-1], 0, keepdim=True)
    return ops.mul(ops.sub(x, mean), ops.rsqrt(ops.add(variance, EPS)))


def _rms_norm(ops: Any, x: Any) -> Any:
    squares = ops.sum(ops.mul(x, x), [-1], keepdim=True)
    return ops.mul(x, ops.rsqrt(ops.add(ops.truediv(squares, ops.size(x, -1)), EPS)))


def _log_sum_exp(ops: Any, x: Any) -> Any:
    """What a cross entropy needs of a row: one thread of one block stores it."""
    peak = ops.max(x, [-1], keepdim=True)
    total = ops.sum(ops.exp(ops.sub(x, peak)), [-1], keepdim=True)
    return ops.add(ops.log(total), peak)


Meaning = Callable[[torch.Tensor], torch.Tensor]
OPS: dict[str, tuple[Callable[[Any, Any], Any], Meaning]] = {
    "softmax": (_softmax, lambda x: x.softmax(-1)),
    "log_softmax": (_log_softmax, lambda x: x.log_softmax(-1)),
    "layer_norm": (_layer_norm, lambda x: F.layer_norm(x, x.shape[-1:], eps=EPS)),
    "rms_norm": (_rms_norm, lambda x: F.rms_norm(x, x.shape[-1:], eps=EPS)),
    "log_sum_exp": (_log_sum_exp, lambda x: x.logsumexp(-1, keepdim=True)),
}
# (operation, dtype, columns, blocks of a cluster): even and odd rows, one step more than a block's.
CASES = [
    ("softmax", BF16, 16384, 1),
    ("softmax", BF16, 16392, 2),
    ("softmax", BF16, 50257, 4),
    ("softmax", F32, 65536, 4),
    ("softmax", F16, 131072, 8),
    ("softmax", F32, 262144, 16),
    ("log_softmax", F32, 20001, 2),
    ("log_softmax", BF16, 32768, 1),
    ("log_softmax", BF16, 40960, 2),
    ("layer_norm", F32, 16385, 2),
    ("layer_norm", F16, 65534, 2),
    ("layer_norm", BF16, 262144, 8),
    ("rms_norm", BF16, 40000, 2),
    ("rms_norm", F32, 131071, 8),
    ("log_sum_exp", BF16, 50257, 2),
    ("log_sum_exp", BF16, 32768, 1),
    ("log_sum_exp", F32, 50257, 4),
]


def define(op: str, x: torch.Tensor, weight: torch.Tensor | None = None) -> FusionDefinition:
    with FusionDefinition() as fd:
        result = OPS[op][0](fd.ops, fd.from_pytorch(x))
        if weight is not None:
            result = fd.ops.mul(result, fd.from_pytorch(weight))
        fd.add_output(fd.ops.cast(result, from_torch_dtype(x.dtype)))
    return fd


def check(op: str, x: torch.Tensor, cluster: int) -> None:
    """The RMS error is eager's own, plus a fifth, or two units in the last place."""
    fd, meaning = define(op, x), OPS[op][1]
    (source,) = fd.sources([x], target=SMALL)
    assert source.cluster == cluster
    (result,) = execute(fd, x)
    exact = meaning(x.double())
    limit = max(1.2 * distance(meaning(x), exact), 2 * torch.finfo(x.dtype).eps)
    assert distance(result, exact) <= limit


def execute(fd: FusionDefinition, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The results, the same bits whichever way round the threads and blocks run."""
    with poisoned():
        results = fd.execute(inputs, target=SMALL)
        with options(emulate_reversed=True):
            again = fd.execute(inputs, target=SMALL)
    for one, other in zip(results, again, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    return results


def distance(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(("op", "dtype", "columns", "cluster"), CASES)
def test_against_fp64(op: str, dtype: torch.dtype, columns: int, cluster: int) -> None:
    check(op, 3 * rand(2, columns, dtype=dtype), cluster)


@pytest.mark.parametrize("op", ["rms_norm", "softmax"])  # one reduction of a row, and two
def test_a_cluster_has_one_row(op: str) -> None:
    """Also where all rows share their weights."""
    x, weight = rand(9, 40000, dtype=BF16), rand(40000, dtype=BF16, seed=1)
    fd = define(op, x, weight)
    (source,) = fd.sources([x, weight], target=SMALL)
    assert source.grid == (9, source.cluster, 1) and source.cluster > 1
    (result,) = execute(fd, x, weight)
    assert distance(result, OPS[op][1](x.double()) * weight.double()) <= 2 * torch.finfo(BF16).eps


def test_a_slice_that_starts_off_a_word() -> None:
    check("softmax", rand(3, 33000, dtype=BF16)[1:, 3:32771], 2)


def test_a_broadcast_row() -> None:
    check("layer_norm", rand(1, 20000).expand(2, -1), 2)


def test_rows_with_nan_and_infinity() -> None:
    """They stay in their row, and reach every block of it."""
    x = rand(5, 32768)
    x[0, 17], x[1, 32767], x[2, 0], x[3, 20000:] = math.nan, math.inf, -math.inf, -math.inf
    fd = define("softmax", x)
    (result,) = execute(fd, x)
    torch.testing.assert_close(result, x.softmax(-1), equal_nan=True)
    assert result[:2].isnan().all() and not result[2:].isnan().any()


def test_integers_to_the_bit() -> None:
    """Sums and peaks of integers are exact in any order."""
    x = ints(3, 40001, low=-(2**40), high=2**40)

    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        total, peak = (getattr(fd.ops, op)(t, [1], keepdim=True) for op in ("sum", "max"))
        fd.add_output(fd.ops.sub(fd.ops.add(t, total), peak))
        fd.add_output(total)
    total = x.sum(1, keepdim=True)
    results = execute(fd, x)
    assert torch.equal(results[0], x + total - x.amax(1, keepdim=True))
    assert torch.equal(results[1], total)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers(dtype: torch.dtype) -> None:
    """The blocks send each other 8 and 16 bytes: a real and an imaginary part."""
    x = torch.complex(rand(2, 20001, dtype=F64), rand(2, 20001, dtype=F64, seed=1)).to(dtype)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        total = fd.ops.sum(t, [1], keepdim=True)
        fd.add_output(fd.ops.sub(t, total))
        fd.add_output(total)
    (source,) = fd.sources([x], target=SMALL)
    assert source.cluster > 1
    exact = x.to(torch.complex128).sum(1, keepdim=True)
    for result, right in zip(execute(fd, x), (x - exact, exact), strict=True):
        error = (result - right).norm() / right.norm()
        assert error <= 4 * torch.finfo(dtype).eps


def test_the_same_bits_each_time_and_in_each_block() -> None:
    """A row of equal numbers gives equal results, whichever block makes them."""
    x = torch.full((2, 131072), 0.1)
    fd = define("softmax", x)
    (first,) = execute(fd, x)
    (second,) = execute(fd, x)
    assert torch.equal(first, second)
    assert (first == first[0, 0]).all()


# ---- what makes the short rows fast


def test_a_short_exp_only_for_16_bit_results() -> None:
    for dtype in (BF16, F16, F32):
        x = rand(4, 100, dtype=dtype)
        (source,) = define("softmax", x).sources([x], target="emulator")
        assert ("short_exp(" in source.text) == (dtype is not F32)


def test_quotients_are_right_to_one_ulp() -> None:
    """For every pair of signs and sizes, also where a reciprocal overflows or is not normal."""
    powers = [2.0**e for e in (-149, -140, -127, -126, -65, -64, -1, 0, 1, 63, 64, 65, 126, 127)]
    sizes = [p * f for p in powers for f in (1.0, 1.7) if p * f < 3.4e38]
    values = torch.tensor([*sizes, *(-s for s in sizes), 0.0, math.inf, -math.inf, math.nan])
    a, b = torch.meshgrid(values, values, indexing="ij")
    a, b = a.flatten(), b.flatten()
    found = run_expressions(
        "cuda",
        {"a": ("float", a), "b": ("float", b)},
        {"q": ("float", "quotient(a, divisor(b))")},
    )["q"]
    exact = a / b
    same = (found == exact) | (found.isnan() & exact.isnan())
    edge = (a.double() / b.double()).abs() == 2.0**128  # the first number that is infinity
    largest = found.abs() == torch.finfo(F32).max
    near = ((found.double() - exact.double()).abs() <= ulp(exact)) | (edge & largest)
    assert (same | near).all(), (a[~(same | near)], b[~(same | near)])


def ulp(value: torch.Tensor) -> torch.Tensor:
    size = value.abs()
    return torch.nextafter(size, torch.tensor(math.inf)).double() - size.double()
