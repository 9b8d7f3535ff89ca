# SPDX-License-Identifier: Apache-2.0
"""Autotuning on a CUDA device: no candidate is wrong, and what is chosen is right and kept.

FUSER_TEST_DEVICE=cpu runs the same tests on the CPU target.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import thunder
import torch

from thunder_fuser import FusionCache, FusionDefinition, fuser, options
from thunder_fuser.autotune import tune
from thunder_fuser.autotune.rules import check
from thunder_fuser.autotune.spaces import neighbours
from thunder_fuser.errors import ScheduleError
from thunder_fuser.explain.programs import kernels
from thunder_fuser.runtime.torch_types import target_of_device
from thunder_fuser.target import CPU

DEVICE = os.environ.get("FUSER_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="no CUDA device"),
]

Function = Callable[[torch.Tensor], torch.Tensor]
FUNCTIONS: dict[str, Function] = {
    "pointwise": lambda x: torch.nn.functional.gelu(x) * 2,
    "rows": lambda x: x.sum(1),
    "columns": lambda x: x.sum(0),
    "softmax": lambda x: x.softmax(-1),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "transposed": lambda x: x.t() * 2,
    "scanned": lambda x: x.cumsum(1) * 2,
    "in place": lambda x: x.mul_(2).add_(1),
}


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path) -> Iterator[None]:
    tune.forget()
    with FusionCache(), options(cache="rw", cache_dir=str(tmp_path)):
        yield
    tune.forget()


@pytest.mark.parametrize("columns", [1024, 4095, 16384])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str, columns: int) -> None:
    x = torch.randn(512, columns, device=DEVICE)
    jitted = thunder.jit(FUNCTIONS[name], executors=[fuser], fuser_autotune=0.5)
    expected = FUNCTIONS[name](x.clone().double()).float()
    torch.testing.assert_close(jitted(x.clone()), expected, rtol=1e-4, atol=1e-3)
    told = [kernel.tuned for kernel in kernels(jitted)]
    assert all(told) and not any("wrong" in one for one in told), told


def test_training() -> None:
    """Sums keep their bits: under `repeatable` a search changes none of their loops."""
    x = torch.randn(2048, 1024, device=DEVICE, requires_grad=True)
    norm = torch.nn.LayerNorm(1024, device=DEVICE)
    found = []
    for seconds in (0.0, 0.3):
        jitted = thunder.jit(norm, executors=[fuser], fuser_autotune=seconds)
        x.grad = None
        result = jitted(x)
        result.square().sum().backward()
        found.append((result.detach(), x.grad))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


def test_a_choice_is_found_again() -> None:
    x = torch.randn(4096, 1024, device=DEVICE)
    choices = []
    for _ in range(2):
        with FusionCache(), options(autotune=0.5):
            with FusionDefinition() as fd:
                fd.add_output(fd.ops.sum(fd.from_pytorch(x), [1]))
            choices += [one for one in fd.program([x]).choices if one]
        tune.forget()
    assert [one.from_store for one in choices] == [False, True]
    assert choices[0].schedule == choices[1].schedule


@pytest.mark.parametrize("columns", [1024, 4095, 40000])
def test_the_space_is_right(columns: int) -> None:
    """Every seventh legal schedule of a softmax, among them clusters and shared memory."""
    x = torch.randn(64, columns, device=DEVICE)
    target = target_of_device(0) if DEVICE == "cuda" else CPU
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        powers = fd.ops.exp(fd.ops.sub(a, fd.ops.max(a, [-1], keepdim=True)))
        fd.add_output(fd.ops.truediv(powers, fd.ops.sum(powers, [-1], keepdim=True)))
    (own,) = fd.schedules([x], target=target)
    assert own is not None
    legal = []
    for one in neighbours(own):
        try:
            check(one, own)
            legal.append(one)
        except ScheduleError:
            pass
    for one in legal[::7]:
        (result,) = fd.execute([x], schedules={0: str(one)})
        torch.testing.assert_close(result, x.softmax(-1))
