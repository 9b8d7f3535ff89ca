# SPDX-License-Identifier: Apache-2.0
"""Results of a region lie in memory in the order of its inputs, as those of eager torch do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser.executors.regions.plan import RegionMemory
from thunder_fuser.executors.stride_orders.orders import orders_in
from thunder_fuser.explain.jitted import fusions_of, jit

IMAGE = (2, 3, 5, 4)


def last(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


AS_EAGER: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "one operand": (torch.relu, (last(*IMAGE),)),
    "a chain": (lambda x: (x.exp() * 2).tanh(), (last(*IMAGE),)),
    "a transposed matrix": (torch.exp, (torch.randn(3, 4).t(),)),
    "a running sum": (lambda x: (x * 2).cumsum(1) + 1, (torch.randn(3, 4).t(),)),
    "a bias": (lambda x, b: x + b.view(1, -1, 1, 1), (last(*IMAGE), torch.randn(3))),
    "two images": (torch.add, (last(*IMAGE), last(*IMAGE))),
    "the first decides": (torch.add, (last(*IMAGE), torch.randn(IMAGE))),
    "the first is contiguous": (torch.add, (torch.randn(IMAGE), last(*IMAGE))),
    "another type": (lambda x: x.to(torch.bfloat16), (last(*IMAGE),)),
    "a mask": (lambda x: x > 0, (last(*IMAGE),)),
    "where": (lambda x: torch.where(x > 0, x, 0.5), (last(*IMAGE),)),
    "more channels": (lambda x, y: torch.cat([x, y], 1), (last(*IMAGE), last(*IMAGE))),
    "channels of other images": (
        lambda x, y: torch.cat([x, y], 1), (last(*IMAGE), torch.randn(IMAGE)),
    ),
    "a token before those of an image": (
        lambda x, y: torch.cat([x.expand(2, 1, 4), y], 1).exp(),
        (torch.randn(4), torch.randn(2, 4, 9).transpose(1, 2)),
    ),
    "transposed matrices in a row": (
        lambda x: torch.cat([x, x * 2], 1), (torch.randn(3, 4).t(),)
    ),
    "a padded transposed matrix": (lambda x: F.pad(x, (1, 2)) * 2, (torch.randn(3, 4).t(),)),
    "a padded image": (lambda x: F.pad(x, (1, 2)) * 2, (last(*IMAGE),)),
    "part of an image": (lambda x: x[:, :, 1:].exp(), (last(*IMAGE),)),
    "not dense": (torch.exp, (last(2, 3, 9, 4)[:, :, ::2],)),
    "one channel": (torch.exp, (last(2, 1, 5, 4),)),
    "made contiguous": (lambda x: x.exp().contiguous(), (last(*IMAGE),)),
    "an expanded operand first": (torch.add, (torch.randn(5, 4).expand(2, 3, 5, 4), last(*IMAGE))),
    "volumes": (torch.exp, (torch.randn(2, 2, 3, 5, 4).permute(0, 4, 1, 2, 3),)),
}  # fmt: skip
CONTIGUOUS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "contiguous inputs": (torch.exp, (torch.randn(IMAGE),)),
    "a sum": (lambda x: x.exp().sum(1), (last(*IMAGE),)),
    "axes moved inside": (lambda x: x.exp().transpose(0, 1).tanh(), (torch.randn(3, 4),)),
}


def strides(tensor: torch.Tensor) -> list[int]:
    """Those of axes with more than one element."""
    given = zip(tensor.stride(), tensor.shape, strict=True)
    return [stride for stride, size in given if size > 1]


def run(function: Callable[..., Any], values: tuple[torch.Tensor, ...]) -> torch.Tensor:
    got, right = jit(function, strict=True)(*values), function(*values)
    torch.testing.assert_close(got, right)
    return got


@pytest.mark.parametrize("name", AS_EAGER)
def test_as_in_eager(name: str) -> None:
    function, values = AS_EAGER[name]
    assert strides(run(function, values)) == strides(function(*values))


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_contiguous(name: str) -> None:
    assert run(*CONTIGUOUS[name]).is_contiguous()


def test_each_order_of_a_call_has_its_own_program() -> None:
    jitted = jit(torch.exp, strict=True)
    for x in (torch.randn(IMAGE), last(*IMAGE), torch.randn(IMAGE)):
        assert jitted(x).stride() == x.stride()


def test_gradients_lie_as_their_tensors() -> None:
    x = last(*IMAGE).requires_grad_()
    jit(lambda x: (x * x).tanh(), strict=True)(x).sum().backward()
    assert x.grad is not None and x.grad.stride() == x.stride()


# ------------------------------------------------------------------- strides that nobody sees


class Stream(torch.nn.Module):
    """Images become tokens, transposed, at the head of a residual stream, as in a transformer."""

    def __init__(self, *, sees_stream: bool) -> None:
        super().__init__()
        self.sees_stream = sees_stream
        self.mix, self.head = torch.nn.Linear(6, 6), torch.nn.Linear(6, 2)

    def forward(self, image: torch.Tensor) -> Any:
        x = image.flatten(2).transpose(1, 2).exp()
        x = x + self.mix(x.tanh())
        x = x + self.mix((x * x).sin())
        return (self.head(x), x) if self.sees_stream else self.head(x)


def transposed_results(jitted: Any) -> list[int]:
    """How many results of each fusion lie transposed."""
    records = [one.definitions[-1] for one in fusions_of(jitted) if one.definitions]
    return [
        sum(r.op == "add_output" and r.attr("stride_order") == (2, 0, 1) for r in one)
        for one in records
    ]


@pytest.mark.parametrize("sees_stream", [False, True])
def test_a_transposed_stream_ends_at_the_first_sum_unless_it_is_seen(sees_stream: bool) -> None:
    model = Stream(sees_stream=sees_stream).double()
    image = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    jitted = jit(model, strict=True)
    got, right = jitted(image), model(image)
    torch.testing.assert_close(got, right)
    first, *later = transposed_results(jitted)
    assert first == 1  # exp(x); tanh(exp(x)) goes to a product
    assert (sum(later) > 0) == sees_stream
    if sees_stream:
        assert strides(got[1]) == strides(right[1])


def test_a_joined_transposed_matrix_is_row_major_also_where_nobody_sees_it() -> None:
    """Rotary tables: each layer reads them beside tensors of which the last axis is innermost."""
    weight = torch.randn(8, 8)

    def rotated(x: torch.Tensor, pitch: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        angles = (pitch[None, :, None] @ places[None, None, :]).transpose(1, 2)
        cos = torch.cat([angles, angles], -1).cos()[:, None]
        return F.linear(F.linear(x * cos, weight) * cos, weight)

    values = torch.randn(2, 3, 5, 8), torch.randn(4), torch.arange(5.0)
    jitted = jit(rotated, strict=True)
    torch.testing.assert_close(jitted(*values), rotated(*values))
    assert not any(transposed_results(jitted))


def test_gradients_of_a_transposed_stream() -> None:
    model = Stream(sees_stream=True).double()
    image = torch.randn(2, 6, 3, 4, dtype=torch.float64, requires_grad=True)
    jitted = jit(model, strict=True)
    found = []
    for one in (jitted, model):
        head, stream = one(image)
        found.append(torch.autograd.grad(head.sum() + stream.square().sum(), image)[0])
    torch.testing.assert_close(*found)
    assert strides(found[0]) == strides(found[1])


class Groups(torch.nn.Module):
    """A group norm between two convolutions, which on a GPU run channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.convolve = torch.nn.GroupNorm(2, 6), torch.nn.Conv2d(6, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self.norm(x.exp()))


