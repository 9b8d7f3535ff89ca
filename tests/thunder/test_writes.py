# SPDX-License-Identifier: Apache-2.0
"""Regions that write arguments in place: as eager torch, with one kernel where its copies stood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from torch import Tensor, nn

import thunder_fuser
from thunder_fuser.errors import InPlaceError
from thunder_fuser.executors.fuser import fuser

JITS: dict[str, Callable[..., Any]] = {
    "thunder.jit": lambda f, **options: thunder.jit(f, executors=[fuser], **options),
    "thunder_fuser.jit": thunder_fuser.jit,
}


@pytest.fixture(params=JITS.values(), ids=JITS.keys())
def jit(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.param  # type: ignore[no-any-return]


def adam(p: Tensor, m: Tensor, v: Tensor, g: Tensor) -> Tensor:
    p.mul_(0.999)
    m.lerp_(g, 0.1)
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    p.addcdiv_(m, v.sqrt().add_(1e-8), value=-0.01)
    return p


def tensors(*shape: int, count: int = 4) -> list[Tensor]:
    return [torch.rand(shape) for _ in range(count)]


def fusions(jitted: Any) -> list[str]:
    """The calls of the final trace that compute or copy."""
    names = [bsym.sym.name for bsym in thunder.last_traces(jitted)[-1].bound_symbols]
    return [name for name in names if "Fusion" in name or "copy" in name]


def check(jitted: Callable[..., Any], function: Callable[..., Any], *args: Tensor) -> None:
    """Results, and what the arguments are afterwards."""
    theirs = [one.clone() for one in args]
    found, expected = jitted(*args), function(*theirs)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(args, tuple(theirs))


@pytest.mark.parametrize("shape", [(1000,), (33, 70), (1,), (), (0, 4), (7, 1, 5)], ids=str)
def test_a_step_of_an_optimizer_is_one_kernel(jit: Any, shape: tuple[int, ...]) -> None:
    jitted = jit(adam, fuser_strict=True)
    for _ in range(3):
        check(jitted, adam, *tensors(*shape))
    assert fusions(jitted) == ["thunderFusion0"]
    args = tensors(*shape)
    assert jitted(*args) is args[0]


def test_in_any_order_in_memory(jit: Any) -> None:
    jitted = jit(adam, fuser_strict=True)
    for order in ((0, 1), (1, 0)):
        check(jitted, adam, *(one.permute(order) for one in tensors(6, 6)))
    wide = tensors(6, 12)
    check(jitted, adam, *(one[:, ::2] for one in wide))
    check(jitted, adam, *(one[:, 3:9] for one in wide))
    mixed = tensors(6, 6)
    check(jitted, adam, mixed[0].t(), *mixed[1:])


def test_what_is_contiguous_beside_a_write_is_not_copied(jit: Any) -> None:
    def both(a: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return c.add_(1), a.contiguous()

    jitted = jit(both, fuser_strict=True)
    for order in ((0, 1), (1, 0)):
        a, c = (one.permute(order) for one in tensors(4, 5)[:2])
        written, found = jitted(a, c)
        torch.testing.assert_close((written, found), (c, a))
        assert (found.data_ptr() == a.data_ptr()) is a.is_contiguous()


class Moving(nn.Module):
    """Statistics in buffers, which may share memory though Thunder does not know of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("square", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.mean(0), 0.1)
        self.square.mul_(0.9).add_(x.square().mean(0), alpha=0.1)
        return (x - self.mean) / self.square.sqrt()


@pytest.mark.parametrize("native", [True, False], ids=["C", "Python"])
def test_buffers_that_share_memory(jit: Any, native: bool) -> None:
    x = torch.randn(5, 8)
    for start in (16, 8, 7, 0):
        ours, theirs = Moving(), Moving()
        for module in (ours, theirs):
            flat = torch.linspace(1, 2, 40)
            module.mean, module.square = flat[:8], flat[start : start + 8]
        jitted = jit(ours, fuser_native_calls=native)
        for _ in range(3):
            torch.testing.assert_close(jitted(x), theirs(x))
        torch.testing.assert_close(ours.mean, theirs.mean)
        torch.testing.assert_close(ours.square, theirs.square)


