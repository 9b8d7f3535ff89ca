# SPDX-License-Identifier: Apache-2.0
"""Rows that read or write at computed places, and sorts: beside Thunder's own torch executor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import thunder
import torch
from helpers.traced import traced
from thunder.core import dtypes, prims
from thunder.core.prims import PrimIDs

import thunder_fuser
from thunder_fuser import fuser
from thunder_fuser.errors import OutOfRangeError
from thunder_fuser.executors.fuser import ThunderFuser
from thunder_fuser.executors.run.region_callable import callable_of
from thunder_fuser.executors.support.index_rows import INDEXING
from thunder_fuser.executors.support.rows import Row
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.torch_types import to_torch_dtype

Call = Callable[..., Any]

ROWS_OF = {row.name: row for row in INDEXING}
WIDE = torch.tensor([[0, 2, 1, 1], [2, 2, 0, 1], [1, 0, 0, 2]])  # into an axis of size 3
LINE = torch.tensor([2, 0, 1])


@pytest.mark.parametrize("jit", [thunder_fuser.jit, partial(thunder.jit, executors=[fuser])])
@pytest.mark.parametrize("key", [
    slice(-20, None), slice(None, -20), slice(-20, -2), (None, slice(-3, -20)), (0, slice(-9, 1)),
    (..., slice(-5, None, 2)), (slice(-20, None), None, slice(-1, None)),
], ids=str)  # fmt: skip
def test_slices_from_before_the_first_row(key: Any, jit: Call) -> None:
    """As a sliding window has that is longer than its input."""
    x = torch.randn(9, 3, requires_grad=True)
    found, expected = jit(lambda x: x[key] * 2)(x), x[key] * 2
    assert torch.equal(found, expected)
    if expected.numel():
        (got,), (right,) = (torch.autograd.grad(y.sum(), x) for y in (found, expected))
        assert torch.equal(got, right)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("key", [1, slice(1, 3), (slice(None), slice(0, 2))], ids=str)
def test_a_value_of_another_type_is_written(key: Any, dtype: torch.dtype) -> None:
    """As results of autocast are, into a float32 tensor. Its gradient has its own type."""
    x = torch.randn(4, 2, requires_grad=True)
    value = x.detach()[key].mul(4).to(dtype).requires_grad_(dtype.is_floating_point)

    def function(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[key] = value
        return y.sin()

    found, right = thunder_fuser.jit(function)(x, value), function(x, value)
    torch.testing.assert_close(found, right)
    needed = [x, value] if value.requires_grad else [x]
    gradients = [torch.autograd.grad(y.sum(), needed) for y in (found, right)]
    torch.testing.assert_close(*gradients)


def test_a_value_of_another_type_by_a_tensor_is_refused() -> None:
    def function(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[LINE] = value
        return y

    for call in (function, thunder_fuser.jit(function)):
        with pytest.raises(RuntimeError, match="dtypes match"):
            call(torch.ones(4, 2), torch.ones(3, 2).bfloat16())


def of(dtype: DataType, *shape: int, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    made = torch.randn(shape) if dtype.is_float else torch.randint(0, 5, shape)
    return made.to(to_torch_dtype(dtype))


def is_index(arg: torch.Tensor) -> bool:
    return any(arg is index or arg._base is index for index in (WIDE, LINE))


def _embedding_backward(grad: Any, index: Any) -> Any:
    return prims.embedding_backward(grad, index, 3, 1, False, False)


def _nll_loss_backward(g: Any, a: Any, target: Any, weight: Any, total: Any) -> Any:
    return thunder.torch.nll_loss_backward(g, a, target, weight, "mean", 1, total)


# What is called, and the arguments for a type.
CALLS: dict[str, tuple[Call, Callable[[DataType], list[Any]]]] = {
    "take": (lambda a, i: prims.take(a, i, 0), lambda d: [of(d, 3, 4), LINE]),
    "take_along_axis": (lambda a, i: prims.take_along_axis(a, i, 0),
                        lambda d: [of(d, 3, 4), WIDE[:2]]),
    "gather": (lambda a, i: prims.gather(a, i, 0), lambda d: [of(d, 3, 4), WIDE[:, :2]]),
    "embedding": (lambda i, w: prims.embedding(i, w, padding_idx=1),
                  lambda d: [WIDE, of(d, 3, 5)]),
    "scatter": (lambda a, i, s: prims.scatter(a, i, s, 1),
                lambda d: [of(d, 3, 4), LINE[:, None], of(d, 3, 1, seed=1)]),
    "scatter_add": (lambda a, i, s: prims.scatter_add(a, i, s, 0),
                    lambda d: [of(d, 3, 4), WIDE, of(d, 3, 4, seed=1)]),
    "index_add": (lambda a, i, s: prims.index_add(a, i, s, 0),
                  lambda d: [of(d, 3, 4), LINE, of(d, 3, 4, seed=1)]),
    "index_copy": (lambda a, i, s: prims.index_copy(a, i, s, 0),
                   lambda d: [of(d, 3, 4), LINE, of(d, 3, 4, seed=1)]),
    "index_put": (lambda a, i, s: prims.index_put(a, [i], s, True),
                  lambda d: [of(d, 3, 4), LINE, of(d, 3, 4, seed=1)]),
    "embedding_backward": (_embedding_backward, lambda d: [of(d, 3, 4, 5), WIDE]),
    "nll_loss_backward": (_nll_loss_backward,
                          lambda d: [of(d), of(d, 3, 4), LINE, of(d, 4, seed=1), of(d, seed=2)]),
    "sort": (lambda a: prims.sort(a, 1, True, True), lambda d: [of(d, 3, 4)]),
    "argsort": (lambda a: thunder.torch.argsort(a, dim=0, stable=True),
                      lambda d: [of(d, 3, 4)]),
    "topk": (lambda a: prims.topk(a, 2, 1, True, True), lambda d: [of(d, 3, 4)]),
}  # fmt: skip

# torch has no kernel for these; Thunder, or torch, takes indices of 64 bits alone, or none.
FLOATS_ONLY = ("embedding_backward", "nll_loss_backward")
WITHOUT_INT32 = ("embedding", "index_copy", "nll_loss_backward", "sort", "argsort", "topk")
CASES = [
    pytest.param(ROWS_OF[name], dtype, bits, id=f"{name}-{dtype.short}-i{bits}")
    for name in CALLS
    for dtype in DataType
    for bits in (64, 32)
    if dtype in ROWS_OF[name].dtypes and (dtype.is_float or name not in FLOATS_ONLY)
    and (bits == 64 or name not in WITHOUT_INT32)
]  # fmt: skip


def test_every_row_is_tested() -> None:
    assert set(CALLS) == set(ROWS_OF)


@pytest.mark.parametrize(("row", "dtype", "bits"), CASES)
def test_row_gives_what_torch_gives(
    fuser: ThunderFuser, row: Row, dtype: DataType, bits: int
) -> None:
    """Between two copies, which are fused; torch's own call stands alone."""
    call, make = CALLS[row.name]
    args = make(dtype)
    expected = traced(call, args)
    args = [arg.int() if bits == 32 and is_index(arg) else arg for arg in args]

    def between(*args: Any) -> Any:
        made = call(*[prims.clone(arg) for arg in args])
        return tuple(map(prims.clone, made)) if isinstance(made, tuple) else prims.clone(made)

    got = traced(between, args, [fuser])
    assert len(fuser.last_claims.regions) == 1
    many = isinstance(expected, tuple)
    # The fused gradient divides in float32 what torch divides in the type itself.
    eps = 2 * torch.finfo(to_torch_dtype(dtype)).eps if row.name == "nll_loss_backward" else 0.0
    for g, e in zip(got if many else [got], expected if many else [expected], strict=True):
        torch.testing.assert_close(g, e, rtol=eps, atol=0)


