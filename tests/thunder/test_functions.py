# SPDX-License-Identifier: Apache-2.0
"""Functions that Thunder leaves to torch: part of regions here, on torch's own samples."""

from __future__ import annotations

from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from helpers.exactness import with_gradients
from helpers.torch_samples import Call, assert_as_good, called, doubled, known, samples
from thunder import torch as ltorch
from thunder.core.symbol import Symbol

from thunder_fuser.explain.jitted import final_traces, fusions_of, jit
from thunder_fuser.functions import FUNCTIONS, TABLES
from thunder_fuser.functions.attention import grouped_attention
from thunder_fuser.functions.batch_norms import batch_norm_in_training
from thunder_fuser.functions.chunked_loss.symbol import CHUNKED_LOSS
from thunder_fuser.functions.collectives import COLLECTIVES
from thunder_fuser.functions.define import Rewrite
from thunder_fuser.functions.kernels import OTHERS
from thunder_fuser.functions.pointwise import CASTS
from thunder_fuser.functions.recurrent import RECURRENT

# How many of torch's samples, by type.
SAMPLES = {torch.float32: 4, torch.bfloat16: 1, torch.int64: 1, torch.bool: 1}
NAMES = {"torch.batch_norm": "nn.functional.batch_norm", "torch.spmm": "mm"}
# Products of torch alone: nothing of them is in a region.
PRODUCTS = {"mm", "mv", "dot", "inner", "addmm", "linalg.matmul"}
# Views, or made at once when the trace is.
UNFUSED = PRODUCTS | {
    "narrow", "swapaxes", "swapdims", "moveaxis", "ravel", "reshape_as", "split_with_sizes",
    "new_ones", "new_zeros", "new_full", "trace",
    "conj", "conj_physical", "resolve_conj",  # of real numbers: the argument itself
    *(f"nn.functional.{name}" for name in OTHERS),
}  # fmt: skip
# Torch's first samples are forms that are left to it; others are below, and in test_gradients.py.
FORMS_FIRST = {"addmm", "min", "index_add", "histc"}


def name_of(id: str) -> str:
    return NAMES.get(id, id.removeprefix("torch.").removeprefix("Tensor."))


# Casts are tested in test_casts.py, composites each in a file of their own. Torch's first samples
# of repeat have no elements, and in Thunder no gradient: it is in test_copies.py. There are none of
# fold and unfold, which are in test_kernels.py, nor of products of groups, in test_groups.py, nor
# of steps of recurrent networks, in test_recurrent.py, nor of instance norms, in
# test_batch_norms.py, nor of tensors of literals, in test_types_of_torch.py.
# Dropout is in test_random_regions.py: no two draws are equal.
WITHOUT_SAMPLES = {
    "torch.Tensor.repeat", "torch.nn.functional.fold", "torch.nn.functional.unfold",
    "torch.grouped_mm", "torch.instance_norm", "torch.nn.functional.dropout", "torch.tensor",
    "torch.threshold", *RECURRENT,
}  # fmt: skip
WITHOUT_SAMPLES |= {id for id in FUNCTIONS if id.endswith("_")}  # test_gradients.py has these
TESTED = [
    id for id, one in FUNCTIONS.items()
    if isinstance(one, Rewrite) and id not in {*CASTS, *WITHOUT_SAMPLES}
]


def left_to_torch(jitted: Any, name: str) -> bool:
    names = {bsym.sym.name for trace in final_traces(jitted) for bsym in trace.bound_symbols}
    last = name.rsplit(".", maxsplit=1)[-1]
    return bool(names & {last, f"{last}_vjp"}) and name != "linalg.matmul"


def test_thunder_has_all_names() -> None:
    symbols = (*ltorch._torch_to_thunder_function_map.values(), *vars(ltorch).values())
    ops = {*(f"torch_{name}" for name in OTHERS), batch_norm_in_training.id, grouped_attention.id}
    ops |= {"grouped_product", "upsample_nearest", "max_pool", *COLLECTIVES, *CHUNKED_LOSS}
    assert {*FUNCTIONS} - ops <= {symbol.id for symbol in symbols if isinstance(symbol, Symbol)}


def test_each_function_is_in_one_table() -> None:
    assert sum(map(len, (*TABLES.values(), COLLECTIVES, CHUNKED_LOSS))) == len(FUNCTIONS)


@pytest.mark.parametrize("id", TESTED)
def test_as_exact_as_eager(id: str) -> None:
    """Of floats with their gradients; NaN, infinities and whole numbers are equal."""
    name = name_of(id)
    op = known()[name][1]
    left, fused = [], []
    for dtype, count in SAMPLES.items():
        for args, kwargs in samples(name, dtype, count):
            jitted = jit(op)
            eager = called(op, (args, kwargs))
            try:
                got = called(jitted, (args, kwargs))
            except NotImplementedError:
                with pytest.raises(NotImplementedError):  # Thunder alone cannot do it either
                    called(thunder.jit(op, executors=[]), (args, kwargs))
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
    "unfold of an image": (lambda x: x.unfold(2, 3, 1) * 2, (random(2, 3, 6, 6),)),
    "unfold with gaps": (lambda x: x.unfold(-1, 2, 3).mean(-1), (random(5, 8),)),
    "unfold of a row": (lambda x: x.unfold(dimension=0, size=2, step=1) * 2, (random(5),)),
    "unfold of a number": (lambda x: x.unfold(0, 1, 1) * 2, (random(),)),
    "unfold of four axes": (lambda x: torch.Tensor.unfold(x, 3, 7, 1) * 2, (random(2, 2, 2, 7),)),
    "unfold of nn.functional": (lambda x: F.unfold(x, 3, 1, 1) * 2, (random(2, 3, 6, 6),)),
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


