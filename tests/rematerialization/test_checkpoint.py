# SPDX-License-Identifier: Apache-2.0
"""torch.utils.checkpoint, in-place ops and random numbers beside the cut, under each policy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.saved_memory.measure import kept_by
from thunder_fuser.executors.fuser import fuser
from thunder_fuser.explain import saved
from thunder_fuser.explain.jitted import final_traces, jit, recomputation_of
from thunder_fuser.trace.proxies import FENCES, makes, parts, reads

POLICIES = ("none", "time", "memory", "budget(0.5)", "save_only()")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
WIDTH, ROWS = 16, 24

Named = Mapping[str, torch.Tensor]


class Block(nn.Module):
    """x + down(dropout(gelu(up(norm(x))))), as a checkpoint or not."""

    def __init__(self, checkpointed: bool, drop: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.checkpointed, self.drop = checkpointed, drop

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.up(self.norm(x)), approximate="tanh")
        return self.down(F.dropout(hidden, self.drop))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.checkpointed:
            return x + self.inner(x)
        return x + checkpoint(self.inner, x, use_reentrant=False)


def stack(checkpointed: bool, drop: float = 0.0, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(*(Block(checkpointed, drop) for _ in range(2))).to(dtype)


def sample(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(ROWS, WIDTH, generator=generator).to(dtype)


def outcome(call: Callable[..., torch.Tensor], model: nn.Module, x: torch.Tensor) -> Named:
    """The result, all gradients and all buffers after a seeded step."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    torch.manual_seed(6)
    result = call(x)
    result.square().sum().backward()
    gradients = {f"d {name}": one.grad for name, one in model.named_parameters()}
    buffers = {name: one.clone() for name, one in model.named_buffers()}
    return {"result": result.detach(), "d x": x.grad, **gradients, **buffers}


def under(policy: str, model: nn.Module, x: torch.Tensor) -> Named:
    """A step of a copy of the model, jitted."""
    own = copy.deepcopy(model)
    return outcome(jit(own, strict=True, rematerialization=policy), own, x)


def assert_equal(found: Named, wanted: Named) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def assert_close(found: Named, wanted: Named) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_a_checkpoint_do_not_depend_on_the_policy(dtype: str) -> None:
    """Dropout is inside: its mask is that of the forward."""
    model, x = stack(True, 0.25, DTYPES[dtype]), sample(DTYPES[dtype])
    wanted = under("none", model, x)
    for policy in POLICIES[1:]:
        assert_equal(under(policy, model, x), wanted)


@pytest.mark.parametrize("policy", ["none", "memory"])
def test_a_checkpoint_changes_no_bit(policy: str) -> None:
    """In float32, where nothing is rounded on the way."""
    model, x = stack(True), sample()
    found = under(policy, model, x)
    assert_equal(found, under(policy, stack(False), x))
    assert_close(found, outcome(model, model, x))


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_inside_a_checkpoint_is_repeated_and_not_kept(policy: str) -> None:
    """Both linear layers of each block run again; only the stream between the blocks is kept."""
    model, x = stack(True), sample().requires_grad_()
    jitted = jit(model, strict=True, rematerialization=policy)
    kept = kept_by(jitted, model, x).bytes
    assert saved(jitted).bytes == kept <= x.nbytes
    forward, backward = (
        [bsym.sym.name for bsym in trace.bound_symbols] for trace in final_traces(jitted)
    )
    assert forward.count("linear") == 4
    assert backward.count("linear") >= 2  # of the last one of a block nothing is needed


class Norms(nn.Module):
    """Batch norms, which write their running statistics, beside ops written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.weight = nn.BatchNorm1d(WIDTH), nn.Parameter(torch.eye(WIDTH) * 0.5)
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x) @ self.weight
        hidden.add_(1.0)
        gate = torch.tanh(hidden)
        hidden.mul_(2.0)
        self.seen.copy_(hidden.mean(0).detach())
        return torch.exp(-hidden * self.seen) * gate


class CheckpointedNorm(nn.Module):
    """A batch norm inside a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.linear(self.norm(x)))

        return x + checkpoint(inner, x, use_reentrant=False)


def test_what_is_written_in_place() -> None:
    """Gradients, running statistics and a buffer that is copied to, as in eager."""
    torch.manual_seed(1)
    model, x = Norms(), sample()
    own = copy.deepcopy(model)
    wanted = outcome(own, own, x)
    first: Any = None
    for policy in POLICIES:
        found = under(policy, model, x)
        assert_close(found, wanted)
        first = first or found
        assert_equal(found, first)


