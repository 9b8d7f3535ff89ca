# SPDX-License-Identifier: Apache-2.0
"""Memory and time of a training step of GPT-2 under each policy.

Beside eager and torch.compile. Parameters and activations are bf16, without autocast; the loss is
taken of float32 logits. A step is forward, loss and backward; the optimizer, the same for all, is
left out. Gradients begin as None. Fails if the error of the loss, or of all gradients together,
against the same step in float64 is over 1.2 times eager's.
"""

from __future__ import annotations

import argparse
import copy
import gc
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.clock import medians, wait
from benchmarks.kernels.points import DTYPES
from benchmarks.models import GPT2_SIZES
from benchmarks.options import add_compile, add_device, add_small
from benchmarks.report import Report
from benchmarks.saved_memory.measure import kept_by
from thunder_fuser.demo.accuracy import FACTOR, FLOOR_ULPS
from thunder_fuser.demo.blocks import SEED, GPTBlock, Sizes
from thunder_fuser.explain.jitted import jit

EAGER, COMPILE = "eager", "torch.compile"
POLICIES = ("none", "time", "memory", "budget(0.5)")
SECONDS = 10.0  # of running, for all contenders together
DEVIATION = 0.02  # of GPT-2's initial weights
HEADER = (
    f"{'step':14} {'peak MiB':>9} {'above':>8} {'saved':>8} {'ms':>8} {'x eager':>8} "
    f"{'x compile':>9} {'gradients':>10} {'x eager':>8} {'first s':>8}"
)


@dataclass(frozen=True, slots=True)
class Model:
    """GPT-2's sizes, of its smallest model if not given, with a vocabulary of whole vectors.

    With its own 50257 words the products have rows of odd length, which torch.compile pads, and
    neither eager nor this executor, to which products are torch's, does.
    """

    layers: int = 12
    vocabulary: int = 50304
    block: Sizes = GPT2_SIZES


SMALL = Model(2, 201, Sizes(batch=2, sequence=16, width=32, heads=2, hidden=128))


class GPT2(nn.Module):
    """Tokens and targets [batch, sequence] -> the mean cross entropy; the head is tied."""

    def __init__(self, sizes: Model) -> None:
        super().__init__()
        width = sizes.block.width
        self.tokens = nn.Embedding(sizes.vocabulary, width)
        self.positions = nn.Parameter(torch.empty(sizes.block.sequence, width))
        self.blocks = nn.Sequential(*(GPTBlock(sizes.block) for _ in range(sizes.layers)))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=DEVIATION)

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, words], in the type of the parameters."""
        x = self.norm(self.blocks(self.tokens(tokens) + self.positions))
        return F.linear(x, self.tokens.weight)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.logits(tokens).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add_small(parser)
    add_compile(parser, default=True)
    parser.add_argument("--layers", type=int, help="how many blocks")
    parser.add_argument("--vocabulary", type=int, help="how many words (50304; GPT-2 has 50257)")


def run(given: argparse.Namespace, report: Report) -> None:
    sizes = SMALL if given.small else Model()
    words, layers = given.vocabulary or sizes.vocabulary, given.layers or sizes.layers
    step = Step.make(replace(sizes, layers=layers, vocabulary=words), given.device)
    report.figures |= {"model": str(sizes), "parameters_bytes": step.parameter_bytes}
    report.lines.append(HEADER)
    calls: dict[str, Call] = {EAGER: step.model}
    with report.section("reference"):
        step.reference()
    calls |= {p: jit(step.model, strict=True, rematerialization=p) for p in POLICIES}
    if given.compile:
        torch._dynamo.reset()
        calls[COMPILE] = torch.compile(step.model, dynamic=False)
    found: dict[str, Any] = report.figures.setdefault("steps", {})
    for name, call in calls.items():
        with report.section(name):
            found[name] = step.first(call) | step.memory(call)
    with report.section("times"):
        spreads = step.times({name: calls[name] for name in found})
        for name, us in spreads.items():
            found[name]["ms"] = us / 1e3
    for name, one in found.items():
        report.lines.append(line(name, found))
        if name in POLICIES:
            check(report, name, one, found[EAGER], DTYPES["bf16"])


def check(
    report: Report, name: str, ours: Mapping[str, float], eager: Mapping[str, float],
    dtype: torch.dtype,
) -> None:  # fmt: skip
    """The errors of a step of ours beside eager's, both in this type."""
    for what in ("loss_error", "gradient_error"):
        limit = max(FACTOR * eager[what], FLOOR_ULPS * torch.finfo(dtype).eps)
        error = ours[what]
        report.check(name, error <= limit, f"{what} {error:.2e}, at most {limit:.2e}")


