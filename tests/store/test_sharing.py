# SPDX-License-Identifier: Apache-2.0
"""What is compiled, counted: once for each text, whoever asks; not at all where it is stored."""

from __future__ import annotations

import multiprocessing
import os
import re
import stat
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from thunder_fuser import FusionCache, FusionDefinition
from thunder_fuser.errors import CacheMissError
from thunder_fuser.explain.jitted import jit
from thunder_fuser.host.call.native import native
from thunder_fuser.multi_device import MultiDeviceParams
from thunder_fuser.options import OPTIONS, Option, compile_options, options
from thunder_fuser.runtime import binaries, cuda, emulator, toolchain
from thunder_fuser.runtime.cuda import compile_cubin
from thunder_fuser.runtime.toolchain import forget

TARGETS = pytest.mark.parametrize("target", ["cpu", "emulator"])


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Path]:
    """A store, a cache and a process that hold nothing yet."""
    emulator._runtime(toolchain.find_compiler())  # its own library is not counted
    native()  # nor is the warm path's
    forget()  # fusions of other tests, which the process's cache holds, may have the same kernels
    with options(cache_dir=str(tmp_path / "store")), FusionCache():
        yield tmp_path / "store"
    forget()


def counts() -> tuple[int, int]:
    """Compiled, and found in the store."""
    return binaries.binaries()[:2]


def spent(before: tuple[int, int]) -> tuple[int, int]:
    return counts()[0] - before[0], counts()[1] - before[1]


def definition(x: torch.Tensor, ops: Sequence[str]) -> FusionDefinition:
    """Ops one after the other, each in a segment of its own."""
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        for op in ops:
            t = fd.ops.segment_set(getattr(fd.ops, op)(t))
        fd.add_output(t)
    return fd


def applied(x: torch.Tensor, ops: Sequence[str]) -> torch.Tensor:
    for op in ops:
        x = getattr(torch, op)(x)
    return x


@TARGETS
def test_fusions_share_the_segments_they_have_in_common(fresh: Path, target: str) -> None:
    x = torch.randn(4, 33)
    held = []
    compiled = []
    for ops in (["neg", "sin", "tanh"], ["sin", "tanh"], ["tanh", "neg", "sin", "exp"]):
        before = counts()
        held.append(definition(x, ops))
        torch.testing.assert_close(held[-1].execute([x], target=target)[0], applied(x, ops))
        compiled.append(spent(before)[0])
    assert compiled == [3, 0, 1]


@TARGETS
def test_another_process_compiles_nothing(fresh: Path, target: str) -> None:
    """As far as one process can be another: nothing is in memory any more."""
    x = torch.randn(4, 35)
    ops = ["neg", "sin", "exp"]
    for expected in ((3, 0), (0, 3)):
        with FusionCache():
            before = counts()
            result = definition(x, ops).execute([x], target=target)[0]
            assert spent(before) == expected
        torch.testing.assert_close(result, applied(x, ops))
        forget()


def test_cubins_are_stored_too(fresh: Path) -> None:
    text = 'extern "C" __global__ void stored(float* x) { x[threadIdx.x] = 7.0f; }\n'
    made = []
    for expected in ((1, 0), (0, 1)):
        before = counts()
        made.append(compile_cubin(text, "stored", "sm_90a"))
        assert spent(before) == expected
        forget()
    assert made[0] == made[1]
    assert compile_cubin(text, "stored", "sm_80") != made[0]


class Layer(nn.Module):
    """The second half of a GPT-2 block, which Thunder traces in a fifth of the time of a whole."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.down(nn.functional.gelu(self.up(self.norm(x))))
        return x + hidden


def test_equal_layers_compile_once(fresh: Path) -> None:
    """Forward and backward; `python -m benchmarks cache_stress` has 32 whole blocks."""
    compiled = []
    x = torch.randn(3, 24)
    for count in (3, 5):
        before = counts()
        model = nn.Sequential(*(Layer(24) for _ in range(count)))
        jit(model, strict=True)(x).sum().backward()
        compiled.append(spent(before)[0])
    assert compiled[0] > 2 and compiled[1] == 0


def test_a_changed_compiler_is_a_miss(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version behind the same name, which the key must tell apart."""
    real = toolchain.find_compiler().path
    wrapper = tmp_path / "my-c++"
    x = torch.randn(4, 36)
    for version, expected in (("1.0", (1, 0)), ("1.0", (0, 1)), ("2.0", (1, 0))):
        wrapper.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "my c++ {version}"; exit; }}\n'
            f'exec {real} "$@"\n'
        )
        wrapper.chmod(0o755)
        monkeypatch.setenv("CXX", str(wrapper))
        toolchain._find_compiler.cache_clear()
        with FusionCache():
            before = counts()
            definition(x, ["neg"]).execute([x], target="cpu")
            assert spent(before) == expected
        forget()
    toolchain._find_compiler.cache_clear()


