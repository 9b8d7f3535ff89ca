# SPDX-License-Identifier: Apache-2.0
"""What must hold of a function in CUDA graphs: it does at each call what it does without them.

Each scenario gets `pair`, which jits a function twice, with graphs and without, and the device. So
it runs on a GPU, and on the CPU with helpers/recorder.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Pair = Callable[..., tuple[Any, Any]]
Scenario = Callable[[Pair, torch.device], None]
CALLS = 5  # the second captures


class Block(nn.Module):
    """Normalization, matrix products, a buffer, and dropout if asked for."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.register_buffer("scale", torch.rand(16))
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.up(self.norm(x)), approximate="tanh") * 1.5
        return x + self.scale * F.dropout(self.down(hidden), self.dropout, self.training)


class Small(nn.Module):
    """As little of the same as gives pieces of several launches: Thunder reads it sooner."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.dropout = nn.Linear(16, 16), dropout
        self.register_buffer("mix", torch.rand(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(self.up(x).sin() @ self.mix, self.dropout, self.training)


def equal(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """To the bit."""
    assert len(found) == len(expected)
    for at, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.shape == other.shape and one.dtype == other.dtype, at
        assert one.stride() == other.stride(), at
        assert torch.equal(one, other), (at, (one - other).abs().max())


def step(
    function: Any, x: torch.Tensor, owner: nn.Module | None = None, seed: int = 0
) -> list[torch.Tensor]:
    """The result, and the gradients of x and the parameters."""
    torch.manual_seed(seed)
    x = x.detach().clone().requires_grad_()
    result = function(x)
    weights = torch.linspace(-1, 1, result.numel(), device=x.device).reshape(result.shape)
    wanted = [x, *(owner.parameters() if owner else ())]
    return [result.detach(), *torch.autograd.grad((result * weights).sum(), wanted)]


def forward(pair: Pair, device: torch.device) -> None:
    block = Block().to(device).eval()
    found, expected = pair(block)
    with torch.no_grad():
        kept = []
        for _ in range(CALLS):
            x = torch.randn(4, 16, device=device)
            kept.append((found(x), expected(x)))
        equal(*zip(*kept, strict=True))


def inference_mode(pair: Pair, device: torch.device) -> None:
    block = Small().to(device)
    found, expected = pair(block)
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode, torch.no_grad):
        for _ in range(3):
            x = torch.randn(4, 16, device=device)
            with mode():
                equal([found(x)], [expected(x)])
            equal(step(found, x, block), step(expected, x, block))


def training(pair: Pair, device: torch.device) -> None:
    block = Block().to(device)
    found, expected = pair(block)
    kept = []
    for _ in range(CALLS):
        x = torch.randn(4, 16, device=device)
        kept.append((step(found, x, block), step(expected, x, block)))
    for one, other in kept:  # nothing that was kept has changed since
        equal(one, other)


def optimizer(pair: Pair, device: torch.device) -> None:
    """Parameters change in place between the calls; gradients accumulate over two of them."""
    blocks = [Block().to(device) for _ in range(2)]
    blocks[1].load_state_dict(blocks[0].state_dict())
    jitted = pair(blocks[0])[0], pair(blocks[1])[1]
    optimizers = [torch.optim.AdamW(block.parameters(), lr=0.05) for block in blocks]
    for at in range(2 * CALLS):
        x = torch.randn(4, 16, device=device)
        losses = []
        for function, own in zip(jitted, optimizers, strict=True):
            loss = (function(x) ** 2).mean()
            loss.backward()
            losses.append(loss.detach())
            if at % 2:
                own.step()
                own.zero_grad(set_to_none=at % 4 == 1)
        equal(losses[:1], losses[1:])
        equal(*([p.detach() for p in block.parameters()] for block in blocks))


def dropout(pair: Pair, device: torch.device) -> None:
    """The same numbers, the same state of the generator behind them, and others at each call."""
    block = Block(0.5).to(device)
    found, expected = pair(block)
    x = torch.randn(64, 16, device=device)
    results = []
    for seed in (*range(CALLS), 0):
        both = []
        for function in (found, expected):
            first = step(function, x, block, seed)
            state = generator_state(device)
            both.append([*first, state, function(x).detach(), torch.rand(4, device=device)])
        equal(*both)
        results.append(both[0])
    equal(results[0], results[-1])
    assert not torch.equal(results[0][0], results[1][0])
    torch.manual_seed(1)
    assert not torch.equal(found(x), found(x))


def generator_state(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def restored_state(pair: Pair, device: torch.device) -> None:
    """A state of the generator that was saved brings back the numbers of a replay."""
    found, _ = pair(lambda x, w: F.dropout(x @ w, 0.5) + 1)
    found = partial(found, w=torch.eye(32, device=device))
    x = torch.ones(32, 32, device=device)
    for _ in range(3):
        found(x)
    state = generator_state(device)
    first = found(x)
    assert not torch.equal(found(x), first)
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
    assert torch.equal(found(x), first)


def several_forwards(pair: Pair, device: torch.device) -> None:
    """Forwards before their backwards, which run in the other order, twice each."""
    block = Small(0.5).to(device)
    found, expected = pair(block)
    for _ in range(3):
        inputs = [torch.randn(4, 16, device=device) for _ in range(3)]
        both = []
        for function in (found, expected):
            torch.manual_seed(0)
            results = [function(x) for x in inputs]
            gradients = []
            for result in reversed(results):
                for last in (False, True):
                    total = result.square().sum()
                    gradients += torch.autograd.grad(
                        total, [*block.parameters()], retain_graph=not last
                    )
            both.append([*(one.detach() for one in results), *gradients])
        equal(*both)


def accumulation(pair: Pair, device: torch.device) -> None:
    """.grad is added to over steps, and is nobody else's memory."""
    block = Small().to(device)
    found, expected = pair(block)
    data = [torch.randn(4, 16, device=device) for _ in range(2 * CALLS)]
    both = []
    for function in (found, expected):
        block.zero_grad()
        seen = []
        for x in data:
            function(x).sum().backward()
            seen += [p.grad.clone() for p in block.parameters()]
        both.append(seen)
    equal(*both)


