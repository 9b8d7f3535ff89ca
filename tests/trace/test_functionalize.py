# SPDX-License-Identifier: Apache-2.0
"""In-place writes into a trace's own memory become names of values; all others stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser import fuser
from thunder_fuser.executors import fuser as of_fuser
from thunder_fuser.executors.pipeline import read_trace
from thunder_fuser.explain.jitted import jit
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import COPIES
from thunder_fuser.trace.rewrites.functionalize import functionalize, leave_written_views

Function = Callable[..., Any]


def prepared(monkeypatch: pytest.MonkeyPatch, function: Function, *args: Any) -> Prepared:
    """The trace as it comes to the passes."""
    found: list[Prepared] = []

    def read(*args: Any) -> Prepared:
        found.append(read_trace(*args))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(of_fuser, "read_trace", read)
        jit(function)(*args)
    return found[0]


def text(one: Prepared) -> str:
    return "\n".join(
        f"{', '.join(op.made_names)} = {op.bsym.sym.name}({', '.join(op.read_names)})"
        for op in one.ops if op.bsym.sym.name != "unpack_trivial"
    )  # fmt: skip


def tensors(*, gradients: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    return x, y.requires_grad_(gradients)


def activations(x: Any, y: Any) -> Any:
    h = x @ y
    h.add_(x)
    torch.nn.functional.relu(h, inplace=True)
    return torch.tanh(h) * 2


def test_before_and_after(monkeypatch: pytest.MonkeyPatch, golden: Callable[[str], None]) -> None:
    before = prepared(monkeypatch, activations, *tensors())
    golden(f"{text(before)}\n->\n{text(functionalize(before))}\n")


# ---------------------------------------------------------------------------------- it fires


def returned(x: Any, y: Any) -> Any:
    h = x + y
    h.mul_(2.0)
    return h, h.view(-1)


def flattened(x: Any, y: Any) -> Any:
    """A view of what was written, which nothing writes later."""
    h = torch.relu_(x @ y)
    return h.view(2, 8).cos() + h.flatten().view(2, 8)


def viewed_before(x: Any, y: Any) -> Any:
    """A view whose last reader comes before the write."""
    h = x * y
    first = h[0].sum()
    h.exp_()
    return h * first


def convolved(x: Any, y: Any) -> Any:
    h = torch.nn.functional.conv2d(x[None, None], y[None, None, :1, :1])
    return torch.nn.functional.silu(h, inplace=True) + 1


def other_type(x: Any, y: Any) -> Any:
    h = x * 2
    h.copy_(y.double() / 3)
    return h + 1


def beside_an_argument(x: Any, y: Any) -> Any:
    """One memory of each kind; the region writes the argument."""
    h = x + y
    h.add_(1)
    x.mul_(3)
    return h + x


def written_for_nothing(x: Any, y: Any) -> Any:
    """Its operands are not saved for the backward either."""
    h, other = x * y, x @ y
    h.add_(1)
    other.add_(1)
    return y.t()


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("function", "left"),
    [(activations, 0), (returned, 0), (flattened, 0), (viewed_before, 0), (convolved, 0),
     (other_type, 0), (beside_an_argument, 0), (written_for_nothing, 0)],
)  # fmt: skip
def test_it_fires(function: Function, left: int, *, gradients: bool) -> None:
    x, y = tensors(gradients=gradients)
    mine, its = x.clone(), x.clone()
    jitted = jit(function, strict=True)
    found, expected = jitted(mine, y), function(its, y)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(mine, its)
    assert copies(jitted) == left
    if gradients:
        for got, right in zip(*map(gradients_of(y), (found, expected)), strict=True):
            torch.testing.assert_close(got, right)


def gradients_of(y: torch.Tensor) -> Callable[[Any], list[torch.Tensor]]:
    def of(found: Any) -> list[torch.Tensor]:
        results = found if isinstance(found, tuple) else (found,)
        return [*torch.autograd.grad(sum(one.sum() for one in results), y)]

    return of


def copies(jitted: Any) -> int:
    """How many calls of its last trace write in place."""
    trace = thunder.last_traces(jitted)[-1]
    return sum(bsym.sym.id in COPIES or bsym.sym.name == "copy_" for bsym in trace.bound_symbols)


def test_one_region() -> None:
    jitted = jit(activations, strict=True)
    jitted(*tensors())
    fusions = [one for one in thunder.last_traces(jitted)[-1].bound_symbols if one.sym.is_fusion]
    assert len(fusions) == 1


def test_the_bits_of_the_program_without_writes() -> None:
    """16-bit values too, which are rounded where they leave a region and not after each op."""

    def written(x: Any, y: Any) -> Any:
        h = x.bfloat16()
        h.add_(1)
        torch.nn.functional.silu(h, inplace=True)
        return h * y

    def plain(x: Any, y: Any) -> Any:
        return torch.nn.functional.silu(x.bfloat16() + 1) * y

    args = tensors()
    assert torch.equal(jit(written, strict=True)(*args), jit(plain, strict=True)(*args))


# ------------------------------------------------------------------------------ it does not fire


def argument(x: Any, y: Any) -> Any:
    x.add_(y)
    return x * 2


def view_of_an_argument(x: Any, y: Any) -> Any:
    x.view(-1).add_(y.view(-1))
    return x * 2


def through_a_view(x: Any, y: Any) -> Any:
    h = x * 2
    h[0].add_(y[0])
    return h * y


def view_read_later(x: Any, y: Any) -> Any:
    h = x * 2
    row = h[0]
    h.add_(y)
    return row * 3


def view_that_only_torch_knows(x: Any, y: Any) -> Any:
    """Its parts, in Thunder, make new memory."""
    h = x * 2
    h.diagonal().mul_(3.0)
    return h + y


def view_returned(x: Any, y: Any) -> Any:
    h = x * 2
    row = h[0]
    h.add_(y)
    return row


def an_argument_copied(x: Any, y: Any) -> Any:
    """What is read must still be the copy when the argument is written."""
    h = x * 2
    h.copy_(y)
    y.add_(1)
    return h + y


def a_result_copied_to_another(x: Any, y: Any) -> Any:
    """The caller may write to one of them."""
    h, copied = x * 2, y * 1
    copied.copy_(h)
    return h.view(-1), copied


def two_copies_of_a_value(x: Any, y: Any) -> Any:
    h, first, second = x * 2, y * 1, y + 1
    first.copy_(h)
    second.copy_(h)
    return second, first


STAY = (
    argument, view_of_an_argument, through_a_view, view_read_later, view_returned,
    view_that_only_torch_knows, an_argument_copied, a_result_copied_to_another,
)  # fmt: skip


@pytest.mark.parametrize("function", STAY, ids=lambda one: one.__name__)
def test_it_does_not_fire(monkeypatch: pytest.MonkeyPatch, function: Function) -> None:
    args = tensors()
    mine, its = ([one.clone() for one in args] for _ in range(2))
    before = prepared(monkeypatch, function, *args)
    assert text(functionalize(before)) == text(before)
    torch.testing.assert_close(jit(function, strict=True)(*mine), function(*its))
    torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("function", [a_result_copied_to_another, two_copies_of_a_value])
def test_results_have_their_own_memory(function: Function, *, gradients: bool) -> None:
    args = tensors(gradients=gradients)
    got, expected = jit(function, strict=True)(*args), function(*args)
    for results in (got, expected):
        with torch.no_grad():
            results[0].mul_(3)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("function", [activations, returned, beside_an_argument, argument])
def test_twice_is_once(monkeypatch: pytest.MonkeyPatch, function: Function) -> None:
    once = functionalize(prepared(monkeypatch, function, *tensors()))
    assert text(functionalize(once)) == text(once)


# ------------------------------------------------------------------------------ random programs

STEPS: dict[str, Function] = {
    "double": lambda a, b: a * 2,
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a @ b.T,
    "view": lambda a, b: a.view(4, 4),
    "transpose": lambda a, b: a.T,
    "rows": lambda a, b: a.view(-1).view(4, 4),
    "add_": lambda a, b: a.add_(b),
    "mul_": lambda a, b: a.mul_(3),
    "relu_": lambda a, b: torch.nn.functional.relu(a, inplace=True),
    "copy_": lambda a, b: a.copy_(b + 1),
    "row add_": lambda a, b: a[1].add_(b[0]).expand(4, 4),
    "set row": lambda a, b: (a.__setitem__(2, b[1]), a)[1],
}
PROGRAMS = st.tuples(
    st.lists(
        st.tuples(st.sampled_from([*STEPS]), st.integers(0, 20), st.integers(0, 20)), min_size=2,
        max_size=8,
    ),
    st.lists(st.integers(0, 20), min_size=1, max_size=3),
)  # fmt: skip


def program(steps: Any, wanted: Any) -> Function:
    def run(x: Any, y: Any) -> Any:
        values = [x, y, x + y]
        for name, at, other in steps:
            values.append(STEPS[name](values[at % len(values)], values[other % len(values)]))
        return tuple(values[at % len(values)] * 1 for at in wanted)

    return run


@settings(max_examples=12, deadline=None)
@given(PROGRAMS)
def test_random_programs(drawn: Any) -> None:
    """As eager torch, if Thunder alone is: integers, whose sums and products are exact."""
    function = program(*drawn)
    args = [torch.randint(-2, 3, (4, 4)).double() for _ in range(2)]
    its, alone, mine = ([one.clone() for one in args] for _ in range(3))
    try:
        expected = [*function(*its), *its]
        of_thunder = [*thunder.jit(function, executors=[])(*alone), *alone]
    except Exception:  # refused by either: nothing to compare
        return
    found = [*thunder.jit(function, executors=[fuser], fuser_strict=True)(*mine), *mine]
    for got, one, right in zip(found, of_thunder, expected, strict=True):
        if torch.equal(one, right):
            assert torch.equal(got, right)


# ----------------------------------------------------------------- views that are written stay


def a_flat_argument(x: Any, y: Any) -> Any:
    """The write must reach x."""
    x.view(-1).mul_(2)
    return x + y.view(-1).sum()


def refused(monkeypatch: pytest.MonkeyPatch, function: Function) -> list[str]:
    """The names of what the pass leaves to torch."""
    before = prepared(monkeypatch, function, *tensors())
    pairs = zip(before.ops, leave_written_views(before).ops, strict=True)
    return [a.bsym.sym.name for a, b in pairs if a.is_fusible and not b.is_fusible]


def test_a_written_view_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(monkeypatch, a_flat_argument) == ["view"]
    assert refused(monkeypatch, flattened) == []