@pytest.mark.parametrize("order", [(3, 0, 2, 1), (3, 2, 1, 0)])
def test_images_stay_channels_last_through_a_group_norm(order: tuple[int, ...]) -> None:
    """Its result, where nobody sees the strides: as its image. Seen: as before."""
    jitted = jit(Groups(), strict=True)
    jitted(torch.randn(2, 6, 4, 4))
    (region,) = (one.region for one in fusions_of(jitted) if not one.region.is_backward)
    images = {one.name for one in region.outputs if one.ndim == 4}
    free = RegionMemory(hidden=dict.fromkeys(images, ()))
    (image,) = region.inputs[:1]
    found = orders_in(region, free, {image.name: order})
    is_last = order[1] == 0
    assert images and all((found.get(name) == order) == is_last for name in images)


def test_reshapes_of_others_lie_nowhere() -> None:
    """A transposed matrix of heads does not spread its order."""
    jitted = jit(lambda x: (x.exp().reshape(2, 3, 2, 4) * 2).tanh().sum(1) + 1, strict=True)
    jitted(torch.randn(2, 3, 8))
    (region,) = (one.region for one in fusions_of(jitted))
    free = RegionMemory(hidden={output.name: () for output in region.outputs})
    assert not set(orders_in(region, free, {region.inputs[0].name: (2, 0, 1)})) & {
        leaf.output.name for leaf in region.leaves if leaf.output.ndim == 4
    }


