# SPDX-License-Identifier: Apache-2.0
"""thunder_fuser.jit: results, gradients and options are those of thunder.jit(executors=[fuser])."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import thunder_fuser
from thunder_fuser import fuser
from thunder_fuser.demo.blocks import SMALL, make_block, make_input
from thunder_fuser.errors import FuserError
from thunder_fuser.explain import kernels, report
from thunder_fuser.fast_path import calls
from thunder_fuser.fast_path.calls import SPLIT, fast_path_of

Tensors = Sequence[torch.Tensor]
JITS: list[Callable[..., Any]] = [
    thunder_fuser.jit,
    lambda function, **options: thunder.jit(function, executors=[fuser], **options),
]


def three(x: torch.Tensor, y: torch.Tensor) -> Any:
    """A result, a view of it, an argument, and one that has no gradient."""
    z = torch.tanh(x) * y + y
    return {"z": z, "view": z[0], "same": x, "is": z > 0}


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(3, 4, requires_grad=True) for _ in range(2)]


def both(
    use: Callable[[Any, list[torch.Tensor]], Any],
    function: Any = three,
    make: Callable[[], list[torch.Tensor]] = inputs,
) -> None:
    """`use` of both jits, in their third call, finds or raises the same."""
    found = []
    for jit in JITS:
        jitted = jit(deepcopy(function), fuser_fuel=0)
        for _ in range(2):
            jitted(*make())
        try:
            found.append(use(jitted, make()))
        except RuntimeError as error:
            found.append(str(error))
    assert type(found[0]) is type(found[1])
    if isinstance(found[0], str):
        assert found[0].splitlines()[0] == found[1].splitlines()[0]
    else:
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def grads(xs: Tensors) -> list[torch.Tensor | None]:
    return [x.grad for x in xs]


def test_results() -> None:
    def use(jitted: Any, xs: Tensors) -> Any:
        found = jitted(*xs)
        assert found["same"] is xs[0]
        return found, [one.requires_grad for one in found.values()]

    both(use)


def test_gradients() -> None:
    def use(jitted: Any, xs: Tensors) -> Any:
        found = jitted(*xs)
        (found["z"].sum() * 2 + found["same"].sum() * 3).backward()
        return grads(xs)

    both(use)


def test_gradient_through_a_view() -> None:
    both(lambda jitted, xs: torch.autograd.grad(jitted(*xs)["view"].sum(), xs[:1]))


def test_retain_graph() -> None:
    def use(jitted: Any, xs: Tensors) -> Any:
        loss = jitted(*xs)["z"].square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return grads(xs)

    both(use)


def test_backward_twice_is_refused() -> None:
    def use(jitted: Any, xs: Tensors) -> Any:
        loss = jitted(*xs)["z"].sum()
        loss.backward()
        loss.backward()

    both(use)


def test_create_graph() -> None:
    def first(jitted: Any, xs: Tensors) -> Any:
        return torch.autograd.grad(jitted(*xs)["z"].square().sum(), xs, create_graph=True)

    both(lambda jitted, xs: [one.detach() for one in first(jitted, xs)])
    jitted = thunder_fuser.jit(three, fuser_fuel=0)
    for _ in range(2):
        found, _ = first(jitted, inputs())
        with pytest.raises(RuntimeError, match=TWICE):
            found.sum().backward()


@pytest.mark.parametrize("above", [torch.clone, torch.sin])
def test_a_second_derivative_raises_where_no_gradient_of_a_result_asks_for_one(
    above: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """autograd hands ones to the backward of a sum."""
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    jitted = thunder_fuser.jit(lambda x: (x**3).sum(), fuser_fuel=0)
    for _ in range(3):  # the first call compiles
        (found,) = torch.autograd.grad(jitted(above(x)), x, create_graph=True)
        (wanted,) = torch.autograd.grad(above(x).pow(3).sum(), x)
        torch.testing.assert_close(found.detach(), wanted)
        with pytest.raises(RuntimeError, match=TWICE):
            found.norm().backward()


TWICE = "got the derivative of a gradient"


def test_what_asks_torch_for_a_second_derivative_raises() -> None:
    """Each of them takes a derivative that is not found for 0."""
    x = torch.tensor([1.0, 2.0])
    for function, ask in (
        (lambda x: (x**3).sum(), torch.autograd.functional.hessian),
        (lambda x: (x**3).sum(), lambda f, x: torch.autograd.functional.vhp(f, x, x)),
        (lambda x: x**3, lambda f, x: torch.autograd.functional.jvp(f, x, x)),
    ):
        jitted = thunder_fuser.jit(function, fuser_fuel=0)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=TWICE):
                ask(jitted, x)


def test_what_was_kept_is_written() -> None:
    def use(jitted: Any, xs: Tensors) -> Any:
        found = jitted(*xs)["z"]
        with torch.no_grad():
            xs[1].add_(1.0)
        found.sum().backward()

    both(use)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool) -> None:
    def use(jitted: Any, xs: Tensors) -> Any:
        found = checkpoint(lambda *xs: jitted(*xs)["z"], *xs, use_reentrant=reentrant)
        found.square().sum().backward()
        return found, grads(xs)

    both(use)


def test_hooks() -> None:
    def use(jitted: Any, xs: Tensors) -> Any:
        seen: list[torch.Tensor] = []
        found = jitted(*xs)["z"]
        found.register_hook(lambda grad: seen.append(grad) or grad * 2)
        xs[0].register_hook(seen.append)
        found.sum().backward()
        return seen, grads(xs)

    both(use)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_without_gradients_after_gradients(around: Any) -> None:
    def use(jitted: Any, xs: Tensors) -> Any:
        jitted(*xs)
        with around():
            found = [jitted(*xs) for _ in range(2)]
            assert not torch.is_grad_enabled()
        assert torch.is_grad_enabled()
        return [[one.requires_grad for one in each.values()] for each in found]

    both(use)


def test_arguments_written_in_place() -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.mul_(2.0)
        return x + y, x

    def plain() -> list[torch.Tensor]:
        return [one.detach() for one in inputs()]

    def use(jitted: Any, xs: Tensors) -> Any:
        found = jitted(*xs)
        return found, [*xs], found[1] is xs[0]

    both(use, write, plain)


class Norm(nn.Module):
    """Writes its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.norm(self.up(x)), 0.5, training=self.training) + y


