# SPDX-License-Identifier: Apache-2.0
"""Attention, and matrix products of groups and with scales: torch's kernels, between our own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers.cases import Runner, rand

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.errors import DefinitionError, DtypeError, TorchCallError
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.rules.build import define

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def qkv(dtype: torch.dtype) -> list[torch.Tensor]:
    """Eight queries, twelve keys."""
    return [rand(2, 3, length, 16, dtype=dtype, seed=length) for length in (8, 12, 12)]


# ---- attention


@pytest.mark.parametrize("causal", [None, False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_attention(run: Runner, dtype: torch.dtype, causal: bool | None) -> None:
    """Between a kernel before and a kernel after it; scale as nvFuser's constants."""
    inputs = qkv(dtype)

    def build(fd: FusionDefinition) -> None:
        q, k, v = map(fd.from_pytorch, inputs)
        q = fd.ops.cast(fd.ops.mul(q, 2.0), q.dtype())
        scale = fd.define_scalar(0.3, DataType.Double)
        out, lse, seed, offset = fd.ops.sdpfa_fwd(q, k, v, None, causal, scale)
        fd.add_output(fd.ops.neg(out))
        fd.add_output(lse)
        assert (seed.ndim, offset.ndim) == (1, 0)

    q, k, v = inputs
    out = F.scaled_dot_product_attention(q * 2, k, v, is_causal=bool(causal), scale=0.3)
    scores = 0.3 * (q * 2).float() @ k.float().mT
    if causal:
        scores = scores.masked_fill(~torch.ones(8, 12, dtype=torch.bool).tril(), -torch.inf)
    run(build, inputs, [-out.float() if dtype is not torch.float32 else -out, scores.logsumexp(-1)],
        tolerance=0.03 if dtype is not torch.float32 else 1e-5)  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention(run: Runner, causal: bool) -> None:
    """Numbers of the call as arguments; against autograd."""
    inputs, grad = [x.requires_grad_() for x in qkv(torch.float32)], rand(2, 3, 8, 16, seed=9)
    out = F.scaled_dot_product_attention(*inputs, is_causal=causal, scale=0.5)
    expected = torch.autograd.grad(out, inputs, grad)
    plain = [x.detach() for x in inputs]

    def build(fd: FusionDefinition) -> None:
        g, q, k, v = map(fd.from_pytorch, (grad, *plain))
        types = (DataType.Double, DataType.Bool, DataType.Double)
        dropout, is_causal, scale = (fd.define_scalar(None, dtype) for dtype in types)
        out, lse, seed, offset = fd.ops.sdpfa_fwd(q, k, v, dropout, is_causal, scale)
        grads = fd.ops.sdpfa_bwd(
            g, q, k, v, out, lse, dropout, is_causal, seed, offset, scale=scale
        )
        for one in grads:
            fd.add_output(one)
        assert rebuild(repr(fd)) == define(fd.definition)

    run(build, [grad, *plain, 0.0, causal, 0.5], expected, tolerance=1e-5)


MASKS = {"both": (True, True), "bias": (True, False), "mask": (False, True)}


@pytest.mark.parametrize("kinds", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_masks_of_attention(run: Runner, dtype: torch.dtype, kinds: str) -> None:
    """A bias for all scores, a mask that is the same for all heads; gradients against autograd."""
    wide = [x.requires_grad_() for x in qkv(dtype)]
    grad, bias = rand(2, 3, 8, 16, seed=9, dtype=dtype), rand(2, 3, 8, 12, seed=4, dtype=dtype)
    mask = rand(2, 1, 8, 12, seed=5) > -0.5
    has_bias, has_mask = MASKS[kinds]
    added = (bias if has_bias else 0) + torch.where(mask | (not has_mask), 0.0, -torch.inf)
    out = F.scaled_dot_product_attention(*wide, attn_mask=added.to(dtype), scale=0.5)
    expected = torch.autograd.grad(out, wide, grad)
    inputs = [x.detach() for x in (grad, *wide)]

    def build(fd: FusionDefinition) -> None:
        g, q, k, v, b, m = map(fd.from_pytorch, (*inputs, bias, mask))
        masks = {"bias": b if has_bias else None, "mask": m if has_mask else None}
        out, lse, seed, offset = fd.ops.sdpfa_fwd(q, k, v, scale=0.5, **masks)
        fd.add_output(out)
        grads = fd.ops.sdpfa_bwd(g, q, k, v, out, lse, None, False, seed, offset, 0.5, **masks)
        for one in grads:
            fd.add_output(one)
        assert rebuild(repr(fd)) == define(fd.definition)

    run(build, [*inputs, bias, mask], [out.detach(), *expected],
        tolerance=0.03 if dtype is torch.bfloat16 else 1e-5)  # fmt: skip


def attention_of_groups(*args: torch.Tensor) -> torch.Tensor:
    """[B, G, H, L, E], of scores that a bias and a mask are added to."""
    q, k, v, bias, mask = args
    scores = q.float() @ k.float().mT / q.shape[-1] ** 0.5 + bias.float()
    return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v.float()).to(q.dtype)


