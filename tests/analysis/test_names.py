# SPDX-License-Identifier: Apache-2.0
"""Kernels are named after what they do, and the name is no part of what they share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser import DataType, FusionCache, FusionDefinition
from thunder_fuser.analysis.names import LONGEST
from thunder_fuser.explain import kernels
from thunder_fuser.explain.jitted import jit
from thunder_fuser.options import options
from thunder_fuser.runtime import cuda, toolchain
from thunder_fuser.runtime.binaries import binaries
from thunder_fuser.runtime.cpu import compile_cpu

Function = Callable[..., Any]

W = torch.randn(32)
W16 = W.bfloat16()

NAMED: dict[str, tuple[Function, str]] = {
    "exp": (torch.exp, "fused_exp_f32_pointwise"),
    "add_rms_norm": (
        lambda x: F.rms_norm((x + 1).bfloat16(), (32,), W16),
        "fused_add_rms_norm_bf16_persistent",
    ),
    "layer_norm": (lambda x: F.layer_norm(x, (32,), W, W), "fused_layer_norm_f32_persistent"),
    "softmax": (lambda x: torch.softmax(x * 2, -1), "fused_mul_softmax_f32_persistent"),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), "fused_log_softmax_f32_persistent"),
    "gelu": (F.gelu, "fused_gelu_f32_pointwise"),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), "fused_gelu_f32_pointwise"),
    "swiglu": (lambda x: F.silu(x) * x.sin(), "fused_silu_sin_mul_f32_pointwise"),
    "mean": (lambda x: x.mean(-1), "fused_mean_f32_reduction"),
    "sum": (lambda x: (x * x * x).sum(0), "fused_mul_sum_f32_reduction"),
    "half": (lambda x: x.half(), "fused_cast_f32_pointwise"),
    # Not quite: another value is added up, and no weight is an input of the kernel.
    "no_softmax": (
        lambda x: x.exp() / x.sin().exp().sum(-1, True), "fused_exp_sin_sum_div_f32_persistent"
    ),
    "computed_weight": (
        lambda x: F.rms_norm(x, (32,), x.new_ones(32)), "fused_rms_norm_mul_f32_persistent"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMED)
def test_a_kernel_is_named_after_what_it_does(case: str) -> None:
    function, name = NAMED[case]
    jitted = jit(function, strict=True)
    for rows in (4, 6):  # whatever the sizes
        jitted(torch.randn(rows, 32))
    found = kernels(jitted)
    assert {one.name for one in found} == {name}
    assert all(re.search(rf"\b{name}\(", one.source) for one in found)


def test_cross_entropy_of_indices() -> None:
    jitted = jit(F.cross_entropy, strict=True)
    jitted(torch.randn(4, 32), torch.arange(4))
    assert "cross_entropy" in kernels(jitted)[0].name


def test_a_long_name_keeps_reductions_and_is_cut_between_words() -> None:
    ops = "sin cos tanh exp2 expm1 log10 log1p sigmoid asinh atanh lgamma digamma erfc erfinv"
    x = torch.rand(3, 5)
    with FusionDefinition() as fd:
        value = fd.from_pytorch(x)
        for op in ops.split():
            value = getattr(fd.ops, op)(value)
        fd.add_output(fd.ops.sum(value, [1]))
    (source,) = fd.sources([x], target="cpu")
    words = source.name.removeprefix("fused_").removesuffix("_f32_reduction").split("_")
    assert LONGEST - 8 < len(source.name) <= LONGEST and source.name.isidentifier()
    assert "sum" in words and set(words) < {"sum", *ops.split()}


def test_equal_texts_of_two_names_share_one_kernel(tmp_path: Path) -> None:
    """A new axis of size 1 changes no address, whichever op makes it."""
    calls = {"broadcast": ([False, True],), "reshape": ([7, 1],), "expand": ([7],)}
    x = torch.randn(7)
    toolchain.forget()
    before = binaries().compiled
    with options(cache_dir=str(tmp_path / "store")), FusionCache():
        functions, names = [], []
        for op, given in calls.items():
            with FusionDefinition() as fd:
                moved = getattr(fd.ops, op)(fd.from_pytorch(x), *given)
                fd.add_output(fd.ops.cast(moved, DataType.Half))
            torch.testing.assert_close(fd.execute([x], target="cpu")[0].flatten(), x.half())
            (source,) = fd.sources([x], target="cpu")
            names.append(source.name)
            functions.append(compile_cpu(source).function)
            if op == "reshape":  # what follows finds it in the store, under the first one's name
                toolchain.forget()
    assert names == [f"fused_{op}_f32_pointwise" for op in calls]
    assert binaries().compiled == before + 1
    addresses = {cuda.ctypes.cast(one, cuda.ctypes.c_void_p).value for one in functions[:2]}
    assert len(addresses) == 1
    toolchain.forget()


def test_a_cubin_is_shared_too_and_says_its_kernels_name(tmp_path: Path) -> None:
    text = 'extern "C" __global__ void {}(float* x) {{ x[threadIdx.x] = 3.5f; }}\n'
    toolchain.forget()
    with options(cache_dir=str(tmp_path / "store")):
        first = cuda.compile_cubin(text.format("first"), "first", "sm_90a")
        toolchain.forget()
        second = cuda.compile_cubin(text.format("second"), "second", "sm_90a")
        other = cuda.compile_cubin(text.format("x1").replace("3.5", "4.5"), "x1", "sm_90a")
    assert first == second and second.name == "first" and b"first" in first.code
    assert other.name == "x1" and other.code != first.code
    toolchain.forget()
