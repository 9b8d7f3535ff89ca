# SPDX-License-Identifier: Apache-2.0
"""Whole kernels in the printers' style: the emulator agrees with torch, and NVRTC takes them."""


import pytest
import torch
from helpers.kernel_texts import DTYPES, column_sum, half_io, make_source, softmax, vector_add

from thunder_fuser.codegen.source import KernelSource, Param
from thunder_fuser.runtime.cuda import compile_cubin
from thunder_fuser.runtime.emulator import compile_emulated

ARCHES = ("sm_80", "sm_90a")
both_orders = pytest.mark.parametrize("reverse", [False, True])


def compiles(source: KernelSource) -> KernelSource:
    for arch in ARCHES:
        assert compile_cubin(source.text, source.name, arch).code.startswith(b"\x7fELF")
    return source


@both_orders
def test_vector_add_with_a_tail(reverse: bool) -> None:
    a, b, c = torch.randn(1000), torch.randn(1000), torch.empty(1000)
    compile_emulated(compiles(vector_add())).launch([a, b, c, 1000], reverse)
    assert torch.equal(c, a + b)
    a, b, c = torch.randn(999), torch.randn(999), torch.empty(999)
    compile_emulated(vector_add()).launch([a, b, c, 999], reverse)
    assert torch.equal(c, a + b)


@both_orders
@pytest.mark.parametrize("threads", [32, 64, 256, 1024])
def test_softmax(threads: int, reverse: bool) -> None:
    cols = threads * 7 + 5
    x = torch.randn(5, cols).bfloat16()
    y = torch.empty_like(x)
    compile_emulated(compiles(softmax(5, threads))).launch([x, y, cols], reverse)
    torch.testing.assert_close(y, x.float().softmax(-1).bfloat16(), rtol=1 / 128, atol=0)


@both_orders
@pytest.mark.parametrize("tall", [1, 2, 7, 32])
def test_column_sum(tall: int, reverse: bool) -> None:
    x, y = torch.randn(100, 70, dtype=torch.float64), torch.empty(70, dtype=torch.float64)
    compile_emulated(compiles(column_sum(70, tall))).launch([x, y, 100, 70], reverse)
    torch.testing.assert_close(y, x.sum(0))


@pytest.mark.parametrize("ctype", ["f16", "bf16"])
def test_half_precision_in_vectors(ctype: str) -> None:
    x = torch.randn(256, dtype=DTYPES[ctype])
    y = torch.empty_like(x)
    compile_emulated(compiles(half_io(ctype))).launch([x, y])
    assert torch.equal(y, x * 2)


REDUCED = ("double", "float", "i64", "i32", "i16", "i8", "u8", "bool")


CALLS = {
    "reduce_x": "st({out}, at, reduce_x<{op}, 64, 6>(v_{ctype}, s_{ctype}));\n",
    "reduce_y": "{{ {ctype} v = v_{ctype}; reduce_y<{op}, 64, 6, 1>(&v, s_{ctype}); "
    "st({out}, at, v); }}\n",
}


@both_orders
def test_every_reduction_of_every_dtype(reverse: bool) -> None:
    """Rows of 64 and of 8 threads, and columns of 6, one reduction straight after the other."""
    params, body, tensors, expected = [], "", [], {}
    for ctype in REDUCED:
        values = torch.randint(-3, 4, (6, 64)).to(DTYPES[ctype])
        if values.dtype.is_floating_point:
            values[2, 3] = torch.nan
        params.append(Param(f"in_{ctype}", ctype, "input"))
        tensors.append(values)
        body += f"const {ctype} v_{ctype} = ld(in_{ctype}, at);\n"
        body += f"Shared<{ctype}> s_{ctype}(0, 384);\n"
        for op, reference in (("Max", torch.amax), ("Min", torch.amin)):
            for name, axis in (("reduce_x", 1), ("reduce_y", 0)):
                out = f"{name}_{op}_{ctype}"
                params.append(Param(out, ctype, "output"))
                body += CALLS[name].format(op=op, out=out, ctype=ctype)
                tensors.append(torch.empty_like(values))
                expected[out] = reference(values, axis, keepdim=True).expand(6, 64)
    body = "const i32 at = threadIdx.y * 64 + threadIdx.x;\n" + body
    # Windows of different dtypes share the bytes, so a barrier must stand between their uses.
    body = body.replace("Shared<", "sync_threads();\nShared<")
    source = make_source("reductions", body, params, block=(64, 6, 1), smem_bytes=384 * 8)
    compile_emulated(compiles(source)).launch(tensors, reverse)
    for param, tensor in zip(params, tensors, strict=True):
        if param.kind == "output":
            torch.testing.assert_close(
                tensor, expected[param.name], rtol=0, atol=0, equal_nan=True, msg=param.name
            )


