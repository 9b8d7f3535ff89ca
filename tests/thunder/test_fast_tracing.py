# SPDX-License-Identifier: Apache-2.0
"""Shorter ways through a program: the same traces, guards and results, and hooks still run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.core import interpreter
from thunder.dynamo import thunderfx
from torch import nn

from thunder_fuser import fuser
from thunder_fuser.demo.blocks import BLOCKS, SMALL, make_block, make_input
from thunder_fuser.explain.jitted import jit
from thunder_fuser.options import options
from thunder_fuser.thunder_patches.fixes import torch_func

SCALE = 2.0
WEIGHT = torch.full((4,), 3.0)
SETTINGS = {"scale": 0.5}


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.power = nn.Linear(4, 4), 2

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.linear(x).abs() ** self.power * scale


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Inner(), Inner()])
        self.rest = nn.Sequential(nn.LayerNorm(4), nn.Dropout(0.0), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for at, layer in enumerate(self.layers):
            x = layer(x, scale=SCALE + at) * WEIGHT
        return self.rest(x) * SETTINGS["scale"] + len(self.layers) + max(x.shape) * math.pi


def globals_alone(x: torch.Tensor) -> torch.Tensor:
    pieces = [F.silu(piece) for piece in torch.split(x, 2)]
    return torch.cat(sorted(pieces, key=lambda one: -one.shape[0])) * SCALE * WEIGHT


def block(name: str) -> tuple[nn.Module, torch.Tensor]:
    dtype, device = torch.float32, torch.device("cpu")
    return make_block(name, SMALL, dtype, device), make_input(SMALL, dtype, device)[0]


PROGRAMS: dict[str, Callable[[], tuple[Callable[..., Any], torch.Tensor]]] = {
    "modules": lambda: (Outer(), torch.randn(3, 4)),
    "globals": lambda: (globals_alone, torch.randn(6, 4)),
    **{name: lambda name=name: block(name) for name in BLOCKS},  # type: ignore[misc]
}


def texts(jitted: Any) -> list[str]:
    """The prologue, with all its guards, and the computation, without how long passes took."""
    traces = (thunder.last_prologue_traces(jitted)[-1], thunder.last_traces(jitted)[0])
    return ["\n".join(str(trace).splitlines()[1:]) for trace in traces]


@pytest.mark.parametrize("name", PROGRAMS)
def test_traces_and_guards_are_the_same(name: str) -> None:
    function, x = PROGRAMS[name]()
    found = []
    for fast in (True, False):
        jitted = jit(function, strict=True, fast_tracing=fast)
        torch.testing.assert_close(jitted(x), function(x))
        found.append(texts(jitted))
    assert found[0] == found[1]


def names_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those of the functions that Thunder interprets from now on."""
    read: list[str] = []
    run_frame = interpreter._run_frame

    def noted(frame: Any, *args: Any, **kwargs: Any) -> Any:
        read.append(frame.code.co_name)
        return run_frame(frame, *args, **kwargs)

    monkeypatch.setattr(interpreter, "_run_frame", noted)
    return read


