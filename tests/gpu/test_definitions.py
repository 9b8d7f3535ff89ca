# SPDX-License-Identifier: Apache-2.0
"""nvFuser's definitions on a CUDA device: typed constants, complex arguments, embeddings, packed
floats, the arguments of execute. FUSER_TEST_DEVICE=cpu tries them without a device."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser import DataType, FusionDefinition, torch_dtype_to_nvfuser_dtype
from thunder_fuser.errors import InputError

DEVICE = os.environ.get("FUSER_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="no CUDA device"),
]
D = DataType
CONSTANTS = [
    (3.0, D.Float, torch.float32), (3.0, D.Half, torch.float16), (0.1, D.BFloat16, torch.bfloat16),
    (3, D.Int32, torch.int32), (3, D.Int8, torch.int8), (3j, D.ComplexFloat, torch.complex64),
    (3.0, None, torch.float64), (3, None, torch.int64), (True, D.Bool, torch.bool),
]  # fmt: skip


def test_typed_constants() -> None:
    mask = torch.tensor([True, False, True], device=DEVICE)
    with FusionDefinition() as fd:
        m = fd.from_pytorch(mask)
        for value, dtype, _ in CONSTANTS:
            a, b = (fd.define_scalar(one, dtype) for one in (value, type(value)(1)))
            fd.add_output(fd.ops.where(m, a, b))
    for result, (value, _, dtype) in zip(fd.execute([mask]), CONSTANTS, strict=True):
        expected = torch.where(mask, torch.tensor(value, device=DEVICE), 1).to(dtype)
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_the_smallest_integer_is_its_own_negative(dtype: torch.dtype) -> None:
    """ptxas takes -x > 0 of 16 bits for x < 0."""
    least = torch.iinfo(dtype).min
    x = torch.tensor([least, least + 1, -1, 0, 1, -(least + 1)], dtype=dtype, device=DEVICE)
    with FusionDefinition() as fd:
        t, zero, minus = fd.from_pytorch(x), fd.define_scalar(0), fd.define_scalar(-1)
        made = (
            fd.ops.neg(t), fd.ops.abs(t), fd.ops.sub(zero, t), fd.ops.mul(t, minus),
            fd.ops.add(fd.ops.bitwise_not(t), fd.define_scalar(1)),
        )  # fmt: skip
        for y in made:
            fd.add_output(fd.ops.gt(fd.ops.cast(y, torch_dtype_to_nvfuser_dtype(dtype)), zero))
            fd.add_output(fd.ops.pow(t, fd.ops.cast(y, torch_dtype_to_nvfuser_dtype(dtype))))
    results = fd.execute([x])
    for index, y in enumerate((-x, x.abs(), 0 - x, x * -1, ~x + 1)):
        torch.testing.assert_close(results[2 * index], y > 0)
        torch.testing.assert_close(results[2 * index + 1], x**y)


def test_the_text_of_a_complex_argument() -> None:
    x, z = torch.randn(1000, device=DEVICE), torch.tensor(1 + 2j)
    with FusionDefinition() as fd:
        product = fd.ops.mul(fd.from_pytorch(x), fd.from_pytorch(z))
        fd.add_output(fd.ops.mul(product, fd.define_scalar(D.ComplexFloat)))
    names: dict[str, Any] = {"DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["fusion"](again)
    for one in (fd, again):
        torch.testing.assert_close(one.execute([x, z, 2j])[0], x * (1 + 2j) * 2j)


def test_an_embedding_whose_options_are_arguments() -> None:
    index = torch.randint(50, (300,), device=DEVICE)
    weight = torch.randn(50, 64, device=DEVICE, dtype=torch.bfloat16)
    with FusionDefinition() as fd:
        i, w = fd.from_pytorch(index), fd.from_pytorch(weight)
        types = (D.Int, D.Float, D.Float, D.Bool, D.Bool)
        fd.add_output(fd.ops.embedding_fwd(i, w, *(fd.define_scalar(one) for one in types)))
    for norm in (1.0, 2.0, float("inf")):
        # Torch's kernel for GPUs seems to take every infinity norm for 1.
        at = torch.device("cpu" if norm == float("inf") else DEVICE)
        expected = F.embedding(index.to(at), weight.to(at, copy=True), -2, 0.3, norm, True, True)
        (result,) = fd.execute([index, weight, -2, 0.3, norm, True, True])
        torch.testing.assert_close(result.to(at), expected)


def test_the_device_of_a_call() -> None:
    x = torch.ones(8, device=DEVICE)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.from_pytorch(x)))
    for device in (x.device, DEVICE):
        assert torch.equal(fd.execute([x], device=device, _disable_options=["nvtx"])[0], -x)
    with pytest.raises(InputError, match="the device of the arguments"):
        fd.execute([x], device="meta")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_casts_to_8_bits_by_the_hardware(dtype: torch.dtype) -> None:
    """Its instruction gives the largest float where torch gives NaN or infinity."""
    edges = torch.tensor([448.0, 464.0, 480.0, 57344.0, 61440.0, 65536.0, 2.0**-10, 3e38])
    near = torch.cat([torch.nextafter(edges, torch.tensor(to)) for to in (0.0, float("inf"))])
    patterns = torch.randint(-(2**31), 2**31, (1 << 20,)).to(torch.int32).view(torch.float32)
    brief = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16).float()
    x = torch.cat([edges, near, -edges, -near, patterns, brief])
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cast(fd.from_pytorch(x.cuda()), torch_dtype_to_nvfuser_dtype(dtype)))
    (got,) = fd.execute([x.cuda()])
    assert torch.equal(got.cpu().view(torch.uint8), x.to(dtype).view(torch.uint8))
