# SPDX-License-Identifier: Apache-2.0
"""An index out of range names the user's line and the region, in torch's words."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F

import thunder_fuser
from thunder_fuser.errors import OutOfRangeError
from thunder_fuser.explain import report
from thunder_fuser.explain.jitted import fusions_of
from thunder_fuser.explain.programs import compiled

HERE = __file__
X = torch.arange(28.0).view(4, 7)
FAR, BELOW = torch.tensor([1, 2, 7, 0]), torch.tensor([1, 2, -8, 0])

CASES: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "cross_entropy": (lambda x, t: F.cross_entropy(x * 2, t), FAR),
    "a class below 0": (lambda x, t: F.cross_entropy(x * 2, t), BELOW),
    "weights": (lambda x, t: F.cross_entropy(x * 2, t, torch.ones(7)), FAR),
    "nll_loss": (lambda x, t: F.nll_loss(F.log_softmax(x, 1), t), FAR + 1),
    "gather": (lambda x, t: torch.gather(x * 2, 1, t[:, None]), FAR),
    "embedding": (lambda x, t: F.embedding(t, x) * 2, FAR),
    "index_select": (lambda x, t: torch.index_select(x * 2, 0, t), FAR),
    "x[i]": (lambda x, t: (x * 2)[t], FAR),
    "x[:, i], from the end": (lambda x, t: (x * 2)[:, t], BELOW),
    "scatter": (lambda x, t: torch.scatter(x * 2, 1, t[:, None], x[:, :1]) * 3, FAR),
    "scatter_add": (lambda x, t: torch.scatter_add(x * 2, 1, t[:, None], x[:, :1]) * 3, FAR),
    "index_add": (lambda x, t: (x * 2).index_add(0, t, x) * 3, FAR),
    "index_put": (lambda x, t: (x * 2).index_put((t,), x) * 3, FAR),
}


def error_of(function: Callable[..., Any], *args: Any) -> Exception:
    with pytest.raises((IndexError, RuntimeError)) as error:
        function(*args)
    return error.value


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_line_and_words(name: str, needs_gradient: bool) -> None:
    function, index = CASES[name]
    x = X.clone().requires_grad_(needs_gradient)
    jitted = thunder.jit(function, executors=[thunder_fuser.fuser], fuser_strict=True)
    found, words = error_of(jitted, x, index), str(error_of(function, x, index))
    assert isinstance(found, OutOfRangeError) and isinstance(found, IndexError)
    line = inspect.getsourcelines(function)[1]
    first, second = str(found).splitlines()
    assert first.startswith("thunderFusion") and first.endswith(f"(at {HERE}:{line})")
    assert second == f"torch says: {words}"
    assert jitted(x, index.clamp(0, 3)).isfinite().all()  # the function works on


def test_a_model_names_the_layer_at_fault() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(4, 7)

        def forward(self, words: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
            rows = self.table(words) * 2
            return F.cross_entropy(rows, classes)

    start = inspect.getsourcelines(Model)[1]
    jitted = thunder_fuser.jit(Model())
    found = str(error_of(jitted, torch.tensor([1, 2]), torch.tensor([1, 9])))
    assert "torch says: Target 9 is out of bounds." in found
    assert f"{HERE}:{start + 7}" in found or f"{HERE}:{start + 6}-{start + 7}" in found


def test_a_region_without_indices_is_called_directly() -> None:
    jitted = thunder.jit(lambda x: x * 2 + 1, executors=[thunder_fuser.fuser])
    jitted(X)
    (region,) = fusions_of(jitted)
    assert all(not hasattr(run, "__wrapped__") for run in region.runners)


def test_reports_know_the_program_of_a_region_with_indices() -> None:
    jitted = thunder.jit(lambda x, t: (x * 2)[t] + 1, executors=[thunder_fuser.fuser])
    jitted(X, torch.tensor([1, 2]))
    assert "thunderFusion0" in str(report(jitted))
    assert all(compiled(region) for region in fusions_of(jitted))
