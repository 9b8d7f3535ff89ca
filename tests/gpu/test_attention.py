# SPDX-License-Identifier: Apache-2.0
"""Attention on a CUDA device is one kernel of torch, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager, with_gradients

from thunder_fuser.explain.jitted import final_traces, jit

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q * 2, k, v, is_causal=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_is_one_kernel_of_torch(dtype: torch.dtype) -> None:
    made = [torch.randn(2, 4, 64, 32, device="cuda", dtype=dtype) for _ in range(3)]
    jitted = jit(attention)
    got = with_gradients(jitted, made)
    exact = with_gradients(attention, [one.double() for one in made])
    assert_as_exact_as_eager(got, with_gradients(attention, made), exact)
    text = str(final_traces(jitted)[0])
    names = ("attention_forward", "sdpafx_grad_forward", "sdpaex_grad_forward")
    assert any(name in text for name in names)
    assert "matmul" not in text


def of_heads(x: torch.Tensor, is_causal: bool, scale: float | None) -> torch.Tensor:
    """Heads of one tensor [B, L, 3 * H * E], as a model has them: none lies alone in memory."""
    q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in x.chunk(3, dim=-1))
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("is_causal", "scale"), [(True, None), (False, None), (True, 0.3)])
@pytest.mark.parametrize(("length", "width"), [(128, 64), (192, 128), (100, 64), (128, 20)])
def test_strided_heads(
    dtype: torch.dtype, length: int, width: int, is_causal: bool, scale: float | None
) -> None:
    """cuDNN's kernel on Hopper, for rows of whole vectors; another of torch's elsewhere."""
    def run(x: torch.Tensor) -> torch.Tensor:
        return of_heads(x, is_causal, scale)

    x = torch.randn(2, length, 12 * width, device="cuda", dtype=dtype)
    jitted = jit(run)
    got = with_gradients(jitted, [x])
    assert_as_exact_as_eager(got, with_gradients(run, [x]), with_gradients(run, [x.double()]))
    text = str(final_traces(jitted)[0])
    assert ("attention_forward" in text) == (width % 8 == 0 and _is_hopper())


def _is_hopper() -> bool:
    return torch.cuda.get_device_capability()[0] == 9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("lies", ["heads first", "rows first"])
@pytest.mark.parametrize("width", [64, 256])
def test_shared_heads(
    dtype: torch.dtype, is_causal: bool, groups: int, lies: str, width: int
) -> None:
    """Keys of fewer heads go to cuDNN or the flash kernel as they are; floats are repeated."""
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (one.repeat_interleave(8 // groups, dim=1) for one in (k, v))
        return F.scaled_dot_product_attention(q * 2, k, v, is_causal=is_causal)

    heads = (8, groups, groups)
    made = [torch.randn(2, many, 128, width, device="cuda", dtype=dtype) for many in heads]
    if lies == "rows first":
        made = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in made]
    jitted = jit(run)
    got = with_gradients(jitted, made)
    exact = with_gradients(run, [one.double() for one in made])
    assert_as_exact_as_eager(got, with_gradients(run, made), exact)
    is_ours = "attention_forward" in str(final_traces(jitted)[0])
    is_of_cudnn = _is_hopper() and width == 64
    assert is_ours == (dtype == torch.bfloat16 and (is_of_cudnn or groups < 8))


@pytest.mark.parametrize("name", ["causal", "all"])
def test_masks_of_indices_are_not_read(name: str) -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        at = torch.arange(128, device="cuda")
        mask = at[None] <= at[:, None] if name == "causal" else (at >= 0)[:, None].expand(128, 128)
        return F.scaled_dot_product_attention(q * 2, k, v, mask)

    made = [torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    jitted = jit(run)
    got = with_gradients(jitted, made)
    exact = with_gradients(run, [one.double() for one in made])
    assert_as_exact_as_eager(got, with_gradients(run, made), exact)
    assert "arange" not in str(final_traces(jitted)[0])


MASKS = {
    "of keys": torch.arange(128)[None] < 100,
    "windows": (torch.arange(128)[:, None] - torch.arange(128)).abs() < 40,
    "of batches": (torch.arange(128) < torch.tensor([[60], [128]])).view(2, 1, 1, 128),
    "no key for a row": (torch.arange(128)[:, None] % 2 > 0).expand(128, 128),
}


@pytest.mark.parametrize("groups", [2, 8])
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, groups: int) -> None:
    """cuDNN's kernel too; a row without a key is 0, as in torch op by op."""
    mask = MASKS[name].cuda()

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (one.repeat_interleave(8 // groups, dim=1) for one in (k, v))
        return F.scaled_dot_product_attention(q * 2, k, v, mask)

    def exactly(*made: torch.Tensor) -> torch.Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return run(*made)

    made = [
        torch.randn(2, many, 128, 64, device="cuda", dtype=torch.bfloat16)
        for many in (8, groups, groups)
    ]
    jitted = jit(run)
    got = with_gradients(jitted, made)
    exact = with_gradients(exactly, [one.double() for one in made])
    assert_as_exact_as_eager(got, with_gradients(exactly, made), exact)
    # Eager torch, which gives its kernels bools, may have another value for a row without a key.
    torch.testing.assert_close(jitted(*made), exactly(*made), atol=2e-2, rtol=2e-2)


def shapes_of_masks(rows: int, keys: int) -> dict[str, tuple[int, ...]]:
    return {
        "scores": (8, 4, rows, keys), "one batch": (1, 4, rows, keys), "no heads": (rows, keys),
        "one batch and head": (1, 1, rows, keys), "one head": (8, 1, rows, keys),
        "keys of batches": (8, 1, 1, keys), "keys": (1, 1, 1, keys), "heads": (4, rows, keys),
        "rows": (1, 1, rows, 1),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["float", "bool"])
@pytest.mark.parametrize(("rows", "keys"), [(64, 64), (50, 77), (1, 77), (1, 64)])
@pytest.mark.parametrize("name", shapes_of_masks(1, 1))
def test_masks_broadcast(name: str, rows: int, keys: int, kind: str, dtype: torch.dtype) -> None:
    """Of one batch for several, and so on; a step of decoding has one row. With the gradient of a
    float mask."""
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q * 2, k, v, mask)

    def exactly(*made: torch.Tensor) -> torch.Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return run(*made)

    drawn = torch.randn(shapes_of_masks(rows, keys)[name], device="cuda", dtype=dtype)
    mask = drawn if kind == "float" else drawn > -1
    made = [torch.randn(8, 4, size, 32, device="cuda", dtype=dtype) for size in (rows, keys, keys)]
    jitted = jit(run)
    got = with_gradients(jitted, [*made, mask])
    exact = [one.double() if one.is_floating_point() else one for one in (*made, mask)]
    wanted = with_gradients(exactly, [*made, mask]), with_gradients(exactly, exact)
    if name == "rows":  # all keys get the same, so the gradient is 0, and what comes is rounding
        bound = 1e-4 if dtype is torch.float32 else 0.5
        assert all(each.abs().max() < bound for each in got[4:])
        got, *wanted = got[:4], *(each[:4] for each in wanted)
    assert_as_exact_as_eager(got, *wanted)
    assert "matmul" not in str(final_traces(jitted)[0])
    with torch.no_grad():
        torch.testing.assert_close(jitted(*made, mask), exactly(*made, mask), atol=3e-2, rtol=3e-2)


def test_dropout_with_a_mask_that_broadcasts() -> None:
    q, k, v = (torch.randn(8, 4, size, 32, device="cuda").requires_grad_() for size in (50, 77, 77))
    mask = torch.rand(1, 1, 50, 77, device="cuda") > 0.1
    jitted = jit(lambda *made: F.scaled_dot_product_attention(*made, mask, 0.3))
    result = jitted(q, k, torch.ones_like(v).requires_grad_())
    assert abs(result.mean().item() - 1) < 0.05
    gradients = torch.autograd.grad(jitted(q, k, v).sum(), [q, k, v])
    assert all(one.isfinite().all() for one in gradients)
