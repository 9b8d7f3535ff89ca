# SPDX-License-Identifier: Apache-2.0
"""NVRTC without a GPU, the packed argument block, and (marked gpu) launches through the driver."""

import ctypes
import subprocess
import sys
import threading

import pytest
import torch
from helpers.kernel_texts import column_sum, make_source, softmax, vector_add

from thunder_fuser.codegen.prelude import identifiers
from thunder_fuser.codegen.source import KernelSource, Param
from thunder_fuser.errors import CompileError, LaunchError, ToolchainError
from thunder_fuser.runtime import cuda
from thunder_fuser.runtime.binaries import binaries

HAS_GPU = torch.cuda.is_available()


def gpu(test):
    """Marks a test that needs a device."""
    return pytest.mark.gpu(pytest.mark.skipif(not HAS_GPU, reason="no CUDA device")(test))


def test_importing_needs_no_driver() -> None:
    program = "import thunder_fuser.runtime.cuda, sys; assert 'cuda.core' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )


def test_a_text_is_compiled_once_for_each_arch() -> None:
    source = vector_add()
    text = source.text + "// compiled once\n"
    cubins: list[bytes] = []
    before = binaries()
    workers = [
        threading.Thread(target=lambda a=arch: cubins.append(cuda.compile_cubin(text, "once", a)))
        for arch in ("sm_80", "sm_90a") * 4
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(cubins) == 8 and len(set(cubins)) == 2
    assert binaries().compiled == before.compiled + 2
    assert 0 < binaries().seconds - before.seconds < 80


def test_a_small_kernel_is_a_small_text() -> None:
    """NVRTC takes as long as it reads: nothing is included, and pasted is what is used alone."""
    text = vector_add().text
    assert "#include" not in text and len(text.splitlines()) < 100
    assert {"ld", "st", "ldv", "stv", "Vec", "i64"} <= identifiers(text)
    assert not identifiers(text) & {"bf16", "Sum", "Shared", "sync_threads", "shfl_xor", "philox"}


def test_a_compile_error_shows_the_log_and_the_lines() -> None:
    text = 'extern "C" __global__ void k() {\n  missing();\n}\n'
    with pytest.raises(CompileError) as caught:
        cuda.compile_cubin(text, "broken", "sm_80")
    message = str(caught.value)
    assert "NVRTC (broken, sm_80)" in message and 'identifier "missing" is undefined' in message
    assert ">  2 |   missing();" in message


def test_an_unknown_arch_is_refused() -> None:
    with pytest.raises(
        CompileError, match=r"architecture sm_20: expected one that NVRTC \d+\.\d+ know"
    ):
        cuda.compile_cubin("", "k", "sm_20")


def test_no_driver_is_one_sentence() -> None:
    if HAS_GPU:
        pytest.skip("this machine has a driver")
    with pytest.raises((ToolchainError, LaunchError)):
        cuda.load_kernel(vector_add(), "sm_80", 0)


def test_arguments_are_packed_8_bytes_each() -> None:
    kinds = ("double", "float", "i64", "i32", "i16", "i8", "u8", "bool")
    values = (0.5, 0.25, -(1 << 40), -7, -3, -2, 200, True)
    params = (Param("T0", "bf16", "input"), *(Param(k, k, "scalar") for k in kinds))
    packer = cuda.argument_packer(params)
    block, addresses = cuda.argument_block(len(params))
    assert packer.size == ctypes.sizeof(block) == 8 * len(params)
    packer.pack_into(block, 0, 0x7F00_0000_1000, *values)
    types = [ctypes.c_uint64, *(param.argument_type for param in params[1:])]
    read = [t.from_address(a).value for t, a in zip(types, addresses, strict=True)]
    assert read == [0x7F00_0000_1000, *values]


def load(source: KernelSource) -> cuda.CudaKernel:
    major, minor = torch.cuda.get_device_capability()
    return cuda.load_kernel(source, f"sm_{major}{minor}", torch.cuda.current_device())


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


@gpu
def test_kernels_run_on_torchs_stream() -> None:
    a, b = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
    c = torch.empty_like(a)
    kernel = load(vector_add())
    side = torch.cuda.Stream()
    for chosen in (torch.cuda.current_stream(), side):
        chosen.wait_stream(torch.cuda.current_stream())
        kernel.launch(chosen.cuda_stream, (a.data_ptr(), b.data_ptr(), c.data_ptr(), 1000))
        chosen.synchronize()
        assert torch.equal(c, a + b)
        c.zero_()
        torch.cuda.synchronize()


@gpu
def test_reductions_on_a_gpu() -> None:
    x = torch.randn(7, 2000, device="cuda").bfloat16()
    y = torch.empty_like(x)
    load(softmax(7, 256)).launch(stream(), (x.data_ptr(), y.data_ptr(), 2000))
    torch.testing.assert_close(y, x.float().softmax(-1).bfloat16(), rtol=1 / 128, atol=0)
    x = torch.randn(100, 70, dtype=torch.float64, device="cuda")
    total = torch.empty(70, dtype=torch.float64, device="cuda")
    load(column_sum(70, 7)).launch(stream(), (x.data_ptr(), total.data_ptr(), 100, 70))
    torch.testing.assert_close(total, x.sum(0))


LARGE = (
    "Shared<float> s(0, 25000);\nfor (i32 i = threadIdx.x; i < 25000; i += 32) s.put(i, i * a);\n"
)
LARGE += "sync_threads();\nst(T0, threadIdx.x, s.get(24999 - threadIdx.x));"


@gpu
def test_100_kilobytes_of_shared_memory_and_a_fresh_thread() -> None:
    params = [Param("T0", "float", "output"), Param("a", "float", "scalar")]
    kernel = load(make_source("large", LARGE, params, smem_bytes=100_000))
    y = torch.empty(32, device="cuda")
    main_stream, address = stream(), y.data_ptr()
    worker = threading.Thread(target=lambda: kernel.launch(main_stream, (address, 2.0)))
    worker.start()
    worker.join()
    assert torch.equal(y.cpu(), 2 * (24999 - torch.arange(32.0)))


@gpu
def test_launch_errors_name_the_kernel() -> None:
    source = make_source("wide", "", [], block=(2048, 1, 1))
    with pytest.raises(LaunchError, match=r"Kernel wide \(grid .*block \(2048, 1, 1\).*CUDA_ERROR"):
        load(source).launch(stream(), ())
    with pytest.raises(LaunchError, match=r"Kernel vector_add .* do not fit"):
        load(vector_add()).launch(stream(), (1, 2, 3))
    too_much = make_source("greedy", "", [], smem_bytes=1 << 20)
    with pytest.raises(LaunchError, match="Kernel greedy, 1048576 bytes of shared memory"):
        load(too_much)


@gpu
def test_modules_are_unloaded_but_for_captured_ones() -> None:
    def fill(number: int) -> cuda.CudaKernel:
        params = [Param("T0", "float", "output")]
        return load(make_source(f"fill_{number}", f"st(T0, threadIdx.x, {number}.0f);", params))

    x = torch.zeros(32, device="cuda")
    first = fill(1)
    first.launch(stream(), (x.data_ptr(),))
    del first
    second = fill(2)  # waits for the launch, then unloads
    assert not cuda._RETIRED and bool((x == 1).all())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        second.launch(stream(), (x.data_ptr(),))
    del second
    fill(1).launch(stream(), (x.data_ptr(),))
    graph.replay()
    torch.cuda.synchronize()
    assert bool((x == 2).all())
