# SPDX-License-Identifier: Apache-2.0
"""A product and its activation are one call, if nothing else reads the product and no region the
activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.executors.pipeline import TRACE_PASSES
from thunder_fuser.explain.jitted import final_traces, jit
from thunder_fuser.trace.prepared import Pass
from thunder_fuser.trace.rewrites.activations import fuse_activations

Function = Callable[..., Any]
ROWS, IN, OUT = 32, 24, 40


def gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b), approximate="tanh")


def relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w, b).relu()


def relu_in_place(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(F.linear(x, w, b), inplace=True) @ w


def layers(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.linear(gelu(x, w, b), w.mT, b[:IN])


def written_behind(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product reads x before it is written."""
    h = F.linear(x, w, b)
    x.mul_(2)
    return F.gelu(h, approximate="tanh") @ w


def exact(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


def without_bias(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(F.linear(x, w))


def read_twice(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = F.linear(x, w, b)
    return F.relu(h), h


def read_by_a_region(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return relu(x, w, b) * 2


FIRES = (gelu, relu, relu_in_place, layers, written_behind)
STAYS = (exact, without_bias, read_twice, read_by_a_region)


def arguments(
    shape: tuple[int, ...] = (ROWS, IN), dtype: torch.dtype = torch.bfloat16, seed: int = 3
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes: list[tuple[int, ...]] = [shape, (OUT, IN), (OUT,)]
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


def calls(jitted: Any) -> list[str]:
    """The products with an activation that torch runs."""
    names = [bsym.sym.name for trace in final_traces(jitted) for bsym in trace.bound_symbols]
    return [name for name in names if name in ("linear_gelu", "linear_relu")]


@pytest.mark.parametrize("function", [*FIRES, *STAYS], ids=lambda function: function.__name__)
def test_which_products_apply_an_activation(function: Function) -> None:
    jitted = jit(function, strict=True, emulate=True)
    args = arguments()
    result, expected = jitted(*(a.clone() for a in args)), function(*(a.clone() for a in args))
    torch.testing.assert_close(result, expected, rtol=0.02, atol=0.02)
    assert len(calls(jitted)) == (function in FIRES)


def test_the_trace() -> None:
    """The call stands where the product did, under the user's line of the product."""
    jitted = jit(layers, strict=True, emulate=True)
    jitted(*arguments())
    lines = [line.strip() for line in str(final_traces(jitted)[0]).splitlines()]
    (at,) = [at for at, line in enumerate(lines) if " = linear_gelu(x, w, b)" in line]
    assert lines[at - 1].startswith(f"# {__file__}:{gelu.__code__.co_firstlineno + 1}")


def test_the_tanh_form_of_gelu() -> None:
    """Beside the emulator too, where it has the bits of eager, with NaN and infinities."""
    x, w, b = arguments()
    b[:3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    result = jit(gelu, strict=True, emulate=True)(x, w, b)
    torch.testing.assert_close(result, gelu(x, w, b), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("function", [gelu, relu])
def test_no_columns(function: Function) -> None:
    """The activation of the bias alone."""
    x, w, b = torch.empty(ROWS, 0), torch.empty(OUT, 0), torch.randn(OUT)
    args = [one.bfloat16() for one in (x, w, b)]
    jitted = jit(function, strict=True, emulate=True)
    torch.testing.assert_close(jitted(*args), function(*args))
    assert len(calls(jitted)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_only_of_16_bits(dtype: torch.dtype) -> None:
    jitted = jit(gelu, strict=True, emulate=True)
    args = arguments(dtype=dtype)
    torch.testing.assert_close(jitted(*args), gelu(*args), rtol=0.01, atol=0.01)
    assert calls(jitted) == ["linear_gelu"] * (dtype == torch.float16)


def test_not_on_a_cpu() -> None:
    jitted = jit(gelu, strict=True)
    jitted(*arguments())
    assert calls(jitted) == []


def test_it_can_be_left_out() -> None:
    jitted = jit(gelu, strict=True, emulate=True, skip_passes="fuse_activations")
    jitted(*arguments())
    assert calls(jitted) == []


def test_not_where_the_backward_reads_the_product() -> None:
    jitted = jit(layers, strict=True, emulate=True)
    args = [one.requires_grad_() for one in arguments()]
    jitted(*args).float().sum().backward()
    assert calls(jitted) == []


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(0, 5), max_size=3), st.sampled_from([gelu, relu]), st.booleans(),
    st.integers(0, 9),
)
def test_of_any_shape(sizes: list[int], function: Function, permuted: bool, seed: int) -> None:
    shape = (*sizes, 32, IN)
    x, w, b = arguments(shape, seed=seed)
    if permuted:
        x, w = x.mT.contiguous().mT, w.mT.contiguous().mT
    jitted = jit(function, strict=True, emulate=True)
    result, expected = jitted(x, w, b), function(x, w, b)
    torch.testing.assert_close(result, expected, rtol=0.02, atol=0.02)
    assert result.stride() == expected.stride()
    assert len(calls(jitted)) == 1


def test_once_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass leaves its own result as it is."""
    seen: list[bool] = []

    def twice(prepared: Any) -> Any:
        once = fuse_activations(prepared)
        seen.append(once is not prepared and fuse_activations(once) is once)
        return once

    passes = [Pass(twice) if each.run is fuse_activations else each for each in TRACE_PASSES]
    monkeypatch.setattr("thunder_fuser.executors.fuser.TRACE_PASSES", tuple(passes))
    jit(layers, strict=True, emulate=True)(*arguments())
    assert seen == [True]