class Rotated(torch.nn.Module):
    """Attention whose queries and keys a fusion makes; [B, L, 4 * 8] -> the same."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        q = x.tanh().view(2, 6, 4, 8).transpose(1, 2) * 0.5
        k, v = q.sin(), q.cos()
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.nn.functional.linear(y.transpose(1, 2).reshape(2, 6, 32), weight)


def test_queries_keys_and_values_lie_as_projections_do() -> None:
    jitted = jit(Rotated(), strict=True)
    x, weight = torch.randn(2, 6, 32), torch.randn(5, 32)
    torch.testing.assert_close(jitted(x, weight), Rotated()(x, weight))
    (made,) = (one.definitions[-1] for one in fusions_of(jitted) if one.definitions)
    assert [r.attr("stride_order") for r in made if r.op == "add_output"] == [(3, 1, 2, 0)] * 3


ROW_MAJOR: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.5),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(0),
    "cumsum": lambda x: x.cumsum(0),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "logsigmoid": F.logsigmoid,
    "tril": torch.tril,
    "roll": lambda x: x.roll(1, 0),
    "cat": lambda x: torch.cat([x, x]),
}


@pytest.mark.parametrize("name", ROW_MAJOR)
def test_views_of_what_is_row_major_in_torch(name: str) -> None:
    """Though the argument is not: torch would refuse the views of what lies as the argument."""
    x = torch.randn(4, 6).t()[:, :4]

    def viewed(x: torch.Tensor) -> torch.Tensor:
        return ROW_MAJOR[name](x).view(-1)

    def written(x: torch.Tensor) -> torch.Tensor:
        y = ROW_MAJOR[name](x)
        y.reshape(-1).add_(1)
        return y

    run(viewed, (x,))
    run(written, (x,))


PERMUTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a view": lambda y: y.permute(0, 2, 3, 1).view(-1, 3),
    "a reshape that is a view": lambda y: y.permute(0, 2, 3, 1).reshape(-1, 3),
    "a reshape that is a copy": lambda y: y.reshape(2, -1),
}


@pytest.mark.parametrize("name", PERMUTED)
def test_pointwise_results_lie_as_in_torch_for_views_and_writes(name: str) -> None:
    def written(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        PERMUTED[name](y).add_(1)
        return y

    run(lambda x: PERMUTED[name](x * 2).sort()[0], (last(*IMAGE),))
    run(written, (last(*IMAGE),))


def test_a_view_that_keeps_the_order() -> None:
    """As eager's, whether it lies so or not."""
    run(lambda x: x.exp().view(2, 3, 20), (last(*IMAGE),))


class Projected(torch.nn.Module):
    """Queries, keys and values of one product, as in a vision transformer: [2, 6, 16] -> same."""

    def __init__(self, is_split: bool) -> None:
        super().__init__()
        self.is_split, self.qkv = is_split, torch.nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.qkv(x)
        if self.is_split:
            q, k, v = (one.view(2, 6, 2, 8) for one in rows.split(16, -1))
        else:
            q, k, v = rows.view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
        return (q.sin() * k.cos()).tanh() * v


@pytest.mark.parametrize("is_split", [False, True])
def test_a_transposed_gradient_lies_as_its_reshape_needs_it(is_split: bool) -> None:
    """[3, N, H, L, E] in memory as [N, L, 3, H, E], which merges without a copy."""
    model, x = Projected(is_split), torch.randn(2, 6, 16, requires_grad=True)
    jitted = jit(model, strict=True)
    found = []
    for one in (jitted, model):
        model.zero_grad()
        one(x).square().sum().backward()
        found.append([x.grad, model.qkv.weight.grad, model.qkv.bias.grad])
        x.grad = None
    torch.testing.assert_close(*found)
    made = (d for one in fusions_of(jitted) if one.region.is_backward for d in one.definitions)
    orders = [r.attr("stride_order") for one in made for r in one if r.op == "add_output"]
    assert ((2, 4, 1, 3, 0) in [order for order in orders if order]) == (not is_split)