@pytest.mark.parametrize("shapes", [((2, 1, 3, 8, 12), (2, 4, 1, 1, 12)), ((3, 8, 12), (1, 12))])
@pytest.mark.parametrize("lies", ["rows", "rows and heads swapped"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_with_two_axes_of_a_batch(
    run: Runner, dtype: torch.dtype, lies: str, shapes: tuple
) -> None:
    """Triangle attention: a bias for all rows of a pair representation, a mask for all heads."""
    of_bias, of_mask = shapes
    wide = [rand(2, 4, 3, length, 16, dtype=dtype, seed=length) for length in (8, 12, 12)]
    if lies != "rows":
        wide = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in wide]
    bias, mask = rand(*of_bias, seed=4, dtype=dtype), rand(*of_mask, seed=5) > -0.5
    leaves = [x.clone().requires_grad_() for x in wide]
    grad = rand(2, 4, 3, 8, 16, seed=9, dtype=dtype)
    out = attention_of_groups(*leaves, bias, mask)
    expected = torch.autograd.grad(out, leaves, grad)

    def build(fd: FusionDefinition) -> None:
        g, q, k, v, b, m = map(fd.from_pytorch, (grad, *wide, bias, mask))
        masks = {"bias": b, "mask": m}
        out, lse, seed, offset = fd.ops.sdpfa_fwd(q, k, v, **masks)
        fd.add_output(out)
        grads = fd.ops.sdpfa_bwd(g, q, k, v, out, lse, None, False, seed, offset, **masks)
        for one in grads:
            fd.add_output(one)
        assert rebuild(repr(fd)) == define(fd.definition)

    strides = [wide[0].stride(), *(x.contiguous().stride() for x in wide)]
    run(build, [grad, *wide, bias, mask], [out.detach(), *expected], strides=strides,
        tolerance=0.03 if dtype is torch.bfloat16 else 1e-5)  # fmt: skip


def test_a_mask_of_a_lower_rank(run: Runner) -> None:
    """It broadcasts over the first axes of rank 5."""
    q, k, v = (rand(2, 4, 3, length, 16, seed=length) for length in (8, 12, 12))
    bias = rand(3, 8, 12, seed=4)

    def build(fd: FusionDefinition) -> None:
        *heads, b = map(fd.from_pytorch, (q, k, v, bias))
        fd.add_output(fd.ops.sdpfa_fwd(*heads, bias=b)[0])

    everything = torch.ones(12, dtype=torch.bool)
    run(build, [q, k, v, bias], [attention_of_groups(q, k, v, bias, everything)], tolerance=1e-5)


ORDERS = {
    "rows": (0, 1, 2, 3), "rows before heads": (0, 2, 1, 3), "heads first": (1, 0, 2, 3),
    "columns": (0, 1, 3, 2),
}  # fmt: skip


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("name", ORDERS)
def test_the_result_lies_as_the_query(run: Runner, name: str, with_bias: bool) -> None:
    """As in torch, which copies a query whose rows are not contiguous."""
    order = ORDERS[name]
    inputs = [x.permute(order).contiguous().permute(order) for x in qkv(torch.float32)]
    bias = [rand(2, 3, 8, 12, seed=4)] * with_bias

    def build(fd: FusionDefinition) -> None:
        q, k, v, *b = map(fd.from_pytorch, [*inputs, *bias])
        fd.add_output(fd.ops.sdpfa_fwd(q, k, v, **({"bias": b[0]} if b else {}))[0])

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        exact = F.scaled_dot_product_attention(*inputs, *bias)
    expected = torch.empty_like(inputs[0]) if name != "columns" else exact.contiguous()
    run(build, [*inputs, *bias], [exact], strides=[expected.stride()], tolerance=1e-5)


def test_one_definition_serves_several_scales(run: Runner) -> None:
    inputs = qkv(torch.float32)
    with FusionDefinition() as fd:
        q, k, v = map(fd.from_pytorch, inputs)
        half = fd.ops.truediv(fd.define_scalar(dtype=DataType.Double), 2.0)
        fd.add_output(fd.ops.sdpfa_fwd(q, k, v, scale=half)[0])
    for scale in (0.5, 3.0):
        (out,) = run.execute(fd, [*inputs, scale])
        torch.testing.assert_close(out, F.scaled_dot_product_attention(*inputs, scale=scale / 2))


def test_dropout_on_a_cpu_is_torchs_error() -> None:
    inputs = qkv(torch.float32)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sdpfa_fwd(*map(fd.from_pytorch, inputs), 0.5)[0])
    with pytest.raises(TorchCallError, match="dropout"):
        fd.execute(inputs)


