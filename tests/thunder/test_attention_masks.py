# SPDX-License-Identifier: Apache-2.0
"""Masks of attention broadcast, by the kernel that torch has for them on a GPU.

A stand-in for that kernel, with its demands on the mask, runs the whole way on a CPU; torch's own
checks of the kernel's arguments run for tensors without memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager, with_gradients
from helpers.pairs import pairs
from thunder.executors import sdpaex
from thunder.executors.utils import SpdaBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from thunder_fuser.explain import why
from thunder_fuser.explain.jitted import final_traces, jit
from thunder_fuser.functions import attention
from thunder_fuser.runtime.eager import torch_calls

BATCH, HEADS, WIDTH, SEED = 3, 2, 8, 71


def whole(  # noqa: PLR0917 - torch's
    q: Any, k: Any, v: Any, bias: Any, is_causal: bool, scale: float | None
) -> Any:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, bias, is_causal=is_causal, scale=scale)


@pytest.mark.parametrize("is_bool", [True, False], ids=["bools", "floats"])
@pytest.mark.parametrize("shape", [(2, 3, 4, 8), (3, 4, 8)], ids=str)
def test_a_row_whose_keys_are_hidden(shape: tuple[int, ...], is_bool: bool) -> None:
    """A mask of three axes, and operands of three, are for no kernel of torch: taken apart."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(*shape[:-2], rows, 8, requires_grad=True) for rows in (4, 5, 5))
    mask = torch.rand(3, 4, 5) > 0.3
    mask[:, 1] = False
    bias = torch.zeros(3, 4, 5).masked_fill(~mask, -torch.inf)
    bias[:, 2] = torch.nan  # hides nothing
    bias.requires_grad_()
    inputs = [q, k, v, mask] if is_bool else [q, k, v, bias]
    wanted = [x for x in inputs if x.requires_grad]
    expected, got = (
        (y := run(*inputs), *torch.autograd.grad(y.sin().sum(), wanted))
        for run in (F.scaled_dot_product_attention, jit(F.scaled_dot_product_attention))
    )
    assert is_bool != expected[0].isnan().any().item() and not expected[0][..., 1, :].any()
    torch.testing.assert_close(got, expected, equal_nan=True)