def test_a_batch_norm_is_one_region(jit: Any) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8), nn.ReLU(),
        )  # fmt: skip

    ours, theirs, exact = model(), model(), model().double()
    jitted = jit(ours, fuser_strict=True)
    for _ in range(3):
        x = torch.randn(4, 3, 10, 10)
        jitted(x).square().sum().backward()
        theirs(x).square().sum().backward()
        exact(x.double()).square().sum().backward()
    forward = fusions(jitted)
    assert forward == ["thunderFusion0", "thunderFusion1"]
    for (name, one), other, best in zip(
        ours.named_buffers(), theirs.buffers(), exact.buffers(), strict=True
    ):
        error = (other - best).abs().max() if other.is_floating_point() else 0
        assert (one - best).abs().max() <= 4 * error + 1e-6, name
    for one, other, best in zip(
        ours.parameters(), theirs.parameters(), exact.parameters(), strict=True
    ):
        error = (other.grad - best.grad).abs().max()
        assert (one.grad - best.grad).abs().max() <= 4 * error + 1e-4


def test_a_leaf_that_requires_grad_must_not_be_written(jit: Any) -> None:
    args = tensors(8)
    args[0].requires_grad_()
    with pytest.raises(InPlaceError, match="which requires a gradient"):
        jit(adam)(*args)

    def under_no_grad(*args: Tensor) -> Tensor:
        with torch.no_grad():
            return adam(*args)

    theirs = [one.detach().clone() for one in args]
    jit(under_no_grad)(*args)
    adam(*theirs)
    torch.testing.assert_close([one.detach() for one in args], theirs)


