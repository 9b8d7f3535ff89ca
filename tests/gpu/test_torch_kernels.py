# SPDX-License-Identifier: Apache-2.0
"""Attention and grouped products of definitions, by torch's kernels for a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.explain.jitted import final_traces, jit

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


def attention(*args: torch.Tensor | None) -> torch.Tensor:
    q, k, v, bias = args
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return (scores if bias is None else scores + bias).softmax(-1) @ v


@pytest.mark.parametrize("keys", [64, 77])
@pytest.mark.parametrize("mask", ["none", "of heads", "of keys", "of rows and keys"])
@pytest.mark.parametrize("lies", ["rows", "rows and heads swapped", "columns"])
@pytest.mark.parametrize("rank", [4, 5])
def test_attention(rank: int, lies: str, mask: str, keys: int) -> None:
    batch = (2, 4)[: rank - 3]
    made = [
        torch.randn(*batch, 3, size, 32, device="cuda", dtype=torch.bfloat16)
        for size in (50, keys, keys)
    ]
    axes = {"rows": None, "rows and heads swapped": (-3, -2), "columns": (-2, -1)}[lies]
    if axes is not None:
        made = [x.transpose(*axes).contiguous().transpose(*axes) for x in made]
    shapes = {"of heads": (*batch[:-1], 1, 3, 50, keys), "of keys": (*batch, 1, 1, keys)}
    sizes = shapes.get(mask, (50, keys))
    drawn = torch.randn(sizes, device="cuda", dtype=torch.bfloat16)
    bias = None if mask == "none" else drawn
    grad = torch.randn_like(made[0])
    masks = [] if bias is None else [bias]
    with FusionDefinition() as fd:
        g, q, k, v, *b = map(fd.from_pytorch, [grad, *made, *masks])
        named = {"bias": b[0]} if b else {}
        out, lse, seed, offset = fd.ops.sdpfa_fwd(q, k, v, **named)
        fd.add_output(out)
        grads = fd.ops.sdpfa_bwd(g, q, k, v, out, lse, None, False, seed, offset, **named)
        for one in grads:
            fd.add_output(one)
    found = fd.execute([grad, *made, *masks])
    leaves = [x.double().requires_grad_() for x in made]
    exact = attention(*leaves, None if bias is None else bias.double())
    expected = [exact, *torch.autograd.grad(exact, leaves, grad.double())]
    for mine, right in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), right, atol=3e-2, rtol=3e-2)
    kept = made[0] if lies != "columns" else made[0].contiguous()
    assert found[0].stride() == kept.stride()


GROUPS = {
    "of rows": ("m", ((0, 1), (3, 1, 2)), ((0, None), (3, None, 2))),
    "of columns": ("n", ((3, 0, 1), (1, 2)), ((3, 0, None), (None, 2))),
    "of summed elements": ("k", ((0, 1), (1, 2)), ((3, 0, None), (3, None, 2))),
}


@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("sizes", [(64, 64, 64), (7, 5, 11)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("result", [DataType.BFloat16, DataType.Float])
def test_grouped_products_with_scales(
    result: DataType, dtype: torch.dtype, sizes: tuple[int, int, int], kind: str
) -> None:
    """Scales of rows and columns; sizes of mat1 [m, k] and mat2 [k, n], and 3 groups."""
    axis, matrices, scales = GROUPS[kind]
    known = (*sizes, 3)
    a, b = (
        torch.randn([known[at] for at in axes], device="cuda").to(dtype) for axes in matrices
    )
    s, t = (
        torch.rand([1 if at is None else known[at] for at in axes], device="cuda") + 0.5
        for axes in scales
    )
    last = sizes["mkn".index(axis)]
    ends = torch.tensor([2, 2, last], dtype=torch.int32, device="cuda")
    spans = [slice(0, 2), slice(2, 2), slice(2, last)]
    x, y = a.double(), b.double()
    if axis == "m":
        parts = [(x * s)[one] @ (y * t)[at] for at, one in enumerate(spans)]
        expected = torch.cat(parts)
    elif axis == "n":
        expected = torch.cat([(x * s)[at] @ (y * t)[:, one] for at, one in enumerate(spans)], 1)
    else:
        expected = torch.stack([x[:, one] @ y[one] for one in spans]) * s * t
    with FusionDefinition() as fd:
        operands = map(fd.from_pytorch, (a, b, ends, s, t))
        fd.add_output(fd.ops.grouped_mm(*operands, dtype=result)[0])
    (found,) = fd.execute([a, b, ends, s, t])
    near = 2e-2 if result is DataType.BFloat16 else 1e-4
    torch.testing.assert_close(found.double(), expected, atol=near * 10, rtol=near)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["gelu", "relu"])
@pytest.mark.parametrize("shape", [(64, 128), (2, 33, 128), (130, 136), (0, 128), (64, 0)])
def test_products_with_an_activation(
    shape: tuple[int, ...], kind: str, dtype: torch.dtype
) -> None:
    """As eager torch computes them in float64, and with its NaN and infinities."""
    x = torch.randn(shape, device="cuda", dtype=dtype)
    w = torch.randn(256, shape[-1], device="cuda", dtype=dtype) / 16
    b = torch.randn(256, device="cuda", dtype=dtype)
    b[:4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        h = F.linear(x, w, b)
        return F.relu(h) if kind == "relu" else F.gelu(h, approximate="tanh")

    jitted = jit(function, strict=True)
    found = jitted(x, w, b)
    names = [bsym.sym.name for bsym in final_traces(jitted)[0].bound_symbols]
    assert f"linear_{kind}" in names
    eager, exact = function(x, w, b), function(x.double(), w.double(), b.double())
    assert torch.equal(found[..., :3].nan_to_num(9), eager[..., :3].nan_to_num(9))
    if found.numel():
        errors = [(one - exact)[..., 3:].abs().max().item() for one in (found, eager)]
        assert errors[0] <= 1.2 * errors[1]
