# SPDX-License-Identifier: Apache-2.0
"""Generated kernels on a CUDA device, each against torch in fp64.

FUSER_TEST_DEVICE=cpu runs the same tests on the CPU target, to try them without a device.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F

from thunder_fuser import DataType, FusionDefinition, fuser, options
from thunder_fuser.runtime import random
from thunder_fuser.runtime.torch_types import from_torch_dtype, target_of_device
from thunder_fuser.target import CPU, Target

DEVICE = os.environ.get("FUSER_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="no CUDA device"),
]
needs_cuda = pytest.mark.skipif(DEVICE != "cuda", reason="about CUDA itself")

# Errors over the largest value of the result; sums of 1e5 numbers in f32 lose up to 1e-6 of it.
TOLERANCE = {
    torch.float64: 1e-13, torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3,
}
FLOATS = tuple(TOLERANCE)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
Build = Callable[..., Any]


@pytest.fixture(autouse=True)
def _seeded_and_poisoned():
    """New tensors are full of NaN, so an element that a kernel leaves out is seen."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def define(
    build: Build, inputs: Sequence[Any], dtype: torch.dtype | None = None
) -> FusionDefinition:
    """build(fd, *values) -> the result, cast to `dtype` if one is given."""
    with FusionDefinition() as fd:
        values = [
            fd.from_pytorch(value) if isinstance(value, torch.Tensor)
            else fd.define_scalar(dtype=DataType.Double)
            for value in inputs
        ]
        result = build(fd, *values)
        fd.add_output(fd.ops.cast(result, from_torch_dtype(dtype)) if dtype else result)
    return fd


def doubles(inputs: Sequence[Any]) -> list[Any]:
    return [v.double() if isinstance(v, torch.Tensor) else v for v in inputs]


def assert_near(got: torch.Tensor, exact: torch.Tensor) -> None:
    """Every element, within the tolerance of its dtype over the largest value."""
    assert got.shape == exact.shape
    if not exact.numel():
        return
    off = (got.double() - exact).abs().max() / exact.abs().max()
    assert float(off) <= TOLERANCE[got.dtype], f"{got.dtype}: {float(off):.2g} off"


def check(
    build: Build, meaning: Callable[..., torch.Tensor], inputs: Sequence[Any],
    dtype: torch.dtype | None = None, target: Target | None = None,
) -> None:
    """The definition on the inputs gives what `meaning` gives on them as doubles."""
    (got,) = define(build, inputs, dtype).execute(inputs, target=target)
    assert got.device.type == DEVICE
    assert_near(got, meaning(*doubles(inputs)))


# --------------------------------------------------------------------------------------- pointwise


def gelu(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.mul(fd.ops.mul(0.5, x), fd.ops.add(1.0, fd.ops.erf(fd.ops.mul(x, 0.5**0.5))))


@pytest.mark.parametrize(
    "shape", [(), (1,), (1003,), (64, 1024), (3, 5, 7, 11), (1 << 20,)], ids=str
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pointwise(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check(gelu, F.gelu, [randn(*shape, dtype=dtype)], dtype)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype: torch.dtype) -> None:
    end = 2 if dtype is torch.bool else 50
    a, b = (torch.randint(0, end, (1003,), device=DEVICE).to(dtype) for _ in "ab")
    fd = define(lambda fd, a, b: fd.ops.where(fd.ops.lt(a, b), fd.ops.add(a, b), b), [a, b])
    (got,) = fd.execute([a, b])
    assert got.dtype is dtype and torch.equal(got, torch.where(a < b, a + b, b))


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("to", [*FLOATS, torch.int32], ids=str)
def test_casts(source: torch.dtype, to: torch.dtype) -> None:
    x = randn(777, dtype=source) * 100
    (got,) = define(lambda fd, x: fd.ops.cast(x, from_torch_dtype(to)), [x]).execute([x])
    assert got.dtype is to and torch.equal(got, x.to(to))


def test_special_values() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 3.0], device=DEVICE)
    (got,) = define(lambda fd, x: fd.ops.maximum(x, fd.ops.neg(x)), [x]).execute([x])
    assert torch.equal(got.isnan(), x.isnan()) and torch.equal(got[1:], x[1:].abs())