def test_addmm_under_autocast() -> None:
    """As the layers of a GPT-2 of transformers: the first result has another type than a weight."""
    b, x, w = torch.randn(8), torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)

    def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.addmm(b, torch.addmm(b, F.linear(x, w), w), w)

    def step(function: Call) -> list[torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x, w)
        return [y, *torch.autograd.grad(y.sum(), w)]

    torch.testing.assert_close(step(jit(layers)), step(layers), rtol=2e-2, atol=1e-2)


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
        lambda x: x.unfold(0, 5, 1),
        lambda x: x.unfold(0, 2, 0),
        lambda x: x.unfold(0, -1, 1),
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


class Rolled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shifts = [1, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.roll(self.shifts, (0, 1))


def test_items_of_lists_are_checked_at_each_call() -> None:
    x = torch.randn(4, 6)
    by_argument = jit(lambda x, shifts: torch.roll(x, shifts, (0, 1)))
    for shifts in ([1, 2], [2, 1], (1, 2), (3, 3), [1, 2]):
        assert torch.equal(by_argument(x, shifts), x.roll(shifts, (0, 1)))
    module = Rolled()
    jitted = jit(module)
    assert torch.equal(jitted(x), x.roll((1, 2), (0, 1)))
    module.shifts[0] = 3
    assert torch.equal(jitted(x), x.roll((3, 2), (0, 1)))


def test_other_arguments_are_checked_at_each_call() -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    loss = jit(lambda x, reduction: F.huber_loss(x, y, reduction=reduction))
    for reduction in ("mean", "sum", "none", "mean"):
        torch.testing.assert_close(
            loss(x, reduction), F.huber_loss(x, y, reduction=reduction)
        )
    padded = jit(lambda x, given: torch.constant_pad_nd(x, given["pad"], given["value"]))
    for pad, value in (([1, 1], 0.0), ([1, 2], 0.0), ([1, 2], 1.0)):
        got = padded(x, {"pad": pad, "value": value})
        assert torch.equal(got, torch.constant_pad_nd(x, pad, value))


@pytest.mark.parametrize("unbiased", [True, False, None])
@pytest.mark.parametrize("function", [torch.var, torch.std])
def test_deviations_by_their_old_arguments(function: Call, unbiased: bool | None) -> None:
    x = torch.randn(4, 6)
    given: dict[str, Any] = {} if unbiased is None else {"unbiased": unbiased}
    torch.testing.assert_close(
        jit(lambda x: function(x, 1, keepdim=True, **given))(x),
        function(x, 1, keepdim=True, **given),
    )
    if unbiased is not None:
        torch.testing.assert_close(
            jit(lambda x: function(x, unbiased))(x), function(x, unbiased)
        )


@pytest.mark.parametrize("given", [{}, {"reduction": "sum"}, {"ignore_index": 1}])
def test_nll_loss_has_torchs_defaults(given: dict[str, Any]) -> None:
    target = torch.tensor([1, 0, 2, 1 if given else -100])

    def function(x: Any) -> Any:
        return F.nll_loss(F.log_softmax(x, 1), target, **given)

    x = [torch.randn(4, 3)]
    got, eager = (with_gradients(one, x) for one in (jit(function), function))
    torch.testing.assert_close(got, eager)


STACKS: dict[str, Call] = {
    "hstack": torch.hstack,
    "vstack": torch.vstack,
    "row_stack": torch.row_stack,
    "dstack": torch.dstack,
    "column_stack": torch.column_stack,
}


@pytest.mark.parametrize("shape", [(), (3,), (3, 4), (3, 4, 2)], ids=str)
@pytest.mark.parametrize("name", STACKS)
def test_stacks(name: str, shape: tuple[int, ...]) -> None:
    def function(x: Any, z: Any) -> Any:
        return STACKS[name]([x, z * 2, x])

    given = [torch.randn(shape), torch.randn(shape)]
    got, eager = (with_gradients(one, given) for one in (jit(function), function))
    torch.testing.assert_close(got, eager)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_stacks_of_several_sizes_and_types(dtype: torch.dtype) -> None:
    def function(x: Any, z: Any) -> Any:
        return torch.hstack((x, z))

    given = [torch.randn(3, 4), torch.randn(3, 7).to(dtype)]
    got, eager = (with_gradients(one, given) for one in (jit(function), function))
    torch.testing.assert_close(got, eager)


def test_the_method_tile_takes_numbers() -> None:
    x = torch.randn(2, 3)
    for counts in ((2,), (2, 1), (3, 1, 2), ((2, 2),)):
        jitted = jit(lambda x, counts=counts: x.tile(*counts) * 2, strict=True)
        torch.testing.assert_close(jitted(x), x.tile(*counts) * 2)


@pytest.mark.parametrize("counts", [(0,), (0, 2), (2, 0, 1)])
def test_a_repeat_without_elements_has_a_gradient(counts: tuple[int, ...]) -> None:
    for x in (torch.tensor(2.0), torch.ones(3)):
        given = ((x.requires_grad_(), *counts), {})
        for op in (torch.Tensor.repeat, torch.tile):
            args = given if op is torch.Tensor.repeat else ((x, counts), {})
            want, got = called(op, args), called(jit(op, strict=True), args)
            assert [(one.shape, one.dtype) for one in got] == [(o.shape, o.dtype) for o in want]