@dataclass
class Step:
    """A model, tokens, and what a step of it should give."""

    model: GPT2
    batch: tuple[torch.Tensor, torch.Tensor]
    exact: list[torch.Tensor] | None = None  # the loss and the gradients in float64, on the CPU

    @staticmethod
    def make(sizes: Model, device: torch.device) -> Step:
        """Seeded weights and tokens, the same on every device."""
        torch.manual_seed(SEED)
        model = GPT2(sizes)
        shape = (2, sizes.block.batch, sizes.block.sequence)
        tokens, targets = torch.randint(0, sizes.vocabulary, shape).to(device)
        return Step(model.to(device=device, dtype=DTYPES["bf16"]), (tokens, targets))

    @property
    def parameter_bytes(self) -> int:
        return sum(one.nbytes for one in self.model.parameters())

    def reference(self) -> None:
        """Takes the step in float64."""
        double = copy.deepcopy(self.model).double()
        self.exact = [one.cpu() for one in step(double, double, self.batch)]

    def first(self, call: Call) -> dict[str, float]:
        """The first step: its seconds, and how far loss and gradients are off, of their size."""
        start = time.perf_counter()
        loss, *gradients = step(call, self.model, self.batch)
        wait(self.batch[0].device)
        found = {"first_call_s": time.perf_counter() - start, "loss": float(loss)}
        if self.exact is None:
            return found | {"loss_error": math.nan, "gradient_error": math.nan}
        exact_loss, *exact = self.exact
        return found | {
            "loss_error": off([loss], [exact_loss]), "gradient_error": off(gradients, exact)
        }

    def memory(self, call: Call) -> dict[str, int]:
        """Bytes of a warm step. saved: of tensors that autograd keeps for the backward; live:
        allocated between forward and backward; peak: allocated at most, and above what there was
        before the step (the parameters, with no gradients)."""
        found = {"saved": kept_by(call, self.model, *self.batch).bytes}
        if self.batch[0].is_cuda:
            self._clear()
            before = torch.cuda.memory_allocated()
            loss = call(*self.batch)
            found["live"] = torch.cuda.memory_allocated() - before
            loss.backward()
            del loss
            found["peak"] = torch.cuda.max_memory_allocated()
            found["above"] = found["peak"] - before
            self._clear()
        return found

    def times(self, calls: dict[str, Call], in_a_row: int = 1) -> dict[str, float]:
        """The median microseconds of each contender's step. Contenders take turns, of as many steps
        in a row: a GPU at its limit of power runs the first one faster than it would in training,
        and all the more behind a contender that waits for memory."""
        self._clear()
        steps = {name: partial(step, call, self.model, self.batch) for name, call in calls.items()}
        return medians(steps, SECONDS, self.batch[0].device, in_a_row=in_a_row)

    def _clear(self) -> None:
        """Frees gradients and what Python still holds; the peak is counted from here."""
        self.model.zero_grad(set_to_none=True)
        gc.collect()
        if self.batch[0].is_cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def step(
    call: Call, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]
) -> list[torch.Tensor]:
    """The loss, and the gradients, which are the model's no longer."""
    loss = call(*batch)
    loss.backward()
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    model.zero_grad(set_to_none=True)
    return [loss.detach(), *gradients]


def off(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The norm of all differences over the norm of all exact values."""
    missed = size = 0.0
    for one, other in zip(found, exact, strict=True):
        wanted = other.to(one.device)
        missed += float((one - wanted).square().sum())
        size += float(wanted.square().sum())
    return math.sqrt(missed / size) if size else missed


def line(name: str, found: dict[str, Any]) -> str:
    """One row of the table; `-` for what this device or run does not have."""
    one = found[name]
    ms = one.get("ms", math.nan)

    def faster(other: str) -> float:
        return found.get(other, {}).get("ms", math.nan) / ms

    mib = [one[key] / 2**20 if key in one else math.nan for key in ("peak", "above", "saved")]
    worse = one["gradient_error"] / found[EAGER]["gradient_error"]
    cells = (
        f"{mib[0]:9.1f}", f"{mib[1]:8.1f}", f"{mib[2]:8.1f}", f"{ms:8.2f}", f"{faster(EAGER):8.2f}",
        f"{faster(COMPILE):9.2f}", f"{one['gradient_error']:10.2e}", f"{worse:8.2f}",
        f"{one['first_call_s']:8.1f}",
    )  # fmt: skip
    return " ".join((f"{name:14}", *cells)).replace("nan", "  -")
