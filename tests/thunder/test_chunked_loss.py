# SPDX-License-Identifier: Apache-2.0
"""The loss of a language model without its logits: where it is recognised, values, gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from helpers.exactness import assert_as_exact_as_eager, rms, with_gradients
from thunder.dynamo import thunderfx

import thunder_fuser
from thunder_fuser.errors import OptionError
from thunder_fuser.executors.fuser import fuser
from thunder_fuser.explain import report, why
from thunder_fuser.explain.jitted import final_traces, jit
from thunder_fuser.functions.chunked_loss.loop import chunks

CLASSES, WIDTH = 37, 8
FLOATS = (torch.float32, torch.bfloat16)
Function = Callable[..., Any]


def calls(jitted: Any) -> list[str]:
    """The calls of losses in chunks in the final traces."""
    names = [bsym.sym.name for trace in final_traces(jitted) for bsym in trace.bound_symbols]
    return [name for name in names if name.startswith("chunkedLoss")]


def operands(
    rows: int = 11, dtype: torch.dtype = torch.float32, ignored: int = -100
) -> list[torch.Tensor]:
    """A hidden state, a weight, a bias, and targets of which some are ignored."""
    torch.manual_seed(0)
    h, w, b = torch.randn(rows, WIDTH), torch.randn(CLASSES, WIDTH), torch.randn(CLASSES)
    target = torch.randint(0, CLASSES, (rows,))
    target[1::4] = ignored
    return [h.to(dtype), w.to(dtype), b.to(dtype), target]


def widened(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [v.double() if v.is_floating_point() else v for v in values]


def check(
    function: Function, values: Sequence[torch.Tensor], rows: int = 4,
    exact: Function | None = None, times: int = 1,
) -> Any:  # fmt: skip
    """Loss and gradients are as exact as eager's, in so many calls; the jitted function."""
    jitted = jit(function, loss_rows=rows, strict=True)
    got = with_gradients(jitted, values)
    right = with_gradients(exact or function, widened(values))
    assert_as_exact_as_eager(got, with_gradients(function, values), right)
    assert len(calls(jitted)) == times
    return jitted


# ---------------------------------------------------------------------- what is done to the logits


def plain(h: Any, w: Any, b: Any, target: Any) -> Any:
    return F.cross_entropy(F.linear(h, w, b), target)


def capped(h: Any, w: Any, b: Any, target: Any) -> Any:
    x = F.linear(h, w, b)
    return F.cross_entropy(3.0 * torch.tanh(x / 3.0), target)


def shifted(h: Any, w: Any, b: Any, target: Any) -> Any:
    x = F.linear(h.view(1, -1, WIDTH), w, b)[:, :-1].contiguous()
    return F.cross_entropy(x.view(-1, CLASSES), target[1:])


def scaled(h: Any, w: Any, b: Any, target: Any) -> Any:
    return F.cross_entropy((F.linear(h, w, b) * 0.125).flatten(0, -2), target, reduction="sum")


def product(h: Any, w: Any, b: Any, target: Any) -> Any:
    return F.cross_entropy((h.view(1, -1, WIDTH) @ w.t()).view(-1, CLASSES) / 2, target) + b.sum()


def tied(h: Any, w: Any, b: Any, target: Any) -> Any:
    embedded = F.embedding(target.clamp(0), w)
    return F.cross_entropy(F.linear(h * embedded, w, b), target)


def checkpointed(h: Any, w: Any, b: Any, target: Any) -> Any:
    def head(h: Any, w: Any, b: Any) -> Any:
        return F.linear(torch.tanh(h), w, b)

    x = torch.utils.checkpoint.checkpoint(head, h, w, b, use_reentrant=False)
    return F.cross_entropy(x, target)


MODELS = {f.__name__: f for f in (plain, capped, shifted, scaled, product, tied, checkpointed)}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, dtype: torch.dtype) -> None:
    check(MODELS[name], operands(dtype=dtype))