def test_torch_calls_alone_stay_with_torch(fuser: ThunderFuser) -> None:
    def calls(x: Any, index: Any) -> Any:
        return thunder.torch.sort(x, 1)[0], thunder.torch.scatter_add(x, 0, index, x)

    x = torch.randn(3, 4)
    expected = x.sort(1)[0], x.scatter_add(0, WIDE, x)
    torch.testing.assert_close(thunder.jit(calls, executors=[fuser])(x, WIDE), expected)
    assert not fuser.last_claims.regions
    reasons = {str(u.reason) for u in fuser.last_claims.unfused}
    assert reasons == {"a torch call that is not between fused ops"}


def test_a_torch_call_at_the_edge_is_left_outside(fuser: ThunderFuser) -> None:
    def call_first(x: Any) -> Any:
        return thunder.torch.exp(thunder.torch.sort(x, 1)[0]) * 2

    def call_last(x: Any) -> Any:
        return thunder.torch.sort(thunder.torch.exp(x) * 2, 1)[0]

    x = torch.randn(3, 4)
    for function, expected in ((call_first, x.sort(1)[0].exp() * 2),
                               (call_last, (x.exp() * 2).sort(1)[0])):  # fmt: skip
        torch.testing.assert_close(thunder.jit(function, executors=[fuser])(x), expected)
        (region,) = fuser.last_claims.regions
        assert [leaf.sym.name for leaf in region.leaves] == ["exp", "mul"]


