# SPDX-License-Identifier: Apache-2.0
"""Functions that Thunder leaves to torch: part of regions here, on torch's own samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
from exactness import assert_as_exact_as_eager
from thunder.core.symbol import Symbol
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from thunder_fuser.executors.functions import FUNCTIONS, lookasides
from thunder_fuser.executors.functions.pointwise import CASTS
from thunder_fuser.executors.traces import final_traces, fusions_of, jit, jit_alone

Call = Callable[..., Any]
# How many of torch's samples, by type.
SAMPLES = {torch.float32: 4, torch.bfloat16: 2, torch.int64: 1, torch.bool: 1}
NAMES = {"torch.spmm": "mm"}
# Products of torch alone: nothing of them is in a region.
PRODUCTS = {"mm", "mv", "dot", "inner", "addmm", "linalg.matmul"}
# Views, or made at once when the trace is.
UNFUSED = PRODUCTS | {
    "narrow", "swapaxes", "swapdims", "moveaxis", "ravel", "reshape_as", "split_with_sizes",
    "new_ones", "new_zeros", "new_full", "trace",
}  # fmt: skip
# Torch's first samples are forms that are left to it; others are below.
FORMS_FIRST = {"addmm", "min"}


def name_of(id: str) -> str:
    return NAMES.get(id, id.removeprefix("torch.").removeprefix("Tensor."))


TESTED = [id for id in FUNCTIONS if name_of(id) not in CASTS]


@cache
def known() -> dict[str, tuple[Any, Call]]:
    """{name: torch's description of it, and how to call it}."""
    found: dict[str, tuple[Any, Call]] = {}
    for info in op_db:
        for name, op in [(info.name, info.op), *((one.name, one.op) for one in info.aliases)]:
            found.setdefault(name, (info, op))
    return found


def samples(name: str, dtype: torch.dtype) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    info, _ = known()[name]
    if dtype in info.dtypes:
        torch.manual_seed(0)
        smooth = dtype.is_floating_point and info.supports_autograd
        for one in islice(info.sample_inputs("cpu", dtype, smooth), SAMPLES[dtype]):
            yield (one.input, *one.args), one.kwargs


def called(op: Call, given: Any) -> list[torch.Tensor]:
    """The results, then gradients of what has one."""

    def own(x: Any) -> Any:
        tensor = isinstance(x, torch.Tensor)
        return x.detach().clone().requires_grad_(x.requires_grad) if tensor else x

    args, kwargs = tree_map(own, given)
    results = [one for one in tree_leaves(op(*args, **kwargs)) if isinstance(one, torch.Tensor)]
    smooth = [one for one in results if one.requires_grad]
    if not smooth:
        return results
    torch.manual_seed(1)
    seeds = [torch.randn(one.shape, dtype=torch.float64).to(one) for one in smooth]
    leaves = [x for x in tree_leaves((args, kwargs)) if getattr(x, "requires_grad", False)]
    found = torch.autograd.grad(smooth, leaves, seeds, allow_unused=True)
    zeros = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]
    return [one.detach() for one in (*results, *zeros)]


def doubled(given: Any) -> Any:
    floats = lambda x: isinstance(x, torch.Tensor) and x.is_floating_point()  # noqa: E731
    return tree_map(lambda x: x.double() if floats(x) else x, given)


def assert_as_good(
    got: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]
) -> None:
    """Whole numbers, NaN and infinities are equal, floats as exact as eager's."""
    for mine, usual, right in zip(got, eager, exact, strict=True):
        assert (mine.dtype, mine.shape) == (usual.dtype, usual.shape)
        if not usual.is_floating_point():
            assert torch.equal(mine, usual)
            continue
        odd = ~torch.isfinite(usual)
        assert torch.equal(~torch.isfinite(mine), odd)
        torch.testing.assert_close(mine[odd], usual[odd], equal_nan=True)
        if not odd.all():
            # Of a single number eager's error is chance.
            assert_as_exact_as_eager([mine[~odd]], [usual[~odd]], [right[~odd]], ulps=4)


def left_to_torch(jitted: Any, name: str) -> bool:
    names = {bsym.sym.name for trace in final_traces(jitted) for bsym in trace.bound_symbols}
    last = name.rsplit(".", maxsplit=1)[-1]
    return bool(names & {last, f"{last}_vjp"}) and name != "linalg.matmul"


def test_thunder_has_all_names() -> None:
    assert {symbol.id for symbol in lookasides() if isinstance(symbol, Symbol)} == {*FUNCTIONS}


