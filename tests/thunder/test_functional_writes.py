# SPDX-License-Identifier: Apache-2.0
"""Writes in place that another name shows, with gradients: as in eager torch, or InPlaceError."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from thunder.dynamo import thunderfx
from torch import Tensor, nn

import thunder_fuser
from thunder_fuser.errors import FallbackWarning, InPlaceError
from thunder_fuser.executors.fuser import fuser

Function = Callable[..., Any]
JITS: dict[str, Callable[..., Function]] = {
    "thunder.jit": lambda f, **options: thunder.jit(f, executors=[fuser], **options),
    "thunder_fuser.jit": thunder_fuser.jit,
    "thunderfx": lambda f, **options: thunderfx(f, executors=[fuser], **options),
}
CASES: dict[str, Function] = {}
REFUSED: dict[str, Function] = {}


def case(function: Function) -> Function:
    CASES[function.__name__] = function
    return function


def refused(function: Function) -> Function:
    REFUSED[function.__name__] = function
    return function


# x requires a gradient; c is an argument that does not


@case
def row_added(x: Any, c: Any) -> Any:
    b = x * 1
    b[1].add_(10)
    return b


@case
def slice_copied(x: Any, c: Any) -> Any:
    b = torch.zeros(6, 3)
    b[2:4].copy_(x[:2])
    return b * 2


@case
def slice_zeroed(x: Any, c: Any) -> Any:
    b = x * 1
    b[2:4].zero_()
    return b * x


@case
def flat_multiplied(x: Any, c: Any) -> Any:
    b = x * 1
    b.view(-1).mul_(2)
    return b


@case
def flat_item(x: Any, c: Any) -> Any:
    b = x * 1
    b.view(-1)[3] = 7
    return b * b


@case
def steps_of_a_transpose(x: Any, c: Any) -> Any:
    b = x.sin()
    b.t()[1, ::2].mul_(3)
    return b * b


@case
def base_written(x: Any, c: Any) -> Any:
    b = x.sin()
    v = b[1]
    b.mul_(x)
    return v * 2


@case
def sibling_written(x: Any, c: Any) -> Any:
    b = x.sin()
    v, w = b[:3], b.t()[0]
    v.mul_(c[:3])
    w.add_(v.sum())
    return b * 1, v * 1, w * 1


@case
def parts_apart(x: Any, c: Any) -> Any:
    b = x.sin()
    v, w = b[:2], b[2:]
    v.mul_(2)
    return v * 1, w * x[2:]


@case
def masks_and_indices(x: Any, c: Any) -> Any:
    b = x.sin()
    b[1:].masked_fill_(c[1:] > 0, 3.0)
    b[0].index_put_((torch.tensor([0, 2]),), torch.tensor(1.0))
    return b * b


@case
def activation_of_a_part(x: Any, c: Any) -> Any:
    b = x * 2
    F.relu(b[1:], inplace=True)
    return b + c


@refused
def a_copy_by_to(x: Any, c: Any) -> Any:
    """Thunder alone loses the gradient. The fuzzer found a KeyError here."""
    b = x.to(x.dtype, copy=True)
    b.exp_()
    return b * x


@case
def another_type_written(x: Any, c: Any) -> Any:
    """A cache in another type than its model's, as in litgpt."""
    b = c.to(torch.float64)
    b.index_copy_(0, torch.tensor([1]), x[:1].double())
    return b * 2


@case
def another_type_of_what_is_written(x: Any, c: Any) -> Any:
    """It has the old values."""
    b = x * 1
    old = b.to(torch.float64)
    b[1:].mul_(3)
    return old * 2, b


@case
def an_unsqueezed_row(x: Any, c: Any) -> Any:
    b = x.sin()
    b.unsqueeze(0).squeeze(0).select(0, 2).add_(x[0])
    return b * b


@case
def read_before_and_after(x: Any, c: Any) -> Any:
    b = x.sin()
    before = b * 2
    b[0].add_(1)
    return before, b * 2


@case
def a_value_that_is_written_later(x: Any, c: Any) -> Any:
    a, b = x * 1, x * 2
    b[0].copy_(a[0])
    a.add_(1)
    return b * 1, a * 1


@case
def one_result_written_into_another(x: Any, c: Any) -> Any:
    a, b = x * 1, x * x
    added = a.add_(c)
    b.copy_(added)
    return b * 1, a * 1


@case
def an_argument(x: Any, c: Any) -> Any:
    c[1].add_(5)
    return c * x


@case
def an_argument_nobody_reads(x: Any, c: Any) -> Any:
    c.view(-1)[2:5].mul_(2)
    return x * 3


