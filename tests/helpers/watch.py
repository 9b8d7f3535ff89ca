# SPDX-License-Identifier: Apache-2.0
"""What holds for every test: CUDA source compiles, and the text of a fusion is that fusion.

Sources wait for each other, and NVRTC compiles a batch of them as one program: half of the time of
a small kernel is NVRTC's own. A batch that fails is compiled kernel by kernel, and the error names
the test that made the kernel.

    source of one test           ->   namespace k0 { ... void fused_exp_f32_pointwise_0(...) ... }
    source of another test            namespace k1 { ... void fused_exp_f32_pointwise_1(...) ... }

For sm_90a the batch is compiled to machine code. For sm_80, to PTX: NVRTC writes no instruction
that sm_80 lacks, but a text may have one in an `asm`. So a batch whose PTX has an `asm` that no
batch before it had is compiled to machine code of sm_80 too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from cuda.bindings import nvrtc

from thunder_fuser import compiler
from thunder_fuser.cache import executable
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.errors import CompileError, ToolchainError
from thunder_fuser.ir.frontend.language import read_definition, rebuild
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.presegment import rewrite
from thunder_fuser.runtime.cuda import FLAGS, nvrtc_version

# Virtual architectures give PTX. sm_80 has no clusters: such a text is refused there.
ARCHES = ("sm_90a", "compute_80")
# NVRTC's passes that are left out. Tests that run kernels on a GPU compile with all of them.
QUICK = {"sm_90a": "mid", "compute_80": "max", "sm_80": "mid"}
INLINE = re.compile(r"begin inline asm\n(.*?)//\s*end inline asm", re.DOTALL)

BATCH = 32

checked_texts: set[str] = set()
waiting: list[tuple[KernelSource, str]] = []  # and the test that made each
checked_fusions: set[Fusion] = set()
checked_instructions: set[str] = set()  # of each `asm`, by ptxas for sm_80


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, test: str) -> Iterator[None]:
    """Records what is defined, specialised and emitted inside, then checks what is new.

    Plans are computed in each test, which may replace what they depend on.
    """
    monkeypatch.setattr(compiler, "computed", lambda _, compute: compute())
    sources: list[KernelSource] = []
    fusions: list[Fusion] = []
    verified: list[Fusion] = []
    _record(monkeypatch, compiler, "emit_cuda", sources)
    _record(monkeypatch, compiler, "run_passes", fusions)
    _record(monkeypatch, rewrite, "verify", verified)
    _record(monkeypatch, executable, "define", fusions)
    yield
    check_verified(verified)
    check_fusions(fusions)
    check_sources(sources, test)


def _record(patch: pytest.MonkeyPatch, module: Any, name: str, found: list[Any]) -> None:
    original: Callable[..., Any] = getattr(module, name)

    @functools.wraps(original)
    def recording(*args: Any, **kwargs: Any) -> Any:
        found.append(original(*args, **kwargs))
        return found[-1]

    patch.setattr(module, name, recording)


def check_verified(fusions: list[Fusion]) -> None:
    """The text reads as the records, of which `verify` has seen that they define the fusion."""
    for fusion in fusions:
        if fusion not in checked_fusions:
            assert read_definition(str(fusion)) == fusion.definition
            checked_fusions.add(fusion)


def check_fusions(fusions: list[Fusion]) -> None:
    """The text of a fusion is that fusion."""
    for fusion in fusions:
        if fusion not in checked_fusions:
            assert rebuild(str(fusion)) == fusion
            checked_fusions.add(fusion)


def check_sources(sources: list[KernelSource], test: str) -> None:
    """Nothing is included. The sources that are new wait to be compiled."""
    for source in sources:
        if source.text not in checked_texts:
            assert "#include" not in source.text
            checked_texts.add(source.text)
            waiting.append((source, test))
    if len(waiting) >= BATCH:
        compile_waiting()


def compile_waiting() -> None:
    """NVRTC takes the sources that wait, for each architecture that can run them."""
    batch, waiting[:] = list(waiting), []
    if not batch or not has_nvrtc():
        return
    jobs = [(arch, [one for one in batch if arch in arches(one[0].text)]) for arch in ARCHES]
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(lambda job: check_batch(*job), jobs))


def check_batch(arch: str, batch: list[tuple[KernelSource, str]]) -> None:
    """Compiles a batch; for sm_80 to machine code only where it has an `asm` that is new."""
    code = compile_batch(arch, batch)
    if arch == "compute_80" and (new := instructions(code.decode()) - checked_instructions):
        compile_batch("sm_80", batch)
        checked_instructions.update(new)


def instructions(ptx: str) -> set[str]:
    """What each `asm` of a program says, whatever its registers are.

    cvt.f32.f16 %f12, %rs3;   ->   cvt.f32.f16 %f, %rs;
    """
    return {re.sub(r"(%[a-z]+)\d+", r"\1", one).strip() for one in INLINE.findall(ptx)}


def compile_batch(arch: str, batch: list[tuple[KernelSource, str]]) -> bytes:
    """The code of a batch. Fails for the first kernel that NVRTC refuses alone."""
    if not batch:
        return b""
    try:
        return compile_quickly(joined([source for source, _ in batch]), batch[0][0].name, arch)
    except CompileError:
        for source, test in batch:
            compile_alone(source, arch, test)
        raise


def compile_alone(source: KernelSource, arch: str, test: str) -> None:
    try:
        compile_quickly(source.text, source.name, arch)
    except CompileError as error:
        pytest.fail(f"a kernel that {test} made: {error}", pytrace=False)


def compile_quickly(text: str, name: str, arch: str) -> bytes:
    """Compiles with fewer optimizations, in half of the time: what a program may say is checked
    before them."""
    options = (f"--gpu-architecture={arch}", *FLAGS, f"--Ofast-compile={QUICK[arch]}")
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), f"{name}.cu".encode(), 0, [], [])
    try:
        words = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
        if status:
            log = _output(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            raise CompileError(f"NVRTC ({name}, {arch}): {log.decode(errors='replace')[:4000]}")
        if arch.startswith("compute"):
            return _output(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        return _output(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _output(program: Any, size_of: Callable[..., Any], read: Callable[..., Any]) -> bytes:
    content = bytearray(size_of(program)[1])
    read(program, content)
    return bytes(content)


def joined(sources: list[KernelSource]) -> str:
    """One program of several: each in a namespace, its kernel under a name of its own."""
    found = []
    for at, one in enumerate(sources):
        text = re.sub(rf"\b{one.name}\b", f"{one.name}_{at}", one.text)
        found.append(f"namespace k{at} {{\n{text}\n}}")
    return "\n".join(found)


def arches(text: str) -> tuple[str, ...]:
    """The architectures a text must compile for."""
    return ARCHES[:1] if "__cluster_dims__" in text else ARCHES


@functools.cache
def has_nvrtc() -> bool:
    """Whether NVRTC is on this machine (not on macOS)."""
    try:
        nvrtc_version()
    except ToolchainError:
        return False
    return True
