# SPDX-License-Identifier: Apache-2.0
"""The report on what a backward keeps, and the comments of a trace."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from benchmarks.models import make_model
from benchmarks.saved_memory.measure import kept_by
from thunder_fuser.demo.blocks import SMALL, make_input
from thunder_fuser.errors import InputError
from thunder_fuser.explain.jitted import final_traces, jit
from thunder_fuser.explain.saved_values import Saved, saved


def residual(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = F.gelu(x @ w)
    return x + hidden @ w.t()


def compiled(policy: str) -> tuple[Saved, list[str]]:
    """The report, and the lines of both traces."""
    jitted = jit(residual, strict=True, rematerialization=policy)
    jitted(*(torch.randn(16, 16, requires_grad=True) for _ in range(2)))
    lines = [line.strip() for trace in final_traces(jitted) for line in str(trace).splitlines()]
    return saved(jitted), lines


def test_what_is_saved_and_recomputed() -> None:
    report, _ = compiled("save_only()")
    (product,) = report.kept
    assert (product.kind, product.bytes, product.op) == ("f32[16, 16]", 1024, "matmul")
    assert product.why == "torch runs matmul"
    assert report.bytes == report.plan.bytes == 1024 < report.before
    assert {op for one in report.again for op in one.ops} >= {"erf", "mul"}
    assert all(one.bytes and one.fusion.startswith("thunderFusion") for one in report.again)
    text = str(report)
    assert text.startswith("With the policy save_only(), residual keeps 1.0 KiB for its backward")
    assert f"f32[16, 16]  matmul   torch runs matmul  {product.name}" in text


def test_without_a_policy_nothing_is_recomputed() -> None:
    report, lines = compiled("none")
    assert report.bytes == report.before and report.again == ()
    assert "recomputes" not in str(report)
    assert not any("recomputes" in line for line in lines)


def test_comments_stand_above_the_fusions() -> None:
    report, lines = compiled("save_only()")
    found = {
        after.partition("= ")[2].partition("(")[0]: line
        for line, after in pairwise(lines) if line.startswith("# recomputes")
    }
    assert list(found) == [one.fusion for one in report.again]
    for one in report.again:
        kib = re.search(r": ([\d.]+) KiB that are not saved$", found[one.fusion])
        assert kib is not None and float(kib[1]) == one.bytes / 1024
        assert one.values[0] in found[one.fusion]
    _, lines = compiled("time")
    assert any(re.fullmatch(r"# saves t\d+ for the backward: 1.0 KiB", line) for line in lines)


@pytest.mark.parametrize("policy", ["time", "memory"])
@pytest.mark.parametrize("name", ["gpt2", "gemma"])
def test_bytes_are_those_of_live_tensors(name: str, policy: str) -> None:
    model = make_model(name, 2, SMALL, torch.bfloat16)
    x, _ = make_input(SMALL, torch.bfloat16, "cpu")
    jitted = jit(model, strict=True, rematerialization=policy)
    live = kept_by(jitted, model, x.requires_grad_()).bytes
    report = saved(jitted)
    assert report.bytes == live == sum(one.bytes for one in report.kept)


def test_a_function_without_a_backward_has_no_report() -> None:
    jitted = jit(torch.tanh)
    with pytest.raises(InputError, match="a function that was called"):
        saved(jitted)
    jitted(torch.randn(4))
    with pytest.raises(InputError, match="no backward"):
        saved(jitted)


def test_the_report_is_of_the_compilation_that_ran_last() -> None:
    jitted = jit(residual)
    with_gradients = [torch.randn(16, 16, requires_grad=True) for _ in range(2)]
    jitted(*with_gradients)
    expected = saved(jitted)
    assert expected.bytes
    jitted(*(torch.randn(16, 16) for _ in range(2)))
    with pytest.raises(InputError, match="no backward"):
        saved(jitted)
    jitted(*with_gradients)  # a hit
    assert saved(jitted) == expected
