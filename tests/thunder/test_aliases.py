# SPDX-License-Identifier: Apache-2.0
"""Views, in-place ops and copies into arguments: values, strides and shared memory as in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser.explain import report
from thunder_fuser.explain.jitted import claims_of, final_traces, fusions_of, jit

Function = Callable[[Any, Any], Any]
CASES: dict[str, Function] = {}


def case(function: Function) -> Function:
    CASES[function.__name__] = function
    return function


# ---- views of arguments


@case
def views(x: Any, y: Any) -> Any:
    return x.view(-1), y.t(), x[1:], x.reshape(4, 3), x.transpose(0, 1).unsqueeze(0)


@case
def expanded(x: Any, y: Any) -> Any:
    return x.expand(2, 3, 4), y[:1].expand(3, 4), x.sum().expand(2, 2)


@case
def sliced(x: Any, y: Any) -> Any:
    return x[:, ::2], x[1:, 1:3], x[0], x[..., None], x[-1, -1], x[:0], x.view(1, 12)


@case
def reshapes_that_copy(x: Any, y: Any) -> Any:
    return x.t().reshape(-1), x.expand(2, 3, 4).reshape(-1)


@case
def views_beside_sums(x: Any, y: Any) -> Any:
    return x.view(-1), x + y, (x + y).view(-1), x[1:], x[1:] * 2


@case
def the_same_tensors(x: Any, y: Any) -> Any:
    return x, x.float(), x.contiguous(), y + 1, x


@case
def contiguous(x: Any, y: Any) -> Any:
    return x.contiguous()


@case
def contiguous_elsewhere(x: Any, y: Any) -> Any:
    return x.t().contiguous(), x.t().contiguous().view(-1)


# ---- in place


@case
def added(x: Any, y: Any) -> Any:
    x.add_(y)
    return x


@case
def added_then_viewed(x: Any, y: Any) -> Any:
    x.add_(y)
    return x.view(-1), x * 2


@case
def written_through_a_view(x: Any, y: Any) -> Any:
    v = x.view(-1)
    v.mul_(2)
    return x + y, v


@case
def written_through_a_slice(x: Any, y: Any) -> Any:
    x[1].mul_(2)
    return x + y


@case
def written_through_a_transpose(x: Any, y: Any) -> Any:
    x.t().add_(y.t())
    return x * 2


@case
def written_through_contiguous(x: Any, y: Any) -> Any:
    z = x.contiguous()
    z.add_(1)
    return x * 1, z


@case
def written_through_a_chunk(x: Any, y: Any) -> Any:
    a, b = x.chunk(2, 0)
    a.add_(1)
    return x * 2, b


@case
def intermediate_relu(x: Any, y: Any) -> Any:
    z = x * 2
    z.relu_()
    return z + y, x


@case
def intermediate_and_its_view(x: Any, y: Any) -> Any:
    a = x.exp()
    b = a.view(-1)
    b.add_(1)
    return a, b


@case
def functional_relu(x: Any, y: Any) -> Any:
    F.relu(x, inplace=True)
    return x.sum()


@case
def written_twice(x: Any, y: Any) -> Any:
    x.add_(1)
    x.mul_(y)
    return x * 3


@case
def both_written(x: Any, y: Any) -> Any:
    x.add_(y)
    y.mul_(x)
    return x * y


@case
def softmax_in_place(x: Any, y: Any) -> Any:
    x.sub_(x.amax(-1, keepdim=True))
    x.exp_()
    x.div_(x.sum(-1, keepdim=True))
    return x


@case
def read_before_it_is_written(x: Any, y: Any) -> Any:
    s = x.sum()
    x.add_(s)
    return s, x


@case
def added_to_itself(x: Any, y: Any) -> Any:
    return x.add_(x)


@case
def clone_written(x: Any, y: Any) -> Any:
    c = x.clone()
    c.add_(1)
    return x, c


@case
def same_type_written(x: Any, y: Any) -> Any:
    d = x.to(torch.float32)
    d.add_(1)
    return x * 1, d


@case
def another_type_written(x: Any, y: Any) -> Any:
    z = x.bfloat16()
    z.mul_(2)
    return z, x


@case
def masked(x: Any, y: Any) -> Any:
    return x.masked_fill_(y > 0, 0.0) * 2


@case
def set_item(x: Any, y: Any) -> Any:
    x[0] = y[0]
    x[:, 1:3] = 5.0
    return x * 2


# ---- copies: read after write, and the other way round (NVIDIA/Fuser#2664)


@case
def copied(x: Any, y: Any) -> Any:
    x.copy_(y * 2)
    return x + 1


@case
def read_then_copied_into(x: Any, y: Any) -> Any:
    z = x + 1
    x.copy_(y)
    return z, x * 2


@case
def reduced_then_copied_into(x: Any, y: Any) -> Any:
    z = (x * 2).sum(0)
    x.copy_(y + z)
    return z + x.sum(0)


@case
def swapped(x: Any, y: Any) -> Any:
    t = x * 1
    x.copy_(y)
    y.copy_(t)
    return x - y


@case
def transposed_into_itself(x: Any, y: Any) -> Any:
    square = x[:, :3]
    square.copy_(square.t() * 1)
    return x + y


@case
def zeroed(x: Any, y: Any) -> Any:
    x.zero_()
    return x + y


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda t: t,
    "rows apart": lambda t: torch.cat((t, t), 1)[:, :4],
}


def outcome(
    function: Callable[..., Any], layout: str
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(results, arguments afterwards)."""
    torch.manual_seed(0)
    args = [LAYOUTS[layout](torch.randn(3, 4)) for _ in range(2)]
    result = function(*args)
    return list(result) if isinstance(result, tuple) else [result], args