def check_bias(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> None:
    """The kernel reads whole vectors of each row, and no size but the scores'."""
    *steps, last = bias.stride()
    assert bias.shape == (*q.shape[:3], k.shape[2]) and bias.dtype == q.dtype
    assert last == 1 and not any(step % 8 for step in (*steps, bias.storage_offset()))


def forward(  # noqa: PLR0917 - torch's
    q: Any, k: Any, v: Any, bias: Any, sums: bool, dropout: float, is_causal: bool, *, scale: Any
) -> tuple[torch.Tensor, ...]:
    check_bias(q, k, bias)
    state = torch.tensor(SEED)
    rows = torch.empty(*q.shape[:2], -(-q.shape[2] // 32) * 32)
    return whole(q, k, v, bias, is_causal, scale), rows, state, state


def backward(  # noqa: PLR0917 - torch's
    gradient: Any, q: Any, k: Any, v: Any, bias: Any, out: Any, sums: Any, seed: Any, offset: Any,
    dropout: float, asked: list[bool], is_causal: bool, *, scale: Any,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    check_bias(q, k, bias)
    assert sums.shape[2] % 32 == 0
    assert not dropout or int(seed) == int(offset) == SEED
    leaves = [one.detach().clone().requires_grad_() for one in (q, k, v, bias)]
    with torch.enable_grad():
        found = torch.autograd.grad(whole(*leaves, is_causal, scale), leaves, gradient)
    return *found[:3], found[3] if asked[3] else None


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors of a CPU go the way of a GPU that is no Hopper."""
    kernels = SimpleNamespace(
        _scaled_dot_product_efficient_attention=forward,
        _scaled_dot_product_efficient_attention_backward=backward,
    )
    choice = {"checker": lambda *args, **given: True}
    monkeypatch.setattr(sdpaex, "_fused_sdp_choice", lambda *args: SpdaBackend.MEMORY_EFFICIENT)
    monkeypatch.setattr(
        attention, "_CUDA", SimpleNamespace(**choice, grad_transform=attention._CUDA.grad_transform)
    )
    monkeypatch.setattr(attention, "_on_cpu", lambda tensor: False)
    monkeypatch.setattr(attention._Attention, "fits_cudnn", lambda self: False)
    monkeypatch.setattr(torch_calls, "_ATEN", kernels, raising=False)
    return


def sizes(length: int, keys: int) -> dict[str, tuple[int, ...]]:
    """The shapes that broadcast to the scores."""
    return {
        "scores": (BATCH, HEADS, length, keys),
        "one batch": (1, HEADS, length, keys),
        "one batch and head": (1, 1, length, keys),
        "one head": (BATCH, 1, length, keys),
        "keys of batches": (BATCH, 1, 1, keys),
        "keys": (1, 1, 1, keys),
        "rows": (1, 1, length, 1),
        "heads alone": (HEADS, length, keys),
        "heads of one row": (HEADS, 1, keys),
        "rank 2": (length, keys),
        "rank 1": (keys,),
    }


SHAPES = [(5, 16), (5, 13), (1, 13), (32, 8)]


def drawn(name: str, length: int, keys: int, kind: str) -> torch.Tensor:
    mask = torch.randn(sizes(length, keys)[name], generator=torch.Generator().manual_seed(3))
    return mask if kind == "float" else mask > -0.7


def qkv(length: int, keys: int) -> list[torch.Tensor]:
    return [torch.randn(BATCH, HEADS, size, WIDTH) for size in (length, keys, keys)]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    mask = mask * 2.0 if mask.is_floating_point() else mask
    return F.scaled_dot_product_attention(q * 2, k, v, mask)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("name", "shape", "kind"), pairs([*sizes(1, 1)], SHAPES, ["float", "bool"])
)
def test_values_and_gradients(name: str, shape: tuple[int, int], kind: str) -> None:
    """That of the mask too, which is summed where it broadcast."""
    length, keys = shape
    mask = drawn(name, length, keys, kind)
    values = [*qkv(length, keys), mask]
    jitted = jit(attend, strict=True)
    got = with_gradients(jitted, values)
    exact = [one.double() if one.is_floating_point() else one for one in values]
    with sdpa_kernel(SDPBackend.MATH):
        wanted = with_gradients(attend, values), with_gradients(attend, exact)
    assert_as_exact_as_eager(got, *wanted)
    names = {one.sym.name for trace in final_traces(jitted) for one in trace.bound_symbols}
    assert {"masked_attention_forward", "masked_attention_backward"} <= names


@pytest.mark.usefixtures("gpu")
def test_layouts_of_masks() -> None:
    """Parts of a larger mask, whose rows do not begin at whole vectors."""
    q, k, v = qkv(5, 16)
    large = torch.randn(9, 19)
    for mask in (large[:5, :16], large[:5, 3:], torch.randn(16, 5).t(), torch.randn(5, 32)[:, ::2]):
        values = [q, k, v, mask]
        with sdpa_kernel(SDPBackend.MATH):
            exact = with_gradients(attend, [one.double() for one in values])
            wanted = with_gradients(attend, values)
        assert_as_exact_as_eager(with_gradients(jit(attend, strict=True), values), wanted, exact)


@pytest.mark.usefixtures("gpu")
def test_a_mask_that_does_not_broadcast_is_taken_apart() -> None:
    q, k, v = (one[:1] for one in qkv(5, 16))
    jitted = jit(attend, strict=True)
    mask = torch.randn(BATCH, 1, 5, 16)
    result = jitted(q.requires_grad_(), k, v, mask)
    many = [one.expand(BATCH, -1, -1, -1) for one in (q * 2, k, v)]
    torch.testing.assert_close(result, whole(*many, mask * 2, False, None))
    assert "a mask of a shape other than" in str(why(jitted))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_what_is_saved(dropout: float) -> None:
    """The seed only with dropout: torch has it on the host, where no CUDA graph may read it."""
    q, k, v = (one.requires_grad_() for one in qkv(5, 13))
    mask = drawn("one batch", 5, 13, "bool")
    jitted = jit(lambda *heads: F.scaled_dot_product_attention(*heads, mask, dropout), strict=True)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        result = jitted(q, k, v)
    result.sum().backward()
    assert any(one.dtype == torch.int64 for one in saved) == (dropout > 0)


# ------------------------------------------------------------- torch's checks of the arguments


def on_gpu(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


@pytest.mark.parametrize("with_mask", [True, False])
@pytest.mark.parametrize(("length", "keys"), SHAPES)
@pytest.mark.parametrize("name", sizes(1, 1))
def test_what_torch_is_given(name: str, length: int, keys: int, with_mask: bool) -> None:
    """Results have the sizes that the trace is told of, and no mask is written for each head."""
    with FakeTensorMode():
        qkv = [on_gpu(BATCH, HEADS, size, WIDTH) for size in (length, keys, keys)]
        mask = on_gpu(*sizes(length, keys)[name])
        expanded = torch_calls._scores_of(mask, *qkv[:2])
        check_bias(*qkv[:2], expanded)
        vectors = -(-keys // 8) * 8
        assert expanded.untyped_storage().nbytes() // 2 <= mask[..., 0].numel() * vectors
        given: dict[str, Any] = {"dropout_p": 0.0, "is_causal": False, "scale": None}
        out, sums, *_ = torch_calls.masked_attention(qkv, mask, **given)
        assert out.shape == qkv[0].shape and sums.shape == (BATCH, HEADS, -(-length // 32) * 32)
        found = torch_calls.masked_gradients(
            out, qkv, mask, (out, sums), of_mask=with_mask, **given
        )
        assert [one.shape for one in found[:3]] == [one.shape for one in qkv]
        if with_mask:
            assert found[3].shape == (*qkv[0].shape[:3], keys)
