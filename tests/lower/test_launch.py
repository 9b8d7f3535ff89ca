# SPDX-License-Identifier: Apache-2.0
"""Which kernels start early in a CUDA graph, which let the next one start, and which loads have a
hint for the second-level cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda.bindings import nvrtc
from helpers.cases import rand

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.lower import launch
from thunder_fuser.options import options

Build = Callable[..., Any]


def meta(*sizes: int) -> torch.Tensor:
    return torch.empty(sizes, dtype=torch.bfloat16, device="meta")


def softmax(ops: Any, x: Any) -> Any:
    wide = ops.cast(x, DataType.Float)
    powers = ops.exp(ops.sub(wide, ops.max(wide, [1], keepdim=True)))
    return ops.truediv(powers, ops.sum(powers, [1], keepdim=True))


def normalised(ops: Any, x: Any) -> Any:
    """Of each channel of images, in one block for each."""
    wide = ops.cast(x, DataType.Float)
    variance, mean = ops.var_mean(wide, [0, 2, 3], correction=0, keepdim=True)
    return ops.mul(ops.sub(wide, mean), ops.rsqrt(ops.add(variance, 1e-5)))


def product(ops: Any, x: Any, weight: Any) -> Any:
    return ops.linear(x, weight)


def source_of(build: Build, args: list[torch.Tensor], target: str = "h200") -> KernelSource:
    with FusionDefinition() as fd:
        result = build(fd.ops, *map(fd.from_pytorch, args))
        fd.add_output(fd.ops.cast(result, DataType.BFloat16))
    (source,) = fd.sources(args, target=target)
    return source


CASES: dict[str, tuple[Build, list[torch.Tensor], bool]] = {
    "many rows": (softmax, [meta(65536, 8192)], False),
    "a few rows": (softmax, [meta(16, 8192)], True),
    "as many bytes as a token's product": (softmax, [meta(1024, 8192)], False),
    "a token's product": (product, [meta(8, 8192), meta(2048, 8192)], True),
    "a head": (product, [meta(1, 2048), meta(128256, 2048)], False),
    "images": (normalised, [meta(256, 256, 56, 56)], False),
    "small images": (normalised, [meta(4, 256, 8, 8)], True),
}


@pytest.mark.parametrize("name", CASES)
def test_only_short_kernels_are_early(name: str) -> None:
    """An early kernel waits first, and no argument is promised to stay as it is."""
    build, args, expected = CASES[name]
    source = source_of(build, args)
    assert source.early == expected
    waits = "after_earlier_kernels();" in source.body or any(p.ahead for p in source.params)
    assert waits == expected
    assert ("const bf16* __restrict__" in source.body) != expected


@pytest.mark.parametrize("target", ["cpu", "a100"])
def test_only_devices_that_can_launch_early_have_early_kernels(target: str) -> None:
    source = source_of(softmax, [meta(16, 64)], target)
    assert not source.early and "const bf16* __restrict__" in source.body
    assert "next_kernel_may_start" not in source.body


# ---- the next kernel

LEAVES_ROOM: dict[str, tuple[Build, list[torch.Tensor], bool]] = {
    "a few rows": (softmax, [meta(16, 8192)], True),
    "a row for half of the SMs": (softmax, [meta(66, 8192)], True),
    "a row for more SMs": (softmax, [meta(68, 8192)], False),
    "a product, a block for each SM": (product, [meta(1, 8192), meta(132, 8192)], True),
    "a product, one block more": (product, [meta(1, 8192), meta(133, 8192)], False),
    "a product, several blocks for each": (product, [meta(1, 8192), meta(300, 8192)], False),
    "a product, more blocks than fit": (product, [meta(1, 2048), meta(8192, 2048)], True),
    "a sum of one tensor": (lambda ops, x: ops.sum(x, [1]), [meta(128, 8192)], False),
    "it is not early": (product, [meta(1, 2048), meta(128256, 2048)], False),
}


@pytest.mark.parametrize("name", LEAVES_ROOM)
def test_which_kernels_let_the_next_one_start(name: str) -> None:
    build, args, expected = LEAVES_ROOM[name]
    body = source_of(build, args).body
    assert ("  next_kernel_may_start();\n  after_earlier_kernels();\n" in body) == expected
    assert ("next_kernel_may_start" in body) == expected


def test_a_product_of_several_rows_reads_its_matrix_ahead() -> None:
    """Its function waits, and lets the next kernel start, also in one of many bytes."""
    for size in (2048, 128256):
        source = source_of(product, [meta(8, 2048), meta(size, 2048)])
        assert source.early and not source.lets_next_start
        assert "after_earlier_kernels" not in source.body
        assert {p.name: (p.bytes, p.ahead) for p in source.params if p.is_pointer} == {
            "T0": (8 * 2048 * 2, False), "T1": (size * 2048 * 2, True),
            source.params[2].name: (8 * size * 2, False),
        }  # fmt: skip


def test_an_older_device_reads_nothing_ahead() -> None:
    source = source_of(product, [meta(8, 2048), meta(2048, 2048)], "a100")
    assert not source.early and not any(p.ahead for p in source.params)


def test_the_bytes_of_a_view() -> None:
    """From its first element to its last one, also where it has gaps."""
    view = meta(16, 100)[:, :64]
    source = source_of(softmax, [view])
    assert [p.bytes for p in source.params if p.is_pointer] == [2 * (15 * 100 + 64), 2 * 16 * 64]


# ---- the second-level cache


def scaled(ops: Any, x: Any, weight: Any) -> Any:
    """Of each row: x / sqrt(sum(x * x)) * weight."""
    wide = ops.cast(x, DataType.Float)
    total = ops.sum(ops.mul(wide, wide), [1], keepdim=True)
    return ops.mul(ops.mul(wide, ops.rsqrt(total)), ops.broadcast(weight, [True, False]))


def turned(ops: Any, x: Any) -> Any:
    """Each element is read at two places."""
    return ops.add(x, ops.cat([ops.slice(x, [0, 4096], [65536, 8192]),
                               ops.slice(x, [0, 0], [65536, 4096])], 1))  # fmt: skip


def random(ops: Any) -> Any:
    """Numbers by value and no tensor are read."""
    return ops.uniform(0.0, 1.0, [65536, 8192], dtype=DataType.Float)


STREAMED: dict[str, tuple[Build, list[torch.Tensor], str, list[str]]] = {
    "a norm": (scaled, [meta(65536, 8192), meta(8192)], "h200", ["T0"]),
    "odd rows": (scaled, [meta(131104, 4095), meta(4095)], "h200", ["T0"]),
    "two inputs": (lambda ops, *xy: ops.add(*xy), [meta(65536, 8192)] * 2, "h200", ["T0", "T1"]),
    "less than several caches hold": (scaled, [meta(8192, 8192), meta(8192)], "h200", []),
    "it only reads": (lambda ops, x: ops.sum(x, [1]), [meta(65536, 8192)], "h200", []),
    "two places": (turned, [meta(65536, 8192)], "h200", []),
    "numbers, and no input": (random, [], "h200", []),
    "no input at all": (lambda ops: ops.full([1 << 28], 1.0, dtype=DataType.Float), [], "h200", []),
    "a small input": (
        lambda ops, x: ops.broadcast_in_dim(x, [65536, 8192], [1]), [meta(8192)], "h200", []
    ),
    "not measured": (scaled, [meta(65536, 8192), meta(8192)], "a100", []),
}


@pytest.mark.parametrize("name", STREAMED)
def test_which_inputs_are_streamed(name: str) -> None:
    build, args, target, expected = STREAMED[name]
    body = source_of(build, args, target).body
    assert [line.split()[0] for line in body.splitlines() if "= streamed(" in line] == expected


def ptx(source: KernelSource) -> str:
    flags, text = [b"--gpu-architecture=compute_90a", b"-default-device"], source.text.encode()
    _, program = nvrtc.nvrtcCreateProgram(text, b"kernel.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS
    _, size = nvrtc.nvrtcGetPTXSize(program)
    found = b" " * size
    nvrtc.nvrtcGetPTX(program, found)
    return found.decode()


@pytest.mark.parametrize("columns", [8192, 6656], ids=["whole vectors", "the last step in part"])
def test_each_load_of_a_streamed_input_has_the_hint(columns: int) -> None:
    """And no load of the weight. Both stay loads of what is never written."""
    source = source_of(scaled, [meta(65536, columns), meta(columns)])
    loads = [line for line in ptx(source).splitlines() if "ld.global" in line]
    hinted = [line for line in loads if "L2::cache_hint" in line]
    assert len(hinted) == len(loads) / 2 == -(-columns // 2048)
    assert all("ld.global.nc" in line for line in loads)


@pytest.mark.parametrize("columns", [64, 100, 7], ids=str)
def test_the_same_bits(columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values, found = [rand(9, columns), rand(columns)], []
    for least in (launch.LEAST_STREAMED, 0):
        monkeypatch.setattr(launch, "LEAST_STREAMED", least)
        with FusionDefinition() as fd:
            fd.add_output(scaled(fd.ops, *map(fd.from_pytorch, values)))
        with FusionCache(), options(emulate=True, cache_dir=str(tmp_path / str(least))):
            found += fd.execute(values)
            (source,) = fd.sources(values)
        assert ("= streamed(" in source.body) == (least == 0)
    assert torch.equal(*found)