def test_autograd_knows_of_the_write(jit: Any) -> None:
    args, w = tensors(8), torch.rand(8, requires_grad=True)
    loss = (w * args[1]).sum()
    jit(adam)(*args)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_value_that_is_written_and_returned(jit: Any) -> None:
    """It has memory of its own, even if another op makes it once more."""

    def function(p: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        kept, same = p + g, p + g
        p.copy_(kept)
        p.add_(1.0)
        return kept, same, p, p * 2

    def last(p: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        kept = p * g
        p.copy_(kept)
        return kept, p

    for one in (function, last):
        for shape in ((9,), ()):
            p, g = tensors(*shape, count=2)
            theirs = p.clone()
            found, expected = jit(one)(p, g), one(theirs, g)
            torch.testing.assert_close(found, expected)
            assert [one is p for one in found] == [one is theirs for one in expected]
            places = [one.data_ptr() for one in found]
            assert len({*places}) == len(places)


def test_what_was_and_what_is(jit: Any) -> None:
    def function(p: Tensor, q: Tensor) -> tuple[Tensor, ...]:
        before = p.sum() + q
        p.mul_(q)
        between = p.sum()
        q.add_(p)
        p.sub_(q.mean())
        return before, between, p + q, p.max()

    jitted = jit(function, fuser_strict=True)
    check(jitted, function, *tensors(6, 8, count=2))
    check(jitted, function, *tensors(200, 300, count=2))


def test_other_types(jit: Any) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        y.mul_(2)
        return x + y

    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8):
        check(jit(function, fuser_strict=True), function, *(
            (one * 50).to(dtype) for one in tensors(33, count=2)
        ))  # fmt: skip


def test_with_gradients_through_the_value(jit: Any) -> None:
    """What a backward needs of an argument is what it was then."""

    def function(x: Tensor, state: Tensor) -> Tensor:
        y = x * state.clone()
        state.mul_(0.5).add_(y.detach().mean(0))
        return (y * state).sin()

    ours, theirs = (torch.linspace(0, 1, 24).view(3, 8).requires_grad_() for _ in range(2))
    states = [torch.ones(8), torch.ones(8)]
    jitted = jit(function)
    for _ in range(2):
        jitted(ours, states[0]).sum().backward()
        function(theirs, states[1]).sum().backward()
    torch.testing.assert_close(states[0], states[1])
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_an_expanded_argument_is_refused_as_in_torch(jit: Any) -> None:
    args = tensors(4, 8)
    args[0] = torch.rand(1, 8).expand(4, 8)
    with pytest.raises(RuntimeError, match="more than one element"), pytest.warns(UserWarning):
        jit(adam)(*args)


def test_views_of_an_argument_stay_with_torch(jit: Any) -> None:
    def function(p: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        row = p[0]
        p.mul_(g)
        row.add_(1.0)
        p.add_(g)
        return p, row

    check(jit(function), function, *tensors(4, 8, count=2))


def test_many_arguments(jit: Any) -> None:
    def function(*args: Tensor) -> None:
        for one in args:
            one.mul_(0.5)
            one.add_(1.0)

    check(jit(function, fuser_strict=True), function, *tensors(5, count=150))


def test_what_is_copied_between_two_writes(jit: Any) -> None:
    """A reshape that copies reads what the first of them has written, if buffers share memory."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            flat = torch.linspace(1, 2, 24)
            self.register_buffer("first", flat[:12])
            self.register_buffer("second", torch.ones(12))
            self.register_buffer("crossed", flat[:12].view(3, 4).t())

        def forward(self, x: Tensor) -> Tensor:
            self.first.mul_(x)
            y = self.crossed.reshape(12) * 2
            self.second.add_(y)
            return y

    ours, theirs, x = Module(), Module(), torch.rand(12)
    torch.testing.assert_close(jit(ours)(x), theirs(x))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_values_that_change_places(jit: Any) -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        before = x + 0.0
        x.copy_(y * 2)
        y.copy_(before)
        z.copy_(x.sum(0))
        return z

    jitted = jit(function, fuser_strict=True)
    args = [*tensors(5, 33, count=2), torch.rand(33)]
    check(jitted, function, *args)
    assert fusions(jitted) == ["thunderFusion0"]


def test_state_that_is_only_written(jit: Any) -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(8))
            self.register_buffer("peak", torch.zeros(4, 8))

        def forward(self, x: Tensor) -> Tensor:
            self.last.copy_(x.mean(0))
            self.peak.copy_(x.abs() * 2)
            return x.softmax(1)

    ours, theirs = Module(), Module()
    jitted = jit(ours, fuser_strict=True)
    for _ in range(2):
        x = torch.randn(4, 8)
        torch.testing.assert_close(jitted(x), theirs(x))
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_a_view_that_the_region_reads_too_is_a_view(jit: Any, shape: tuple[int, ...]) -> None:
    """A region that writes one argument, and reads a view of another that the user gets."""

    def function(a: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        c.add_(10)
        wide = a.expand(2, *a.shape)
        return wide, torch.fmin(wide, a)

    jitted = jit(function, fuser_strict=True)
    args = [torch.rand(shape), torch.rand(())]
    check(jitted, function, *args)
    assert jitted(*args)[0].data_ptr() == args[0].data_ptr()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, dtype=torch.bfloat16),
        lambda: torch.full((3,), 2.0),
        lambda: torch.arange(3.0),
        lambda: torch.tensor([1.0, 2.0, 3.0]),
    ],
    ids=["ones", "full", "arange", "numbers"],
)
def test_what_a_region_makes_of_numbers_is_no_argument(make: Any) -> None:
    """A region that reads nothing made it; it was taken for an argument that the region writes."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = make()
        y = torch.nn.functional.celu(made)
        made.copy_(y)
        return made, y, x * 2

    jitted = thunder.jit(function, executors=[fuser], fuser_strict=True)
    torch.testing.assert_close(jitted(torch.ones(3)), function(torch.ones(3)))
