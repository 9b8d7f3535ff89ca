# SPDX-License-Identifier: Apache-2.0
"""Memory and time of the loss of a language model, whole and in chunks of its logits.

Beside eager, torch.compile and, if liger-kernel is installed, Liger's fused loss in the same model
(`pip install liger-kernel`; it needs a GPU). A case is a head alone, from a hidden state to the
loss and back, or a model of transformers with random weights. All is bf16. The step is forward and
backward, with the gradients as None before it. Of heads, loss and gradients are held against
float64, and the command fails if they are over 1.2 times as far off as eager's. Of models they are
held against eager's.
"""

from __future__ import annotations

import argparse
import gc
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.kernels.points import DTYPES
from benchmarks.options import add_compile, add_device, add_small
from benchmarks.report import Report
from benchmarks.train_step import COMPILE, EAGER, Step, check
from benchmarks.train_step import step as one_step
from thunder_fuser.demo.blocks import SEED
from thunder_fuser.explain.jitted import jit

LIGER = "liger"
IN_A_ROW = 8
DEVIATION = 0.02  # of the weights
NEAR_LOSS, NEAR = 1e-3, 0.1  # of eager's, for whole models, whose bf16 values differ
HEADER = (
    f"{'case':12} {'step':14} {'peak MiB':>9} {'above':>8} {'ms':>8} {'x compile':>9} "
    f"{'x liger':>8} {'of compile':>10} {'loss off':>9} {'grad off':>9} {'first s':>8}"
)


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes of a model; layers: 0 for the head alone. cap: of the logits, 0 for none."""

    family: str
    width: int
    words: int
    layers: int = 0
    cap: float = 0.0
    batch: int = 4
    length: int = 2048
    heads: tuple[int, int, int] = (1, 1, 8)  # of queries, of keys; the width of each
    inner: int = 0


LLAMA = Case("Llama", 2048, 128256, heads=(32, 8, 64), inner=8192)
QWEN = Case("Qwen2", 896, 151936, heads=(14, 2, 64), inner=4864)
GEMMA = Case("Gemma2", 2304, 256000, cap=30.0, heads=(8, 4, 256), inner=9216)
CASES: Mapping[str, Case] = {
    "llama-head": LLAMA,
    "qwen-head": QWEN,
    "gemma-head": GEMMA,
    "llama-4": replace(LLAMA, layers=4),
    "llama-16": replace(LLAMA, layers=16),
    "qwen-24": replace(QWEN, layers=24),
    "gemma-4": replace(GEMMA, layers=4),
}
Call = Callable[..., torch.Tensor]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add_small(parser)
    add_compile(parser, default=True)
    parser.add_argument(
        "--cases", default=",".join(CASES), metavar="NAME,...", help=f"of {', '.join(CASES)}"
    )
    parser.add_argument(
        "--rows", default="2048", metavar="N,...", help="rows of a chunk, one contender each"
    )
    parser.add_argument("--policies", default="time,memory,budget(0.25)", metavar="NAME,...")


def run(given: argparse.Namespace, report: Report) -> None:
    report.lines.append(HEADER)
    for name in given.cases.split(","):
        case = small(CASES[name]) if given.small else CASES[name]
        with report.section(name):
            figures = report.figures.setdefault(name, {"case": str(case), "steps": {}})
            measure(name, case, given, report, figures["steps"])
        gc.collect()


def small(case: Case) -> Case:
    """The same model with tiny sizes."""
    return replace(
        case, width=32, words=201, layers=min(case.layers, 2), batch=2, length=16, inner=64,
        heads=(2, 1, 16),
    )  # fmt: skip


def measure(
    name: str, case: Case, given: argparse.Namespace, report: Report, found: dict[str, Any]
) -> None:
    """Fills in the figures of each contender's step."""
    torch.manual_seed(SEED)
    with given.device:  # a CPU takes a minute for the random weights of a large model
        model = (Head if not case.layers else Model)(case).to(DTYPES["bf16"])
    tokens = torch.randint(0, case.words, (case.batch, case.length), device=given.device)
    step = Step(model, (tokens, tokens))  # type: ignore[arg-type]
    right = model.exact(tokens) if isinstance(model, Head) else one_step(model, model, step.batch)
    step.exact = [x.cpu() for x in right]
    del right  # it would count in each peak
    calls = dict(contenders(model, given))
    for contender, call in calls.items():
        with report.section(f"{name} {contender}"):
            found[contender] = step.first(call) | step.memory(call)
    timed = step.times({each: calls[each] for each in found}, IN_A_ROW)
    for contender, us in timed.items():
        found[contender]["ms"] = us / 1e3
    for contender, ours in found.items():
        report.lines.append(line(name, contender, found))
        if isinstance(model, Head) and contender not in (EAGER, COMPILE, LIGER):
            check(report, f"{name} {contender}", ours, found[EAGER], DTYPES["bf16"])
        elif isinstance(model, Model):
            near = ours["loss_error"] < NEAR_LOSS and ours["gradient_error"] < NEAR
            report.check(f"{name} {contender}", near, f"not as eager: {ours}")


