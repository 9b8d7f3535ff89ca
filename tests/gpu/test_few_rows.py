# SPDX-License-Identifier: Apache-2.0
"""Matrix products of few rows on a CUDA device: exact, the same bits again, tokens as eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import thunder_fuser
from benchmarks.decode.tokens import SMALL, make
from thunder_fuser.definition import FusionDefinition

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]

SHAPES = [(2048, 2048), (512, 2048), (8192, 2048), (2048, 8192), (128, 896), (4864, 896), (9, 7777)]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "odd"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 8])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_as_exact_as_torch(n: int, k: int, rows: int, dtype: torch.dtype, offset: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(n * k + offset, dtype=dtype, device="cuda")[offset:].view(n, k)
    x, bias = (torch.randn(*s, dtype=dtype, device="cuda") for s in ((rows, k), (n,)))
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.linear(*map(fd.from_pytorch, (x, weight, bias))))
    values = [x, weight, bias]
    scheduler = fd.plan(values, target="h200").segments[0].scheduler.name
    is_ours = weight.numel() >= 1 << 16 and (rows < 3 or (dtype.itemsize == 2 and not k % 8))
    assert scheduler == ("expr_eval" if not is_ours else "products" if rows > 2 else "reduction")
    (made,), (again,) = fd.execute(values), fd.execute(values)
    exact = F.linear(*(value.double() for value in values))
    usual = F.linear(*values)
    errors = [float((value.double() - exact).abs().max()) for value in (made, usual)]
    assert torch.equal(made, again) and errors[0] <= 1.5 * errors[1] + 1e-6 * k**0.5


@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "odd"])
@pytest.mark.parametrize("rows", [1, 2, 3, 8])
@pytest.mark.parametrize("k", [512, 2048, 4096])
def test_several_products_in_one_launch(k: int, rows: int, offset: int) -> None:
    """As exact as torch, the same bits again."""
    torch.manual_seed(0)
    kind = {"dtype": torch.bfloat16, "device": "cuda"}
    values = [torch.randn(rows, k, **kind)]
    for n in (k, k // 4 + 129, k // 4):
        values.append(torch.randn(n * k + offset, **kind)[offset:].view(n, k))
    with FusionDefinition() as fd:
        x, *weights = map(fd.from_pytorch, values)
        for weight in weights:
            fd.add_output(fd.ops.linear(x, weight))
    assert [one.scheduler.name for one in fd.plan(values, target="h200").segments] == ["joined"]
    for made, again, weight in zip(fd.execute(values), fd.execute(values), values[1:], strict=True):
        exact, usual = F.linear(values[0].double(), weight.double()), F.linear(values[0], weight)
        errors = [float((value.double() - exact).abs().max()) for value in (made, usual)]
        assert torch.equal(made, again) and errors[0] <= 1.5 * errors[1] + 1e-6 * k**0.5


@pytest.mark.parametrize("graphs", [False, True], ids=["calls", "graphs"])
@pytest.mark.parametrize("batch", [1, 2])
def test_tokens_as_eager(batch: int, graphs: bool) -> None:
    """Greedy tokens in float32, from a cache that the model writes."""
    model = make(SMALL, batch, torch.device("cuda")).float()
    jitted, found = thunder_fuser.jit(model, fuser_cuda_graphs=graphs), []
    for call in (model, jitted):
        for layer in model.layers:
            layer.keys.zero_()
            layer.values.zero_()
        token, tokens = torch.arange(batch, device="cuda")[:, None] + 3, []
        with torch.no_grad():
            for place in range(SMALL.sequence):
                token = call(token, torch.tensor([place], device="cuda")).argmax(-1, keepdim=True)
                tokens.append(token.flatten().tolist())
        found.append(tokens)
    assert found[0] == found[1]


QUERIES = [(1, 32, 8, 1, 512, 64), (1, 14, 2, 1, 513, 64), (2, 8, 8, 4, 1000, 128),
           (4, 32, 8, 1, 2048, 128), (1, 32, 8, 1, 8192, 64)]  # fmt: skip


@pytest.mark.parametrize("kind", ["none", "bools", "floats"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", QUERIES, ids=str)
def test_few_queries(sizes: tuple[int, ...], dtype: torch.dtype, kind: str) -> None:
    """Attention as reductions: errors at most torch's, and the same bits again."""
    torch.manual_seed(0)
    batch, heads, groups, length, keys, width = sizes
    shapes = (batch, heads, length, width), *((batch, groups, keys, width),) * 2
    values = [torch.randn(*shape, dtype=dtype, device="cuda") for shape in shapes]
    mask = {
        "none": None,
        "bools": torch.rand(batch, 1, length, keys, device="cuda") > 0.3,
        "floats": torch.randn(1, heads, length, keys, dtype=dtype, device="cuda"),
    }[kind]

    def attend(query: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, *rows, attn_mask=mask, enable_gqa=True)

    jitted = thunder_fuser.jit(attend, fuser_strict=True)
    with torch.no_grad():
        ours, again, usual = jitted(*values), jitted(*values), attend(*values)
        added = mask if mask is None or mask.dtype is torch.bool else mask.double()
        exact = F.scaled_dot_product_attention(
            *(one.double() for one in values), attn_mask=added, enable_gqa=True
        )
    errors = [float((one.double() - exact).abs().max()) for one in (ours, usual)]
    assert torch.equal(ours, again) and errors[0] <= 1.2 * errors[1] + 1e-6