@case
def an_argument_with_gradients(x: Any, c: Any) -> Any:
    c[:2].copy_(x[2:4])
    return c.sin() * x


@case
def a_buffer_under_no_grad(x: Any, c: Any) -> Any:
    with torch.no_grad():
        c[0].mul_(0.9).add_(x.mean(0))
    return c * x


@case
def the_result_and_its_name(x: Any, c: Any) -> Any:
    b = x * x
    written = b.add_(1)
    return b, written


@case
def through_a_reshape(x: Any, c: Any) -> Any:
    b = x.sin()
    b.reshape(-1).mul_(2)
    return b


@case
def a_copy_of_a_number_to_a_row(x: Any, c: Any) -> Any:
    b = x * 1
    b[0].copy_(x.mean())
    b[:, :1].copy_(c[0, 0])
    return b


@case
def a_copy_of_a_row_to_rows(x: Any, c: Any) -> Any:
    b, d = x * 1, torch.zeros(5, 3)
    b.copy_(x.mean(0, keepdim=True))
    d.view(-1)[::2].copy_(c.mean())
    return b + d


@refused
def through_a_diagonal(x: Any, c: Any) -> Any:
    b = x.sin()
    b.diagonal().mul_(2)
    return b


@refused
def a_part_of_an_expanded_view(x: Any, c: Any) -> Any:
    b = x * 2
    wide = b.expand(2, *b.shape)
    wide[0].add_(10)  # both halves of it are one memory
    return wide * 1


@refused
def through_detach(x: Any, c: Any) -> Any:
    b = x.sin()
    b.detach()[1].mul_(2)
    return b


@refused
def under_no_grad(x: Any, c: Any) -> Any:
    b = x.sin()
    with torch.no_grad():
        b.mul_(2)
    return b * 1


def arguments() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(5, 3, requires_grad=True), torch.randn(5, 3)


def outcome(function: Function, args: Sequence[Tensor]) -> list[Tensor]:
    """The results, the gradients of arguments, and the arguments afterwards."""
    given = [one.detach().clone().requires_grad_(one.requires_grad) for one in args]
    results = function(*given)
    results = results if isinstance(results, tuple) else (results,)
    torch.manual_seed(1)
    pairs = [(one, torch.rand(one.shape)) for one in results]
    torch.autograd.backward(*zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True))
    return [one.detach() for one in (*results, given[0].grad, *given)]


@pytest.fixture(params=JITS.values(), ids=JITS.keys())
def jit(request: pytest.FixtureRequest) -> Callable[..., Function]:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_as_eager(function: Function, jit: Callable[..., Function]) -> None:
    expected, got = (outcome(one, arguments()) for one in (function, jit(function)))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_as_eager_where_no_gradient_is_wanted(function: Function) -> None:
    """Arguments that require gradients, under no_grad: Thunder differentiates these too."""
    x, c = arguments()
    theirs, ours = c.clone(), c.clone()
    with torch.no_grad():
        expected = function(x, theirs)
        got = thunder.jit(function, executors=[fuser])(x, ours)
    torch.testing.assert_close([got, ours], [expected, theirs])


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_an_error_names_the_line(function: Function) -> None:
    with pytest.raises(InPlaceError, match=rf"{__file__}:\d+\).*functional_writes=False"):
        JITS["thunder.jit"](function)(*arguments())
    JITS["thunder.jit"](function, fuser_functional_writes=False)(*arguments())


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_no_error_without_gradients(function: Function) -> None:
    x, c = (one.detach() for one in arguments())
    torch.testing.assert_close(JITS["thunder.jit"](function)(x, c), function(x, c))