def test_buffers_and_dropout() -> None:
    torch.manual_seed(0)

    def use(jitted: Any, xs: Tensors) -> Any:
        torch.manual_seed(5)
        for _ in range(3):
            jitted(*xs).square().sum().backward()
        jitted.eval()
        found = jitted(*xs)
        return found, grads(xs), {name: p.grad for name, p in jitted.named_parameters()}, dict(
            jitted.named_buffers()
        )

    both(use, Norm())


def test_a_block() -> None:
    def use(jitted: Any, xs: Tensors) -> Any:
        results = jitted(*xs)
        results.backward(gradient)
        assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 2)
        return results, grads([*xs, *jitted.parameters()])

    x, gradient = make_input(SMALL, torch.float32, "cpu")
    block = make_block("llama", SMALL, torch.float32, "cpu")
    both(use, block, lambda: [x.detach().requires_grad_()])


def test_kernels() -> None:
    found = []
    for jit in JITS:
        jitted = jit(lambda x, y: torch.tanh(x) * y + y, fuser_strict=True)
        for _ in range(3):
            xs = inputs()
            results = jitted(*xs)
            results.square().sum().backward()
        found.append([results, *grads(xs)])
        assert len(kernels(jitted)) > 0
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_autocast() -> None:
    def use(jitted: Any, xs: Tensors) -> Any:
        found = []
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                results = jitted(*xs)
                assert torch.is_autocast_enabled("cpu")
                results.float().sum().backward()
                found.append((results, grads(xs)))
            found.append(jitted(*xs))
            assert not torch.is_autocast_enabled("cpu")
        return found

    both(use, Norm().eval())


def test_backward_leaves_autocast_as_it_is() -> None:
    """Thunder sets what was on when the trace was compiled."""
    jitted, xs = thunder_fuser.jit(Norm().eval(), fuser_fuel=0), inputs()
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = jitted(*xs).sum()
        loss.backward()
    assert not torch.is_autocast_enabled("cpu")


def test_shapes_and_an_emptied_cache() -> None:
    jitted = thunder_fuser.jit(lambda x: torch.tanh(x) * 2, fuser_fuel=0)
    xs = [torch.randn(size) for size in range(2, 8)]
    for _ in range(3):
        for x in xs:
            torch.testing.assert_close(jitted(x), torch.tanh(x) * 2)
    stats = thunder.compile_stats(jitted)
    assert (stats.cache_misses, stats.cache_hits, stats.calls) == (6, 12, 18)
    assert thunder.last_traces(jitted) is stats.interpreter_cache[-1].computation_traces
    jitted(xs[0])
    assert thunder.last_traces(jitted) is stats.interpreter_cache[0].computation_traces
    stats.interpreter_cache.clear()
    torch.testing.assert_close(jitted(xs[0]), torch.tanh(xs[0]) * 2)
    assert stats.cache_misses == 7


