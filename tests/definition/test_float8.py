# SPDX-License-Identifier: Apache-2.0
"""8-bit floats: casts to the last bit as torch makes them, and movement."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.cases import REAL, Runner, rand

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import COMPUTED, DataType
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.runtime.torch_types import to_torch_dtype

FLOAT8 = tuple(dtype for dtype in DataType if dtype.is_float8)
every = pytest.mark.parametrize("dtype", FLOAT8, ids=lambda d: d.short)


def codes(dtype: DataType) -> torch.Tensor:
    """All 256 of them."""
    return torch.arange(256, dtype=torch.uint8).view(to_torch_dtype(dtype))


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8)


def floats(dtype: DataType) -> torch.Tensor:
    """Each 8-bit float, what lies between two, its neighbours, and floats of every size."""
    own = codes(dtype).float()
    own = own[own.isfinite()].sort().values.unique()
    middle = (own[1:] + own[:-1]) / 2
    near = torch.cat([own, middle])
    around = [torch.nextafter(near, torch.tensor(to)) for to in (-math.inf, math.inf)]
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (60_000,), generator=generator)
    edges = [448, 464, 480, 57344, 61440, 65536, math.inf, math.nan, 2.0**-149, 3e38]
    edges = torch.tensor([*edges, *(-e for e in edges)])
    around += [torch.nextafter(edges, torch.tensor(to)) for to in (-math.inf, math.inf)]
    return torch.cat([near, *around, edges, patterns.to(torch.int32).view(torch.float32)])


def cast(run: Runner, x: torch.Tensor, *dtypes: DataType) -> list[torch.Tensor]:
    fd = FusionDefinition()
    t = fd.from_pytorch(x)
    for dtype in dtypes:
        fd.add_output(fd.ops.cast(t, dtype))
    return run.execute(fd, [x])


@every
@pytest.mark.parametrize("source", [d for d in COMPUTED if d.is_float], ids=lambda d: d.short)
def test_casts_from_floats_round_as_torch_does(
    source: DataType, dtype: DataType, run: Runner
) -> None:
    x = floats(dtype).to(to_torch_dtype(source))
    (result,) = cast(run, x, dtype)
    assert torch.equal(bits(result), bits(x.to(to_torch_dtype(dtype))))


@every
@pytest.mark.parametrize("source", [d for d in COMPUTED if not d.is_float], ids=lambda d: d.short)
def test_casts_from_integers(source: DataType, dtype: DataType, run: Runner) -> None:
    x = torch.arange(-70_000, 70_000, 13).to(to_torch_dtype(source))
    (result,) = cast(run, x, dtype)
    assert torch.equal(bits(result), bits(x.to(to_torch_dtype(dtype))))


@every
def test_casts_of_every_code(dtype: DataType, run: Runner) -> None:
    x = codes(dtype)
    whole = torch.where(x.float().isfinite(), x.float(), 1.0)
    for to, result in zip(REAL, cast(run, x, *REAL), strict=True):
        expected = x.to(to_torch_dtype(to))
        if to.is_int:  # of NaN and infinity no integer is meant
            finite = x.float() == whole
            result, expected = result[finite], expected[finite]
        assert result.dtype is expected.dtype
        if to.is_float8:
            assert torch.equal(bits(result), bits(expected))
        else:
            assert torch.equal(result.isnan(), expected.isnan())
            a, b = result.double().nan_to_num(), expected.double().nan_to_num()
            assert torch.equal(a.view(torch.int64), b.view(torch.int64))  # the sign of zero too


MOVES: dict[str, Any] = {
    "permute": (lambda o, t: o.permute(t, [1, 0]), lambda x: x.t().contiguous()),
    "reshape": (lambda o, t: o.reshape(t, [4, 24]), lambda x: x.reshape(4, 24)),
    "slice": (lambda o, t: o.slice(t, [1, 3], [5, 16]), lambda x: x[1:5, 3:16].contiguous()),
    "pad": (
        lambda o, t: o.pad(t, [1, 2], 2.5),
        lambda x: torch.nn.functional.pad(x.float(), (1, 2), value=2.5).to(x.dtype),
    ),
    "cat": (lambda o, t: o.cat([t, t], 1), lambda x: torch.cat([x, x], 1)),
    "expand": (
        lambda o, t: o.expand(o.slice(t, [0, 0], [1, 16]), [6, 16]),
        lambda x: x[:1].expand(6, 16).contiguous(),
    ),
    "full": (lambda o, t: o.full([3], 0.3, FLOAT8[0]), lambda x: torch.full([3], 0.3).to(E4M3)),
}
E4M3 = to_torch_dtype(FLOAT8[0])


@every
@pytest.mark.parametrize("name", MOVES)
def test_movement(name: str, dtype: DataType, run: Runner) -> None:
    call, expected = MOVES[name]
    x = rand(6, 16).to(to_torch_dtype(dtype))
    fd = FusionDefinition()
    fd.add_output(call(fd.ops, fd.from_pytorch(x)))
    (result,) = run.execute(fd, [x])
    assert result.dtype is expected(x).dtype
    assert torch.equal(bits(result), bits(expected(x)))


@every
def test_a_scaled_cast_is_one_kernel(dtype: DataType, run: Runner) -> None:
    """What quantization does: the maximum of a row scales it into range; 16 values a load."""
    x = rand(7, 64, dtype=torch.bfloat16)
    limit = float(torch.finfo(to_torch_dtype(dtype)).max)
    fd = FusionDefinition()
    t: Tensor = fd.from_pytorch(x)
    scale = fd.ops.truediv(limit, fd.ops.max(fd.ops.abs(t), [1], True))
    fd.add_output(fd.ops.cast(fd.ops.mul(t, scale), dtype))
    fd.add_output(scale)
    (segment,) = fd.plan([x], target="h200").segments
    assert segment.scheduler.name == "persistent"
    result, scales = run.execute(fd, [x])
    wide = x.float()
    expected = torch.full([7, 1], limit) / wide.abs().amax(1, True)
    assert torch.equal(scales, expected)
    assert torch.equal(bits(result), bits((wide * expected).to(to_torch_dtype(dtype))))


def test_a_wide_load_holds_16() -> None:
    x = torch.zeros(64, 1024).to(E4M3)
    fd = FusionDefinition()
    fd.add_output(fd.ops.set(fd.from_pytorch(x)))
    (source,) = fd.sources([x], target="emulator")
    assert "ldv<16>" in source.text