@pytest.mark.parametrize("width", [1, 2, 8, 32])
def test_narrow_rows_reduce_by_shuffles_alone(width: int) -> None:
    tall = 64 // width
    body = f"""\
const i32 at = threadIdx.y * {width} + threadIdx.x;
Shared<float> none(0, 0);
st(T1, at, reduce_x<Sum, {width}, {tall}>(ld(T0, at), none));"""
    params = [Param("T0", "float", "input"), Param("T1", "float", "output")]
    source = compiles(make_source("narrow", body, params, block=(width, tall, 1)))
    x = torch.arange(64.0)
    y = torch.empty_like(x)
    compile_emulated(source).launch([x, y])
    assert torch.equal(y.view(tall, width), x.view(tall, width).sum(1, True).expand(tall, width))


def test_every_dtype_shuffles() -> None:
    params, body, tensors = [], "const i32 i = threadIdx.x;\n", []
    for ctype, dtype in DTYPES.items():
        params += [Param(f"in_{ctype}", ctype, "input"), Param(f"out_{ctype}", ctype, "output")]
        body += f"st(out_{ctype}, i, shfl_xor<{ctype}>(ld(in_{ctype}, i), 3, 8));\n"
        tensors += [torch.randint(0, 99, (32,)).to(dtype), torch.empty(32, dtype=dtype)]
    compile_emulated(compiles(make_source("shuffles", body, params))).launch(tensors)
    order = torch.arange(32) ^ 3
    for given, got in zip(tensors[::2], tensors[1::2], strict=True):
        assert torch.equal(got, given[order])


def test_strided_tensors_and_every_scalar() -> None:
    scalars = {"double": 0.5, "float": 0.25, "i64": 1 << 40, "i32": -7, "i16": -3, "bool": True}
    params = [Param("T0", "double", "output")]
    params += [Param(f"s_{ctype}", ctype, "scalar") for ctype in scalars]
    total = " + ".join(f"double(s_{ctype})" for ctype in scalars)
    source = make_source("scalars", f"if (threadIdx.x == 0) st(T0, 6, {total});", params)
    y = torch.zeros(4, 3, dtype=torch.float64)[:3:2]  # rows 0 and 2: elements 0 to 8
    compile_emulated(compiles(source)).launch([y, *scalars.values()])
    assert y[1, 0] == sum(scalars.values())


@both_orders
@pytest.mark.parametrize(("width", "tall"), [(32, 7), (8, 16), (8, 6), (1, 64), (4, 8), (16, 2)])
def test_columns_of_several_values_reduce_together(width: int, tall: int, reverse: bool) -> None:
    """Three values a thread. Where a warp has several rows, it begins with these."""
    body = f"""\
const i32 at = (threadIdx.y * {width} + threadIdx.x) * 3;
Shared<float> scratch(0, {3 * width * tall});
float v[3];
for (i32 i = 0; i < 3; ++i) v[i] = ld(T0, at + i);
reduce_y<Sum, {width}, {tall}, 3>(v, scratch);
for (i32 i = 0; i < 3; ++i) st(T1, at + i, v[i]);"""
    params = [Param("T0", "float", "input"), Param("T1", "float", "output")]
    block, bytes = (width, tall, 1), 3 * width * tall * 4
    source = make_source("columns", body, params, block=block, smem_bytes=bytes)
    x = torch.randint(-9, 9, (tall, width, 3)).float()
    y = torch.empty_like(x)
    compile_emulated(compiles(source)).launch([x, y], reverse)
    assert torch.equal(y, x.sum(0, keepdim=True).expand_as(x))
