# SPDX-License-Identifier: Apache-2.0
"""Attention of definitions, by torch's kernels for a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser import FusionDefinition
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