@pytest.mark.parametrize("rows", [5, 11])
def test_means_of_float64(rows: int) -> None:
    """A third of float32 would be a hundred million times as far off."""
    check(plain, operands(rows, torch.float64))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_logits_that_are_widened(dtype: torch.dtype) -> None:
    def wide(h: Any, w: Any, b: Any, target: Any) -> Any:
        return F.cross_entropy(F.linear(h, w, b).float(), target)

    jitted = check(wide, operands(dtype=dtype), exact=plain)
    assert jitted(*operands(dtype=dtype)).dtype is torch.float32


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "keywords",
    [
        {"reduction": "sum"},
        {"ignore_index": 3},
        {"label_smoothing": 0.1},
        {"weight": True},
        {"weight": True, "reduction": "sum"},
        {"weight": True, "label_smoothing": 0.25, "ignore_index": 3},
    ],
    ids="_".join,
)
def test_arguments(keywords: dict[str, Any], dtype: torch.dtype) -> None:
    weight = torch.rand(CLASSES, generator=torch.Generator().manual_seed(1)).to(dtype)

    def function(h: Any, w: Any, b: Any, target: Any) -> Any:
        of_h = {**keywords, "weight": weight.to(h)} if "weight" in keywords else keywords
        return F.cross_entropy(F.linear(h, w, b), target, **of_h)

    check(function, operands(dtype=dtype, ignored=keywords.get("ignore_index", -100)))