def shared(results: Sequence[torch.Tensor], args: Sequence[torch.Tensor]) -> list[int | None]:
    """Which argument each result lies in."""
    where = [arg.untyped_storage().data_ptr() for arg in args]
    found = [result.untyped_storage().data_ptr() for result in results]
    return [where.index(one) if one in where else None for one in found]


# torch has no such view of rows that lie apart
DENSE_ONLY = {
    "views", "sliced", "views_beside_sums", "added_then_viewed", "written_through_a_view",
}
PAIRS = [
    (name, layout) for layout in LAYOUTS for name in CASES
    if layout == "dense" or name not in DENSE_ONLY
]


@pytest.mark.parametrize(("name", "layout"), PAIRS)
def test_as_torch(name: str, layout: str) -> None:
    (wanted, after), (got, mine) = (
        outcome(function, layout) for function in (CASES[name], jit(CASES[name], strict=True))
    )
    for result, right in zip([*got, *mine], [*wanted, *after], strict=True):
        torch.testing.assert_close(result, right)
        assert result.dtype is right.dtype
    assert shared(got, mine) == shared(wanted, after)
    for result, right, where in zip(got, wanted, shared(got, mine), strict=True):
        assert where is None or result.stride() == right.stride()


# ---- regions of views


def chain(x: Any, y: Any) -> Any:
    return x.view(2, 6).t().unsqueeze(0), x[1:3, 2:].expand(5, 2, 2), y.t()


def test_a_run_of_views_is_a_region_without_a_kernel() -> None:
    jitted = jit(chain, strict=True)
    outcome(jitted, "dense")
    (one,) = fusions_of(jitted)
    assert one.name == "fuserViews0"
    assert not any(bsym.sym.is_fusion for bsym in final_traces(jitted)[0].bound_symbols)
    assert one.region.makes_views and not one.definitions
    assert "6 views, which torch makes without a kernel: " in str(report(jitted))
    assert not claims_of(jitted).unfused


def test_views_need_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    (got, args), (wanted, _) = (outcome(f, "dense") for f in (jit(chain, strict=True), chain))
    assert all(torch.equal(g, w) for g, w in zip(got, wanted, strict=True))
    got[0].zero_()
    assert not args[0].any()


def test_contiguous_copies_only_where_it_must() -> None:
    """The same trace: decided by the strides of the call."""
    jitted = jit(lambda x: x.t().contiguous(), strict=True)
    x, dense = torch.randn(3, 4), torch.randn(4, 3).t()
    (one,) = (fusions_of(jitted) for _ in [jitted(dense)])
    assert jitted(dense).data_ptr() == dense.data_ptr() and not one[0].definitions
    copy = jitted(x)
    assert torch.equal(copy, x.t()) and copy.is_contiguous() and len(one[0].definitions) == 1
    assert jitted(dense).data_ptr() == dense.data_ptr()


def test_views_that_nothing_reads_are_not_made() -> None:
    """The region beside them repeats the broadcast, so the wide tensor is nowhere."""

    def function(x: Any, y: Any) -> Any:
        wide = y[0].expand(3, 4)
        return torch.matmul(x, x.t()), wide * 2

    jitted = jit(function, strict=True)
    (got, _), (wanted, _) = (outcome(f, "dense") for f in (jitted, function))
    torch.testing.assert_close(got, wanted)
    outputs = [tuple(p.shape) for one in fusions_of(jitted) for p in one.region.outputs]
    assert outputs.count((3, 4)) == 1


def test_batch_norm_updates_its_statistics() -> None:
    """In training the running mean and variance are written, and the loss has a gradient."""

    def run(wrap: Callable[[Any], Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        norm = torch.nn.BatchNorm2d(3)
        x = torch.randn(4, 3, 2, 5, requires_grad=True)
        function = wrap(norm)
        for _ in range(2):
            function(x).square().sum().backward()
        return [norm.running_mean, norm.running_var, norm.num_batches_tracked, x.grad]

    for got, right in zip(run(lambda n: jit(n, strict=True)), run(lambda n: n), strict=True):
        torch.testing.assert_close(got, right)


def test_a_write_stays_before_a_read_that_thunder_does_not_know_to_be_of_its_memory() -> None:
    """Beside arguments that nothing reads, Thunder takes others for those that share memory."""

    def function(a: Any, b: Any, c: Any, alias: Any) -> Any:
        alias.mul_(2)
        return torch.log(a)

    def arguments() -> tuple[torch.Tensor, ...]:
        a, b, c = (torch.ones((), dtype=torch.float64) for _ in range(3))
        return a, b, c, a.movedim(0, -1)

    assert torch.equal(jit(function, strict=True)(*arguments()), function(*arguments()))


@pytest.mark.parametrize("shape", [(), (3,)])
def test_the_gradient_of_one_tensor_that_is_two_arguments(shape: tuple[int, ...]) -> None:
    """Both names had all of it. Thunder takes the zeros, which are written, for a view of a."""

    def function(a: Any, b: Any) -> Any:
        zeros = a.new_zeros(a.shape)
        zeros.mul_(2)
        return b * b * 3

    x = torch.full(shape, 2.0, requires_grad=True)
    jit(function)(x, x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full(shape, 12.0))
