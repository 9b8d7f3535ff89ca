# SPDX-License-Identifier: Apache-2.0
"""Regions write over what they are the last to read, and nobody can tell but by the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.core.proxies import TensorProxy
from thunder.core.transform_common import Transform
from thunder.extend import OperatorExecutor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from thunder_fuser.executors.fuser import fuser
from thunder_fuser.explain.jitted import Jitted, fusions_of, jit
from thunder_fuser.explain.programs import compiled

SIZES = (12, 16)


def arguments(*, gradients: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(size).requires_grad_(gradients) for size in (SIZES, (16, 16))]


def loss(x: Any, w: Any) -> Any:
    """The product is read by both directions, by the backward last."""
    return F.gelu(x @ w).square().sum()


def donated(jitted: Jitted) -> tuple[int, int]:
    """How many inputs of regions are donated: always, and where they are freed."""
    memory = [fusion.memory for fusion in fusions_of(jitted)]
    freed = (len(each.donated_if_freed) for each in memory)
    return sum(len(each.donated) for each in memory), sum(freed)


def overwritten(jitted: Jitted) -> list[bool]:
    """Of each program that has run, whether it writes over an argument."""
    return [
        any(segment.part.overwrites for segment in program.segments)
        for one in fusions_of(jitted) for program in compiled(one)
    ]


def gradients(function: Callable[..., Any], values: list[torch.Tensor], **given: Any) -> Any:
    return torch.autograd.grad(function(*values), values, **given)


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("emulate", [False, True])
def test_what_the_forward_kept(emulate: bool) -> None:
    values = arguments()
    jitted = jit(loss, strict=True, emulate=emulate)
    assert_same(gradients(jitted, values), gradients(loss, values))
    assert donated(jitted)[1] == 1 and any(overwritten(jitted))


def test_a_graph_that_is_retained() -> None:
    """Twice from one graph, then a last time: every time the same."""
    values = arguments()
    jitted = jit(loss, strict=True)
    expected = gradients(loss, values)
    result = jitted(*values)
    for last in (False, False, True):
        found = torch.autograd.grad(result, values, retain_graph=not last)
        assert_same(found, expected)
    assert donated(jitted)[1] == 1 and any(overwritten(jitted))


def test_without_autograd() -> None:
    values = arguments(gradients=False)
    jitted = jit(lambda x, w: F.gelu(x @ w), strict=True)
    torch.testing.assert_close(jitted(*values), F.gelu(values[0] @ values[1]))
    assert donated(jitted) == (1, 0) and overwritten(jitted) == [True]


def test_bits_are_those_without_donation() -> None:
    values = arguments()
    found = [gradients(jit(loss, strict=True, donation=on), values) for on in (True, False)]
    assert all(map(torch.equal, *found))
    off = jit(loss, strict=True, donation=False)
    gradients(off, values)
    assert donated(off) == (0, 0) and not any(overwritten(off))


def returned(x: Any, w: Any) -> Any:
    h = x @ w
    return F.gelu(h), h


def view_returned(x: Any, w: Any) -> Any:
    h = x @ w
    return F.gelu(h), h.view(-1)


def view_read_later(x: Any, w: Any) -> Any:
    h = x @ w
    return F.gelu(h).view(-1) @ h.view(-1)


def argument(x: Any, w: Any) -> Any:
    return F.gelu(x) @ w


def argument_as_view(x: Any, w: Any) -> Any:
    return F.gelu(x.view(16, 12)).view(12, 16) @ w


def written_in_place(x: Any, w: Any) -> Any:
    h = x @ w
    row = h[0]
    h.add_(1.0)
    return F.gelu(h) @ w, row


def made_by_a_region(x: Any, w: Any) -> Any:
    """Its result may be its argument itself, as of `x.view_as(x)`."""
    return torch.sort(F.gelu(x * 2))[0].cos() @ w


STAY = (
    returned, view_returned, view_read_later, argument, argument_as_view, written_in_place,
    made_by_a_region,
)  # fmt: skip


@pytest.mark.parametrize("function", STAY, ids=lambda function: function.__name__)
def test_what_others_may_read_stays(function: Callable[..., Any]) -> None:
    values = arguments(gradients=False)
    before = [value.clone() for value in values]
    jitted = jit(function, strict=True)
    found, expected = jitted(*values), function(*values)
    if not isinstance(found, tuple):
        found, expected = (found,), (expected,)
    assert_same(found, expected)
    assert all(map(torch.equal, values, before))
    assert donated(jitted) == (0, 0)


# Torch's own functions, which Thunder passes on and knows nothing of: all of them give views.
UNKNOWN: dict[str, Callable[[Any], Any]] = {
    "detach": lambda h: h.detach(),
    "narrow": lambda h: h.narrow(0, 0, 4),
    "swapaxes": lambda h: torch.swapaxes(h, 0, 1),
    "ravel": lambda h: h.ravel(),
    "positive": torch.positive,
    "hsplit": lambda h: torch.hsplit(h, 2)[0],
    "linalg.diagonal": torch.linalg.diagonal,
}


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_nobody_knows_may_be_a_view(name: str, trains: bool) -> None:
    def function(x: Any, w: Any) -> Any:
        h = x @ w
        with torch.no_grad():
            kept = UNKNOWN[name](h)
        return F.gelu(h), kept

    values = arguments(gradients=trains)
    result, kept = jit(function, strict=True)(*values)
    before = UNKNOWN[name](values[0] @ values[1])
    if trains:
        result.sum().backward()
    torch.testing.assert_close(kept, before)


def test_an_operator_of_the_user() -> None:
    executor = OperatorExecutor("views_of_a_user", version="1")
    turned = executor.register_operator(
        "turned", meta=lambda a: TensorProxy(like=a, shape=a.shape[::-1]), fn=lambda a: a.t()
    )

    def function(x: Any, w: Any) -> Any:
        h = x @ w
        return turned(h), F.gelu(h)

    x, w = arguments(gradients=False)
    jitted = thunder.jit(function, executors=[executor, fuser])
    torch.testing.assert_close(jitted(x, w)[0], (x @ w).t())


def test_transforms_of_the_final_trace_may_move_calls() -> None:
    class Watching(Transform):
        def transform_trace_post_optimization(self, trace: Any, **given: Any) -> Any:
            return trace

    values = arguments()
    for transforms, count in (((), 1), ((Watching(),), 0)):
        jitted = thunder.jit(
            loss, executors=[fuser], fuser_strict=True, transforms=list(transforms)
        )
        assert_same(gradients(jitted, values), gradients(loss, values))
        assert donated(jitted)[1] == count


def test_the_last_of_two_readers() -> None:
    def twice(x: Any, w: Any) -> Any:
        h = x @ w
        first = F.gelu(h) @ w
        return first, h.cos() @ w

    values = arguments(gradients=False)
    jitted = jit(twice, strict=True)
    assert_same(jitted(*values), twice(*values))
    first, second = (one.memory for one in fusions_of(jitted))
    assert not first.donated and len(second.donated) == 1


def test_logits_that_are_returned_are_not_a_gradient() -> None:
    def both(x: Any, w: Any) -> Any:
        logits = x @ w
        return F.cross_entropy(logits, torch.arange(12)), logits

    values = arguments()
    jitted = jit(both, strict=True)
    result, logits = jitted(*values)
    before = logits.detach().clone()
    found = torch.autograd.grad(result, values)
    assert torch.equal(logits, before)
    assert_same(found, torch.autograd.grad(both(*values)[0], values))


def test_regions_of_a_forward_with_a_backward_get_nothing() -> None:
    values = arguments()
    jitted = jit(loss, strict=True)
    gradients(jitted, values)
    forward = [one.memory for one in fusions_of(jitted) if not one.region.is_backward]
    assert forward and not any(one.donated or one.donated_if_freed for one in forward)


def test_hooks_of_saved_tensors() -> None:
    values = arguments()
    expected = gradients(loss, values)
    jitted = jit(loss, strict=True)
    with save_on_cpu():
        assert_same(gradients(jitted, values), expected)
    seen: list[torch.Tensor] = []
    with saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
        assert_same(gradients(jitted, values), expected)
    assert seen


def test_a_checkpointed_call() -> None:
    values = arguments()
    expected = gradients(loss, values)
    jitted = jit(loss, strict=True)
    found = gradients(lambda x, w: checkpoint(jitted, x, w, use_reentrant=False), values)
    assert_same(found, expected)


def test_a_module_twice_in_one_graph() -> None:
    """Each call keeps tensors of its own."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 16))
    jitted = thunder.jit(model, executors=[fuser])
    x = torch.randn(SIZES, requires_grad=True)
    found = torch.autograd.grad(jitted(jitted(x)).sum(), x)
    assert_same(found, torch.autograd.grad(model(model(x)).sum(), x))


def test_other_sizes_and_layouts() -> None:
    jitted = jit(loss, strict=True)
    for x in (torch.randn(3, 16), torch.randn(16, 5).t(), torch.randn(1, 16), torch.randn(0, 16)):
        values = [x.requires_grad_(), torch.randn(16, 16, requires_grad=True)]
        assert_same(gradients(jitted, values), gradients(loss, values))
