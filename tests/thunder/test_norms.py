# SPDX-License-Identifier: Apache-2.0
"""Layer norm and RMS norm: values, gradients, and what is kept for these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager, rms, with_gradients

from thunder_fuser.explain import saved
from thunder_fuser.explain.jitted import final_traces, fusions_of, jit

Shape = tuple[int, ...]
CALLS: dict[str, tuple[Callable[..., Any], tuple[Shape, ...]]] = {
    "layer norm": (lambda x, w, b: F.layer_norm(x, (66,), w, b), ((5, 66), (66,), (66,))),
    "without weight": (lambda x, b: F.layer_norm(x, (66,), bias=b), ((5, 66), (66,))),
    "without parameters": (lambda x: F.layer_norm(x, (66,), eps=0), ((2, 3, 66),)),
    "of two axes": (lambda x, w: F.layer_norm(x, (3, 22), w), ((2, 4, 3, 22), (3, 22))),
    "of one row": (lambda x, w, b: F.layer_norm(x, (66,), w, b), ((66,),) * 3),
    "of permuted": (lambda x, w: F.layer_norm(x.mT, (5,), w), ((66, 5, 7), (5,))),
    "of broadcast": (lambda x, w: F.layer_norm(x.expand(6, 66), (66,), w), ((66,), (66,))),
    "of odd length": (lambda x, w: F.layer_norm(x, (17,), w), ((5, 17), (17,))),
    "rms norm": (lambda x, w: F.rms_norm(x, (66,), w, 1e-6), ((5, 66), (66,))),
    "rms norm, no eps": (lambda x: F.rms_norm(x * 1e-3, (66,)), ((5, 66),)),
    "rms norm of two axes": (lambda x, w: F.rms_norm(x, (3, 22), w), ((2, 4, 3, 22), (3, 22))),
    "rms norm of one row": (lambda x, w: F.rms_norm(x, (66,), w), ((66,), (66,))),
}  # fmt: skip
DTYPES = {
    name: (torch.float32, torch.bfloat16)
    + ((torch.float64, torch.float16) if name in ("layer norm", "rms norm") else ())
    for name in CALLS
}


def arguments(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in CALLS[name][1]]


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name in CALLS for dtype in DTYPES[name]], ids=str
)
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    function, values = CALLS[name][0], arguments(name, dtype)
    jitted = jit(function, strict=True)
    exact = with_gradients(function, [value.double() for value in values])
    assert_as_exact_as_eager(
        with_gradients(jitted, values), with_gradients(function, values), exact
    )
    assert len(fusions_of(jitted)) == 2


@pytest.mark.parametrize("name", CALLS)
def test_in_the_emulator(name: str) -> None:
    """Of float32, whose mean is kept, as a GPU keeps it of all types."""
    function, values = CALLS[name][0], arguments(name, torch.float32)
    got = with_gradients(jit(function, strict=True, emulate=True), values)
    exact = with_gradients(function, [value.double() for value in values])
    assert_as_exact_as_eager(got, with_gradients(function, values), exact)


FAR = [(torch.bfloat16, 30.0), (torch.bfloat16, 250.0), (torch.float16, 2e3)]


@pytest.mark.parametrize("flat", [False, True], ids=["noise", "one step"])
@pytest.mark.parametrize(("dtype", "mean"), FAR, ids=str)
def test_rows_far_from_zero(dtype: torch.dtype, mean: float, flat: bool) -> None:
    """Up to where the type does not tell the elements of a row apart, and one that it does."""
    function = CALLS["layer norm"][0]
    torch.manual_seed(0)
    x = torch.randn(64, 66, dtype=torch.float64) + mean
    if flat:
        x = torch.full_like(x, mean)
        x[:, 5] *= 1 + torch.finfo(dtype).eps
    values = [x.to(dtype), *arguments("layer norm", dtype)[1:]]
    exact = with_gradients(function, [value.double() for value in values])
    got = with_gradients(jit(function, strict=True), values)
    for mine, right in zip(got, exact, strict=True):
        assert rms(mine - right) <= 0.5 * torch.finfo(dtype).eps * rms(right)


def test_weights_of_a_wider_type() -> None:
    def function(x: Any, w: Any, b: Any) -> Any:
        return F.layer_norm(x, (66,), w, b)

    x, *parameters = arguments("layer norm", torch.float32)
    values = [x.bfloat16(), *parameters]
    exact = with_gradients(function, [value.double() for value in values])
    got = with_gradients(jit(function, strict=True), values)
    assert_as_exact_as_eager(got, with_gradients(function, values), exact)


def test_parameters_alone_have_gradients() -> None:
    function, values = CALLS["layer norm"][0], arguments("layer norm", torch.bfloat16)
    exact = with_gradients(function, [value.double() for value in values], fixed=(0,))
    got = with_gradients(jit(function, strict=True), values, fixed=(0,))
    assert_as_exact_as_eager(got, with_gradients(function, values, fixed=(0,)), exact)


def test_infinities_and_nan_stay_in_their_row() -> None:
    function, values = CALLS["layer norm"][0], arguments("layer norm", torch.bfloat16)
    values[0][1, 3], values[0][2, 4] = float("inf"), float("nan")
    got, eager = (with_gradients(one, values) for one in (jit(function, strict=True), function))
    for mine, usual in zip(got, eager, strict=True):
        assert torch.equal(mine.isfinite(), usual.isfinite())


@pytest.mark.parametrize(
    ("dtype", "kept"), [(torch.bfloat16, 4), (torch.float16, 4), (torch.float32, 8)], ids=str
)
def test_bytes_kept_of_a_row(dtype: torch.dtype, kept: int) -> None:
    """Beside x itself; of rows of 16 bits the backward makes the mean anew."""
    jitted = jit(CALLS["layer norm"][0], strict=True)
    with_gradients(jitted, arguments("layer norm", dtype))
    assert saved(jitted).bytes == 5 * kept


@pytest.mark.parametrize("name", ["layer norm", "rms norm"])
def test_nothing_is_divided_by_the_length_element_by_element(name: str) -> None:
    jitted = jit(CALLS[name][0], strict=True)
    with_gradients(jitted, arguments(name, torch.float32))
    lines = str(final_traces(jitted)[1]).splitlines()
    quotients = [line for line in lines if "prims.div(" in line]
    assert quotients and all("[5, 1]" in line or "[5]" in line for line in quotients)


def test_no_elements() -> None:
    values = [torch.randn(0, 66), torch.randn(66), torch.randn(66)]
    function = CALLS["layer norm"][0]
    got, eager = (with_gradients(one, values) for one in (jit(function), function))
    for mine, usual in zip(got, eager, strict=True):
        torch.testing.assert_close(mine, usual)


def test_shapes_that_do_not_match() -> None:
    x, w = torch.randn(5, 66), torch.randn(65)
    with pytest.raises(RuntimeError, match="weight"):
        jit(lambda x, w: F.layer_norm(x, (66,), w))(x, w)
