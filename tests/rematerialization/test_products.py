# SPDX-License-Identifier: Apache-2.0
"""Matrix products that the backward runs again: which ones, and that what they need is there."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from thunder_fuser.explain import saved
from thunder_fuser.explain.jitted import final_traces, jit, recomputation_of
from thunder_fuser.rematerialization.forward import Forward, ForwardValue, Operation
from thunder_fuser.rematerialization.plan import CutPlan, Machine, plan
from thunder_fuser.rematerialization.policy import STORED, VIEW, WRITTEN, budget, memory, time
from thunder_fuser.target import CPU, H200

MACHINE = Machine.of(H200)
MIB = 1 << 20


def value(name: str, bytes: int = MIB, *tags: str, needed: bool = True) -> ForwardValue:
    return ForwardValue(name, bytes, needed, frozenset(tags))


def product(
    x: str, y: str, bytes: int = MIB, work: int = 1 << 30, *, needed: bool = True
) -> Operation:
    """y = x @ w"""
    result = value(y, bytes, STORED, needed=needed)
    return Operation("linear", (x, "w"), (result,), refusal="torch runs linear", product=work)


def kernel(x: str, y: str, *tags: str, needed: bool = True) -> Operation:
    return Operation("gelu", (x,), (value(y, MIB, *tags, needed=needed),), MIB)


def refused(x: str, y: str) -> Operation:
    return Operation("sdpa", (x,), (value(y, MIB, STORED),), refusal="torch runs sdpa")


def planned(*operations: Operation, policy: str = "memory") -> tuple[CutPlan, list[str]]:
    """The plan, and the results of the products that run again."""
    policies = {"memory": memory(), "time": time(), "half": budget(0.5)}
    forward = Forward(operations, {"x": MIB, "w": MIB})
    found = plan(forward, policies[policy], MACHINE)
    again = [operations[at] for at in sorted(found.again)]
    return found, [op.outputs[0].name for op in again if op.product]


def test_a_product_of_an_argument_runs_again() -> None:
    found, names = planned(product("x", "a"), kernel("a", "b", WRITTEN))
    assert names == ["a"] and found.kept == () and found.bytes == 0


@pytest.mark.parametrize("policy", ["time"])
def test_it_runs_once_where_time_counts(policy: str) -> None:
    found, names = planned(product("x", "a"), kernel("a", "b", WRITTEN), policy=policy)
    assert names == [] and "a" in found.kept


def test_one_that_nothing_needs_runs_once() -> None:
    _, names = planned(product("x", "a", needed=False), refused("a", "b"))
    assert names == []


def test_it_reads_what_is_kept() -> None:
    """What torch made otherwise stays, and is the operand."""
    found, names = planned(refused("x", "a"), product("a", "b"))
    assert names == ["b"] and found.kept == ("a",)


def test_not_behind_an_operation_that_never_runs_again() -> None:
    lost = Operation("sdpa", ("x",), (value("a", needed=False),), refusal="torch runs sdpa")
    found, names = planned(lost, product("a", "b"))
    assert names == [] and found.kept == ("b",)


def test_of_a_chain_every_second_one() -> None:
    """Else the first op of the backward would need all of the forward."""
    chain = [
        step
        for at in range(6)
        for step in (product(f"b{at}" if at else "x", f"a{at}"), kernel(f"a{at}", f"b{at + 1}"))
    ]
    found, names = planned(*chain)
    assert names == ["a0", "a2", "a4"] and set(found.kept) == {"a1", "a3", "a5"}


def test_the_larger_of_two_that_read_one_another() -> None:
    small, large = product("x", "a", MIB), product("b", "c", 8 * MIB)
    found, names = planned(small, kernel("a", "b"), large)
    assert names == ["c"] and found.kept == ("a",)


def test_views_of_one_product_go_together() -> None:
    fused = product("x", "qkv", 3 * MIB, needed=False)
    views = [kernel("qkv", name, VIEW) for name in "qkv"]
    found, names = planned(fused, *views)
    assert names == ["qkv"] and found.kept == () and found.bytes == 0


def test_as_many_as_the_budget_asks_for() -> None:
    """Cheap ones first: the arithmetic for a byte decides."""
    apart = [product("x", f"a{at}", work=(1 + at) << 30) for at in range(4)]
    found, names = planned(*apart, policy="half")
    assert names == ["a0", "a1"] and found.bytes == 2 * MIB
    slow, fast = planned(*apart)[0].time, planned(*apart, policy="time")[0].time
    assert fast < found.time < slow


def test_what_is_needed_is_there() -> None:
    """All that the backward reads is kept, or computed again from what is kept; and no product that
    runs again reads the result of another one."""
    for seed in range(400):
        rng = random.Random(seed)
        names, operations = ["x"], []
        for at in range(rng.randint(2, 14)):
            kind, name = rng.choice("ppkkkvr"), f"t{at}"
            source, needed = rng.choice(names), rng.random() < 0.6
            bytes, work = rng.choice((1, 2, 4)) * MIB, rng.choice((1, 2)) << 30
            operations.append({
                "p": product(source, name, bytes, work, needed=needed),
                "k": kernel(source, name, *rng.sample([WRITTEN], rng.randint(0, 1)), needed=needed),
                "v": kernel(source, name, VIEW, needed=needed),
                "r": refused(source, name),
            }[kind])
            names.append(name)
        forward = Forward(tuple(operations), {"x": MIB, "w": MIB})
        for policy in (memory(), budget(0.3), budget(0.7)):
            found = plan(forward, policy, Machine.of(CPU))
            there, behind = {"x", "w", *found.kept}, set[str]()
            for at in sorted(found.again):
                op = operations[at]
                assert there.issuperset(op.inputs), (seed, policy)
                there.update(out.name for out in op.outputs)
                is_behind = not behind.isdisjoint(op.inputs)
                assert not (op.product and is_behind), (seed, policy)
                if op.product or is_behind:
                    behind.update(out.name for out in op.outputs)
            wanted = {out.name for out in forward.values.values() if out.needed}
            assert there >= wanted, (seed, policy)
            assert found.bytes == sum(forward.values[name].bytes for name in found.kept)
        assert plan(forward, memory(), MACHINE).bytes <= plan(forward, time(), MACHINE).bytes


class Gated(nn.Module):
    """A block of Llama's without attention."""

    def __init__(self, inner: int = 96) -> None:
        super().__init__()
        self.norm, self.down = nn.RMSNorm(32), nn.Linear(inner, 32)
        self.gate, self.up = nn.Linear(32, inner), nn.Linear(32, inner, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@pytest.mark.parametrize("frozen", [False, True], ids=("trained", "frozen"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_have_the_same_bits(dtype: torch.dtype, frozen: bool) -> None:
    """Frozen weights: torch needs no operand of their gradients, so a kernel writes them again."""
    torch.manual_seed(0)
    model = nn.Sequential(Gated(), Gated()).to(dtype).requires_grad_(not frozen)
    x = torch.randn(2, 7, 32, dtype=dtype)
    found, kept, again = {}, {}, {}
    for policy in ("none", "time", "budget(0.5)", "memory"):
        jitted, leaf = jit(model, strict=True, rematerialization=policy), x.clone().requires_grad_()
        model.zero_grad()
        result = jitted(leaf)
        result.square().sum().backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found[policy] = [result, leaf.grad, *gradients]
        kept[policy] = recomputation_of(jitted).plan.bytes
        again[policy] = str(final_traces(jitted)[1]).count("linear(")
    for others in found.values():
        assert all(map(torch.equal, found["none"], others))
    assert kept["memory"] < kept["budget(0.5)"] < kept["time"]
    assert again["time"] == again["none"] < again["budget(0.5)"] < again["memory"]


def test_the_report_names_them() -> None:
    jitted = jit(Gated(), strict=True, rematerialization="memory")
    x = torch.randn(4, 32, requires_grad=True)
    jitted(x).sum().backward()
    rows = [again for again in saved(jitted).again if again.ops == ("linear",)]
    assert len(rows) == 2 and all(row.bytes == 4 * 96 * 4 for row in rows)
    assert all(row.fusion.startswith("linear as t") for row in rows)


def test_what_is_written_later_is_no_operand() -> None:
    """It has other contents when the backward runs; a frozen weight's product needs it no more."""
    w = torch.randn(16, 8)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = F.gelu(F.linear(y, w))
        y.add_(1)
        return z.sum() + y.sum()

    x = torch.randn(4, 8, requires_grad=True)
    jitted = jit(function, strict=True, rematerialization="memory")
    (got,), (right,) = (torch.autograd.grad(f(x), x) for f in (jitted, function))
    torch.testing.assert_close(got, right)


def test_what_is_returned_runs_once() -> None:
    """As logits beside a loss: the caller holds them, so a copy would only be memory more."""
    w, v = torch.randn(16, 8), torch.randn(16, 8)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = F.linear(x, w)
        return (F.gelu(logits) * F.gelu(F.linear(x, v))).sum(), logits.view(2, 2, 16).mT

    jitted = jit(function, strict=True, rematerialization="memory")
    jitted(torch.randn(4, 8, requires_grad=True))[0].backward()
    assert str(final_traces(jitted)[1]).count("torch.nn.functional.linear(") == 1
    assert recomputation_of(jitted).plan.bytes == 4 * 16 * 4
