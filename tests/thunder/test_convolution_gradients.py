# SPDX-License-Identifier: Apache-2.0
"""The gradients of a convolution's image and weights are one call of torch, with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from thunder import last_backward_traces
from torch import nn

from thunder_fuser.executors.pipeline import REGION_PASSES
from thunder_fuser.executors.stride_orders import convolutions
from thunder_fuser.executors.stride_orders.gradients import join_gradients
from thunder_fuser.explain.jitted import jit
from thunder_fuser.trace.prepared import Pass

APART = "join_gradients"


def model(**about: Any) -> nn.Module:
    """Three convolutions: the first needs no gradient of its image."""
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, **about), nn.SiLU(), nn.Conv2d(8, 4, 1),
        nn.Flatten(), nn.LazyLinear(2),
    )  # fmt: skip
    made(image())
    return made


def image(size: int = 9) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(3))


def gradients(module: nn.Module, call: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
    wanted = [p for p in (x, *module.parameters()) if p.requires_grad]
    return list(torch.autograd.grad(call(x).square().sum(), wanted))


def calls(jitted: Any) -> list[str]:
    """The kinds of convolutions of the backward: of both gradients, of an image, of weights."""
    names = (bsym.sym.name for bsym in last_backward_traces(jitted)[-1].bound_symbols)
    return [name.split("_")[1] for name in names if name.startswith("conv")]


@pytest.fixture(params=[False, True], ids=["eager's order", "channels last"])
def taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether convolutions run in channels-last order."""
    monkeypatch.setattr(convolutions, "_may_run_last", lambda item: request.param)
    yield request.param


CASES: dict[str, dict[str, Any]] = {
    "plain": {}, "strided": {"stride": 2}, "padded": {"padding": 1, "dilation": 2},
    "no bias": {"bias": False},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_same_bits(taken: bool, case: str) -> None:
    module, x = model(**CASES[case]), image()
    jitted = jit(module, strict=True)
    apart = jit(module, strict=True, skip_passes=APART)
    found, alone = (gradients(module, one, x) for one in (jitted, apart))
    assert all(torch.equal(one, other) for one, other in zip(found, alone, strict=True))
    assert [one.stride() for one in found] == [one.stride() for one in alone]
    torch.testing.assert_close(found, gradients(module, module, x), rtol=1e-4, atol=1e-4)
    assert calls(jitted) == ["backward", "backward", "backward1"]
    assert calls(apart) == ["backward0", "backward1"] * 2 + ["backward1"]


def test_in_a_graph_they_stay_apart() -> None:
    """There the host's time does not count, and a gradient that is handed out keeps the memory of
    all that its call makes."""
    module, x = model(), image()
    jitted = jit(module, strict=True, cuda_graphs=True)
    torch.testing.assert_close(gradients(module, jitted, x), gradients(module, module, x))
    assert "backward" not in calls(jitted)


def test_groups() -> None:
    module, x = model(groups=2), image()
    jitted = jit(module, strict=True)
    torch.testing.assert_close(gradients(module, jitted, x), gradients(module, module, x))
    assert calls(jitted).count("backward") == 2


def test_volumes_and_rows(taken: bool) -> None:
    """A row of one dimension is taken by torch as an image: it stays apart."""
    volumes = nn.Sequential(nn.Conv3d(2, 4, 2), nn.ReLU(), nn.Conv3d(4, 2, 2), nn.Flatten())
    rows = nn.Sequential(nn.Conv1d(2, 4, 2), nn.ReLU(), nn.Conv1d(4, 2, 2), nn.Flatten())
    for module, shape, count in ((volumes, (2, 2, 4, 5, 4), 1), (rows, (2, 2, 7), 0)):
        x = torch.randn(shape)
        jitted = jit(module, strict=True)
        expected = gradients(module, module, x)
        torch.testing.assert_close(gradients(module, jitted, x), expected, rtol=1e-4, atol=1e-4)
        assert calls(jitted).count("backward") == count


def test_frozen_weights(taken: bool) -> None:
    """Of a convolution whose weights are frozen only the image's gradient is computed."""
    module, x = model(), image().requires_grad_()
    for parameter in module[2].parameters():
        parameter.requires_grad_(False)
    jitted = jit(module, strict=True)
    expected = gradients(module, module, x)
    torch.testing.assert_close(gradients(module, jitted, x), expected, rtol=1e-4, atol=1e-4)
    assert "backward0" in calls(jitted)


def test_one_weight_twice(taken: bool) -> None:
    """Each use has its own gradients, which are added."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolve = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.convolve(F.relu(self.convolve(x)))).mean((2, 3))

    module, x = Twice(), image().requires_grad_()
    jitted = jit(module, strict=True)
    expected = gradients(module, module, x)
    torch.testing.assert_close(gradients(module, jitted, x), expected, rtol=1e-4, atol=1e-5)


def test_no_images(taken: bool) -> None:
    module, x = model(), image()[:0]
    jitted = jit(module, strict=True)
    torch.testing.assert_close(gradients(module, jitted, x), gradients(module, module, x))


def test_once_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, Any]] = []

    def both(plan: Any) -> Any:
        once = join_gradients(plan)
        seen.append((once.items, join_gradients(once).items))
        return once

    changed = tuple(Pass(both) if each.run is join_gradients else each for each in REGION_PASSES)
    monkeypatch.setattr("thunder_fuser.executors.fuser.REGION_PASSES", changed)
    module = model()
    gradients(module, jit(module, strict=True), image())
    assert seen and all(one == two for one, two in seen)
