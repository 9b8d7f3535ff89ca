# SPDX-License-Identifier: Apache-2.0
"""What models are made of, forward and backward: fused whole, and as exact as eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager, with_gradients

from thunder_fuser.explain import report
from thunder_fuser.explain.jitted import final_traces, jit

Sizes = tuple[tuple[int, ...], ...]


def rotary(x: Any, cos: Any, sin: Any) -> Any:
    return x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin


def batch_norm(x: Any, w: Any, b: Any) -> Any:
    return F.batch_norm(x, None, None, w, b, True)


def batch_norm_of_known_statistics(x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
    return F.batch_norm(x, mean, var * var + 0.5, w, b, False)


# name: (function, sizes of its arguments, kernels of (forward, backward))
COMPOSITES: dict[str, tuple[Callable[..., Any], Sizes, tuple[int, int]]] = {
    "gelu": (F.gelu, ((6, 16),), (1, 1)),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), ((6, 16),), (1, 1)),
    "bias gelu": (lambda x, b: F.gelu(x + b), ((6, 16), (16,)), (1, 1)),
    "silu": (F.silu, ((6, 16),), (1, 1)),
    "swiglu": (lambda a, b: F.silu(a) * b, ((6, 16), (6, 16)), (1, 1)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (16,), w, b), ((6, 16), (16,), (16,)), (1, 2)),
    "residual layer norm": (
        lambda x, y, w: F.layer_norm(x + y, (16,), w), ((6, 16), (6, 16), (16,)), (1, 2),
    ),
    "layer norm of two axes": (
        lambda x, w: F.layer_norm(x, (3, 5), w), ((4, 3, 5), (3, 5)), (1, 2),
    ),
    "rms norm": (lambda x, w: F.rms_norm(x, (16,), w, 1e-6), ((6, 16), (16,)), (1, 2)),
    "batch norm": (batch_norm, ((4, 3, 5, 2), (3,), (3,)), (1, 1)),
    "batch norm, known": (
        batch_norm_of_known_statistics, ((4, 3, 5, 2), (3,), (3,), (3,), (3,)), (2, 2),
    ),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ((4, 6, 5), (6,), (6,)), (2, 2)),
    "instance norm": (
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b), ((4, 3, 5, 2), (3,), (3,)), (1, 3),
    ),
    "rotary": (rotary, ((2, 3, 8), (3, 8), (3, 8)), (1, 1)),
    "softmax": (lambda x: F.softmax(x * 4, -1), ((6, 16),), (1, 1)),
    "softmax of rows": (lambda x: F.softmax(x * 4, 0), ((6, 16),), (1, 1)),
    "log softmax": (lambda x: F.log_softmax(x * 4, -1), ((6, 16),), (1, 1)),
    "mean squared error": (F.mse_loss, ((6, 16), (6, 16)), (1, 1)),
}  # fmt: skip

# Views, by the names Thunder gives them before and after its torch executor has claimed them.
VIEWS = {
    "expand", "permute", "reshape", "shallow_copy", "torch_prims_reshape_impl", "unsqueeze",
}  # fmt: skip
PLUMBING = {
    "clear_mutable_collection", "python_del", "python_return", "unpack_sequence", "unpack_trivial",
}  # fmt: skip


FIXED = {"batch norm, known": (1, 2)}  # arguments that have no gradient


def arguments(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(size).to(dtype) for size in COMPOSITES[name][1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", COMPOSITES)
def test_fused_whole_and_as_exact_as_eager(name: str, dtype: torch.dtype) -> None:
    function, _, most = COMPOSITES[name]
    fixed = FIXED.get(name, ())
    values = arguments(name, dtype)
    jitted = jit(function, strict=True)
    got = with_gradients(jitted, values, fixed)
    exact = with_gradients(function, [value.double() for value in values], fixed)
    assert_as_exact_as_eager(got, with_gradients(function, values, fixed), exact)
    bsyms = [bsym for trace in final_traces(jitted) for bsym in trace.bound_symbols]
    assert {b.sym.name for b in bsyms if not b.sym.is_fusion} <= VIEWS | PLUMBING
    kernels = {"forward": 0, "backward": 0}
    for line in str(report(jitted)).split("\n\n")[0].splitlines()[1:]:
        _, direction, _, _, _, count, *_ = line.split()
        kernels[direction] += int(count)
    assert all(count <= limit for count, limit in zip(kernels.values(), most, strict=True))


@pytest.mark.parametrize("name", COMPOSITES)
def test_in_the_emulator(name: str) -> None:
    function, fixed = COMPOSITES[name][0], FIXED.get(name, ())
    values = arguments(name, torch.float32)
    got = with_gradients(jit(function, strict=True, emulate=True), values, fixed)
    exact = with_gradients(function, [value.double() for value in values], fixed)
    assert_as_exact_as_eager(got, with_gradients(function, values, fixed), exact)
