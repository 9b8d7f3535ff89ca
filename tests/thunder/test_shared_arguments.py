# SPDX-License-Identifier: Apache-2.0
"""Arguments that share memory, in programs that write in place: as in eager torch, or refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import thunder
import torch
from thunder.dynamo import thunderfx
from torch import Tensor, nn

import thunder_fuser
from thunder_fuser import fuser
from thunder_fuser.errors import InPlaceError

Jit = Callable[..., Any]
JITS: dict[str, Jit] = {
    "thunder.jit": thunder.jit,
    "with the fuser": partial(thunder.jit, executors=[fuser]),
    "thunder_fuser.jit": thunder_fuser.jit,
    "thunderfx": partial(thunderfx, executors=[fuser]),
}
by_each_jit = pytest.mark.parametrize("jit", JITS.values(), ids=[*JITS])
by_jits_of_thunder = pytest.mark.parametrize("jit", [*JITS.values()][:3], ids=[*JITS][:3])

# Each takes a [4, 6] from which it cuts the arguments.
Cut = Callable[[Tensor], tuple[Any, ...]]
CASES: dict[str, tuple[Callable[..., Tensor], Cut]] = {}


def case(cut: Cut) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    def add(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        CASES[function.__name__] = function, cut
        return function

    return add


# ---- written: memory of the program's own


@case(lambda b: (b[0], b[1], torch.ones(6)))
def a_value(x: Any, y: Any, w: Any) -> Any:
    h = x * 1
    h.add_(1)
    return h + 10 * y + 100 * w


@case(lambda b: (b[0], 2.0, b[1], torch.ones(6)))
def behind_a_number(x: Any, number: Any, y: Any, w: Any) -> Any:
    h = x * number
    h.add_(1)
    return h + 10 * y + 100 * w


@case(lambda b: (torch.zeros(6), b[0], b[1], torch.ones(6)))
def behind_what_is_not_read(unread: Any, x: Any, y: Any, w: Any) -> Any:
    h = x * 1
    h.add_(1)
    return h + 10 * y + 100 * w


@case(lambda b: (b[:-1], b[1:]))
def that_overlap(tokens: Any, targets: Any) -> Any:
    h = tokens * 1
    h.mul_(2)
    return h - targets


@case(lambda b: ([b[0], b[2]], {"bias": b[1]}))
def in_containers(rows: Any, named: Any) -> Any:
    h = rows[0] * rows[1]
    h.mul_(2)
    return h - named["bias"]


# ---- written: an argument


@case(lambda b: (b[0], b[0], torch.ones(6)))
def one_tensor_twice(x: Any, y: Any, w: Any) -> Any:
    x.add_(1)
    return x + 10 * y + 100 * w


@case(lambda b: (b[0], b[1], torch.ones(6)))
def apart(x: Any, y: Any, w: Any) -> Any:
    x.add_(1)
    return x + 10 * y + 100 * w


@case(lambda b: (torch.ones(6), b[0], b[1], b[0]))
def behind_one_more(w: Any, x: Any, y: Any, z: Any) -> Any:
    x.add_(w)
    return x + 10 * y + 100 * z


@case(lambda b: (b[0], b[0].view(2, 3), b[0]))
def as_another_shape(x: Any, y: Any, z: Any) -> Any:
    x.add_(1)
    return x + y.view(6) * z


@by_each_jit
@pytest.mark.parametrize("name", CASES)
def test_values_and_arguments(name: str, jit: Jit) -> None:
    torch._dynamo.reset()
    function, cut = CASES[name]
    jitted = jit(function)
    for _ in range(2):
        base, other = torch.arange(24.0).view(4, 6), torch.arange(24.0).view(4, 6)
        torch.testing.assert_close(jitted(*cut(base)), function(*cut(other)))
        torch.testing.assert_close(base, other)


# ------------------------------------------------------------------------------------- gradients


class Statistics(nn.Module):
    """Writes a buffer. thunderfx leaves `detach` to torch: x and x.detach() are two arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((6,), 3.0))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        self.mean.add_(x.detach().mean(0))
        return ((x * self.weight + self.mean - target) ** 2).sum()


@by_each_jit
def test_gradients_beside_a_buffer_that_is_written(jit: Jit) -> None:
    torch._dynamo.reset()
    found = []
    for wrap in (jit, lambda net: net):
        net = Statistics()
        x = torch.arange(24.0).view(4, 6).requires_grad_()
        wrap(net)(x[:3], torch.arange(24.0).view(4, 6)[1:]).backward()
        found.append([x.grad, net.weight.grad, net.mean])
    torch.testing.assert_close(*found)


@by_each_jit
def test_tokens_and_targets_of_one_batch(jit: Jit) -> None:
    """With a batch norm, which writes its statistics."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)

        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            return (self.norm(x) - target).square().mean()

    torch._dynamo.reset()
    batch, net, eager = torch.arange(48.0).view(8, 6).sin(), Model(), Model()
    got, right = jit(net)(batch[:4], batch[4:]), eager(batch[:4], batch[4:])
    torch.testing.assert_close(got, right)
    torch.testing.assert_close([*net.buffers()], [*eager.buffers()])


# ---------------------------------------------------------------------------------------- guards


@by_jits_of_thunder
def test_each_layout_has_a_program_of_its_own(jit: Jit) -> None:
    jitted = jit(apart)
    for cut in (lambda b: (b[0], b[1]), lambda b: (b[0], b[0]), lambda b: (b[1], b[0])) * 2:
        base, other = torch.arange(24.0).view(4, 6), torch.arange(24.0).view(4, 6)
        w = torch.ones(6)
        torch.testing.assert_close(jitted(*cut(base), w), apart(*cut(other), w))
        torch.testing.assert_close(base, other)
    assert thunder.cache_misses(jitted) == 3


@by_jits_of_thunder
def test_where_nothing_shared_is_written_one_program_serves_all(jit: Jit) -> None:
    jitted, base, w = jit(a_value), torch.arange(24.0).view(4, 6), torch.ones(6)
    for x, y in ((base[0], base[1]), (base[2], base[2]), (base[3], base[1])):
        torch.testing.assert_close(jitted(x, y, w), a_value(x, y, w))
    assert thunder.cache_misses(jitted) == 1


# --------------------------------------------------------------------------------------- refused


def _write_first(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x * y


REFUSED: Sequence[Cut] = (
    lambda b: (b[:3], b[1:]),
    lambda b: (b[:, :4], b[:, :4].T),
    lambda b: (b[0], b),
)


@by_jits_of_thunder
@pytest.mark.parametrize("cut", REFUSED)
def test_what_overlaps_a_written_argument(cut: Cut, jit: Jit) -> None:
    with pytest.raises(InPlaceError, match=r"the arguments x and y.*To fix it: pass the whole"):
        jit(_write_first)(*cut(torch.arange(24.0).view(4, 6)))
