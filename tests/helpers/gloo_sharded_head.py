# SPDX-License-Identifier: Apache-2.0
"""One rank of a real process group: the loss of a head whose words are divided over the ranks.

Run by tests/thunder/test_sharded_head.py, or by hand:

    torchrun --nproc-per-node 2 tests/helpers/gloo_sharded_head.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import nn

import thunder_fuser  # noqa: F401 - before Thunder
from helpers.exactness import assert_as_exact_as_eager
from helpers.one_rank import join, leave, run_checks
from thunder_fuser import fuser
from thunder_fuser.errors import OutOfRangeError
from thunder_fuser.executors.cuda_graphs.transform import why_on_host
from thunder_fuser.explain import why
from thunder_fuser.explain.jitted import final_traces
from thunder_fuser.trace.proxies import makes

import thunder  # isort: skip
from thunder.core.proxies import TensorProxy  # isort: skip
from thunder.core.transforms import add_transform  # isort: skip
from thunder.distributed import ddp, fsdp  # isort: skip
from thunder.distributed.tensor_parallel.column_wise import (  # isort: skip
    TransformForColumnWiseParallel,
)
from thunder.distributed.tensor_parallel.row_wise import (  # isort: skip
    TransformForRowWiseParallel,
)

ROWS, WIDTH, OF_RANK = 11, 8, 37
BF16 = torch.bfloat16
Loss = Callable[[Any, Any], Any]


class Model(nn.Module):
    """A hidden state, a head, and what a case does to its logits."""

    def __init__(self, loss: Loss, classes: int, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.lm_head = nn.Linear(WIDTH, classes, bias=bias)
        self.loss = loss

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        return self.loss(self.lm_head(torch.tanh(self.body(x))), target)


def mean(x: Any, target: Any) -> Any:
    return F.cross_entropy(x, target)


def added(x: Any, target: Any) -> Any:
    return F.cross_entropy(x, target, reduction="sum", ignore_index=3)


def smoothed(x: Any, target: Any) -> Any:
    return F.cross_entropy(x, target, label_smoothing=0.1)


def weighed_and_smoothed(x: Any, target: Any) -> Any:
    weight = torch.cos(torch.arange(x.shape[-1]) * 0.1).abs().to(x)
    return F.cross_entropy(x, target, weight=weight, label_smoothing=0.25)


def capped(x: Any, target: Any) -> Any:
    return F.cross_entropy(3.0 * torch.tanh(x * 2.0 / 3.0), target)


def shifted(x: Any, target: Any) -> Any:
    x = x.view(1, -1, x.shape[-1])[:, :-1].contiguous()
    return F.cross_entropy(x.view(-1, x.shape[-1]) / 2, target[1:])


def of_each_row(x: Any, target: Any) -> Any:
    losses = F.cross_entropy(x, target, reduction="none", label_smoothing=0.1)
    return (losses * torch.arange(ROWS)).sum()


def with_z(x: Any, target: Any) -> Any:
    return F.cross_entropy(x, target) + 0.1 * torch.logsumexp(x, -1).pow(2).mean()


@dataclass(frozen=True)
class Case:
    """calls: of losses in chunks in the traces. words: (first, last) of the targets."""

    loss: Loss
    dtype: torch.dtype = torch.float32
    calls: int = 1
    words: tuple[float, float] = (0.0, 1.0)
    bias: bool = True
    ignored: int = -100
    all_ignored: bool = False
    impossible: bool = False  # no word of the last rank has a chance
    frozen: tuple[str, ...] = ()

    def model(self) -> Model:
        model = Model(self.loss, OF_RANK * dist.get_world_size(), self.bias).to(self.dtype)
        if self.impossible:
            model.lm_head.bias.data[-OF_RANK:] = -torch.inf
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in self.frozen)
        return model

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(5)
        classes = OF_RANK * dist.get_world_size()
        first, last = (int(end * classes) for end in self.words)
        target = torch.randint(first, last, (ROWS,))
        target[slice(None) if self.all_ignored else slice(1, None, 4)] = self.ignored
        return torch.randn(ROWS, WIDTH).to(self.dtype), target


CASES = {
    "no bias": Case(mean, bias=False),
    "sum of bf16, a class ignored": Case(added, BF16, ignored=3),
    "smoothed bf16": Case(smoothed, BF16),
    "weighed and smoothed": Case(weighed_and_smoothed),
    "capped bf16": Case(capped, BF16),
    "shifted": Case(shifted),
    "each row of bf16": Case(of_each_row, BF16, calls=2),
    "z-loss": Case(with_z, calls=2),
    "half": Case(mean, torch.float16, calls=2),
    "double": Case(smoothed, torch.float64),
    "targets of the first rank": Case(mean, words=(0.0, 0.5)),
    "targets of the last rank": Case(mean, BF16, words=(0.5, 1.0)),
    "all ignored": Case(mean, all_ignored=True),
    "all ignored, sum": Case(added, ignored=3, all_ignored=True),
    "impossible words": Case(mean, words=(0.0, 0.5), impossible=True),
    "frozen head": Case(mean, frozen=("lm_head.weight", "lm_head.bias")),
    "frozen body": Case(smoothed, frozen=("body.weight", "body.bias")),
}


def sharded(model: nn.Module, kind: Any = TransformForColumnWiseParallel, rows: int = 4) -> Any:
    """The jitted model, whose head is divided over the ranks."""
    jitted = thunder.jit(model, executors=[fuser], fuser_strict=True, fuser_loss_rows=rows)
    transform = kind(
        rank=dist.get_rank(), world_size=dist.get_world_size(), process_group=dist.group.WORLD,
        target_modules=("lm_head",),
    )
    transform.device = torch.device("cpu")  # Thunder takes CUDA for granted
    return add_transform(jitted, transform=[transform])


def step(model: Any, batch: Sequence[torch.Tensor], scale: float = 1.0) -> list[torch.Tensor]:
    """The loss, then the gradients by the names of the parameters."""
    result = model(*batch)
    loss = result[0] if isinstance(result, tuple) else result
    (loss * scale).backward()
    named = sorted((n.removeprefix("_model."), p) for n, p in model.named_parameters())
    return [loss.detach(), *(p.grad for _, p in named if p.requires_grad)]


def of_this_rank(results: Sequence[torch.Tensor], model: nn.Module) -> list[torch.Tensor]:
    """The loss and the gradients of the whole model, those of the head as this rank has them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    names = sorted(name for name, p in model.named_parameters() if p.requires_grad)
    return [results[0]] + [
        gradient.chunk(size)[rank] if name.startswith("lm_head") else gradient
        for name, gradient in zip(names, results[1:], strict=True)
    ]