def read_before(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    gate = torch.exp(seen * 0.5)
    seen.add_(1.0)
    return torch.tanh(x * gate) * x


def read_through_a_view(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    gate = torch.exp(seen.view(-1)[:WIDTH] * 0.5)
    seen.mul_(3.0)
    return torch.tanh(x * gate) * x


def written_through_a_view(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    gate = torch.exp(seen * 0.5)
    seen.view(-1).mul_(3.0)
    return torch.tanh(x * gate) * x


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("function", [read_before, read_through_a_view, written_through_a_view])
def test_what_reads_a_tensor_written_later_is_not_made_again(
    function: Callable[..., torch.Tensor], policy: str
) -> None:
    """Made again in the backward, the gate would be that of the new contents."""
    x, first = sample(), torch.linspace(-1, 1, WIDTH)
    found = []
    jitted = jit(function, strict=True, rematerialization=policy)
    for call in (jitted, function):
        argument, seen = x.clone().requires_grad_(), first.clone()
        call(argument, seen).sum().backward()
        found.append((argument.grad, seen))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    recomputation = recomputation_of(jitted)
    operations = recomputation.forward.operations
    product = next(op for op in operations if op.name == "mul")
    assert product.refusal == "it reads or makes a tensor that is written in place"
    assert not any(operations[at].refusal for at in recomputation.plan.again)


def overwrites_a_factor(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = x * w
    hidden.mul_(torch.tanh(hidden))
    return torch.exp(-hidden)


def overwrites_twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = x * w
    hidden.mul_(x)
    hidden.mul_(w)
    return hidden


def overwrites_in_a_torch_call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.silu(x * w, inplace=True) * x


OVERWRITING = (overwrites_a_factor, overwrites_twice, overwrites_in_a_torch_call)


@pytest.mark.parametrize("policy", ["none", "time", "memory", "save_only()"])
@pytest.mark.parametrize("function", OVERWRITING)
def test_gradients_that_need_what_was_overwritten(
    function: Callable[..., torch.Tensor], policy: str
) -> None:
    """As in eager, which copies such a tensor before it is written."""
    found = []
    jitted = jit(function, strict=True, rematerialization=policy)
    for call in (jitted, function):
        x, w = sample().requires_grad_(), sample().flip(0).requires_grad_()
        result = call(x, w)
        result.sum().backward()
        found.append((result.detach(), x.grad, w.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_nothing_is_copied_that_the_backward_does_not_read() -> None:
    """relu needs its mask alone, a batch norm nothing of its running statistics."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(inplace=True))
    jit(model, strict=True)(sample().requires_grad_())
    assert fuser.last_fused_trace is not None
    text = str(fuser.last_fused_trace)  # with the names of files, which may be in any folder
    assert "= clone(" not in text and ".clone(" not in text


def test_a_batch_norm_is_made_again_but_for_its_running_statistics() -> None:
    """Of each norm, two numbers a column are kept; under `time` also what the product reads. Under
    `memory` the first product runs again; the second one reads what is recomputed from it."""
    torch.manual_seed(1)
    layer = [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.GELU()]
    model, x = nn.Sequential(*layer, *copy.deepcopy(layer)), sample().requires_grad_()
    products = 2 * x.nbytes  # of the linear layers
    statistics = 2 * 2 * 4 * WIDTH
    for policy, bytes in (("memory", products // 2), ("time", products + x.nbytes)):
        jitted = jit(model, strict=True, rematerialization=policy)
        assert kept_by(jitted, model, x).bytes == bytes + statistics
    refused = {
        name for op in recomputation_of(jitted).forward.operations for name in op.inputs
        if op.refusal == "it reads or makes a tensor that is written in place"
    }
    assert fuser.last_fused_trace is not None
    every = [part for one in fuser.last_fused_trace.bound_symbols for part in parts(one)]
    fences = [one for one in every if one.sym.name in FENCES]
    running = {
        new.name for one in fences for old, new in zip(reads(one), makes(one), strict=True)
        if "running_mean" in old.name
    }
    assert running & refused


def test_a_batch_norm_inside_a_checkpoint() -> None:
    """Gradients as in eager. Running statistics are written once; eager's repeat writes twice."""
    torch.manual_seed(1)
    model, x = CheckpointedNorm(), sample()
    wanted = under("none", model, x)
    for policy in POLICIES[1:]:
        assert_equal(under(policy, model, x), wanted)
    own = copy.deepcopy(model)
    exact = outcome(own, own, x)
    assert_close(wanted, {name: exact[name] for name in exact if not name.startswith("norm.")})
    model.norm(x)
    assert_close(wanted, dict(model.named_buffers()))
