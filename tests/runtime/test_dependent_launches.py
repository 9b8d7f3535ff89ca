# SPDX-License-Identifier: Apache-2.0
"""A kernel touches memory only behind its wait for earlier kernels, in the machine's code too.

It reads nothing as what is never written while a kernel lives (LDG with CONSTANT): the compiler
moved such loads before the wait, in a product of one row whose norm is in the same kernel.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.cuda import DIMENSIONS, compile_cubin, driver

WAIT = "ACQBULK"
MEMORY = re.compile(r"\b(LDG|STG|LDS|STS|ATOM\w*|RED|LDGSTS|UBLKCP|ST|LD)\b")


def disassembler() -> Path | None:
    """nvdisasm, which triton's wheel has."""
    spec = find_spec("triton")
    for folder in spec.submodule_search_locations or () if spec else ():
        tool = Path(folder) / "backends" / "nvidia" / "bin" / "nvdisasm"
        if tool.exists():
            return tool
    return None


def meta(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


def softmax(ops: Any, x: Any) -> Any:
    x = ops.cast(x, DataType.Float)
    powers = ops.exp(ops.sub(x, ops.max(x, [1], keepdim=True)))
    return ops.truediv(powers, ops.sum(powers, [1], keepdim=True))


def scaled(ops: Any, x: Any, weight: Any) -> Any:
    return ops.mul(x, ops.broadcast(weight, [True, False]))


def swiglu_of_a_norm(ops: Any, x: Any, scale: Any, gate: Any, up: Any) -> Any:
    """What is computed of a token: silu(norm(x) @ gate) * (norm(x) @ up)."""
    x = ops.cast(x, DataType.Float)
    mean = ops.truediv(ops.sum(ops.mul(x, x), [1], keepdim=True), 2048.0)
    norm = ops.mul(ops.mul(x, ops.rsqrt(ops.add(mean, 1e-5))), ops.cast(scale, DataType.Float))
    norm = ops.cast(norm, DataType.BFloat16)
    gated = ops.cast(ops.linear(norm, gate), DataType.Float)
    gated = ops.truediv(gated, ops.add(ops.exp(ops.neg(gated)), 1.0))
    return ops.cast(ops.mul(gated, ops.linear(norm, up)), DataType.BFloat16)


KERNELS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "pointwise": (scaled, [meta(64, 4096), meta(4096)]),
    "rows": (softmax, [meta(64, 4096)]),
    "odd rows": (softmax, [meta(64, 1003)]),
    "rows of clusters": (softmax, [meta(8, 100_000)]),
    "columns": (lambda ops, x: ops.sum(x, [0]), [meta(4096, 256)]),
    "a product of one row": (lambda ops, *xy: ops.linear(*xy), [meta(1, 2048), meta(8192, 2048)]),
    "a product of a norm": (
        swiglu_of_a_norm, [meta(1, 2048), meta(2048), meta(8192, 2048), meta(8192, 2048)]
    ),
    "a transpose": (lambda ops, x: ops.add(ops.permute(x, [1, 0]), 1.0), [meta(1024, 1024)]),
    "a lookup": (
        lambda ops, x, i: ops.index_select(x, i, 0), [meta(512, 64), meta(99, dtype=torch.int64)]
    ),
}


def sources(name: str) -> Iterator[KernelSource]:
    build, values = KERNELS[name]
    with FusionDefinition() as fd:
        fd.add_output(build(fd.ops, *map(fd.from_pytorch, values)))
    yield from fd.sources(values, target="h200")


@pytest.mark.parametrize("name", KERNELS)
def test_memory_is_touched_behind_the_wait(name: str, tmp_path: Path) -> None:
    tool = disassembler()
    if tool is None:
        pytest.skip("no nvdisasm")
    for source in sources(name):
        file = tmp_path / f"{source.name}.cubin"
        file.write_bytes(compile_cubin(source.text, source.name, "sm_90a").code)
        shown = subprocess.run([tool, "-c", file], capture_output=True, text=True, check=True)
        lines = shown.stdout.splitlines()
        (wait,) = (at for at, line in enumerate(lines) if WAIT in line)
        assert not any("LDG" in line and "CONSTANT" in line for line in lines)
        touched = [at for at, line in enumerate(lines) if MEMORY.search(line)]
        assert touched and min(touched) > wait


@pytest.mark.parametrize("name", ["rows", "columns"])
def test_the_wait_comes_first_in_the_text(name: str) -> None:
    for source in sources(name):
        body = source.text[source.text.rindex("__launch_bounds__") :].split(") {\n", 1)[1]
        assert body.removeprefix("  next_kernel_may_start();\n").startswith(
            "  after_earlier_kernels();\n"
        )


@pytest.mark.parametrize("size", [2048, 4096, 14336])
def test_a_product_reads_only_its_matrix_ahead(size: int, tmp_path: Path) -> None:
    """Four vectors a thread for each step; the residual, too, is read behind the wait."""
    tool = disassembler()
    if tool is None:
        pytest.skip("no nvdisasm")
    with FusionDefinition() as fd:
        values = [meta(8, 4096), meta(size, 4096), meta(8, size)]
        x, weight, rest = map(fd.from_pytorch, values)
        fd.add_output(fd.ops.add(fd.ops.linear(x, weight), rest))
    (source,) = fd.sources(values, target="h200")
    file = tmp_path / "product.cubin"
    file.write_bytes(compile_cubin(source.text, source.name, "sm_90a").code)
    shown = subprocess.run([tool, "-c", file], capture_output=True, text=True, check=True)
    lines = shown.stdout.splitlines()
    wait = next(at for at, line in enumerate(lines) if WAIT in line)
    touched = [match[1] for line in lines[:wait] if (match := MEMORY.search(line))]
    assert touched == ["LDG"] * (8 if size == 2048 else 4)
    # On each path a wait comes before the next kernel may start: no jump lies between the two.
    (start,) = (at for at, line in enumerate(lines) if "PREEXIT" in line)
    behind = max(at for at, line in enumerate(lines[:start]) if WAIT in line)
    assert not any("BRA" in line or line.startswith(".L") for line in lines[behind:start])


def test_an_older_device_has_no_wait(tmp_path: Path) -> None:
    """Its launches are in turn, and the same text compiles for it."""
    (source,) = sources("pointwise")
    binary = compile_cubin(source.text, source.name, "sm_80").code
    tool = disassembler()
    if tool is not None:
        file = tmp_path / "old.cubin"
        file.write_bytes(binary)
        shown = subprocess.run([tool, "-c", file], capture_output=True, text=True, check=True)
        assert WAIT not in shown.stdout and "EXIT" in shown.stdout


def test_the_fields_of_a_launch_are_the_drivers() -> None:
    config = driver.CUlaunchConfig()
    for at, field in enumerate(DIMENSIONS):
        setattr(config, field, at + 1)
    assert [getattr(config, field) for field in DIMENSIONS] == [*range(1, 8)]