REFUSED = [
    (lambda a, i: prims.take(a, prims.convert_element_type(i, dtypes.int16), 0),
     "an index of int16"),
    (lambda a, i: prims.index_put(a, [i, i], prims.sum(a, (1,)), False),
     "index_put by 2 tensors of indices"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "reason"), REFUSED)
def test_what_is_refused(fuser: ThunderFuser, function: Call, reason: str) -> None:
    trace_args = [torch.randn(3, 4), LINE]
    try:
        thunder.jit(function, executors=[fuser])(*trace_args)
    except (RuntimeError, IndexError):
        assert reason == "an index of int16"  # as eager torch raises
    assert reason in {str(u.reason) for u in fuser.last_claims.unfused}


# ---- whole functions, forward and backward, with kernels


def regions_of(trace: Any) -> list[Any]:
    """The RegionCallable of each region in a trace."""
    return [callable_of(bsym) for bsym in trace.bound_symbols if bsym.sym.is_fusion]


def compare_gradients(function: Call, *args: torch.Tensor) -> Any:
    """Values and gradients of a function beside eager torch; the compiled function."""

    def run(call: Call) -> list[torch.Tensor]:
        fresh = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
        result = call(*fresh)
        result.sum().backward()
        return [result.detach(), *(a.grad for a in fresh if a.grad is not None)]

    compiled = thunder.jit(function, executors=[thunder_fuser.fuser], fuser_strict=True)
    for got, expected in zip(run(compiled), run(function), strict=True):
        torch.testing.assert_close(got, expected)
    return compiled


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("padding_idx", [None, 2])
def test_embedding_forward_and_backward(dtype: torch.dtype, padding_idx: int | None) -> None:
    weight = torch.randn(11, 8, dtype=dtype)
    ids = torch.tensor([[1, 2, 10], [0, 2, 5]])

    def function(ids: Any, weight: Any) -> Any:
        embedded = torch.nn.functional.embedding(ids, weight, padding_idx)
        return torch.nn.functional.gelu(embedded * 2)

    compare_gradients(function, ids, weight)


def test_advanced_indexing_wraps_negative_indices() -> None:
    x = torch.randn(5, 6)
    index = torch.tensor([[-1, 0], [3, -5]])
    compare_gradients(lambda x, i: torch.exp(x[i]) * 2, x, index)


def test_take_along_dim_takes_indices_modulo_the_size() -> None:
    """On a GPU an index out of range ended all work of the process."""
    x, index = torch.randn(3, 2), torch.tensor([[-1, 2**31], [-9, 2**63 - 1]])
    compare_gradients(lambda x, i: torch.exp(torch.take_along_dim(x, i, 0)), x, index)


def test_the_gradient_of_rows_is_summed_as_an_embeddings() -> None:
    x, index = torch.randn(5, 2, 3), torch.tensor([4, 0, 4, 4])
    compare_gradients(lambda x, i: torch.exp(x[i]), x, index)
    compare_gradients(lambda x, i: torch.exp(x[:, :, i.clamp(max=2)]), x, index)
    jitted = thunder.jit(lambda x, i: torch.exp(x[i]), executors=[thunder_fuser.fuser])
    jitted(x.clone().requires_grad_(), index).sum().backward()
    assert "embedding_backward" in str(thunder.last_backward_traces(jitted)[-1])