def shapes(pair: Pair, device: torch.device) -> None:
    """More shapes than there may be graphs, in turn and one often."""
    block = Small().to(device)
    found, expected = pair(block, max_cuda_graphs=2)
    for rows in (2, 3, 2, 3, 4, 2, 2, 2, 4, 3, 4, 4, 4):
        x = torch.randn(rows, 16, device=device)
        equal(step(found, x, block), step(expected, x, block))


def layouts(pair: Pair, device: torch.device) -> None:
    """Strides, alignment and repetition of an argument are no part of Thunder's guards."""
    found, expected = pair(lambda x: (torch.softmax(x, -1) @ x.sin(), x.sum(0) + 1))
    wide = torch.randn(9, 16 * 8 + 1, device=device)
    inputs = [
        wide[:8, :8].contiguous(), wide[:8, :8], wide[:8, 1:9], wide[:8, :8].t(),
        wide[0, :8].expand(8, 8), wide[:8, :1].expand(8, 8), wide[0, 0].expand(8, 8),
        torch.as_strided(wide, (8, 8), (1, 1)),
    ]  # fmt: skip
    for x in inputs:
        for _ in range(3):
            y = x * 1  # other values in the same layout
            other = torch.randn_like(wide).as_strided(x.shape, x.stride(), x.storage_offset())
            for one in (x, y, other):
                equal(found(one), expected(one))


def switched(pair: Pair, device: torch.device) -> None:
    """Training, evaluation, without gradients, and parameters that move."""
    block = Small(0.3).to(device)
    found, expected = pair(block)
    for at in range(4 * CALLS):
        x = torch.randn(4, 16, device=device)
        for module in (found, expected):
            module.train(at % 3 != 0)
        if at % 4 == 0:
            with torch.no_grad():
                equal(*([seeded(function, x)] for function in (found, expected)))
        if at % 7 == 6:
            for p in block.parameters():
                p.data = p.data.clone() + 0.25
        equal(step(found, x, block, at), step(expected, x, block, at))


def seeded(function: Any, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return function(x)


def buffers(pair: Pair, device: torch.device) -> None:
    """What a call writes in place is written once a call."""
    block = nn.Sequential(nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16)).to(device)
    blocks = [block, deepcopy(block)]
    found, expected = pair(blocks[0])[0], pair(blocks[1])[1]
    for _ in range(CALLS):
        x = torch.randn(32, 16, device=device)
        equal(step(found, x), step(expected, x))
        equal(*([*block.buffers()] for block in blocks))