def test_another_machine_is_a_miss(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One home on two machines: code for the other's CPU would end this process."""
    x = torch.randn(4, 37)
    for machine, expected in (("one", (1, 0)), ("two", (1, 0)), ("one", (0, 1))):
        monkeypatch.setattr(toolchain, "machine", lambda machine=machine: machine)
        with FusionCache():
            before = counts()
            definition(x, ["neg"]).execute([x], target="cpu")
            assert spent(before) == expected
        forget()


def test_another_nvrtc_is_a_miss(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'extern "C" __global__ void k() {}\n'
    for version, expected in (("13.0", (1, 0)), ("13.1", (1, 0)), ("13.0", (0, 1))):
        monkeypatch.setattr(cuda, "_nvrtc_fingerprint", lambda version=version: version)
        before = counts()
        compile_cubin(text, "k", "sm_80")
        assert spent(before) == expected
        forget()


def test_damage_costs_a_compilation_and_nothing_else(fresh: Path) -> None:
    x = torch.randn(4, 38)
    definition(x, ["neg", "exp"]).execute([x], target="cpu")
    FusionCache.reset()
    for path in fresh.iterdir():
        data = bytearray(path.read_bytes())
        data[-40] ^= 1
        path.write_bytes(data)
    forget()
    words = "its bytes differ from its checksum"
    with FusionCache(), pytest.warns(UserWarning, match=words) as warned:
        before = counts()
        result = definition(x, ["neg", "exp"]).execute([x], target="cpu")[0]
    assert {warning.filename for warning in warned} == {__file__}  # not a file of the package
    assert spent(before) == (2, 0)
    torch.testing.assert_close(result, x.neg().exp())


def test_assert_cache_hit(fresh: Path) -> None:
    x = torch.randn(4, 39)
    first = pytest.raises(CacheMissError, match=r"no entry at all in .*store")
    with options(assert_cache_hit=True), first:
        definition(x, ["neg"]).execute([x], target="cpu")
    definition(x, ["neg"]).execute([x], target="cpu")
    FusionCache.reset()
    forget()
    with FusionCache(), options(assert_cache_hit=True):
        definition(x, ["neg"]).execute([x], target="cpu")
        with pytest.raises(CacheMissError, match=r"nearest entry [0-9a-f]{12} .*\n.*text:") as miss:
            definition(x, ["sin"]).execute([x], target="cpu")
    # The kernel's own lines, whatever is pasted before them for a sine.
    assert re.search(r"\+ .*T1 = fd\.ops\.sin\(T0\)", str(miss.value)), str(miss.value)


def test_assert_cache_hit_is_never_papered_over(fresh: Path) -> None:
    jitted = jit(lambda x: torch.sin(x * 2.5) + x, assert_cache_hit=True)
    with pytest.raises(CacheMissError, match="assert_cache_hit"):
        jitted(torch.randn(3, 41))


def other_value(row: Option, folder: Path) -> Any:
    """A value that an option has not."""
    if row.choices:
        return next(choice for choice in row.choices if choice != row.default)
    if row.name == "skip_passes":
        return "remove_common"
    if row.type is str:
        return str(folder / row.name)
    if row.type is MultiDeviceParams:
        return MultiDeviceParams.parse("lower.overlap=never")
    return not row.default if row.type is bool else int(row.default) + 64


@pytest.mark.parametrize("name", OPTIONS)
def test_options_say_whether_they_enter_the_key(
    fresh: Path, name: str, tmp_path: Path
) -> None:
    """One that does has a program of its own for each value; one that does not, shares it."""
    row = OPTIONS[name]
    value, is_compiled = other_value(row, tmp_path), hasattr(compile_options(), name)
    x = torch.randn(4, 42)
    fd = definition(x, ["neg"])
    first, key = fd.program([x]), compile_options()
    with options(**{name: value}):
        assert (compile_options() != key) is is_compiled
        if name not in ("emulate", "assert_cache_hit"):
            assert (fd.program([x]) is first) is not is_compiled
    assert fd.program([x]) is first


def test_threads_compile_each_key_once(fresh: Path) -> None:
    x = torch.randn(4, 43)
    ops = ["neg", "sin", "exp", "tanh"]
    barrier = threading.Barrier(8)

    def work(turn: int) -> None:
        barrier.wait()
        mine = [*ops[turn % 4 :], *ops[: turn % 4]]
        result = definition(x, mine).execute([x], target="cpu")[0]
        torch.testing.assert_close(result, applied(x, mine))

    before = counts()
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(work, range(8)))  # raises what a thread raised
    assert spent(before)[0] == len(ops)


def _compile_texts(folder: str, barrier: Any, results: Any) -> None:
    binaries.forget()
    with options(cache_dir=folder):
        barrier.wait()
        before = counts()
        for number in range(3):
            text = f'extern "C" __global__ void k(int* x) {{ *x = {number}; }}\n'
            assert compile_cubin(text, "k", "sm_80").code.startswith(b"\x7fELF")
        results.put(spent(before))


def test_4_processes_compile_each_key_once(fresh: Path) -> None:
    """As the ranks of one machine do. Forked, so that locks and memory of the parent are there."""
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    children = [
        context.Process(target=_compile_texts, args=(str(fresh), barrier, results))
        for _ in range(4)
    ]
    for child in children:
        child.start()
    found = [results.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    assert sum(compiled for compiled, _ in found) == 3
    assert sum(stored for _, stored in found) == 9


def test_a_forked_child_may_compile_while_the_parent_does(fresh: Path) -> None:
    """The lock that another thread of the parent holds is free in the child."""
    started, go_on = threading.Event(), threading.Event()

    def slow() -> bytes:
        started.set()
        go_on.wait(60)
        return b"slow"

    recipe = cuda.cubin_recipe("// slow\n", "slow", "sm_80")
    worker = threading.Thread(target=lambda: binaries.binary(recipe, slow))
    worker.start()
    started.wait(60)
    with options(cache="off"):
        child = os.fork()
        if child == 0:
            os._exit(0 if binaries.binary(recipe, lambda: b"fast").code == b"fast" else 1)
    _, status = os.waitpid(child, 0)
    go_on.set()
    worker.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o700