def test_threads() -> None:
    """Each with its own shape and its own grad mode, all of them new at once."""
    jitted = thunder_fuser.jit(lambda x, w: (torch.tanh(x) * w).sum(), fuser_fuel=0)
    wrong: list[str] = []

    def work(size: int) -> None:
        x, w = torch.randn(size), torch.ones(size, requires_grad=True)
        for turn in range(30):
            with torch.set_grad_enabled(turn % 2 == 0):
                found = jitted(x, w)
            if found.requires_grad != (turn % 2 == 0):
                wrong.append(f"size {size}: requires_grad in turn {turn}")
            if found.requires_grad and not torch.allclose(
                torch.autograd.grad(found, w)[0], torch.tanh(x)
            ):
                wrong.append(f"size {size}: gradient in turn {turn}")

    for size in range(2, 5):  # Thunder itself compiles one call at a time
        work(size)
    threads = [threading.Thread(target=work, args=(2 + at % 3,)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 4), lambda: lambda x: torch.tanh(x) * 2])
def test_nothing_holds_what_nobody_uses(make: Callable[[], Any]) -> None:
    function = make()
    alive = weakref.ref(function)
    jitted = thunder_fuser.jit(function, fuser_fuel=0)
    for _ in range(2):
        jitted(torch.ones(2, 4))
    gc.collect()
    del function, jitted
    gc.collect()
    assert alive() is None


def test_inside_a_transform_and_inside_another_jit() -> None:
    jitted = thunder_fuser.jit(lambda x: torch.tanh(x) * 2, fuser_fuel=0)
    x = torch.randn(3)
    jitted(x)
    outer = thunder.jit(lambda x: jitted(x) + 1)
    with pytest.warns(UserWarning, match="from a jitted function"):
        torch.testing.assert_close(outer(x), torch.tanh(x) * 2 + 1)
    found = []
    for jit in JITS:
        inner = jit(lambda x: (torch.tanh(x) * 2).sum(), fuser_fuel=0)
        inner(x)
        try:
            found.append(torch.func.grad(inner)(x))
        except Exception as error:
            found.append(type(error))
    assert str(found[0]) == str(found[1])


# ---- options


def test_options_and_reports() -> None:
    jitted = thunder_fuser.jit(lambda x: torch.tanh(x) * 2, fuser_name_prefix="mine")
    for _ in range(2):
        jitted(torch.randn(8))
    assert [one.name for one in report(jitted).fusions] == ["mine0"]
    assert len(kernels(jitted)) == 1


def test_a_wrong_option() -> None:
    with pytest.raises(FuserError, match="fuser_strict"):
        thunder_fuser.jit(lambda x: x + 1, fuser_strickt=True)(torch.ones(2))


def test_executors() -> None:
    jitted = thunder_fuser.jit(lambda x: x + 1)
    found = thunder.compile_data(jitted).executors_list
    ours = found.index(fuser)
    assert all(found.index(one) > ours for one in thunder.get_default_executors() if one in found)
    assert thunder_fuser.jit(lambda x: x + 1, executors=["thunder_fuser"])(torch.ones(1)) == 2
    with pytest.raises(FuserError, match=r"executors=\[fuser, ...\]"):
        thunder_fuser.jit(lambda x: x + 1, executors=["torch"])


@pytest.mark.parametrize(
    ("given", "node"),
    [
        ({}, "_ConnectionBackward"),
        ({SPLIT: False}, "ThunderOutputFunctionBackward"),
        ({"is_differentiable_outputs": [False, False, False, True]}, "ThunderFunctionBackward"),
    ],
)
def test_functions_of_autograd(given: dict[str, Any], node: str) -> None:
    jitted = thunder_fuser.jit(three, fuser_fuel=0, **given)
    for _ in range(2):
        xs = inputs()
        found = jitted(*xs)
        found["z"].sum().backward()
        torch.testing.assert_close(xs[1].grad, torch.tanh(xs[0]) + 1)
    assert type(found["z"].grad_fn).__name__ == node


@pytest.mark.parametrize("given", [{}, {SPLIT: True}])
def test_large_results_have_two_functions(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LARGE", 80)  # 20 floats
    jitted = thunder_fuser.jit(lambda x: torch.tanh(x) * 2, fuser_fuel=0, **given)
    names = []
    for size in (19, 20):
        x = torch.ones(size, requires_grad=True)
        for _ in range(2):
            found = jitted(x)
        found.sum().backward()
        torch.testing.assert_close(x.grad, 2 - 2 * torch.tanh(x) ** 2)
        names.append(type(found.grad_fn).__name__)
    large = "_ConnectionBackward" if given else "ThunderOutputFunctionBackward"
    assert names == ["_ConnectionBackward", large]


@pytest.mark.parametrize("cache", ["no caching", "symbolic values"])
def test_other_caches_are_left_to_thunder(cache: str) -> None:
    jitted = thunder_fuser.jit(lambda x, n: x * n, fuser_fuel=0, cache=cache)
    for n in (2, 2, 3):
        assert all(one.guarded is None for one in fast_path_of(jitted).all_known())
        torch.testing.assert_close(jitted(torch.ones(3), n), torch.full((3,), float(n)))
