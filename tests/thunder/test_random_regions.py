# SPDX-License-Identifier: Apache-2.0
"""Random numbers through thunder.jit: masks are recomputed in the backward, and never stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.core.proxies import TensorProxy
from torch.utils.checkpoint import checkpoint

from thunder_fuser.executors.fuser import fuser
from thunder_fuser.executors.record.torch_function import torch_function
from thunder_fuser.explain.jitted import claims_of, final_traces
from thunder_fuser.runtime.random import draw, uniform

SHAPE = (48, 64)


def jit(function: Callable[..., Any], **given: Any) -> Callable[..., Any]:
    options = {"fuser_strict": True, **given}
    return thunder.jit(function, executors=[fuser], **options)  # type: ignore[no-any-return]


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    values = torch.rand(shape or SHAPE, generator=generator) + 0.5
    return values.to(dtype).requires_grad_()


@contextmanager
def saved() -> Iterator[list[torch.Tensor]]:
    """The tensors that autograd keeps for the backward."""
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


def names(jitted: Callable[..., Any]) -> set[str]:
    """What is called in the traces, fusions left out."""
    return {b.sym.name for t in final_traces(jitted) for b in t.bound_symbols if not b.subsymbols}


# ---- forward and backward agree


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_backward_has_the_mask_of_the_forward(dtype: torch.dtype, p: float) -> None:
    x = leaf(dtype=dtype)
    jitted = jit(lambda x: F.dropout(x, p, True))
    out = jitted(x)
    out.backward(torch.ones_like(out))
    kept = out != 0
    assert abs(kept.float().mean() - (1 - p)) < 0.04
    assert torch.equal(x.grad != 0, kept)
    scale = torch.tensor(1 / (1 - p))
    torch.testing.assert_close(x.grad.float(), kept * scale, rtol=1e-2, atol=0)
    torch.testing.assert_close(out.float(), x.float() * kept * scale, rtol=2e-2, atol=0)


def test_no_mask_is_stored() -> None:
    """Only the arguments are kept for one dropout; two keep no byte more than none."""

    def kept_for(p: float, twice: bool) -> int:
        def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            once = F.dropout(x * w, p)
            return (F.dropout(once * w, p) if twice else once).sum()

        x, w = leaf(), leaf(64)
        jitted = jit(model)
        with saved() as kept:
            loss = jitted(x, w)
        loss.backward()
        assert ("draw_random" in names(jitted)) == (p > 0)
        assert "uniform" not in names(jitted) and "random_uniform" not in names(jitted)
        own = {x.data_ptr(), w.data_ptr()}
        return sum(t.nbytes for t in kept if t.data_ptr() not in own)

    assert kept_for(0.3, twice=False) == 0
    assert kept_for(0.3, twice=True) <= kept_for(0.0, twice=True)


def test_two_dropouts_by_hand() -> None:
    """Masks read off a forward that returns them, and the gradient they must give."""

    def model(x: torch.Tensor, w: torch.Tensor) -> Any:
        one = F.dropout(torch.ones_like(x), 0.3)
        two = F.dropout(torch.ones_like(x), 0.2)
        return (torch.tanh(x * w) * one * two).sum(), one, two

    x, w = leaf(), leaf(64)
    loss, one, two = jit(model)(x, w)
    loss.backward()
    a, b = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    (torch.tanh(a * b) * one.detach() * two.detach()).sum().backward()
    torch.testing.assert_close(x.grad, a.grad)
    torch.testing.assert_close(w.grad, b.grad)
    assert not torch.equal(one != 0, two != 0)


def test_masks_across_regions() -> None:
    """A matmul parts the regions, forward and backward; the noise is read in several of them."""
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(1), requires_grad=True)

    def model(x: torch.Tensor, weight: torch.Tensor) -> Any:
        noise = torch.randn_like(x)
        hidden = F.dropout(x * noise, 0.4) @ weight
        return torch.sin(hidden * noise).sum(), noise

    x = leaf()
    jitted = jit(model)
    torch.manual_seed(3)
    with saved() as kept:
        loss, noise = jitted(x, weight)
    loss.backward()
    assert noise.data_ptr() not in {t.data_ptr() for t in kept}
    torch.manual_seed(3)
    a, b = x.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()
    dropped = jit(lambda x: (torch.randn_like(x), F.dropout(torch.ones_like(x), 0.4)))(a)[1]
    (torch.sin(((a * noise.detach() * dropped.detach()) @ b) * noise.detach())).sum().backward()
    torch.testing.assert_close(x.grad, a.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weight.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_a_norm_behind_a_dropout() -> None:
    """Sums over rows and over columns in the backward, all of them over recomputed masks."""

    def model(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        mask = F.dropout(torch.ones_like(x), 0.3)
        return F.layer_norm(x * mask, (256,), w, b), mask

    x, w, b = leaf(600, 256), leaf(256), leaf(256)
    out, mask = jit(model)(x, w, b)
    gradient = torch.randn(600, 256, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad(out, [x, w, b], gradient)
    y = F.layer_norm(x.double() * mask.detach(), (256,), w.double(), b.double())
    exact = torch.autograd.grad(y, [x, w, b], gradient.double())
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-4)


def test_explicit_philox() -> None:
    """prims.uniform_philox, which Thunder's own dropout replay makes, reads our streams too."""

    def model(x: torch.Tensor) -> torch.Tensor:
        cpu = thunder.core.devices.cpu
        shape, dtype = (5, 9), thunder.core.dtypes.float32
        return thunder.core.prims.uniform_philox(
            shape, 0.0, 1.0, device=cpu, dtype=dtype, seed=3, offset=7
        ) + x * 0  # fmt: skip

    result = jit(model)(torch.zeros(5, 9))
    stream = (torch.tensor(3), torch.tensor(7))
    expected = uniform(torch.tensor(0.0), torch.tensor(1.0), stream, (5, 9), torch.float32)
    assert torch.equal(result, expected)


