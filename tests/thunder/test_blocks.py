# SPDX-License-Identifier: Apache-2.0
"""Both demo blocks, forward and backward, on the CPU target and in the emulator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import pytest
import torch

from thunder_fuser.demo.accuracy import Accuracy, accuracy, results
from thunder_fuser.demo.blocks import BLOCKS, SMALL, make_block, make_input
from thunder_fuser.executors.fuser import fuser
from thunder_fuser.explain import why
from thunder_fuser.explain.jitted import final_traces, fusions_of, jit

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
TARGETS = {"cpu": False, "emulator": True}

MATMULS = {"linear", "matmul", "attention_forward", "attention_backward"}
# Views, by the names Thunder gives them before and after its torch executor has claimed them.
VIEWS = {
    "broadcast_in_dim", "expand", "flatten", "permute", "reshape", "shallow_copy", "slice_prim",
    "squeeze", "torch_prims_reshape_impl", "transpose", "unsqueeze", "view",
}
PLUMBING = {
    "clear_mutable_collection", "python_del", "python_return", "unpack_sequence", "unpack_trivial",
}


@dataclass(frozen=True)
class Run:
    """All that the tests ask of one compilation. A later one may take the fuser's claims away."""

    errors: list[Accuracy]
    results: dict[str, torch.Tensor]
    refused: set[str]
    names: list[str]
    unfused: list[str]


@cache
def run(name: str, dtype: str, target: str) -> Run:
    """One block, compiled once however many tests ask."""
    block = make_block(name, SMALL, DTYPES[dtype], "cpu")
    jitted = jit(block, strict=True, emulate=TARGETS[target])
    samples = [make_input(SMALL, DTYPES[dtype], "cpu", seed) for seed in range(4)]
    errors = accuracy(block, jitted, samples)
    bsyms = [bsym for trace in final_traces(jitted) for bsym in trace.bound_symbols]
    return Run(
        errors, results(jitted, block, *samples[0]), {one.name for one in why(jitted)},
        [one.name for one in fusions_of(jitted)],
        [bsym.sym.name for bsym in bsyms if bsym.sym.executor is not fuser],
    )


each_block = pytest.mark.parametrize("name", BLOCKS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
each_target = pytest.mark.parametrize("target", TARGETS)


@each_block
@each_dtype
@each_target
def test_errors_are_like_eagers(name: str, dtype: str, target: str) -> None:
    """Of the output and of every gradient, against float64."""
    errors = run(name, dtype, target).errors
    assert len(errors) == 2 + len(list(make_block(name, SMALL, torch.float32, "cpu").parameters()))
    assert [one for one in errors if not one.passes] == []


@each_block
@each_dtype
def test_only_matmuls_and_views_are_left_to_torch(name: str, dtype: str) -> None:
    """Every pointwise, cast, reduction and norm op is inside a fusion."""
    found = run(name, dtype, "cpu")
    assert set(found.unfused) <= MATMULS | VIEWS | PLUMBING
    assert set(found.unfused) & MATMULS
    assert found.refused <= MATMULS | VIEWS
    assert len(found.names) == len(set(found.names)) > 10


@each_block
@each_dtype
def test_the_emulator_agrees_with_the_cpu(name: str, dtype: str) -> None:
    """Within 4 ulp at the value's RMS size, or eager's own error: sums run in another order."""
    on_cpu, emulated = (run(name, dtype, target).results for target in TARGETS)
    eager = {one.name: one.eager for one in run(name, dtype, "cpu").errors}
    for key, value in on_cpu.items():
        size, difference = (
            float(t.double().square().mean().sqrt()) for t in (value, emulated[key] - value)
        )
        ulp = torch.finfo(DTYPES[dtype]).eps * 2.0 ** math.floor(math.log2(size))
        assert difference <= max(4 * ulp, eager[key]), key
