# SPDX-License-Identifier: Apache-2.0
"""Regions are planned and compiled before their first calls, for the layouts that calls have."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from torch import nn

from thunder_fuser import FusionCache, FusionDefinition
from thunder_fuser.base.threads import BACKGROUND, WARNED
from thunder_fuser.cache import executable
from thunder_fuser.demo.blocks import BLOCKS, SMALL, make_block, make_input
from thunder_fuser.errors import CompileError, FallbackWarning
from thunder_fuser.executors import fuser as of_fuser
from thunder_fuser.explain.jitted import jit
from thunder_fuser.options import options
from thunder_fuser.runtime import toolchain
from thunder_fuser.runtime.binaries import binaries


class Planned:
    """How many plans were made ahead, and how many at calls."""

    def __init__(self) -> None:
        self.ahead = self.at_calls = 0
        self.is_ahead = False


@pytest.fixture(autouse=True)
def own_caches() -> Iterator[None]:
    with FusionCache():
        yield


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Planned:
    """All jobs run at once, so that what a call plans itself was guessed wrong."""
    counts, plan = Planned(), executable.plan_kernels

    def add(jobs: Sequence[Callable[[], object]]) -> None:
        counts.is_ahead = True
        for job in jobs:
            job()
        counts.is_ahead = False

    def counted(*args: Any, **kwargs: Any) -> Any:
        counts.ahead += 1
        return plan(*args, **kwargs)

    def compiled(*args: Any) -> Any:
        counts.at_calls += args[-1] is None
        return compile_fusion(*args)

    compile_fusion = executable.compile_fusion
    monkeypatch.setattr(BACKGROUND, "add", add)
    monkeypatch.setattr(executable, "plan_kernels", counted)
    monkeypatch.setattr(executable, "compile_fusion", compiled)
    return counts


class Convolved(nn.Module):
    """Images in channels-last order, group norms, a residual, a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.one(x * 2))
        return (self.norm(self.two(x)).relu() + x).mean((2, 3))


def layouts(x: torch.Tensor) -> torch.Tensor:
    """Views between products and regions, and results that lie as their transposed inputs."""
    y = (x.t() * 2).sin().t()
    z = torch.sort(y.exp(), dim=0)[0] + y
    return (z @ z.t()).permute(1, 0).contiguous().tanh().unsqueeze(0).expand(2, -1, -1) * 3


def block(name: str) -> tuple[nn.Module, torch.Tensor]:
    dtype, device = torch.float32, torch.device("cpu")
    return make_block(name, SMALL, dtype, device), make_input(SMALL, dtype, device)[0]


CASES: dict[str, Callable[[], tuple[Callable[..., Any], torch.Tensor]]] = {
    **{name: lambda name=name: block(name) for name in BLOCKS},  # type: ignore[misc]
    "channels last": lambda: (
        Convolved().to(memory_format=torch.channels_last),
        torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_(),
    ),
    "contiguous images": lambda: (Convolved(), torch.randn(2, 3, 8, 8)),
    "transposed": lambda: (layouts, torch.randn(6, 5).t().requires_grad_()),
    "expanded": lambda: (layouts, torch.randn(5, 1).expand(5, 6).requires_grad_()),
    "part of a tensor": lambda: (layouts, torch.randn(5, 9)[:, 2:8].requires_grad_()),
}


@pytest.mark.parametrize(
    ("name", "emulate"), [*((name, False) for name in CASES), ("transposed", True)]
)
def test_every_region_is_found_at_its_call(name: str, emulate: bool, planned: Planned) -> None:
    torch.manual_seed(0)
    function, x = CASES[name]()
    with options(emulate=emulate):
        result = jit(function, strict=True)(x)
        compiled = binaries().compiled
        (result * torch.linspace(0, 1, result.numel()).view(result.shape)).sum().backward()
    assert planned.ahead and not planned.at_calls
    assert binaries().compiled == compiled  # the backward's too
    torch.testing.assert_close(result, function(x), atol=1e-5, rtol=1e-5)