def test_a_module_is_called_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thunder does not read what nn.Module.__call__ does, but with the option off."""
    read = names_read(monkeypatch)
    jit(Outer())(torch.randn(3, 4))
    fast = [*read]
    read.clear()
    jit(Outer(), fast_tracing=False)(torch.randn(3, 4))
    assert "_call_impl" not in fast and "_call_impl" in read
    assert 2 * len(fast) < len(read)


def hook_of(kind: str, module: nn.Module) -> Any:
    if kind == "forward":
        return module.register_forward_hook(lambda module, args, result: result * 10)
    if kind == "before":
        return module.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return nn.modules.module.register_module_forward_hook(
        lambda module, args, result: result * 10 if isinstance(module, nn.Linear) else None
    )


@pytest.mark.parametrize("kind", ["forward", "before", "of all modules"])
def test_hooks_run(kind: str) -> None:
    model, x = Outer(), torch.randn(3, 4)
    plain = model(x)
    hook = hook_of(kind, model.layers[0].linear)
    try:
        assert not torch.allclose(model(x), plain)
        torch.testing.assert_close(jit(model, strict=True)(x), model(x))
    finally:
        hook.remove()


def changed(how: str, model: Outer) -> None:
    if how == "an attribute":
        model.layers[0].power = 3
    elif how == "a submodule":
        model.rest[2] = nn.ReLU()
    elif how == "a parameter":
        model.layers[1].linear.weight = nn.Parameter(torch.ones(4, 4))
    elif how == "a hook":
        hook_of("forward", model.layers[0].linear)
    else:
        model.eval()


def test_what_changes_after_a_call_is_seen_as_without() -> None:
    torch.manual_seed(0)
    model, x = Outer(), torch.randn(3, 4)
    both = [jit(model, strict=True, fast_tracing=fast) for fast in (True, False)]
    for jitted in both:
        jitted(x)
    for how in ("an attribute", "a submodule", "a parameter", "a hook", "a mode"):
        changed(how, model)
        fast, slow = (jitted(x) for jitted in both)
        assert torch.equal(fast, slow), how
        assert thunder.cache_misses(both[0]) == thunder.cache_misses(both[1]), how


def test_a_changed_global_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted, x = jit(globals_alone, strict=True), torch.randn(6, 4)
    torch.testing.assert_close(jitted(x), globals_alone(x))
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    torch.testing.assert_close(jitted(x), globals_alone(x))


def test_a_name_that_is_not_defined_is_an_error() -> None:
    with pytest.raises(NameError, match="nowhere"):
        jit(lambda x: x + nowhere, strict=True)(torch.randn(3))  # type: ignore[name-defined] # noqa: F821


class Own(nn.Linear):
    """Calls are counted by a way of its own."""

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        return super()._call_impl(*args, **kwargs) * 2


def test_a_module_with_a_call_of_its_own() -> None:
    model, x = Own(4, 4), torch.randn(3, 4)
    torch.testing.assert_close(jit(model, strict=True)(x), model(x))
    torch.testing.assert_close(jit(nn.Sequential(model), strict=True)(x), model(x))


def test_other_functions_of_thunder_are_read_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    read = names_read(monkeypatch)
    thunder.jit(Outer(), executors=[])(torch.randn(3, 4))
    assert "_call_impl" in read


# ------------------------------------------------------------------------ trials of Dynamo's calls


class Layers(nn.Module):
    """Layers that split, whose last one has another width."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 8) for _ in range(count))
        self.last = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            left, right = torch.chunk(layer(x), 2, -1)
            x = torch.tanh(left) * right[:, None, :].squeeze(1)
        return self.last(x)


@pytest.mark.parametrize("speedups", [True, False])
def test_a_call_that_layers_share_is_tried_once(
    speedups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one graph, on tensors of the same sizes, type and need of a gradient."""
    tried: list[str] = []
    of_thunder = torch_func._is_supported_by_thunder

    def counted(node: Any, *args: Any) -> Any:
        tried.append(str(node.target))
        return of_thunder(node, *args)

    monkeypatch.setattr(torch_func, "_is_supported_by_thunder", counted)
    counts = []
    for count in (2, 5):
        torch.manual_seed(0)
        model, x = Layers(count), torch.randn(3, 4)
        with options(thunder_speedups=speedups):
            found = thunderfx(model, executors=[fuser], fuser_strict=True)(x)
        torch.testing.assert_close(found, model(x))
        counts.append(len(tried))
        tried.clear()
    few, many = counts
    assert (few == many) is speedups and few >= 8
    with options(thunder_speedups=speedups):
        thunderfx(torch.tanh, executors=[fuser])(torch.randn(3, 4))
    assert len(tried) >= 1  # another graph


def test_other_calls_are_tried() -> None:
    """Those on other sizes, of another type or need of a gradient, or on what is no tensor."""
    graph = torch.fx.symbolic_trace(lambda x: torch.tanh(x) + 1)
    tanh = next(node for node in graph.graph.nodes if node.target is torch.tanh)
    texts = []
    for sizes, dtype in (((2,), torch.float32), ((3,), torch.float32), ((2,), torch.float64)):
        tanh.args[0].meta["example_value"] = torch.empty(sizes, dtype=dtype)  # type: ignore[union-attr]
        texts.append(torch_func._described(tanh))
    tanh.args[0].meta["example_value"] = torch.empty(2, requires_grad=True)  # type: ignore[union-attr]
    texts.append(torch_func._described(tanh))
    assert len({*texts}) == 4 and all(texts)
    tanh.args[0].meta["example_value"] = 2  # type: ignore[union-attr]
    assert torch_func._described(tanh) == ""
    del tanh.args[0].meta["example_value"]  # type: ignore[union-attr]
    assert torch_func._described(tanh) == ""
