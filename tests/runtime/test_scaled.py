# SPDX-License-Identifier: Apache-2.0
"""Products with scales on a GPU: which torch's kernels take. No GPU is needed: torch checks the
arguments of its kernels for tensors without memory too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from thunder_fuser.runtime.eager.scaled import scaled_grouped_product, scaled_product

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FLOAT, BF16, HALF = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture(autouse=True)
def hopper() -> Iterator[None]:
    with FakeTensorMode(), mock.patch("torch.cuda.get_device_capability", lambda device: (9, 0)):
        yield


def empty(*sizes: int, dtype: torch.dtype = E4M3) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="cuda")


def taken(kernel: str, call: Callable[[], torch.Tensor]) -> tuple[Any, bool]:
    """The shape and type of a result, and whether torch's kernel made it."""
    with mock.patch.object(torch, kernel, wraps=getattr(torch, kernel)) as known:
        made = call()
    return (tuple(made.shape), made.dtype), known.called


def product(
    a: torch.Tensor, b: torch.Tensor, rows: bool = False, dtype: torch.dtype = BF16
) -> tuple[Any, bool]:
    sizes = ((a.shape[0], 1), (1, b.shape[1])) if rows else ((1, 1), (1, 1))
    scales = [empty(*one, dtype=FLOAT) for one in sizes]
    return taken("_scaled_mm", lambda: scaled_product(a, b, *scales, dtype))


@pytest.mark.parametrize("dtype", [BF16, HALF, FLOAT], ids=str)
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(("k", "n"), [(64, 48), (24, 48), (64, 20), (0, 16)])
def test_sizes(k: int, n: int, rows: bool, dtype: torch.dtype) -> None:
    found = product(empty(7, k), empty(k, n), rows, dtype)
    fits = (k, n) == (64, 48) and (not rows or dtype is BF16)
    assert found == (((7, n), dtype), fits)


@pytest.mark.parametrize("first", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("second", [E4M3, E5M2], ids=str)
def test_types(first: torch.dtype, second: torch.dtype) -> None:
    found = product(empty(32, 32, dtype=first), empty(32, 32, dtype=second))
    assert found == (((32, 32), BF16), not first is second is E5M2)


@pytest.mark.parametrize(
    "a", [
        lambda: empty(64, 32).t(), lambda: empty(32, 80)[:, :64], lambda: empty(32, 65)[:, 1:],
        lambda: empty(1, 64).expand(32, 64), lambda: empty(32, 128)[:, ::2],
    ],
    ids=["transposed", "part", "odd", "expanded", "steps"],
)  # fmt: skip
def test_layouts(a: Callable[[], torch.Tensor]) -> None:
    """What does not lie as the kernel takes it is copied."""
    for b in (empty(64, 48), empty(48, 64).t()):
        assert product(a(), b, rows=True) == (((32, 48), BF16), True)


def test_scales_with_gaps() -> None:
    scales = empty(32, 4, dtype=FLOAT)[:, :1], empty(4, 48, dtype=FLOAT)[:1]
    a, b = empty(32, 64), empty(64, 48)
    made, known = taken("_scaled_mm", lambda: scaled_product(a, b, *scales, BF16))
    assert (made, known) == (((32, 48), BF16), True)


def test_older_devices() -> None:
    with mock.patch("torch.cuda.get_device_capability", lambda device: (8, 0)):
        assert product(empty(32, 64), empty(64, 48)) == (((32, 48), BF16), False)
        assert grouped(empty(32, 64), empty(3, 64, 48)) == (((32, 48), BF16), False)


def grouped(a: torch.Tensor, b: torch.Tensor) -> tuple[Any, bool]:
    scales = empty(a.shape[0], 1, dtype=FLOAT), empty(b.shape[0], 1, b.shape[2], dtype=FLOAT)
    operands = (a, b, empty(b.shape[0], dtype=torch.int32), *scales)
    # Torch's product of groups of float32 runs on a GPU, but not for tensors without memory.
    wide = mock.patch(
        "thunder_fuser.runtime.eager.scaled.grouped_mm",
        lambda left, right, ends: left.new_empty(left.shape[0], right.shape[-1]),
    )
    with wide:
        return taken("_scaled_grouped_mm", lambda: scaled_grouped_product(operands, BF16))


@pytest.mark.parametrize("k", [64, 24])
@pytest.mark.parametrize("n", [48, 20])
def test_groups(k: int, n: int) -> None:
    assert grouped(empty(32, k), empty(3, k, n)) == (((32, n), BF16), k == 64)
    transposed = grouped(empty(k, 32).t(), empty(3, n, k).mT)
    assert transposed == (((32, n), BF16), k == 64)