def shifted(*shape: int, by: int, dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return randn(count + by, dtype=dtype)[by:].view(shape)


@pytest.mark.parametrize("by", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_misaligned(dtype: torch.dtype, by: int) -> None:
    """The same definition, first aligned: the wide kernel must not be reused."""
    inputs = [randn(64, 256, dtype=dtype), randn(64, 256, dtype=dtype)]
    fd = define(lambda fd, a, b: fd.ops.mul(fd.ops.add(a, b), b), inputs, dtype)
    for first in (inputs[0], shifted(64, 256, by=by, dtype=dtype)):
        (got,) = fd.execute([first, inputs[1]])
        a, b = doubles([first, inputs[1]])
        assert_near(got, (a + b) * b)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: randn(96, 130).t(),
    "permuted": lambda: randn(8, 9, 10).permute(2, 0, 1),
    "step": lambda: randn(64, 200)[:, ::2],
    "rows of a wider one": lambda: randn(64, 200)[:, 3:131],
    "expanded": lambda: randn(64, 1).expand(64, 128),
    "expanded rows": lambda: randn(128).expand(64, 128),
    "channels last": lambda: randn(2, 8, 6, 10).contiguous(memory_format=torch.channels_last),
    "empty": lambda: randn(0, 16),
    "size one": lambda: randn(1, 77),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    x = LAYOUTS[layout]()
    check(lambda fd, x: fd.ops.exp(x), torch.exp, [x])
    dense = torch.randn(x.shape, device=DEVICE)
    check(lambda fd, a, b: fd.ops.add(a, b), torch.add, [x, dense])


def test_broadcasts() -> None:
    inputs = [randn(33, 1, 65), randn(17, 65), randn(65)]

    def build(fd: FusionDefinition, a: Any, b: Any, c: Any) -> Any:
        rows = fd.ops.broadcast(b, [True, False, False])
        return fd.ops.mul(fd.ops.add(a, rows), fd.ops.broadcast(c, [True, True, False]))

    check(build, lambda a, b, c: (a + b) * c, inputs)


def test_cat_and_slice() -> None:
    """Rotate-half, as rotary position embeddings have it."""
    x = randn(2, 4, 33, 64, dtype=torch.bfloat16)

    def build(fd: FusionDefinition, x: Any) -> Any:
        low = fd.ops.slice(x, [0, 0, 0, 0], [2, 4, 33, 32])
        high = fd.ops.slice(x, [0, 0, 0, 32], [2, 4, 33, 64])
        return fd.ops.mul(fd.ops.cat([fd.ops.neg(high), low], 3), x)

    def meaning(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((-x[..., 32:], x[..., :32]), -1) * x

    check(build, meaning, [x], torch.bfloat16)


def test_scalars() -> None:
    x = randn(1003)
    fd = define(lambda fd, x, s: fd.ops.mul(x, s), [x, 2.0], torch.float32)
    for scalar in (2.5, -0.25):
        (got,) = fd.execute([x, scalar])
        assert_near(got, x.double() * scalar)


def test_a_cpu_scalar_beside_the_device() -> None:
    x = randn(1003)
    fd = define(lambda fd, x, s: fd.ops.mul(x, s), [x, torch.tensor(0.0)], torch.float32)
    for scalar in (torch.tensor(2.5), torch.tensor(-0.25)):
        (got,) = fd.execute([x, scalar])
        assert_near(got, x.double() * float(scalar))


# -------------------------------------------------------------------------------------- reductions

SHAPES = ((1, 1), (7, 1003), (1000, 64), (3, 100_000), (100_000, 3), (129, 4096))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_sums(dtype: torch.dtype, axis: int, shape: tuple[int, int]) -> None:
    x = randn(*shape, dtype=dtype).abs()  # of one sign, or the error is over a sum near zero
    check(lambda fd, x: fd.ops.sum(x, [axis]), lambda x: x.sum(axis), [x], dtype)


@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_reductions_over_several_axes(name: str, axes: list[int]) -> None:
    meaning = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}[name]
    x = randn(13, 40, 66).abs()
    check(
        lambda fd, x: getattr(fd.ops, name)(x, axes, keepdim=True),
        lambda x: meaning(x, axes, keepdim=True), [x],
    )


def test_a_sum_over_a_transposed_input() -> None:
    x = randn(300, 129).abs().t()
    for axis in (0, 1):
        check(lambda fd, x, at=axis: fd.ops.sum(x, [at]), lambda x, at=axis: x.sum(at), [x])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_equal_values_of_16_bits_vary_by_nothing(axis: int, dtype: torch.dtype) -> None:
    """As in torch: no step of a mean is contracted with what subtracts it, or rounds twice."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        variance = torch.var_mean(x, axis)[0]
        return variance, torch.rsqrt(variance)

    jitted = thunder.jit(function, executors=[fuser], fuser_strict=True)
    for length in (2, 3, 6, 41, 49, 500, 2047):
        shape = (length, 7) if axis == 0 else (7, length)
        for value in (1.0, 3.3, 0.1):
            x = torch.full(shape, value, dtype=dtype, device="cuda")
            for found, expected in zip(jitted(x), function(x), strict=True):
                torch.testing.assert_close(found, expected, rtol=0, atol=0)


# ---------------------------------------------------------------------------------- normalizations


def softmax(fd: FusionDefinition, x: Any) -> Any:
    exps = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [-1], keepdim=True)))
    return fd.ops.truediv(exps, fd.ops.sum(exps, [-1], keepdim=True))


def layer_norm(fd: FusionDefinition, x: Any, weight: Any, bias: Any) -> Any:
    variance, mean = fd.ops.var_mean(x, [-1], correction=0, keepdim=True)
    unit = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
    weight, bias = (fd.ops.broadcast(v, [True, False]) for v in (weight, bias))
    return fd.ops.add(fd.ops.mul(unit, weight), bias)


def torch_layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def norm_inputs(rows: int, columns: int, dtype: torch.dtype) -> list[torch.Tensor]:
    # A mean far from zero: the variance must be of the distances from it.
    x = (randn(rows, columns) + 3).to(dtype)
    return [x, randn(columns, dtype=dtype), randn(columns, dtype=dtype)]


# Up to 1000 a few warps keep a row in registers, at 40000 a cluster does; without clusters a block
# keeps it in shared memory, and of 70000 and 200000 some dtypes fit nowhere. 7 and 4095 have no
# wide loads.
COLUMNS = (7, 64, 1000, 4095, 4096, 40000, 70000, 200_000)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rows_of_every_length(dtype: torch.dtype, columns: int) -> None:
    rows = 5 if columns > 4096 else 301
    x, weight, bias = norm_inputs(rows, columns, dtype)
    check(softmax, lambda x: x.softmax(-1), [x], dtype)
    check(layer_norm, torch_layer_norm, [x, weight, bias], dtype)


@pytest.mark.parametrize("columns", [20000, 50257, 65536, 131072, 262144])
def test_rows_that_clusters_walk(columns: int) -> None:
    """So many that a cluster has several; the last one has fewer. Twice, to the bit."""
    rows = (1 << 27) // columns + 3
    x, weight, bias = norm_inputs(rows, columns, torch.bfloat16)
    check(softmax, lambda x: x.softmax(-1), [x], torch.bfloat16)
    check(layer_norm, torch_layer_norm, [x, weight, bias], torch.bfloat16)
    run = define(softmax, [x], torch.bfloat16).entry.prepare().callable()
    assert torch.equal(run(x)[0], run(x)[0])


@pytest.mark.parametrize("columns", [4100, 20001])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_rows_of_complex_numbers(dtype: torch.dtype, columns: int) -> None:
    """A cluster's blocks send each other both parts of a sum."""
    x = torch.complex(randn(2, columns), randn(2, columns)).to(dtype)
    with FusionDefinition() as fd:
        variance, mean = fd.ops.var_mean(fd.from_pytorch(x), [1], 1, True)
        fd.add_output(variance)
        fd.add_output(mean)
    limit = 100 * torch.finfo(dtype).eps
    exact = torch.var_mean(x.to(torch.complex128), 1, keepdim=True)
    for ours, right in zip(fd.execute([x]), exact, strict=True):
        assert (ours - right).abs().max() <= limit


@pytest.mark.parametrize("memory", ["registers", "shared", "none"])
@pytest.mark.parametrize("columns", [1000, 1003])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rows_kept_in_each_place(dtype: torch.dtype, columns: int, memory: str) -> None:
    target = target_of_device(0) if DEVICE == "cuda" else CPU
    target = replace(target, smem_bytes_per_block=1024) if memory == "none" else target
    x, weight, bias = norm_inputs(37, columns, dtype)
    with options(**({} if memory == "registers" else {"max_registers_bytes": 0})):
        check(softmax, lambda x: x.softmax(-1), [x], dtype, target)
        check(layer_norm, torch_layer_norm, [x, weight, bias], dtype, target)


def test_a_causal_softmax() -> None:
    """One iota is read along two axes, which must not become one axis."""
    x = randn(3, 40, 40, dtype=torch.bfloat16)

    def build(fd: FusionDefinition, x: Any) -> Any:
        at = fd.ops.iota(40, 0, 1, DataType.Int)
        row, column = (fd.ops.broadcast(at, [first, not first]) for first in (False, True))
        mask = fd.ops.broadcast(fd.ops.ge(row, column), [True, False, False])
        return softmax(fd, fd.ops.where(mask, x, float("-inf")))

    below = torch.ones(40, 40, dtype=torch.bool, device=DEVICE).tril()
    check(build, lambda x: x.masked_fill(~below, -torch.inf).softmax(-1), [x], torch.bfloat16)


def test_misaligned_rows() -> None:
    for columns in (1000, 40000):
        x = shifted(9, columns, by=1, dtype=torch.bfloat16)
        check(softmax, lambda x: x.softmax(-1), [x], torch.bfloat16)


def test_the_same_result_every_time() -> None:
    """Another result on the same numbers is a race."""
    x, weight, bias = norm_inputs(301, 4096, torch.bfloat16)
    run = define(layer_norm, [x, weight, bias], torch.bfloat16).entry.prepare().callable()
    (first,) = run(x, weight, bias)
    assert all(torch.equal(run(x, weight, bias)[0], first) for _ in range(50))


# ------------------------------------------------------------------------------ streams and threads


@needs_cuda
def test_the_current_stream_is_used() -> None:
    """The input is filled on a side stream after a long wait; another stream would see zeros."""
    x, zeros = randn(1 << 16), torch.zeros(1 << 16, device=DEVICE)
    fd = define(gelu, [x])
    fd.execute([x])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        zeros.copy_(x)
        (got,) = fd.execute([zeros])
    side.synchronize()
    assert_near(got, F.gelu(x.double()))


def test_a_second_thread() -> None:
    """Both the first compile and warm calls, from threads that never touched the device."""
    x = randn(999)
    fd = define(lambda fd, x: fd.ops.sin(gelu(fd, x)), [x])
    results: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: results.extend(fd.execute([x]) + fd.execute([x])))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for got in results:
        assert_near(got, F.gelu(x.double()).sin())


# ------------------------------------------------------------------------------------- thunder.jit


def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.silu(F.layer_norm(x, (256,), weight)) * F.softmax(x, -1) + x * weight


def with_gradients(
    function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], seed: torch.Tensor
) -> list[torch.Tensor]:
    leaves = [value.detach().requires_grad_() for value in inputs]
    result = function(*leaves)
    return [result.detach(), *torch.autograd.grad(result, leaves, seed.to(result.dtype))]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_thunder_jit_with_gradients(dtype: torch.dtype) -> None:
    """No worse than eager, against fp64; forward and backward are both fused."""
    inputs, seed = [randn(64, 256, dtype=dtype), randn(256, dtype=dtype)], randn(64, 256)
    jitted = thunder.jit(block, executors=[fuser], fuser_strict=True)
    ours = with_gradients(jitted, inputs, seed)
    eager = with_gradients(block, inputs, seed)
    exact = with_gradients(block, doubles(inputs), seed.to(dtype).double())
    for got, usual, right in zip(ours, eager, exact, strict=True):
        assert got.dtype is dtype and got.device.type == DEVICE
        off, base = ((one.double() - right).norm() / right.norm() for one in (got, usual))
        assert float(off) <= max(1.2 * float(base), 2 * torch.finfo(dtype).eps)


