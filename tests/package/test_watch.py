# SPDX-License-Identifier: Apache-2.0
"""The check that every test ends with finds the kernel that NVRTC refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import watch
from helpers.graphs import layer_norm, softmax
from helpers.kernels import scheduled

from thunder_fuser.target import named

BROKEN = "the test that broke it"


def test_a_batch_compiles_and_a_broken_kernel_is_found_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs = [softmax(512, 768), layer_norm(512, 768), softmax(512, 1024)]
    sources = [scheduled(graph, named("h200"))[1] for graph in graphs]
    batch = [(source, "a test") for source in sources]
    watch.compile_batch("sm_90a", batch)
    broken = replace(sources[0], text=sources[0].text.replace("__global__", "__globe__"))
    monkeypatch.setattr(watch, "waiting", [*batch, (broken, BROKEN)])
    with pytest.raises(pytest.fail.Exception, match=BROKEN):
        watch.compile_waiting()
    assert not watch.waiting


def test_an_instruction_that_sm_80_lacks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """ptxas finds it, which compiles for sm_80 where an `asm` is new."""
    source = scheduled(softmax(512, 768), named("h200"))[1]
    head, body = source.text.split("__global__")
    lacked = 'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");'
    text = f"{head}__global__{body.replace('{', '{ ' + lacked, 1)}"
    watch.compile_alone(replace(source, text=text), "sm_90a", BROKEN)
    batch = [(source, "a test"), (replace(source, text=text), BROKEN)]
    monkeypatch.setattr(watch, "waiting", batch)
    with pytest.raises(pytest.fail.Exception, match=BROKEN):
        watch.compile_waiting()


def test_what_each_asm_says() -> None:
    ptx = "// begin inline asm\ncvt.f32.f16 %f12, %rs3;\n// end inline asm\nadd.f32 %f1, %f2, %f3;"
    assert watch.instructions(ptx) == {"cvt.f32.f16 %f, %rs;"}