# ---- products


def products(a: torch.Tensor, b: torch.Tensor, ends: list[int]) -> torch.Tensor:
    """One product a group."""
    starts = [0, *ends[:-1]]
    slices = [slice(*pair) for pair in zip(starts, ends, strict=True)]
    if a.dim() == b.dim():
        return torch.stack([a[:, one] @ b[one] for one in slices])
    if a.dim() == 2:
        return torch.cat([a[one] @ b[at] for at, one in enumerate(slices)])
    return torch.cat([a[at] @ b[:, one] for at, one in enumerate(slices)], 1)


@pytest.mark.parametrize("offsets", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(
    "shapes", [((16, 32), (3, 32, 8)), ((3, 8, 32), (32, 16)), ((8, 16), (16, 8))]
)
def test_products_of_groups(run: Runner, shapes: tuple, offsets: torch.dtype) -> None:
    a, b = (rand(*shape, seed=len(shape), dtype=torch.bfloat16) for shape in shapes)
    ends = torch.tensor([4, 4, 16], dtype=offsets)  # the second group is empty

    def build(fd: FusionDefinition) -> None:
        x, y, o = map(fd.from_pytorch, (a, b, ends))
        fd.add_output(fd.ops.neg(fd.ops.grouped_mm(x, y, o)))

    expected = -products(a, b, ends.tolist()).float()
    run(build, [a, b, ends], [expected], tolerance=0.05)


# ---- what is refused

REFUSED: dict[str, tuple[Callable[..., object], type[Exception], str]] = {
    "ranks": (
        lambda fd, t, h: fd.ops.sdpfa_fwd(t, t, t)[0],
        DefinitionError, "expected tensors of rank 4",
    ),
    "types": (
        lambda fd, t, h: fd.ops.sdpfa_fwd(*(fd.define_tensor([1, 1, 2, 8], dtype=d) for d in
                                            (DataType.Half, DataType.Half, DataType.Float)))[0],
        DtypeError, "sdpfa_fwd: expected one type Half or BFloat16 or Float, got Half, Half, Float",
    ),
    "heads": (
        lambda fd, t, h: fd.ops.sdpfa_fwd(
            *(fd.define_tensor([1, n, 2, 8]) for n in (4, 2, 2))
        )[0],
        DefinitionError, r"sdpfa_fwd: key: expected sizes \[1, 4, 2, 8\], got \[1, 2, 2, 8\]",
    ),
    "masks": (
        lambda fd, t, h: fd.ops.sdpfa_fwd(h, h, h, bias=fd.define_tensor([1, 1, 8, 7]))[0],
        DefinitionError, r"attn_mask: expected sizes \[1, 1, 8, 8\], got \[1, 1, 8, 7\]",
    ),
    "ranks of masks": (
        lambda fd, t, h: fd.ops.sdpfa_fwd(h, h, h, bias=fd.define_tensor([2, 1, 1, 8, 8]))[0],
        DefinitionError, "attn_mask: expected sizes",
    ),
    "a scalar of no call": (
        lambda fd, t, h: fd.ops.sdpfa_fwd(h, h, h, scale=fd.define_scalar(drawn="seed"))[0],
        DefinitionError, "expected a scalar computed from sizes and arguments",
    ),
    "offsets": (
        lambda fd, t, h: fd.ops.grouped_mm(t, t, t), DtypeError, "offsets: expected Int or Int32",
    ),
    "groups": (
        lambda fd, t, h: fd.ops.grouped_mm(h, h, fd.define_tensor([-1], dtype=DataType.Int)),
        DefinitionError, "expected matrices, one of them with an axis of groups",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    build, kind, message = REFUSED[name]
    fd = FusionDefinition()
    fd.add_output(build(fd, fd.define_tensor([3, 4]), fd.define_tensor([1, 1, 8, 16])))
    with pytest.raises(kind, match=message):
        fd.fusion
