# SPDX-License-Identifier: Apache-2.0
"""Live memory over a forward and a backward, and its picture."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from thunder.dynamo import thunderfx

from benchmarks.models import make_model
from benchmarks.saved_memory.measure import kept_by
from thunder_fuser.demo.blocks import SMALL, make_input
from thunder_fuser.errors import InputError
from thunder_fuser.executors.fuser import fuser
from thunder_fuser.explain.jitted import jit
from thunder_fuser.explain.memory import LiveMemory, TraceCall, plot, points, timeline

KIB = 1024


def residual(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x + F.gelu(x @ w)


def called(function: Any, *shapes: tuple[int, ...], gradients: bool = True, **given: Any) -> Any:
    jitted = jit(function, strict=True, **given)
    jitted(*(torch.randn(shape, requires_grad=gradients) for shape in shapes))
    return jitted


def test_every_call_and_what_lives_after_it() -> None:
    """Matrices of 1 KiB: the product, then the result; in the backward, the product becomes its
    gradient."""
    found = timeline(called(residual, (16, 16), (16, 16), rematerialization="save_only()"))
    assert found.forward == (TraceCall("matmul", KIB), TraceCall("thunderFusion0", 2 * KIB))
    assert found.kept == KIB
    fusion = next(at for at, call in enumerate(found.backward) if "Fusion" in call.name)
    assert found.backward[fusion].bytes == KIB
    assert [call.bytes for call in found.backward if call.name == "matmul"][-1] == 3 * KIB
    assert found.backward[-1] == TraceCall("thunderFusion2", 2 * KIB)  # over the product's gradient
    assert found.peak == max(call.bytes for call in (*found.forward, *found.backward))


def test_without_a_backward() -> None:
    found = timeline(called(residual, (16, 16), (16, 16), gradients=False))
    assert (found.kept, found.backward) == (0, ())
    assert found.peak == KIB  # the result is written over the product


def _with_a_mask(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.tanh(x * 2)
    return (y * y).sum(), y.argmax(-1), y > 0


def test_results_without_gradient() -> None:
    found = timeline(called(_with_a_mask, (16, 16)))
    assert found.backward[-1].bytes == KIB  # the gradient of x


def _with_a_condition(x: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(x * 2)
    return (y * y).sum() if y.sum() > 0 else y.exp().sum()


def test_a_piece_before_a_graph_break() -> None:
    """It returns the condition, which has no gradient, beside the values that go on."""
    jitted = thunderfx(_with_a_condition, executors=[fuser])
    jitted(torch.ones(16, 16, requires_grad=True)).backward()
    pieces = [
        piece for info in jitted._backend.subgraph_infos
        for piece in info.thunder_compiled_fns
    ]  # fmt: skip
    assert len(pieces) > 1
    assert all(timeline(piece).backward for piece in pieces)


def test_without_donation() -> None:
    found = timeline(called(residual, (16, 16), (16, 16), donation=False))
    assert found.forward[-1] == TraceCall("thunderFusion0", 2 * KIB)
    assert found.backward[-1] == TraceCall("thunderFusion2", 3 * KIB)


@pytest.mark.parametrize("policy", ["none", "memory"])
def test_what_is_kept_is_what_autograd_keeps(policy: str) -> None:
    model = make_model("llama", 1, SMALL, torch.bfloat16)
    x, gradient = make_input(SMALL, torch.bfloat16, "cpu")
    jitted = jit(model, strict=True, rematerialization=policy)
    live = kept_by(jitted, model, x.requires_grad_()).bytes
    state = torch.get_rng_state()
    found = timeline(jitted)
    assert found.kept == live < found.peak
    assert torch.equal(torch.get_rng_state(), state)
    jitted(x).backward(gradient)  # the made-up run has not disturbed it


def test_a_function_that_was_not_called() -> None:
    with pytest.raises(InputError, match="a function that was called"):
        timeline(jit(residual))


def test_points_of_forward_and_backward() -> None:
    line = LiveMemory((TraceCall("a", 4), TraceCall("b", 8)), 3, (TraceCall("c", 5),))
    assert points(line) == ([0.25, 0.75, 1.0, 1.5], [4, 8, 3, 5])
    assert points(LiveMemory((TraceCall("a", 4),), 0, ())) == ([0.5, 1.0], [4, 0])


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
def test_a_picture_is_written(tmp_path: Path) -> None:
    path = tmp_path / "memory.png"
    policies = ("none", "memory")
    functions = {
        policy: called(residual, (16, 16), (16, 16), rematerialization=policy)
        for policy in policies
    }
    plot(functions, str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