def test_flip_and_strided_slices() -> None:
    x = torch.randn(6, 9)
    compiled = thunder.jit(  # Thunder has no gradient for flip
        lambda x: torch.exp(torch.flip(x * 2, (0, 1))) + x, executors=[thunder_fuser.fuser]
    )
    torch.testing.assert_close(compiled(x), (x * 2).flip(0, 1).exp() + x)
    compare_gradients(lambda x: torch.exp((x * 2)[1::2, ::3]) * 3, x)


def test_cross_entropy_is_one_kernel() -> None:
    """The target's logit is picked in the kernel that makes the row's sum."""
    logits, target = torch.randn(7, 40), torch.randint(0, 40, (7,))

    def function(logits: Any, target: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits, target, reduction="none")

    compare_gradients(function, logits, target)
    compiled = thunder.jit(function, executors=[thunder_fuser.fuser], fuser_strict=True)
    torch.testing.assert_close(compiled(logits, target), function(logits, target))
    (call,) = regions_of(thunder.last_traces(compiled)[-1])
    (definition,) = call.definitions
    program = thunder_fuser.FusionCache.get().look_up(definition).program_for([logits, target])
    assert [s.scheduler.name for s in program.segmented.segments] == ["persistent"]


LOSSES = [
    ("mean", -100, False, (7, 40)),
    ("mean", 3, True, (2, 40, 5)),
    ("sum", -100, True, (7, 40)),  # in which Thunder's own backward fails
    ("none", 3, False, (2, 40, 5)),
]


@pytest.mark.parametrize(("reduction", "ignored", "weighted", "shape"), LOSSES)
def test_cross_entropy_forward_and_backward(
    reduction: str, ignored: int, weighted: bool, shape: tuple[int, ...]
) -> None:
    """The gradient is one kernel too: the scatter of a row's target is a comparison."""
    torch.manual_seed(0)
    logits, target = torch.randn(shape), torch.randint(0, 40, (shape[0], *shape[2:]))
    target[1] = ignored
    weight = torch.rand(40) if weighted else None

    def function(logits: Any, target: Any) -> Any:
        return torch.nn.functional.cross_entropy(
            logits, target, weight, ignore_index=ignored, reduction=reduction
        )

    compiled = compare_gradients(function, logits, target)
    (call,) = regions_of(thunder.last_backward_traces(compiled)[-1])
    (definition,) = call.definitions
    fusion = thunder_fuser.FusionCache.get().look_up(definition).fusion
    assert "eq" in {expr.op for expr in fusion.exprs}


def test_an_index_out_of_range_raises() -> None:
    compiled = thunder.jit(
        lambda x, i: torch.exp(torch.index_select(x, 0, i)), executors=[thunder_fuser.fuser],
        fuser_strict=True,
    )  # fmt: skip
    x = torch.randn(4, 3)
    torch.testing.assert_close(compiled(x, torch.tensor([3])), x[3:].exp())
    with pytest.raises(OutOfRangeError, match="index: expected numbers from 0 to 3, got -1"):
        compiled(x, torch.tensor([-1]))
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([4]))


def test_extrema_places_sorts_and_lookups_in_one_region() -> None:
    def function(x: Any) -> Any:
        order = torch.argsort(x * 2, dim=1, stable=True)
        return torch.gather(torch.exp(x), 1, order) + torch.argmax(x, 1, keepdim=True)

    x = torch.randn(5, 12)
    compiled = thunder.jit(function, executors=[thunder_fuser.fuser], fuser_strict=True)
    torch.testing.assert_close(compiled(x), function(x))


def test_the_table_names_prims_and_ltorch() -> None:
    assert PrimIDs.TAKE in {row.id for row in INDEXING}
    assert ROWS_OF["argsort"].id == "torch.argsort"


def test_a_scatter_add_in_bfloat16_is_left_to_torch() -> None:
    """Thunder's torch executor makes casts of it that must be claimed before the fusion pass."""
    x, index = torch.randn(4, 3).bfloat16(), torch.zeros(4, 3, dtype=torch.int64)
    jitted = thunder.jit(
        lambda a, i: thunder.torch.scatter_add(a, 0, i, a), executors=[thunder_fuser.fuser]
    )
    assert torch.equal(jitted(x, index), x.float().scatter_add(0, index, x.float()).bfloat16())