def test_a_module_that_writes_a_part_of_its_buffer() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("seen", torch.zeros(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            self.seen[1:3].copy_(x[:2].detach())
            return self.linear(x) + self.seen.sum()

    torch.manual_seed(0)
    ours, theirs = Cache(), Cache()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(5, 3)
    expected, got = theirs(x), thunder.jit(ours, executors=[fuser])(x)
    got.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close([got, ours.seen], [expected, theirs.seen])
    torch.testing.assert_close(ours.linear.weight.grad, theirs.linear.weight.grad)


def test_results_share_memory() -> None:
    def function(x: Any) -> Any:
        b = x * 1
        v = b[1]
        v.add_(1)
        return b, v

    b, v = thunder.jit(function, executors=[fuser])(torch.ones(3, 2, requires_grad=True))
    assert b.untyped_storage()._cdata == v.untyped_storage()._cdata


@pytest.mark.parametrize("jit", ["thunder.jit", "thunder_fuser.jit"])  # thunderfx splits there
def test_a_view_that_a_call_makes(jit: str) -> None:
    """It has no primitive; it is recomputed by the call where what it views is written."""

    def function(x: Any, c: Any) -> Any:
        y = x * 2
        d = y.detach()
        y[1:].mul_(3)
        return (y * d).sum(), d, y

    expected, got = (outcome(one, arguments()) for one in (function, JITS[jit](function)))
    torch.testing.assert_close(got, expected)


def test_detached_arguments_share_memory() -> None:
    """The argument is written at the end, so its views are made behind that."""

    def function(x: Any, c: Any) -> Any:
        c[1:].mul_(2)
        return x * 1, c.detach(), c[::2]

    for jit in (thunder.jit(function, executors=[fuser]), function):
        x, c = torch.ones(3, requires_grad=True), torch.arange(6.0).reshape(3, 2)
        _, whole, rows = jit(x, c)
        rows[0] = 7
        assert whole.tolist() == c.tolist() == [[7.0, 7.0], [4.0, 6.0], [8.0, 10.0]]


def block(x: Any, c: Any) -> Any:
    """Activations and running statistics."""
    mean = torch.zeros(3)
    y = F.batch_norm(x * 2, mean, torch.ones(3), training=True)
    y = F.relu(y.unsqueeze(0), inplace=True).flatten(1) * 2
    y += 1
    return F.relu(y, inplace=True) * 3, mean


def whole_argument(x: Any, c: Any) -> Any:
    c.add_(1)
    return c * x


def written_name(x: Any, c: Any) -> Any:
    v = (x * 1).view(-1)
    v.mul_(2)
    return v * 3


@pytest.mark.parametrize("function", [block, whole_argument, written_name, parts_apart])
def test_what_was_right_stays_as_it_is(function: Function) -> None:
    """Writes that the written name alone shows, where Thunder is right."""
    calls = []
    for switch in (True, False):
        jitted = JITS["thunder.jit"](function, fuser_fuel=0, fuser_functional_writes=switch)
        expected, got = (outcome(one, arguments()) for one in (function, jitted))
        torch.testing.assert_close(got, expected)
        traces = thunder.last_traces(jitted)
        calls.append([[bsym.sym.name for bsym in one.bound_symbols] for one in traces])
    assert calls[0] == calls[1]


# ------------------------------------------------------------------------------- random programs

VIEWS: dict[str, Function] = {
    "row": lambda t: t[0],
    "last": lambda t: t[..., -1],
    "tail": lambda t: t[1:],
    "head": lambda t: t[:-1],
    "step": lambda t: t[::2],
    "column": lambda t: t[:, 1:2],
    "transpose": lambda t: t.transpose(0, -1) if t.ndim else t,  # Thunder: IndexError without axes
    "permute": lambda t: t.permute(*range(t.ndim)[::-1]),
    "view": lambda t: t.view(-1),
    "unsqueeze": lambda t: t.unsqueeze(0),
    "squeeze": lambda t: t.squeeze(0),
    "chunk": lambda t: t.chunk(2)[0],
    "narrow": lambda t: t.narrow(0, 0, 1),
    "select": lambda t: t.select(0, 0),
    "reshape": lambda t: t.reshape(-1),
    "flatten": lambda t: t.flatten(),
    "contiguous": lambda t: t.contiguous(),
    "expand": lambda t: t.expand(2, *t.shape),
    "diagonal": lambda t: t.diagonal() if t.numel() else t,  # Thunder: RuntimeError if empty
    "detach": lambda t: t.detach(),
    "clone": lambda t: t.clone(),
}


def set_row(t: Any, other: Any) -> Any:
    t[0] = 1.5


def set_tail(t: Any, other: Any) -> Any:
    t[1:] = other.sum()


def copied(t: Any, other: Any) -> Any:
    return t.copy_(other) if t.shape == other.shape else t.copy_(other.sum().expand(t.shape))


def multiplied_under_no_grad(t: Any, other: Any) -> Any:
    with torch.no_grad():
        t.mul_(2)


WRITES: dict[str, Function] = {
    "add": lambda t, other: t.add_(10),
    "mul": lambda t, other: t.mul_(other.sum()),
    "sub": lambda t, other: t.sub_(other) if t.shape == other.shape else t.sub_(1),
    "zero": lambda t, other: t.zero_(),
    "mask": lambda t, other: t.masked_fill_(t > 0.3, 0.25),
    "index": lambda t, other: t.index_put_((torch.tensor([0]),), torch.tensor(2.0)),
    "relu": lambda t, other: F.relu(t, inplace=True),
    **{one.__name__: one for one in (set_row, set_tail, copied, multiplied_under_no_grad)},
}
READS: dict[str, Function] = {
    "linear": lambda t, other: t * 2 + 1,
    "sin": lambda t, other: t.sin(),
    "sum": lambda t, other: t.sum(),
    "product": lambda t, other: t * (other if t.shape == other.shape else other.sum()),
}
SOURCES: dict[str, Function] = {
    "product": lambda x, c: x * 1,
    "sine": lambda x, c: x.sin(),
    "zeros": lambda x, c: torch.zeros(4, 3),
    "argument": lambda x, c: c,
}
NAMES = (*VIEWS, *VIEWS, *WRITES, *WRITES, *READS)
Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 99), st.integers(0, 99)),
    min_size=2,
    max_size=8,
)