class Cached(nn.Module):
    """Attention of one query over a cache, which gets a row at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.rest = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("keys", torch.zeros(2, 32, 16))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, position, self.key(x).sin())
        return self.rest((x @ self.keys.mT).softmax(-1) @ self.keys)


def cache_rows(pair: Pair, device: torch.device) -> None:
    """A buffer of which each call writes a row, and which others see as written."""
    block = Cached().to(device)
    blocks = [block, deepcopy(block)]
    found, expected = pair(blocks[0])[0], pair(blocks[1])[1]
    with torch.no_grad():
        for at in range(CALLS):
            x, position = torch.randn(2, 1, 16, device=device), torch.tensor([at], device=device)
            before = block.keys._version
            equal([found(x, position)], [expected(x, position)])
            equal(*([each.keys] for each in blocks))
            assert block.keys._version > before


def lent_buffers(pair: Pair, device: torch.device) -> None:
    """A caller passes a buffer that the call writes, or a row of it: the write is seen."""
    block = Cached().to(device)
    blocks = [block, deepcopy(block)]
    found, expected = pair(blocks[0])[0], pair(blocks[1])[1]
    with torch.no_grad():
        for at in range(2 * CALLS):
            place = torch.tensor([at], device=device)
            x = torch.randn(2, 1, 16, device=device)
            both = [each.keys[:, at : at + 1] if at % 3 == 2 else x for each in blocks]
            equal([found(both[0], place)], [expected(both[1], place)])
            equal(*([each.keys] for each in blocks))


def written_arguments(pair: Pair, device: torch.device) -> None:
    def add_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = (x * 2).sin() @ y
        x.add_(1)
        return (z * x) @ y

    found, expected = pair(add_one)
    for _ in range(CALLS):
        x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
        other = x.clone()
        equal([found(x, y), x], [expected(other, y), other])


def shared_memory(pair: Pair, device: torch.device) -> None:
    """Views of arguments are views of the call's; results that share memory share it."""

    def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.cumsum(x * 2, 0)
        return x[1:], y, y[0], y.t(), (y + x).sin()

    found, expected = pair(views)
    for _ in range(CALLS):
        x = torch.randn(4, 6, device=device)
        both = [found(x), expected(x)]
        equal(*both)
        for part, y, first, turned, _rest in both:
            assert part.data_ptr() == x[1:].data_ptr()
            assert y.data_ptr() == first.data_ptr() == turned.data_ptr()
            y.fill_(3)
            assert torch.equal(first, torch.full_like(first, 3))


def on_the_host(pair: Pair, device: torch.device) -> None:
    """A number that the host reads cuts the function into pieces; a new number is no new graph."""

    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).sin() @ w
        return (y * y.sum().item()) @ w + 1

    found, expected = pair(scaled)
    for _ in range(CALLS):
        x, w = (torch.randn(8, 8, device=device) for _ in range(2))
        equal([found(x, w)], [expected(x, w)])


def kept(pair: Pair, device: torch.device) -> None:
    """A list of results, as of losses, and gradients that are kept."""
    block = Small().to(device)
    found, expected = pair(block)
    results: list[list[list[torch.Tensor]]] = [[], []]
    for _ in range(4 * CALLS):
        x = torch.randn(4, 16, device=device)
        for function, own in zip((found, expected), results, strict=True):
            loss = function(x).square().mean()
            own.append([loss.detach(), *torch.autograd.grad(loss, [*block.parameters()])])
    for one, other in zip(*results, strict=True):
        equal(one, other)


def bound(pair: Pair, device: torch.device) -> None:
    """Names of a loop that still stand for the last step's values while the next one runs."""
    block = Small().to(device)
    found, expected = pair(block)
    for _ in range(3 * CALLS):
        x = torch.randn(4, 16, device=device)
        both = [[function(x)] for function in (found, expected)]
        for values in both:
            values += torch.autograd.grad(values[0].square().sum(), [*block.parameters()])
        equal(*([value.detach() for value in values] for values in both))
    found_last, expected_last = both
    assert found_last[0].equal(expected_last[0])