# ---------------------------------------------------------------------------------- random numbers


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(64, 1024), (33, 77)])
def test_random_numbers_are_those_of_the_reference(
    dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    x = torch.zeros(shape, dtype=dtype, device=DEVICE)
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        fd.add_output(fd.ops.rand_like(a, 3, 7))
        fd.add_output(fd.ops.randn_like(a, 3, 8))
    uniform, normal = fd.execute([x])
    seed, zero, one = torch.tensor(3), torch.tensor(0.0), torch.tensor(1.0)
    expected = random.uniform(zero, one, (seed, torch.tensor(7)), shape, dtype)
    assert torch.equal(uniform.cpu(), expected)
    exact = random.normal(zero, one, (seed, torch.tensor(8)), shape, dtype)
    assert_near(normal.cpu(), exact)


def test_seeds_come_from_the_generator_of_the_device() -> None:
    jitted = thunder.jit(lambda x: F.dropout(x, 0.5), executors=[fuser], fuser_strict=True)
    x = torch.ones(64, 1024, device=DEVICE, requires_grad=True)
    torch.manual_seed(5)
    first, second = jitted(x), jitted(x)
    torch.manual_seed(5)
    assert torch.equal(jitted(x), first) and not torch.equal(first, second)
    first.sum().backward()
    assert torch.equal(x.grad, first.detach())
    assert abs((first == 0).float().mean() - 0.5) < 0.02


@needs_cuda
def test_a_draw_moves_the_offset_as_torch_does() -> None:
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    x = torch.ones(64, device=DEVICE)
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        fd.add_output(fd.ops.sub(fd.ops.rand_like(a), fd.ops.rand_like(a)))
    torch.rand(3, device=DEVICE)
    before = generator.get_offset()
    assert fd.execute([x])[0].any()
    assert generator.get_offset() == -(-before // 4) * 4 + 8
