# SPDX-License-Identifier: Apache-2.0
"""`x.half()` and the like: opaque to Thunder, part of a region here, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thunder_fuser.explain.jitted import final_traces, fusions_of, jit
from thunder_fuser.functions import pointwise

CASTS = [id.removeprefix("Tensor.") for id in pointwise.CASTS]
NUMBERS = torch.tensor([[0.0, -0.0, 0.4], [1.5, 2.9, 100.25]])


def cast(name: str) -> Any:
    return lambda x: getattr(x * 2, name)() * 3


def names(jitted: Any) -> set[str]:
    return {bsym.sym.name for trace in final_traces(jitted) for bsym in trace.bound_symbols}


@pytest.mark.parametrize("name", CASTS)
def test_is_part_of_a_region(name: str) -> None:
    jitted = jit(cast(name), strict=True)
    torch.testing.assert_close(jitted(NUMBERS), cast(name)(NUMBERS))
    assert len(fusions_of(jitted)) == 1 and not names(jitted) & {*CASTS}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["bfloat16", "double"])
def test_gradients(name: str, dtype: torch.dtype) -> None:
    ours, eagers = (NUMBERS.to(dtype, copy=True).requires_grad_() for _ in range(2))
    jitted = jit(cast(name), strict=True)
    result, expected = jitted(ours), cast(name)(eagers)
    result.float().square().sum().backward()
    expected.float().square().sum().backward()
    torch.testing.assert_close(result, expected)
    # Its own gradient is rounded to the cast's type, once more or once less than eager's.
    coarse = getattr(ours, name)().dtype
    torch.testing.assert_close(ours.grad, eagers.grad, rtol=2 * torch.finfo(coarse).eps, atol=0)
    assert not names(jitted) & {f"{one}{end}" for one in CASTS for end in ("", "_vjp")}


@pytest.mark.parametrize("name", ["bfloat16", "double", "half"])
def test_gradients_of_what_is_written_in_place(name: str) -> None:
    def written(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = getattr(x, name)()
        return y.mul_(3)

    ours, eagers = (NUMBERS.clone().requires_grad_() for _ in range(2))
    jit(written, strict=True)(ours).sum().backward()
    written(eagers).sum().backward()
    assert torch.equal(ours.grad, eagers.grad)


def test_of_whole_numbers_and_truth() -> None:
    for x in (torch.tensor([[-300, 7, 0]]), torch.tensor([[True, False, True]])):
        for name in CASTS:
            jitted = jit(lambda x, name=name: getattr(x, name)().float() + 0.5, strict=True)
            assert torch.equal(jitted(x), getattr(x, name)().float() + 0.5), name


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (torch.float32, torch.float8_e4m3fn), (torch.float32, torch.float8_e5m2),
        (torch.bfloat16, torch.float8_e4m3fn), (torch.float64, torch.float32),
        (torch.float64, torch.float16), (torch.float32, torch.int8),
    ],
    ids=str,
)  # fmt: skip
def test_a_rounding_that_is_asked_for_stays(wide: torch.dtype, narrow: torch.dtype) -> None:
    """There and back inside one region, as a program does that tries a quantization."""
    x = torch.linspace(-3, 3, 60, dtype=wide)

    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).to(narrow).to(wide) * 4

    jitted = jit(there_and_back, strict=True)
    assert torch.equal(jitted(x), there_and_back(x))
    assert len(fusions_of(jitted)) == 1


def test_to_the_same_type_is_the_tensor_itself() -> None:
    x = torch.rand(3, 4).half()
    jitted = jit(lambda x: x.half(), strict=True)
    assert jitted(x).data_ptr() == x.data_ptr() and not fusions_of(jitted)


def test_with_a_memory_format_is_left_to_torch() -> None:
    x = torch.rand(2, 3, 4, 5)
    jitted = jit(lambda x: (x * 2).half(memory_format=torch.channels_last), strict=True)
    found = jitted(x)
    assert torch.equal(found, (x * 2).half()) and "half" in names(jitted)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_are_rounded_before_16_bit_floats_are_compared_with_them(
    dtype: torch.dtype,
) -> None:
    """No 16-bit float is 0.1, and 0.1 in 16 bits is more than 0.1 or less."""

    def compared(x: torch.Tensor) -> Any:
        x = x * 1.0
        return [(x == c, x != c, x < c, x <= c, x > c, c >= x) for c in (0.1, 1 / 3, -0.7, 2049)]

    x = torch.tensor([0.1, 1 / 3, -0.7, 2049.0, 1.0, float("nan")]).to(dtype)
    assert torch.equal(_stacked(jit(compared, strict=True)(x)), _stacked(compared(x)))


def test_numbers_beyond_16_bit_floats_are_compared_as_infinity() -> None:
    def compared(x: torch.Tensor) -> Any:
        return [(x < 1e6, x == 1e6, x >= -1e6, x > 70000)]

    x = torch.tensor([65504.0, float("inf"), float("-inf"), float("nan")]).half()
    assert torch.equal(_stacked(jit(compared, strict=True)(x)), _stacked(compared(x)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_what_is_made_of_a_number_is_equal_to_it(dtype: torch.dtype) -> None:
    """All of these are 0.1 in 16 bits, inside of a region too."""

    def compared(x: torch.Tensor) -> Any:
        x = x * 1.0
        made = (
            x.clamp(0.1, 0.9), torch.where(x > 0.2, x, 0.1), x.masked_fill(x < 0.2, 0.1),
            torch.nn.functional.threshold(x, 0.2, 0.1), torch.full_like(x, 0.1),
            torch.nan_to_num(x * float("nan"), 0.1),
        )  # fmt: skip
        return [(one == 0.1, one > 0.1, one < 0.1) for one in made]

    x = torch.tensor([0.1, 0.01, 0.25, 1.0]).to(dtype)
    assert torch.equal(_stacked(jit(compared, strict=True)(x)), _stacked(compared(x)))


def _stacked(found: Any) -> torch.Tensor:
    return torch.stack([one for row in found for one in row])


@pytest.mark.parametrize("emulate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_an_integer_has_no_negative_zero(dtype: torch.dtype, emulate: bool) -> None:
    """gcc takes the float of an integer of a float for trunc, which is -0.0 for -0.5."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        types = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
        return [1 / x.to(kind).to(dtype) for kind in types]

    x = torch.tensor([-0.5, -0.0, 0.75, -1e-30, 0.0, 1.0, 100.9], dtype=dtype).repeat(40)
    got = jit(function, strict=True, emulate=emulate)(x)
    torch.testing.assert_close(got, function(x), rtol=0.01, atol=0)