def test_checkpoint_repeats_the_forward() -> None:
    """Thunder repeats prims.uniform there, and without a stream would draw anew."""

    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return F.dropout(torch.exp(x * w), 0.5) * w

        return checkpoint(inner, x, use_reentrant=False)  # type: ignore[no-any-return]

    x, w = leaf(), leaf(64)
    out = jit(model)(x, w)
    out.sum().backward()
    kept = (out != 0).detach()
    a, b = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    (torch.exp(a * b) * kept * 2 * b).sum().backward()
    torch.testing.assert_close(x.grad, a.grad)
    torch.testing.assert_close(w.grad, b.grad)


# ---- the generator


def test_calls_differ_and_seeds_reproduce() -> None:
    jitted = jit(lambda x: F.dropout(x, 0.5))
    x = leaf().detach()
    torch.manual_seed(9)
    first, second = jitted(x), jitted(x)
    torch.manual_seed(9)
    assert torch.equal(jitted(x), first)
    assert torch.equal(jitted(x), second)
    assert not torch.equal(first, second)


def test_saved_state_replays() -> None:
    jitted = jit(lambda x: F.dropout(x, 0.5).sum())
    x = leaf()
    jitted(x).backward()
    before, x.grad = x.grad, None
    state = torch.get_rng_state()
    jitted(x).backward()
    first, x.grad = x.grad, None
    assert not torch.equal(first, before)
    torch.set_rng_state(state)
    with torch.random.fork_rng(devices=[]):
        jitted(x).backward()
    assert torch.equal(x.grad, first)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_backward_draws_nothing() -> None:
    jitted = jit(lambda x: F.dropout(x, 0.5).sum())
    loss = jitted(leaf())
    state = torch.get_rng_state()
    torch.rand(3)
    torch.set_rng_state(state)
    loss.backward()
    assert torch.equal(torch.get_rng_state(), state)


# ---- what becomes of each op


OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rand": lambda x: torch.rand(*SHAPE) + x,
    "rand_like": lambda x: torch.rand_like(x) + x,
    "randn": lambda x: torch.randn(SHAPE) + x,
    "randn_like": lambda x: torch.randn_like(x) + x,
    "bernoulli": lambda x: torch.bernoulli(x / 2) + x,
    "dropout": lambda x: F.dropout(x, 0.5) + x,
    "rrelu": lambda x: F.rrelu(x - 1, 0.1, 0.3, training=True) + x,
}


@pytest.mark.parametrize("op", OPS)
def test_each_op_is_in_one_fusion(op: str) -> None:
    jitted = jit(OPS[op])
    torch.manual_seed(4)
    result = jitted(leaf().detach())
    assert result.shape == SHAPE and result.isfinite().all()
    assert names(jitted) <= {
        "draw_random",
        "python_return",
        "return",
        "unpack_trivial",
        "python_del",
    }
    assert len(claims_of(jitted).regions) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dropout_keeps_the_share_it_is_asked_for(dtype: torch.dtype) -> None:
    """Numbers of bf16 below 0.9 are 0.902 of those below 1."""
    x = torch.ones(1 << 20, dtype=dtype)
    kept = jit(lambda x: F.dropout(x * 1, 0.1))(x).count_nonzero() / x.numel()
    assert abs(kept - 0.9) < 5 * (0.09 / x.numel()) ** 0.5


def test_a_gradient_where_all_is_dropped() -> None:
    x = leaf()
    jit(lambda x: F.dropout(x, 1.0))(x).sum().backward()
    assert x.grad is not None and not x.grad.any()


def test_dropout_that_drops_nothing_or_all() -> None:
    x = leaf()
    untouched = [
        jit(lambda x: F.dropout(x, 0.0, True) * 2),
        jit(lambda x: F.dropout(x, 0.7, False) * 2),
    ]
    state = torch.get_rng_state()
    for jitted in untouched:
        assert torch.equal(jitted(x), x * 2)
    out = jit(lambda x: F.dropout(x * 1, 1.0, True) * 2)(x)
    assert not out.any()
    assert torch.equal(torch.get_rng_state(), state), "no random number is needed"


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (3, 1, 5)])
def test_dropout_of_odd_shapes(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, requires_grad=True)
    out = jit(lambda x: F.dropout(x, 0.5) * 2)(x)
    out.sum().backward()
    assert out.shape == shape
    assert torch.equal(x.grad, out.detach())


def test_two_normals_are_two() -> None:
    jitted = jit(lambda x: torch.randn(64) - torch.randn(64) + x * 0)
    assert jitted(leaf(64).detach()).abs().min() > 0


def test_noise_written_in_place() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(x)
        noise.mul_(2.0)
        return (noise * x).sum()

    x = leaf()
    torch.manual_seed(2)
    jit(noisy)(x).backward()
    torch.manual_seed(2)
    noise = jit(lambda x: torch.rand_like(x) + x * 0)(x.detach())
    torch.testing.assert_close(x.grad, noise * 2)


# ---- unfused


def test_torch_runs_the_same_numbers() -> None:
    """Without fuel every primitive runs by itself, from the same streams to the same bits."""

    def model(x: torch.Tensor) -> Any:
        return F.dropout(x, 0.4), torch.rand_like(x), x * 2

    results = []
    for fuel in (-1, 0):
        x = leaf()
        torch.manual_seed(6)
        dropped, uniform, _ = jit(model, fuser_fuel=fuel)(x)
        dropped.sum().backward()
        results.append((dropped.detach(), uniform, x.grad))
    assert all(map(torch.equal, *results))


def test_the_fallback_has_the_same_numbers() -> None:
    jitted = jit(lambda x: torch.where(torch.rand_like(x) < 0.5, x, 0.0))
    x = leaf().detach()
    torch.manual_seed(8)
    expected = jitted(x)
    (region,) = claims_of(jitted).regions
    torch.manual_seed(8)
    state = iter(draw(torch.device("cpu"), 1))
    args = [x if isinstance(p, TensorProxy) else next(state) for p in region.inputs]
    (result,) = torch_function(region, "fallback")(*args)
    assert torch.equal(result, expected)