def contenders(model: Head | Model, given: argparse.Namespace) -> Iterator[tuple[str, Call]]:
    """(name, the step's forward), of one model."""
    yield EAGER, model
    if given.compile:
        torch._dynamo.reset()
        yield COMPILE, torch.compile(model, dynamic=False)
    if (liger := liger_loss(model.case)) is not None and given.device.type == "cuda":
        yield LIGER, lambda tokens, targets: model.by_liger(liger, tokens, targets)
        if given.compile and isinstance(model, Model):
            body = torch.compile(model.hidden, dynamic=False)
            yield f"{LIGER}+compile", lambda tokens, targets: model.by_liger(
                liger, tokens, targets, body
            )
    for policy in given.policies.split(","):
        yield policy, jit(model, strict=True, rematerialization=policy)
    for rows in filter(None, given.rows.split(",")):
        rows = int(rows) if not given.small else 8
        yield f"time, {rows}", jit(model, strict=True, loss_rows=rows)


def liger_loss(case: Case) -> Any:
    """Liger's fused loss; None if it is not installed."""
    try:
        liger = import_module("liger_kernel.transformers")
    except ImportError:
        return None
    return liger.LigerFusedLinearCrossEntropyLoss(ignore_index=-100, softcap=case.cap or None)


class Head(nn.Module):
    """Targets [batch, length] -> the loss of a hidden state, which is a parameter here."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        rows = case.batch * case.length
        self.hidden_state = nn.Parameter(torch.randn(rows, case.width))
        self.weight = nn.Parameter(torch.randn(case.words, case.width) * DEVIATION)

    def forward(self, _: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = F.linear(self.hidden_state, self.weight).float()
        return F.cross_entropy(capped(logits, self.case.cap), targets.flatten())

    def by_liger(self, loss: Call, _: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss(self.weight, self.hidden_state, targets.flatten())

    def exact(self, targets: torch.Tensor, rows: int = 1024) -> list[torch.Tensor]:
        """Loss and gradients in float64, some rows at a time."""
        h, w = (p.detach().double() for p in (self.hidden_state, self.weight))
        loss, of_h, of_w = h.new_zeros(()), [], torch.zeros_like(w)
        for of_rows, target in zip(h.split(rows), targets.flatten().split(rows), strict=True):
            leaves = [of_rows.requires_grad_(), w.detach().requires_grad_()]
            logits = capped(F.linear(*leaves), self.case.cap)
            part = F.cross_entropy(logits, target, reduction="sum") / len(h)
            dh, dw = torch.autograd.grad(part, leaves)
            loss += part.detach()
            of_h.append(dh)
            of_w += dw
        return [loss, torch.cat(of_h), of_w]


class Model(nn.Module):
    """Tokens -> the loss of a model of transformers; its head is that of its embedding."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        transformers = import_module("transformers")
        queries, keys, width = case.heads
        more = {"query_pre_attn_scalar": width, "head_dim": width}
        config = getattr(transformers, f"{case.family}Config")(
            vocab_size=case.words, hidden_size=case.width, intermediate_size=case.inner,
            num_hidden_layers=case.layers, num_attention_heads=queries, num_key_value_heads=keys,
            max_position_embeddings=case.length, tie_word_embeddings=True,
            **(more if case.family == "Gemma2" else {}),
        )  # fmt: skip
        self.case = case
        self.model = getattr(transformers, f"{case.family}ForCausalLM")(config)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        result = self.model(input_ids=tokens, labels=targets, use_cache=False)
        return result.loss  # type: ignore[no-any-return]

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        state = self.model.model(input_ids=tokens, use_cache=False).last_hidden_state
        return state  # type: ignore[no-any-return]

    def by_liger(
        self, loss: Call, tokens: torch.Tensor, targets: torch.Tensor, body: Call | None = None
    ) -> torch.Tensor:
        state = (body or self.hidden)(tokens).flatten(0, 1)
        shifted = F.pad(targets, (0, 1), value=-100)[:, 1:].flatten()
        return loss(self.model.lm_head.weight, state, shifted)


def capped(logits: torch.Tensor, cap: float) -> torch.Tensor:
    return torch.tanh(logits / cap) * cap if cap else logits


def line(case: str, name: str, found: Mapping[str, Mapping[str, float]]) -> str:
    """One row of the table; `-` for what this device or run does not have."""
    one = found[name]

    def over(other: str, key: str) -> float:
        return found.get(other, {}).get(key, math.nan)

    peak, above = (one.get(key, math.nan) / 2**20 for key in ("peak", "above"))
    ms = one.get("ms", math.nan)
    share = one.get("peak", math.nan) / over(COMPILE, "peak")
    cells = (
        f"{peak:9.1f}", f"{above:8.1f}", f"{ms:8.2f}", f"{over(COMPILE, 'ms') / ms:9.2f}",
        f"{over(LIGER, 'ms') / ms:8.2f}", f"{share:10.2f}", f"{one['loss_error']:9.1e}",
        f"{one['gradient_error']:9.1e}", f"{one['first_call_s']:8.1f}",
    )  # fmt: skip
    return " ".join((f"{case:12}", f"{name:14}", *cells)).replace("nan", "  -")