def calls(jitted: Any) -> list[str]:
    names = [bsym.sym.name for trace in final_traces(jitted) for bsym in trace.bound_symbols]
    return [name for name in names if name.startswith("chunkedLoss")]


def has_whole_logits(jitted: Any) -> bool:
    """True if some value of the final traces has the words of all ranks on its last axis."""
    values = [p for trace in final_traces(jitted) for b in trace.bound_symbols for p in makes(b)]
    whole = OF_RANK * dist.get_world_size()
    shapes = [tuple(p.shape) for p in values if isinstance(p, TensorProxy)]
    return any(shape[-1:] == (whole,) and len(shape) > 1 for shape in shapes)


def check_cases() -> None:
    """As exact as one process with the whole weight."""
    for name, case in CASES.items():
        whole, batch = case.model(), case.batch()
        exact = step(case.model().double(), (batch[0].double(), batch[1]))
        exact, eager = (of_this_rank(r, whole) for r in (exact, step(whole, batch)))
        jitted = sharded(case.model())
        got = step(jitted, batch)
        try:
            if any(not v.isfinite().all() for v in eager):
                torch.testing.assert_close(got, eager, equal_nan=True)
            else:
                assert_as_exact_as_eager(got, eager, exact)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        assert len(calls(jitted)) == case.calls, (name, calls(jitted))
        assert not has_whole_logits(jitted), name
        every = [torch.empty_like(got[0]) for _ in range(dist.get_world_size())]
        dist.all_gather(every, got[0])
        assert all(torch.equal(one.nan_to_num(), got[0].nan_to_num()) for one in every), name


def check_gradients_that_add_up() -> None:
    """Of several steps, with a loss that is scaled, and of a backward that runs twice."""
    case = Case(mean)
    whole, jitted, batch = case.model(), sharded(case.model()), case.batch()
    for scale in (65536.0, 0.25):
        wanted, got = step(whole, batch, scale), step(jitted, batch, scale)
    torch.testing.assert_close(got, of_this_rank(wanted, whole), rtol=1e-5, atol=0.05)
    jitted.zero_grad()
    loss = jitted(*batch)
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in jitted.parameters()]
    loss.backward()
    torch.testing.assert_close([p.grad for p in jitted.parameters()], [2 * g for g in once])


