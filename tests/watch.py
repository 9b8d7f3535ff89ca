# SPDX-License-Identifier: Apache-2.0
"""What holds for every test: CUDA text compiles, and the text of a fusion is that fusion."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from thunder_fuser import compiler
from thunder_fuser.cache import executable
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.errors import ToolchainError
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.language import rebuild
from thunder_fuser.runtime.cuda import compile_cubin, nvrtc_version

ARCHES = ("sm_80", "sm_90a")
CLUSTER_ARCHES = ("sm_90a",)  # sm_80 has no clusters: such a text is refused there

checked_texts: set[str] = set()
checked_fusions: set[Fusion] = set()


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Records what is defined, specialised and emitted inside, then checks what is new."""
    sources: list[KernelSource] = []
    fusions: list[Fusion] = []
    _record(monkeypatch, compiler, "emit_cuda", sources)
    _record(monkeypatch, compiler, "run_passes", fusions)
    _record(monkeypatch, compiler, "run_target_passes", fusions)
    _record(monkeypatch, executable, "define", fusions)
    yield
    check_fusions(fusions)
    check_sources(sources)


def _record(patch: pytest.MonkeyPatch, module: Any, name: str, found: list[Any]) -> None:
    original: Callable[..., Any] = getattr(module, name)

    @functools.wraps(original)
    def recording(*args: Any, **kwargs: Any) -> Any:
        found.append(original(*args, **kwargs))
        return found[-1]

    patch.setattr(module, name, recording)


def check_fusions(fusions: list[Fusion]) -> None:
    """The text of a fusion is that fusion."""
    for fusion in fusions:
        if fusion not in checked_fusions:
            assert rebuild(str(fusion)) == fusion
            checked_fusions.add(fusion)


def check_sources(sources: list[KernelSource]) -> None:
    """Nothing is included, and NVRTC takes the text for each architecture that can run it."""
    new = {source.text: source for source in sources if source.text not in checked_texts}
    for text in new:
        assert "#include" not in text
    if new and has_nvrtc():
        jobs = [(text, source.name, arch) for text, source in new.items() for arch in arches(text)]
        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(lambda job: compile_cubin(*job), jobs))
    checked_texts.update(new)


def arches(text: str) -> tuple[str, ...]:
    """The architectures a text must compile for."""
    return CLUSTER_ARCHES if "__cluster_dims__" in text else ARCHES


@functools.cache
def has_nvrtc() -> bool:
    """Whether NVRTC is on this machine (not on macOS)."""
    try:
        nvrtc_version()
    except ToolchainError:
        return False
    return True
