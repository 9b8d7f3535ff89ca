# SPDX-License-Identifier: Apache-2.0
"""`fd.sources`: the text of the kernels for any target, without compiling and without memory."""

from __future__ import annotations

import pytest
import torch

from thunder_fuser import DataType, FusionDefinition, compiler, options
from thunder_fuser.errors import InputError, TargetError


def scaled() -> FusionDefinition:
    """relu(x) * w, and the sum of its rows."""
    fd = FusionDefinition()
    x = fd.define_tensor([-1, -1], True, DataType.BFloat16)
    y = fd.ops.mul(fd.ops.relu(x), fd.define_tensor([-1], True))
    fd.add_output(y)
    fd.add_output(fd.ops.sum(y, [1]))
    return fd


def tensors(device: str) -> list[torch.Tensor]:
    x = torch.ones(64, 512, dtype=torch.bfloat16, device=device)
    return [x, torch.ones(512, device=device)]


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*given: object) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.setattr(compiler, "launcher_for", compiled)


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    ("target", "dialect"),
    [("cpu", "cpu"), ("emulator", "cuda"), ("a100", "cuda"), ("h100", "cuda"), ("h200", "cuda")],
)
def test_meta_tensors_suffice(target: str, dialect: str) -> None:
    fd = scaled()
    found = fd.sources(tensors("meta"), target=target)
    planned = fd.plan(tensors("meta"), target=target)
    assert len(found) == len(planned.segments) > 0
    assert {source.dialect for source in found} == {dialect}


@pytest.mark.usefixtures("no_compiler")
def test_a_target_that_is_not_here_takes_tensors_that_are() -> None:
    fd = scaled()
    assert fd.sources(tensors("cpu"), target="h200") == fd.sources(tensors("meta"), target="h200")


@pytest.mark.usefixtures("no_compiler")
def test_the_default_target() -> None:
    fd = scaled()
    assert fd.sources(tensors("meta")) == fd.sources(tensors("cpu"), target="cpu")
    with options(emulate=True):
        assert fd.sources(tensors("cpu")) == fd.sources(tensors("cpu"), target="emulator")


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_they_are_what_runs(target: str) -> None:
    fd = scaled()
    assert fd.sources(tensors("cpu"), target=target) == (
        fd.program(tensors("cpu"), target=target).sources
    )


def test_what_torch_runs_has_no_kernel() -> None:
    fd = FusionDefinition()
    x = fd.define_tensor([-1, -1], True)
    fd.add_output(fd.ops.matmul(x, x))
    assert fd.sources([torch.empty(4, 4, device="meta")], target="h200") == ()


def test_bad_calls() -> None:
    with pytest.raises(InputError, match="argument T3: expected rank 1"):
        scaled().sources([tensors("meta")[0]] * 2, target="h200")
    with pytest.raises(TargetError, match="expected one of h200"):
        scaled().sources(tensors("meta"), target="h300")
    with pytest.raises(InputError, match="expected cpu tensors for target cpu, got meta"):
        scaled().program(tensors("meta"), target="cpu")  # what compiles needs memory