def program(
    x: Any, c: Any, source: str, steps: Sequence[Step], results: Sequence[int], *, copies: bool
) -> Any:
    """The last term keeps a saved tensor in the backward: Thunder fails if it needs none.

    copies: no write reads what it overwrites, which torch does in any order for such strides.
    """
    values = [SOURCES[source](x, c)]
    for name, first, second in steps:
        t, other = values[first % len(values)], (x, *values)[second % (len(values) + 1)]
        if name in WRITES:
            written = WRITES[name](t, other.clone() if copies else other)
            values += [written] if written is not None and second % 3 == 0 else []
        else:
            values.append(VIEWS[name](t) if name in VIEWS else READS[name](t, other))
    return *(values[at % len(values)] * 1 for at in results), x.sin().sum()


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(SOURCES)),
    STEPS,
    st.lists(st.integers(0, 99), min_size=1, max_size=3),
    st.booleans(),
)
def test_random_programs(
    source: str, steps: list[Step], results: list[int], transposed: bool
) -> None:
    function = functools.partial(
        program, source=source, steps=steps, results=results, copies=transposed
    )
    torch.manual_seed(0)
    x, c = (torch.randn(3, 4).t() if transposed else torch.randn(4, 3) for _ in range(2))
    args = x.requires_grad_(), c
    try:
        expected = outcome(function, args)
    except (RuntimeError, IndexError, TypeError):  # eager torch refuses the program
        assume(False)
    try:
        got = outcome(thunder.jit(function, executors=[fuser], fuser_fuel=0), args)
    except InPlaceError:
        return
    torch.testing.assert_close(got, expected, equal_nan=True)


# ----------------------------------------------------------- arguments with a gradient of their own

OF_ARGUMENTS: dict[str, Any] = {
    "relu": lambda x: F.relu(x, inplace=True),
    "method": lambda x: x.mul_(3) * 2,
    "row": lambda x: (x[0].mul_(3), x * 2)[1],
    "view": lambda x: (x.view(-1).mul_(3), x * 2)[1],
    "unused": lambda x: (x.add_(1), x.detach().sum())[1],
}


@pytest.mark.parametrize("name", OF_ARGUMENTS)
def test_a_written_argument_with_a_gradient_is_refused(name: str, jit: Any) -> None:
    """Thunder loses the gradient through the write, and says nothing. A graph of Dynamo that writes
    one is run by torch."""
    x = torch.randn(2, 3, requires_grad=True)
    told = r"which requires a gradient \(at .*test_functional_wr"
    if jit is JITS["thunderfx"]:
        found, expected = x * 1, x * 1
        with pytest.warns(FallbackWarning, match=told):
            result = jit(OF_ARGUMENTS[name])(found)
        torch.testing.assert_close((result, found), (OF_ARGUMENTS[name](expected), expected))
    else:
        with pytest.raises(InPlaceError, match=told):
            jit(OF_ARGUMENTS[name])(x * 1)
    with torch.no_grad():
        found, expected = x.clone(), x.clone()
        result, wanted = jit(OF_ARGUMENTS[name])(found), OF_ARGUMENTS[name](expected)
    torch.testing.assert_close((result, found), (wanted, expected))


def test_a_written_copy_of_an_argument_has_its_gradient(jit: Any) -> None:
    """What the error says to write."""

    def function(x: Any) -> Any:
        x = x.clone()
        return x.mul_(3).sin()

    x = torch.randn(2, 3, requires_grad=True)
    gradients = [torch.autograd.grad(f(x).sum(), x)[0] for f in (jit(function), function)]
    torch.testing.assert_close(*gradients)