def test_equal_layers_are_planned_once(planned: Planned) -> None:
    weights = [torch.randn(8, 8) for _ in range(6)]

    def layers(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.tanh(x @ weight) * 2 + x
        return x

    jit(layers, strict=True)(torch.randn(4, 8))
    assert (planned.ahead, planned.at_calls) == (1, 0)


def test_a_wrong_guess_costs_a_compilation(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guessed is the contiguous layout, and what comes lies otherwise."""
    monkeypatch.setattr(of_fuser, "jobs_of", _blind(of_fuser.jobs_of))
    x = torch.randn(6, 5).t()
    torch.testing.assert_close(jit(torch.sin, strict=True)(x), x.sin())
    assert (planned.ahead, planned.at_calls) == (1, 1)


def _blind(jobs_of: Callable[..., Any]) -> Callable[..., Any]:
    def blind(trace: Any, prepare: Any) -> Any:
        for proxy in trace.args:
            proxy.history = None
        return jobs_of(trace, prepare)

    return blind


def test_a_misaligned_argument_is_found_by_its_own_key(planned: Planned) -> None:
    x = torch.randn(13)[1:]
    torch.testing.assert_close(jit(torch.sin, strict=True)(x), x.sin())
    assert planned.ahead == 1


def test_another_shape_is_planned_ahead_too(planned: Planned) -> None:
    jitted = jit(torch.sin, strict=True)
    for length in (4, 5, 4, 6):
        x = torch.randn(length)
        torch.testing.assert_close(jitted(x), x.sin())
    assert (planned.ahead, planned.at_calls) == (3, 0)


@pytest.mark.parametrize("given", [{"compile_ahead": False}, {"dump": "dumped"}])
def test_nothing_is_compiled_ahead(
    given: dict[str, Any], planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x = torch.randn(5)
    torch.testing.assert_close(jit(torch.sin, strict=True, **given)(x), x.sin())
    assert (planned.ahead, planned.at_calls) == (0, 1)


def test_the_cache_counts_lookups_of_calls(planned: Planned) -> None:
    function, found = torch.sin, []
    for ahead in (True, False):
        with FusionCache() as cache:
            jitted = jit(function, compile_ahead=ahead)
            for length in (3, 4):
                jitted(torch.randn(length))
            found.append(str(cache))
    assert found[0] == found[1] and "1 fusions, 1 hits, 1 misses" in found[0]
    assert planned.ahead == 2


def test_a_definition_of_a_call_and_one_ahead_are_one(planned: Planned) -> None:
    """What a FusionDefinition has compiled is not planned again."""
    x = torch.randn(7)
    jit(torch.sin, strict=True)(x)
    plans = planned.ahead
    jit(torch.sin, strict=True)(x)
    assert planned.ahead == plans
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sin(fd.from_pytorch(x)))
    torch.testing.assert_close(fd.execute([x])[0], x.sin())


# ------------------------------------------------------------------------------------- failures

BROKEN = """#!/bin/sh
[ "$1" = --version ] && { echo "odd c++ 1.0"; exit; }
echo "kernel.cpp:1:1: error: no" >&2
exit 1
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A C++ compiler that takes nothing."""
    path = tmp_path / "odd-c++"
    path.write_text(BROKEN)
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    toolchain.forget()
    with options(cache="off", native_calls=False):
        yield
    toolchain.forget()


def residual(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x @ x) @ x.exp()


@pytest.mark.usefixtures("broken")
def test_a_failure_is_raised_by_the_call_as_without() -> None:
    found = []
    for ahead in (True, False):
        with pytest.raises(CompileError) as caught:
            jit(residual, strict=True, compile_ahead=ahead)(torch.randn(4, 4))
        found.append(str(caught.value).splitlines()[0])
    assert found[0] == found[1] and "thunderFusion0" in found[0]


@pytest.mark.usefixtures("broken")
def test_a_failure_is_announced_as_often_as_without() -> None:
    x, found = torch.rand(4, 4), []
    for ahead in (True, False):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.testing.assert_close(jit(residual, compile_ahead=ahead)(x), residual(x))
        found.append([one for one in caught if one.category is FallbackWarning])
        WARNED._values.clear()
    assert len(found[0]) == len(found[1]) == 1


def test_an_error_of_a_definition_is_not_raised_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any) -> Any:
        raise ValueError("not now")

    monkeypatch.setattr(of_fuser.fuser, "prepare_region", wrong)
    x = torch.randn(3)
    torch.testing.assert_close(jit(torch.sin, strict=True)(x), x.sin())


# ------------------------------------------------------------------------------------ processes

# The parent ends while its backward may still be compiling.
FORKS = """
import os, torch
from thunder_fuser import fuser
import thunder

def layers(x):
    for at in range(3):
        x = torch.sin(x @ x) * at + x.exp()
    return x

x = torch.rand(4, 4, requires_grad=True)
given = {"fuser_cache": "off", "fuser_native_calls": False}
result = thunder.jit(layers, executors=[fuser], **given)(x)
child = os.fork()
result.sum().backward()
os._exit(0) if child == 0 else None
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""


def test_a_process_forks_and_exits_while_regions_compile() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True, check=True,
        timeout=300,
    )  # fmt: skip
    assert done.stdout.strip() == "0" and not done.stderr


def test_threads_call_while_regions_compile() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(3)))
    jitted, x = thunder.jit(model, executors=[of_fuser.fuser], fuser_strict=True), torch.randn(2, 6)
    jitted(x)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: jitted(x), range(8)):
            torch.testing.assert_close(found, model(x))


def test_a_trace_with_an_argument_that_is_no_proxy() -> None:
    """`thunder.trace()` keeps "mT" as it is."""

    def add_one(x: torch.Tensor, name: str) -> torch.Tensor:
        return getattr(x, name) + 1.0

    x = torch.randn(2, 3)
    trace = thunder.trace()(add_one, x, "mT")
    executors = [of_fuser.fuser, *thunder.get_always_executors()]
    function = thunder.common.transform_for_execution(trace, executors)[-1].python_callable()
    assert torch.equal(function(x, "mT"), x.mT + 1)
