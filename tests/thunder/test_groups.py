# SPDX-License-Identifier: Apache-2.0
"""Products of groups and counts of tokens, alone and in a layer of experts, by both front ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import with_gradients
from helpers.torch_samples import assert_as_good, called, doubled
from thunder.dynamo import thunderfx

from thunder_fuser import fuser
from thunder_fuser.explain.jitted import final_traces, fusions_of, jit

ENDS = torch.tensor([4, 4, 16], dtype=torch.int32)  # the second group is empty
FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "rows": ((16, 32), (3, 32, 8)),
    "columns": ((3, 8, 32), (32, 16)),
    "summed": ((8, 16), (16, 8)),
}


def one_by_one(a: Any, b: Any) -> Any:
    """A product a group."""
    starts = [0, *ENDS[:-1].tolist()]
    slices = [slice(*pair) for pair in zip(starts, ENDS.tolist(), strict=True)]
    if a.dim() == b.dim():
        return torch.stack([a[:, one] @ b[one] for one in slices])
    if a.dim() == 2:
        return torch.cat([a[one] @ b[at] for at, one in enumerate(slices)])
    return torch.cat([a[at] @ b[:, one] for at, one in enumerate(slices)], 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_products_and_their_gradients(form: str, dtype: torch.dtype) -> None:
    """Between pointwise work, as near to float64 as a product a group is."""
    torch.manual_seed(0)
    args = tuple(torch.randn(shape).to(dtype).requires_grad_() for shape in FORMS[form])

    def grouped(a: Any, b: Any) -> Any:
        return F.grouped_mm(a * 2, b, offs=ENDS) * 3

    def plain(a: Any, b: Any) -> Any:
        return one_by_one(a * 2, b) * 3

    jitted = jit(grouped, strict=True)
    got, eager, exact = (
        called(one, (given, {}))
        for one, given in ((jitted, args), (plain, args), (plain, doubled(args)))
    )
    assert_as_good(got, eager, exact)
    assert fusions_of(jitted)
    names = [bsym.sym.name for trace in final_traces(jitted) for bsym in trace.bound_symbols]
    kinds = ("grouped_product", "grouped_weight_gradient")
    assert sum(map(names.count, kinds)) == 3  # forward, and a product for each gradient


def test_the_gradient_of_a_transposed_weight_lies_as_the_weight() -> None:
    """Of another layout autograd made a copy: 8 of 60 ms of a step of a mixture of experts."""
    a, weight = torch.randn(16, 32), torch.randn(3, 8, 32, requires_grad=True)
    jitted = jit(lambda a, w: F.grouped_mm(a * 2, w.mT, offs=ENDS) * 3, strict=True)
    jitted(a, weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.is_contiguous()
    expected = torch.zeros_like(weight).requires_grad_()
    one_by_one(a * 2, expected.mT).mul(3).sum().backward()
    torch.testing.assert_close(weight.grad, expected.grad)


@pytest.mark.parametrize("given", [{}, {"bias": torch.randn(8)}, {"out_dtype": torch.float32}])
def test_what_is_not_taken(given: dict[str, Any]) -> None:
    a, b = (torch.randn(shape, dtype=torch.bfloat16) for shape in FORMS["rows"])
    offs = {"offs": ENDS} if given else {}
    with pytest.raises(NotImplementedError, match="with offs, and without bias"):
        jit(lambda a, b: torch._grouped_mm(a, b, **offs, **given))(a, b)


@pytest.mark.parametrize(
    ("a", "b", "ends"),
    [((16, 32), (3, 31, 8), 3), ((16, 32), (3, 32, 8), 2), ((3, 16, 32), (3, 32, 8), 3)],
)
def test_shapes_that_do_not_fit(a: tuple[int, ...], b: tuple[int, ...], ends: int) -> None:
    with pytest.raises(RuntimeError, match="grouped_mm of"):
        jit(lambda a, b, ends: torch._grouped_mm(a, b, offs=ends))(
            torch.randn(a), torch.randn(b), torch.zeros(ends, dtype=torch.int32)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bounds", [(8, 0, 7), (5, -1.5, 2.25), (1, 0, 1)])
def test_counts(dtype: torch.dtype, bounds: tuple[int, float, float]) -> None:
    """On edges of bins, at the ends, outside; NaN is in no bin."""
    bins, low, high = bounds
    torch.manual_seed(0)
    edges = torch.linspace(low, high, bins + 1)
    x = torch.cat([edges, torch.randint(-2, 10, (50,)), torch.randn(50) * 3])
    x = torch.cat([x, torch.tensor([torch.nan, torch.inf, -torch.inf])]).to(dtype)

    def function(x: Any) -> Any:
        return torch.histc(x, bins=bins, min=low, max=high)

    jitted = jit(function, strict=True)
    wide = x if dtype is not torch.bfloat16 else x.float()  # torch's kernel has no bfloat16
    wide = wide[~wide.isnan()]  # of which torch counts one, or refuses it
    assert torch.equal(jitted(x), function(wide).to(dtype))
    assert fusions_of(jitted)


def experts(x: Any, up: Any, down: Any, chosen: Any, weights: Any) -> Any:
    """A layer of experts as transformers writes it: tokens sorted by expert, and sorted back."""
    count, top = chosen.shape
    expert, order = torch.sort(chosen.reshape(-1))
    each = torch.histc(expert.float(), bins=up.shape[0], min=0, max=up.shape[0] - 1)
    ends = torch.cumsum(each, dim=0, dtype=torch.int32)
    made = F.grouped_mm(x[order // top], up.transpose(-2, -1), offs=ends)
    gate, value = made.chunk(2, dim=-1)
    made = F.grouped_mm(F.silu(gate) * value, down.transpose(-2, -1), offs=ends)
    made = made * weights.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.size(0))
    return made[back].view(count, top, -1).sum(dim=1).to(x.dtype)


def inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((12, 16), (4, 48, 16), (4, 16, 24))
    x, up, down = (torch.randn(shape).to(dtype) for shape in shapes)
    chosen = torch.stack([torch.randperm(4)[:2] for _ in range(12)])
    return [x, up, down, chosen, torch.rand(12, 2).to(dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_layer_of_experts(dtype: torch.dtype) -> None:
    check(jit(experts, strict=True), experts, dtype)


def check(compiled: Any, function: Any, dtype: torch.dtype) -> None:
    """As near to float32 as eager is in 16 bits. torch has no such product of float64."""
    given = inputs(dtype)
    got, eager = (with_gradients(one, given) for one in (compiled, function))
    if dtype is torch.float32:
        torch.testing.assert_close(got, eager, rtol=1e-4, atol=1e-4)
        return
    wide = [one.float() if one.is_floating_point() else one for one in given]
    assert_as_good(got, eager, with_gradients(function, wide))


def test_thunderfx_splits_at_none_of_it() -> None:
    """Nor at other functions that are defined here and that Thunder itself leaves to torch."""
    def function(x: Any, *others: Any) -> Any:
        return experts(x, *others).roll(1, 0) + x.new_ones(16) * torch.diff(x, dim=0).mean()

    compiled = thunderfx(function, executors=[fuser])
    check(compiled, function, torch.bfloat16)  # of which alone Dynamo knows the product
    (graph,) = compiled._backend.subgraph_infos
    assert len(graph.thunder_compiled_fns) == 1
    assert not graph.split_reasons