@pytest.mark.parametrize("id", TESTED)
def test_as_exact_as_eager(id: str) -> None:
    """Of floats with their gradients; NaN, infinities and whole numbers are equal."""
    name = name_of(id)
    op = known()[name][1]
    left, fused = [], []
    for dtype in SAMPLES:
        for args, kwargs in samples(name, dtype):
            if any(isinstance(x, torch.Tensor) and not x.numel() for x in tree_leaves(args)):
                continue
            jitted = jit(op)
            eager = called(op, (args, kwargs))
            try:
                got = called(jitted, (args, kwargs))
            except NotImplementedError:
                with pytest.raises(NotImplementedError):  # Thunder alone cannot do it either
                    called(jit_alone(op), (args, kwargs))
                continue
            exact = called(op, doubled((args, kwargs)))
            assert_as_good(got, eager, exact)
            left.append(left_to_torch(jitted, name))
            fused.append(bool(fusions_of(jitted)))
    assert not all(left) or name in FORMS_FIRST
    assert any(fused) or name in UNFUSED | FORMS_FIRST


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()


SMOOTH_L1, HUBER = torch.nn.SmoothL1Loss(beta=0.5), torch.nn.HuberLoss("sum")
FORMS: dict[str, tuple[Call, tuple[torch.Tensor, ...]]] = {
    "min of all": (torch.min, (random(5, 7),)),
    "x.min()": (lambda x: x.min(), (random(5, 7),)),
    "min of two": (torch.min, (random(5, 7), random(7))),
    "addmm of a row": (torch.addmm, (random(6), random(4, 5), random(5, 6))),
    "norm": (lambda x: torch.norm(x, dim=0) + x.norm(1, dim=0), (random(5, 7),)),
    "norm of zeros": (lambda x: (x * 0).norm(dim=1), (random(5, 7),)),
    "clip at its bounds": (lambda x: (x * 0 + 1).clip(1, 1.5) * x, (random(3),)),
    "keywords": (lambda x: torch.clip(input=x, max=0.5, min=-0.5), (random(5, 7),)),
    "a method": (lambda x: x.multiply(2).clamp_min(0.1).subtract(1, alpha=2), (random(5, 7),)),
    "a number first": (lambda x: torch.rsub(x, 1.5), (random(5, 7),)),
    "a loss of modules": (
        lambda x, y: SMOOTH_L1(x, y) + HUBER(x, y),
        (random(5, 7), random(5, 7)),
    ),
    "pos_weight": (
        lambda x, t, p: torch.nn.functional.binary_cross_entropy_with_logits(
            x, t.sigmoid(), pos_weight=p
        ),
        (random(5, 7), random(5, 7), torch.rand(7)),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_calls(form: str) -> None:
    function, args = FORMS[form]
    jitted = jit(function, strict=True)
    got, eager, exact = (
        called(one, (given, {}))
        for one, given in ((jitted, args), (function, args), (function, doubled(args)))
    )
    assert_as_good(got, eager, exact)
    assert fusions_of(jitted) or "addmm" in form


def test_all_of_a_chain_is_one_region() -> None:
    x, y = (torch.randn(16, 32) for _ in range(2))

    def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.huber_loss(torch.clip(x, -1, 1).multiply(2), torch.fmax(x, y))

    jitted = jit(chain, strict=True)
    torch.testing.assert_close(jitted(x, y), chain(x, y))
    assert len(fusions_of(jitted)) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.clip(x, 0, out=torch.empty(4)),
        torch.clip,
        lambda x: torch.nn.functional.l1_loss(x, x, reduction="most"),
        lambda x: torch.nn.functional.huber_loss(x, x, delta=-1.0),
        lambda x: torch.narrow(x, 0, 3, 5),
        lambda x: torch.pixel_shuffle(x, 2),
    ],
)  # fmt: skip
def test_what_torch_refuses_is_refused(call: Call) -> None:
    with pytest.raises((NotImplementedError, RuntimeError)):  # as Thunder words it
        jit(call)(torch.randn(4))


def test_other_arguments_are_left_to_torch() -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    loss = torch.nn.functional.l1_loss
    for call in (
        lambda x, y: loss(x, y, weight=y),
        lambda x, y: torch.dist(x, y, 3.0),
        lambda x, y: torch.divide(x, y, rounding_mode="floor"),
        lambda x, y: torch.clip(torch.complex(x, y).real, 0),
    ):
        torch.testing.assert_close(jit(call)(x, y), call(x, y))