def gradients_that_stay(pair: Pair, device: torch.device) -> None:
    """Four small batches a step, and gradients that are set to zero, not to None."""
    blocks = [Small().to(device) for _ in range(2)]
    blocks[1].load_state_dict(blocks[0].state_dict())
    jitted = pair(blocks[0])[0], pair(blocks[1])[1]
    for set_to_none in (False, True, False):
        for at in range(4 * CALLS):
            x = torch.randn(4, 16, device=device)
            for function in jitted:
                function(x).square().mean().backward()
            equal(*([p.grad.clone() for p in block.parameters()] for block in blocks))
            if at % 4 == 3:
                for block in blocks:
                    torch.nn.utils.clip_grad_norm_(block.parameters(), 0.1)
                    with torch.no_grad():
                        for p in block.parameters():
                            p -= p.grad
                    block.zero_grad(set_to_none=set_to_none)


def hooks(pair: Pair, device: torch.device) -> None:
    """Hooks that keep a gradient, and hooks that use it up while the backward runs."""
    blocks = [Small().to(device) for _ in range(2)]
    blocks[1].load_state_dict(blocks[0].state_dict())
    jitted = pair(blocks[0])[0], pair(blocks[1])[1]
    seen: list[list[torch.Tensor]] = [[], []]

    def use_up(p: torch.Tensor) -> None:
        with torch.no_grad():
            p -= 0.1 * p.grad
        p.grad = None

    for block, own in zip(blocks, seen, strict=True):
        block.up.weight.register_hook(own.append)
        block.up.bias.register_post_accumulate_grad_hook(use_up)
    for _ in range(2 * CALLS):
        x = torch.randn(4, 16, device=device)
        for function in jitted:
            function(x).square().sum().backward()
        equal(*([p.detach() for p in block.parameters()] for block in blocks))
    equal(*seen)


def shared_parameters(pair: Pair, device: torch.device) -> None:
    """Two functions add up the gradients of the same parameters."""
    block = Small().to(device)
    other = Small().to(device)
    other.up = block.up
    pairs = [pair(block), pair(other)]
    for _ in range(2 * CALLS):
        x = torch.randn(4, 16, device=device)
        both = []
        for functions in zip(*pairs, strict=True):
            block.up.zero_grad()
            sum(function(x).sin().sum() for function in functions).backward()
            both.append([p.grad for p in block.up.parameters()])
        equal(*both)


def written_results(pair: Pair, device: torch.device) -> None:
    """A caller may write to what it gets; the next call computes it anew."""
    block = Small().to(device)
    found, expected = pair(block)
    for _ in range(2 * CALLS):
        x = torch.randn(4, 16, device=device)
        both = []
        for function in (found, expected):
            values = step(function, x, block)
            both.append([value.mul_(3) for value in values])
            with torch.no_grad():
                both[-1].append(function(x).add_(1))
        equal(*both)


def an_error_between(pair: Pair, device: torch.device) -> None:
    """A backward that never comes, and an error whose traceback holds the result."""
    block = Small().to(device)
    found, expected = pair(block)
    errors = []
    for at in range(3 * CALLS):
        x = torch.randn(4, 16, device=device)
        if at % 3 == 2:
            try:
                held = found(x)
                raise ValueError(held.shape)
            except ValueError as error:
                errors.append((error, held, held.detach().clone()))
        equal(step(found, x, block), step(expected, x, block))
    for _error, held, copy in errors:
        assert torch.equal(held, copy)


def threads(pair: Pair, device: torch.device) -> None:
    """Threads at once, each with its own data."""
    block = Small().to(device)
    found, expected = pair(block)
    data = [torch.randn(CALLS, 4, 16, device=device) for _ in range(4)]
    wanted = [[step(expected, x, block) for x in own] for own in data]
    step(found, data[0][0], block)  # Thunder compiles on one thread only
    got: dict[int, list[list[torch.Tensor]]] = {}
    errors: list[BaseException] = []

    def work(at: int) -> None:
        try:
            got[at] = [step(found, x, block) for x in data[at]]
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(at,)) for at in range(len(data))]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    assert not errors
    for at, own in enumerate(wanted):
        for one, other in zip(got[at], own, strict=True):
            equal(one, other)


SCENARIOS: dict[str, Scenario] = {
    one.__name__: one
    for one in (
        forward, inference_mode, training, optimizer, dropout, restored_state, several_forwards,
        accumulation, shapes, layouts, switched, buffers, cache_rows, lent_buffers,
        written_arguments, shared_memory, on_the_host, kept, bound, gradients_that_stay, hooks,
        shared_parameters, written_results, an_error_between, threads,
    )
}  # fmt: skip