def check_the_call() -> None:
    """It is in no CUDA graph, and says so."""
    jitted = sharded(Case(mean).model())
    step(jitted, Case(mean).batch())
    bsyms = [bsym for trace in final_traces(jitted) for bsym in trace.bound_symbols]
    (call,) = (bsym for bsym in bsyms if bsym.sym.name in calls(jitted))
    assert why_on_host(call, "cpu", ()) == "it communicates"


def returned(x: Any, target: Any) -> Any:
    return F.cross_entropy(x, target), x


def check_what_stays_whole() -> None:
    """Logits that are returned too; a head whose products are summed; fewer rows than a chunk."""
    rows_of_head, columns = TransformForRowWiseParallel, TransformForColumnWiseParallel
    for loss, kind, rows, reason in (
        (returned, columns, 4, "its logits are returned too"),
        (mean, rows_of_head, 4, "logits that devices exchange otherwise than"),
        (mean, columns, 0, None),
    ):  # fmt: skip
        case = Case(loss, bias=False)
        whole, batch, jitted = case.model(), case.batch(), sharded(case.model(), kind, rows)
        wanted, got = step(whole, batch), step(jitted, batch)
        wanted = of_this_rank(wanted, whole) if kind is columns else wanted
        if kind is not columns:
            wanted[-1] = wanted[-1].chunk(dist.get_world_size(), 1)[dist.get_rank()]
        torch.testing.assert_close(got, wanted)
        assert calls(jitted) == [] and has_whole_logits(jitted)
        reasons = [one.reason for one in why(jitted) if one.name == "cross_entropy"]
        assert len(reasons) == (reason is not None), reasons
        assert reason is None or reasons[0].startswith(reason), reasons


def check_what_a_program_gathers() -> None:
    """By torch's functional collectives; their gradient is that of the sum of all ranks' losses."""
    group = dist.group.WORLD

    def function(h: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return mean(functional.all_gather_tensor(F.linear(h, w), 1, group), target)

    whole, (x, target) = Case(mean).model(), Case(mean).batch()
    w = whole.lm_head.weight.detach()
    jitted = thunder.jit(function, executors=[fuser], fuser_strict=True, fuser_loss_rows=4)
    got = jitted(x, w.chunk(dist.get_world_size())[dist.get_rank()], target)
    torch.testing.assert_close(got, mean(F.linear(x, w), target))
    (reason,) = (one.reason for one in why(jitted) if one.name == "cross_entropy")
    assert reason.startswith("logits that devices exchange otherwise than") and not calls(jitted)


def check_a_target_that_is_no_class() -> None:
    """All ranks raise, before any of them waits for another one."""
    for wrong in (-1, OF_RANK * dist.get_world_size()):
        x, target = Case(mean).batch()
        target[6] = wrong
        with pytest.raises(OutOfRangeError, match=f"Target {wrong} is out of bounds"):
            sharded(Case(mean).model())(x, target)


def check_whole_heads() -> None:
    """Other transforms for several devices run before a loss is recognised, too."""
    case = Case(mean)
    whole, batch = case.model(), case.batch()
    wanted = step(whole, batch)
    options: dict[str, Any] = {"executors": [fuser], "fuser_loss_rows": 4, "fuser_strict": True}
    model = ddp(thunder.jit(case.model(), **options))
    torch.testing.assert_close(step(model, batch), wanted)
    assert len(calls(model)) == 1
    model = fsdp(thunder.jit(case.model(), **options), device=torch.device("cpu"))
    loss, *gradients = step(model, batch)
    torch.testing.assert_close(loss, wanted[0])
    rank, size = dist.get_rank(), dist.get_world_size()
    for got, of_whole in zip(gradients, wanted[1:], strict=True):
        torch.testing.assert_close(got, of_whole.chunk(size)[rank])
    assert len(calls(model)) == 1


def main() -> None:
    join()
    run_checks((
        check_cases, check_gradients_that_add_up, check_the_call,
        check_what_stays_whole, check_what_a_program_gathers,
        check_a_target_that_is_no_class, check_whole_heads,
    ))  # fmt: skip
    leave()


if __name__ == "__main__":
    main()