@pytest.mark.parametrize("dtype", (*FLOATS, torch.float16), ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_loss_of_each_row(smoothing: float, dtype: torch.dtype) -> None:
    def function(h: Any, w: Any, b: Any, target: Any) -> Any:
        x = F.linear(h, w, b) / 2
        return F.cross_entropy(x, target, reduction="none", label_smoothing=smoothing)

    check(function, operands(dtype=dtype), times=2)


def test_losses_that_the_program_weighs() -> None:
    def function(h: Any, w: Any, b: Any, target: Any) -> Any:
        losses = F.cross_entropy(F.linear(h, w, b), target, reduction="none")
        counts = (target != -100).to(losses.dtype) * torch.arange(11)
        return (losses * counts).sum() / counts.sum()

    check(function, operands(), times=2)


# A z-loss keeps the sums of the rows near 1. It stands before the loss, or behind it.


def z_before(h: Any, w: Any, b: Any, target: Any) -> Any:
    x = F.linear(h, w, b)
    z = torch.logsumexp(x, -1).pow(2).mean()
    return F.cross_entropy(x, target) + 0.1 * z


def z_behind(h: Any, w: Any, b: Any, target: Any) -> Any:
    x = 3.0 * torch.tanh(F.linear(h.view(1, -1, WIDTH), w, b) / 3.0)
    loss = F.cross_entropy(x.view(-1, CLASSES), target, reduction="sum", label_smoothing=0.1)
    return loss + 0.1 * x.logsumexp(2).square().sum()


def z_of_counted_rows(h: Any, w: Any, b: Any, target: Any) -> Any:
    x = F.linear(h, w, b)
    counted = target != 3
    losses = F.cross_entropy(x, target, ignore_index=3, reduction="none")
    sums = torch.logsumexp(x, dim=1, keepdim=True).squeeze(1)
    return (losses + 0.1 * sums * sums * counted).sum() / counted.sum()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("function", [z_before, z_behind, z_of_counted_rows])
def test_z_losses(function: Function, dtype: torch.dtype) -> None:
    check(function, operands(dtype=dtype, ignored=3), times=2)


def test_a_z_loss_without_gradients() -> None:
    jitted = jit(z_before, loss_rows=4, strict=True)
    torch.testing.assert_close(jitted(*operands()), z_before(*operands()))
    assert len(calls(jitted)) == 1


def test_targets_that_follow_the_z_loss_keep_the_logits() -> None:
    def function(h: Any, w: Any, b: Any, target: Any) -> Any:
        x = F.linear(h, w, b)
        z = torch.logsumexp(x, 1)
        return F.cross_entropy(x, torch.where(z > 0, target, 0)) + z.sum()

    jitted = jit(function, loss_rows=4, strict=True)
    torch.testing.assert_close(jitted(*operands()), function(*operands()))
    (reason,) = (one.reason for one in why(jitted) if one.name == "cross_entropy")
    assert reason == "targets that are computed behind the logsumexp of the logits"


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_half_is_scaled_before_it_is_rounded(reduction: str) -> None:
    """Its smallest gradients would be zero without the scale of the loss."""

    def function(h: Any, w: Any, b: Any, target: Any) -> Any:
        loss = F.cross_entropy(F.linear(h, w, b).float(), target, reduction=reduction)
        return loss * 2.0**10

    def exact(h: Any, w: Any, b: Any, target: Any) -> Any:
        return F.cross_entropy(F.linear(h, w, b), target, reduction=reduction) * 2.0**10

    values = operands(dtype=torch.float16)
    jitted = jit(function, loss_rows=4, strict=True)
    got, eager = (with_gradients(f, values) for f in (jitted, function))
    assert_as_exact_as_eager(got, eager, with_gradients(exact, widened(values)))
    assert len(calls(jitted)) == 2


# --------------------------------------------------------------------------------- sizes and rows


@pytest.mark.parametrize(("count", "rows"), [(2, 1), (4, 2), (5, 2), (9, 8), (130, 128)])
def test_rows_that_no_chunk_divides(count: int, rows: int) -> None:
    check(plain, operands(count), rows)


def test_chunks() -> None:
    for count in range(1, 300):
        for most in (1, 2, 63, 64, 65, 128, 200):
            runs = [*chunks(count, most)]
            assert [at for run in runs for at in range(run.start, run.stop)] == [*range(count)]
            lengths = [run.stop - run.start for run in runs]
            assert max(lengths) <= most and len(runs) == -(-count // most)
            assert lengths[-1] <= lengths[0] and len({*lengths[:-1]}) <= 1


@pytest.mark.parametrize("rows", [11, 12, 0])
def test_fewer_rows_than_a_chunk_stay_as_they_were(rows: int) -> None:
    jitted = jit(plain, loss_rows=rows, strict=True)
    torch.testing.assert_close(jitted(*operands()), plain(*operands()))
    assert calls(jitted) == []


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_all_rows_ignored(reduction: str) -> None:
    h, w, b, target = operands()

    def function(*args: Any) -> Any:
        return F.cross_entropy(F.linear(*args), target.fill_(-100), reduction=reduction)

    def loss(h: Any, w: Any, b: Any, t: Any) -> Any:
        return F.cross_entropy(F.linear(h, w, b), t, reduction=reduction)

    jitted, args = jit(loss, loss_rows=4, strict=True), [h, w, b, torch.full_like(target, -100)]
    for got, wanted in zip(with_gradients(jitted, args), with_gradients(loss, args), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    assert len(calls(jitted)) == 1


# ------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("fixed", [(0,), (1,), (2,), (0, 2), (1, 2)], ids=str)
def test_frozen_operands(fixed: tuple[int, ...]) -> None:
    """A frozen operand has no product of its own."""
    jitted = jit(plain, loss_rows=4, strict=True)
    got, wanted = (with_gradients(f, operands(), fixed) for f in (jitted, plain))
    torch.testing.assert_close(got, wanted)
    forward = thunder.last_traces(jitted)[-1].bound_symbols
    (call,) = (bsym for bsym in forward if bsym.sym.name in calls(jitted))
    assert len(call.output) == 1 + 3 - len(fixed)


def test_a_loss_without_gradients() -> None:
    jitted, args = jit(plain, loss_rows=4, strict=True), operands()
    torch.testing.assert_close(jitted(*args), plain(*args))
    with torch.no_grad():
        torch.testing.assert_close(jitted(args[0].requires_grad_(), *args[1:]), plain(*args))
    assert len(calls(jitted)) == 1


def test_a_scaled_loss_and_gradients_that_add_up() -> None:
    jitted, args = jit(plain, loss_rows=4, strict=True), operands()
    sums = []
    for function in (jitted, plain):
        leaves = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
        for scale in (65536.0, 0.25, 0.0):
            (function(*leaves) * scale).backward()
        sums.append([leaf.grad for leaf in leaves[:3]])
    torch.testing.assert_close(*sums, rtol=1e-5, atol=65536 * 1e-7)


def test_a_backward_that_runs_twice() -> None:
    leaves = [a.requires_grad_(a.is_floating_point()) for a in operands()]
    loss = jit(plain, loss_rows=4, strict=True)(*leaves)
    loss.backward(retain_graph=True)
    once = [leaf.grad.clone() for leaf in leaves[:3]]
    loss.backward()
    torch.testing.assert_close([leaf.grad for leaf in leaves[:3]], [2 * g for g in once])


def test_bits_are_equal_from_run_to_run_and_between_policies() -> None:
    results = [
        with_gradients(jit(plain, loss_rows=4, rematerialization=policy), operands(70))
        for policy in ("time", "memory", "memory")
    ]
    for others in results[1:]:
        assert all(map(torch.equal, results[0], others))


@pytest.mark.parametrize("scale", [1.0, 0.125, 0.7])
@pytest.mark.parametrize("of", [0, 1, 2])
def test_sums_of_chunks_are_rounded_once(of: int, scale: float) -> None:
    """bf16 sums of a hundred chunks would lose digits. The gradient of the hidden state is no such
    sum: it is rounded once more, where that of the loss is no power of two."""
    values = operands(400, torch.bfloat16)

    def gradient(function: Function, values: Sequence[torch.Tensor]) -> torch.Tensor:
        leaves = [v.requires_grad_() if at == of else v for at, v in enumerate(values)]
        (result,) = torch.autograd.grad(function(*leaves) * scale, leaves[of])
        return result

    right, eager = gradient(plain, widened(values)), gradient(plain, values)
    got = gradient(jit(plain, loss_rows=4, strict=True), values)
    times = 1.05 if scale != 0.7 else 1.2 if of else 1.5
    assert rms(got - right) <= times * rms(eager - right)


@pytest.mark.parametrize("scale", [1.0, 0.125, 0.7])
def test_two_chunks_are_rounded_twice(scale: float) -> None:
    """Half of the sum once more, and all of it where the loss's gradient is no power of two."""
    values = operands(400, torch.bfloat16)

    def gradient(function: Function, values: Sequence[torch.Tensor]) -> torch.Tensor:
        leaves = [v.requires_grad_() if at == 1 else v for at, v in enumerate(values)]
        (result,) = torch.autograd.grad(function(*leaves) * scale, leaves[1])
        return result

    right, eager = gradient(plain, widened(values)), gradient(plain, values)
    for jitted in (jit(plain, strict=True, rematerialization="memory"), jit(plain, loss_rows=200)):
        got = gradient(jitted, values)
        assert rms(got - right) <= (1.6 if scale == 0.7 else 1.23) * rms(eager - right)


@pytest.mark.parametrize(("width", "rows", "chosen"), [
    (64, 1152, 576),  # of 576 rows: 1152 bytes a word, and 128; of 512: 1024, and 256 for sums
    (60, 1152, 512), (64, 1160, 512),
])  # fmt: skip
def test_halves_where_they_take_no_more_bytes(width: int, rows: int, chosen: int) -> None:
    h, w = (torch.randn(n, width).bfloat16().requires_grad_() for n in (rows, 24))
    jitted = jit(plain, strict=True, rematerialization="memory")
    jitted(h, w, None, torch.zeros(rows, dtype=torch.long)).backward()
    assert f"{chosen} rows of the logits at a time" in str(final_traces(jitted)[0])


@pytest.mark.parametrize(("policy", "emulate", "is_whole"), [
    ("time", True, False), ("time", False, True), ("none", True, True), ("memory", False, False),
])  # fmt: skip
def test_a_soft_cap_in_halves(policy: str, emulate: bool, is_whole: bool) -> None:
    """On a GPU that takes less time than whole logits, since chunks alone have a short tanh."""
    h, w = (torch.randn(n, 64).bfloat16().requires_grad_() for n in (1152, 24))
    target = torch.randint(0, 24, (1152,), generator=torch.Generator().manual_seed(2))
    jitted = jit(capped, strict=True, rematerialization=policy, emulate=emulate)
    exact = capped(h.double(), w.double(), None, target)  # eager's bf16 is rounded at each step
    torch.testing.assert_close(jitted(h, w, None, target).double(), exact, rtol=5e-3, atol=0.0)
    assert ("576 rows of the logits" not in str(final_traces(jitted)[0])) == is_whole


@pytest.mark.parametrize("emulate", [False, True])
@pytest.mark.parametrize("divisor", [0.0, 1e-42, 1e38])
def test_a_divisor_without_a_reciprocal(divisor: float, emulate: bool) -> None:
    def function(h: Any, w: Any, b: Any, target: Any) -> Any:
        return F.cross_entropy((F.linear(h, w, b).float() / divisor).tanh(), target)

    values = operands(20, torch.bfloat16)
    got = with_gradients(jit(function, loss_rows=4, emulate=emulate), values)
    torch.testing.assert_close(got, with_gradients(function, values), equal_nan=True)


def test_autocast() -> None:
    def function(h: Any, w: Any, b: Any, target: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            x = F.linear(h, w, b)
        return F.cross_entropy(x.float(), target)

    jitted = jit(function, loss_rows=4, strict=True)
    got, eager = (with_gradients(f, operands()) for f in (jitted, function))
    right = with_gradients(plain, operands())
    assert len(calls(jitted)) == 1
    for mine, usual, value in zip(got, eager, right, strict=True):
        assert mine.dtype is torch.float32
        assert rms(mine - value) <= 1.2 * rms(usual - value) + 1e-6


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_in_the_emulator(dtype: torch.dtype) -> None:
    jitted = jit(capped, loss_rows=4, strict=True, emulate=True)
    values = operands(dtype=dtype)
    got, eager = (with_gradients(f, values) for f in (jitted, capped))
    assert_as_exact_as_eager(got, eager, with_gradients(capped, widened(values)))
    assert len(calls(jitted)) == 1


# -------------------------------------------------------------------------------- other doors


def llama(cap: float = 0.0) -> Any:
    """A model of transformers whose head is its embedding."""
    transformers = pytest.importorskip("transformers")
    family = "Gemma2" if cap else "Llama"
    more = {"final_logit_softcapping": cap, "query_pre_attn_scalar": 8} if cap else {}
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, head_dim=8,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True, **more,
    )  # fmt: skip
    return getattr(transformers, f"{family}ForCausalLM")(config)


class LossOf(torch.nn.Module):
    """The loss of a model of transformers alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(input_ids=ids, labels=ids, use_cache=False).loss


def jitted_by(door: str, module: torch.nn.Module) -> tuple[Function, Callable[[], list[str]]]:
    """(the module's forward by a door, the calls of losses in chunks in its traces)"""
    if door == "thunder.jit":
        jitted = jit(module, loss_rows=4, strict=True)
        return jitted, lambda: calls(jitted)
    if door == "thunder_fuser.jit":
        fast = thunder_fuser.jit(module, fuser_loss_rows=4, fuser_strict=True)
        return fast, lambda: calls(fast)
    torch._dynamo.reset()
    compiled = thunderfx(module, executors=[fuser], fuser_loss_rows=4)
    return compiled, lambda: [
        name for info in compiled._backend.subgraph_infos
        for graph in info.thunder_compiled_fns for name in calls(graph)
    ]


@pytest.mark.parametrize(
    ("door", "cap"),
    [("thunder.jit", 3.0), ("thunder_fuser.jit", 0.0), ("thunder_fuser.jit", 3.0),
     ("thunderfx", 3.0)],
)  # fmt: skip
def test_models_of_transformers(door: str, cap: float) -> None:
    """Tied weights: the gradient of the embedding is added to that of the head."""
    module, ids = LossOf(llama(cap)), torch.randint(0, 64, (2, 7))
    jitted, called = jitted_by(door, module)
    results = []
    for function in (jitted, module):
        module.zero_grad()
        loss = function(ids)
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in module.parameters())])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert len(called()) == 1


# ------------------------------------------------------------------------ where it must not fire


def returned(h: Any, w: Any, b: Any, target: Any) -> Any:
    x = F.linear(h, w, b)
    return F.cross_entropy(x, target), x


def read_twice(h: Any, w: Any, b: Any, target: Any) -> Any:
    x = F.linear(h, w, b)
    return F.cross_entropy(x, target) + x.square().mean()


def activated(h: Any, w: Any, b: Any, target: Any) -> Any:
    return F.cross_entropy(F.relu(F.linear(h, w, b)), target)


def cut(h: Any, w: Any, b: Any, target: Any) -> Any:
    return F.cross_entropy(F.linear(h, w, b)[:, :36], target.clamp(max=35))


def detached(h: Any, w: Any, b: Any, target: Any) -> Any:
    return F.cross_entropy(F.linear(h, w, b).detach(), target) + (h.sum() + w.sum() + b.sum())


class Halved(torch.autograd.Function):
    """tanh with half of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return torch.tanh(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 0.5


def with_its_own_gradient(h: Any, w: Any, b: Any, target: Any) -> Any:
    return F.cross_entropy(Halved.apply(F.linear(h, w, b)), target)


REFUSED: dict[str, tuple[Function, str]] = {
    "returned": (returned, "its logits are returned too: return the loss alone"),
    "read twice": (read_twice, "its logits stay whole, for they are read at"),
    "with its own gradient": (with_its_own_gradient, "logits of a custom function"),
    "activated": (activated, "logits that"),
    "cut": (cut, "logits that slice_prim computes"),
    "detached": (detached, "logits that"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_stays_whole(name: str) -> None:
    function, reason = REFUSED[name]
    jitted = jit(function, loss_rows=4, strict=True)
    results = []
    for call in (jitted, function):
        leaves = [a.requires_grad_(a.is_floating_point()) for a in operands()]
        loss = call(*leaves)
        loss = loss[0] if isinstance(loss, tuple) else loss
        loss.sum().backward()
        results.append([loss, *(leaf.grad for leaf in leaves[:3])])
    torch.testing.assert_close(*results)
    assert calls(jitted) == []
    reasons = [one.reason for one in why(jitted) if one.name == "cross_entropy"]
    assert len(reasons) == 1 and reasons[0].startswith(reason), reasons


def test_a_write_between_the_product_and_the_loss() -> None:
    def function(h: Any, w: Any, b: Any, target: Any) -> Any:
        x = F.linear(h, w, b)
        h.add_(1.0)
        return F.cross_entropy(x, target)

    jitted, args = jit(function, loss_rows=4, strict=True), operands()
    torch.testing.assert_close(jitted(*args), plain(*operands()))
    torch.testing.assert_close(args[0], operands()[0] + 1.0)
    (reason,) = (one.reason for one in why(jitted) if one.name == "cross_entropy")
    assert reason == "a write in place between the product and the loss"


def test_the_line_that_keeps_the_logits() -> None:
    jitted = jit(read_twice, loss_rows=4, strict=True)
    jitted(*operands())
    (reason,) = (one.reason for one in why(jitted) if one.name == "cross_entropy")
    line = read_twice.__code__.co_firstlineno + 2
    assert f"test_chunked_loss.py:{line} too" in reason


# ------------------------------------------------------------------------- policies and reports


@pytest.mark.parametrize(
    ("policy", "trained", "frozen"),
    [("none", 0, 0), ("time", 0, 1), ("memory", 1, 1), ("budget(0.5)", 1, 1)],
)
def test_policies(policy: str, trained: int, frozen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thunder_fuser.functions.chunked_loss.recognise.ROWS", {"cpu": 4})
    for fixed, wanted in (((), trained), ((1, 2), frozen)):
        jitted = jit(plain, rematerialization=policy, strict=True)
        with_gradients(jitted, operands(), fixed)
        assert len(calls(jitted)) == wanted


def test_a_number_of_rows_that_is_none() -> None:
    with pytest.raises(OptionError, match="loss_rows"):
        jit(plain, loss_rows=-2)(*operands())


def test_the_report_names_it() -> None:
    jitted = check(plain, operands())
    rows = [row for row in report(jitted).unfused if row.name.startswith("chunkedLoss")]
    assert {row.reason for row in rows} == {"its kernels run on a piece of the logits at a time"}
    assert len(rows) == 1 and rows[0].where.startswith(__file__)
    assert "# 4 rows of the logits at a time" in str(thunder.last_traces(jitted)[-1])


def test_before_and_after(golden: Any) -> None:
    """The pass, once; a second time it changes nothing."""
    jitted = jit(capped, loss_rows=4, strict=True)
    jitted(*operands())
    after = next(t for t in thunder.last_traces(jitted) if "loss_in_chunks" in str(t))
    golden("\n".join(_short(bsym) for bsym in after.bound_symbols))


def _short(bsym: Any) -> str:
    """Without the line of this file, which changes."""
    return re.sub(r"'\S+test_chunked_loss.py:\d+'", "'test.py:1'", str(bsym).splitlines()[0])


# ------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("wrong", [-1, CLASSES])
@pytest.mark.parametrize("weight", [None, torch.ones(CLASSES)], ids=["plain", "weighted"])
def test_a_target_that_is_no_class(wrong: int, weight: Any) -> None:
    values = operands()
    values[3][6] = wrong

    def function(h: Any, w: Any, b: Any, target: Any) -> Any:
        return F.cross_entropy(F.linear(h, w, b), target, weight)

    line = function.__code__.co_firstlineno + 1
    with pytest.raises(IndexError, match=f"test_chunked_loss.py:{line}") as caught:
        jit(function, loss_rows=4, strict=True)(*values)
    words = f"Target {wrong} is out of bounds." if weight is None else "index out of range in self"
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "target", [torch.zeros(10, dtype=torch.int64), torch.zeros(11), torch.zeros(11, 2).long()],
    ids=["too short", "floats", "two classes"],
)
def test_targets_that_torch_refuses(target: torch.Tensor) -> None:
    h, w, b, _ = operands()
    with pytest.raises((RuntimeError, ValueError)):
        plain(h, w, b, target)
    with pytest.raises((RuntimeError, ValueError)):
        jit(plain, loss_rows=4)(h, w, b, target)
