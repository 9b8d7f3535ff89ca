# SPDX-License-Identifier: Apache-2.0
"""Methods that write in place and that Thunder lacks, beside eager torch."""

from __future__ import annotations

import operator as ops
from typing import Any

import pytest
import torch

from thunder_fuser.explain.jitted import fusions_of, jit
from thunder_fuser.functions.in_place import MISSING

ONE = torch.tensor([[0.9, -0.3, 0.0, 1.7], [0.5, 2.5, -1.2, 0.1]])
TWO = torch.tensor([[0.4, 0.6, 2.0, 1.7], [1.5, 0.2, 3.2, 0.9]])
UNIT, ABOVE = ONE.sigmoid(), TWO + 1
COUNTS, OTHERS = torch.tensor([12, 7, 0, 9]), torch.tensor([8, 21, 3, 1])
# {a method: its tensor, and its arguments}; others take the first numbers, and none or the second
OPERANDS: dict[str, tuple[Any, ...]] = {
    "addbmm_": (ONE, torch.ones(3, 2, 5), torch.ones(3, 5, 4)),
    "addmm_": (ONE, torch.ones(2, 5), torch.ones(5, 4)),
    "addmv_": (TWO[0], torch.ones(4, 3), torch.ones(3)),
    "addr_": (ONE, torch.ones(2), torch.ones(4)),
    "baddbmm_": (torch.ones(3, 2, 4), torch.ones(3, 2, 5), torch.ones(3, 5, 4)),
    "arccos_": (UNIT,), "arcsin_": (UNIT,), "arctanh_": (UNIT,), "arccosh_": (ABOVE,),
    "gcd_": (COUNTS, OTHERS), "lcm_": (COUNTS, OTHERS),
    "bitwise_left_shift_": (COUNTS, OTHERS), "bitwise_right_shift_": (COUNTS, OTHERS),
    "clamp_max_": (ONE, 0.5), "clamp_min_": (ONE, 0.5), "clip_": (ONE, -0.3, 0.5),
    "cumprod_": (ONE, 1), "fill_": (ONE, 2.5), "igamma_": (TWO, TWO + 1), "igammac_": (TWO, TWO),
    "index_fill_": (ONE, 1, torch.tensor([0, 2]), 3.0), "ldexp_": (ONE, torch.tensor(2)),
    "logit_": (UNIT,), "masked_scatter_": (ONE, ONE > 0, TWO), "xlogy_": (ONE, TWO),
    **{f"{name}_": (ONE, TWO) for name in (
        "arctan2", "divide", "greater", "greater_equal", "heaviside", "hypot", "less",
        "less_equal", "multiply", "not_equal", "subtract",
    )},
}  # fmt: skip
# torch has no gradient of the write, or none of the function.
WITHOUT_GRADIENT = {"arccosh_", "arcsinh_", "arctanh_", "heaviside_", "igamma_", "igammac_"}


@pytest.mark.parametrize("name", MISSING)
def test_as_torch(name: str) -> None:
    """A value that is read before and after; an argument; a view; and the gradient."""

    def written(x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
        y = x * 1
        before = y + 1
        result = getattr(y, name)(*args)
        return before, y + 1, result * 2

    x, *args = OPERANDS.get(name, (ONE,))
    smooth = x.is_floating_point() and name not in WITHOUT_GRADIENT
    found = []
    for each in (jit(written, strict=True), written):
        given = x.clone().requires_grad_(smooth)
        found.append(list(each(given, *args)))
        if smooth:
            (found[-1][1] + given * 0).sum().backward()
            found[-1].append(given.grad)
    torch.testing.assert_close(*found, equal_nan=True)
    ours, theirs = x.clone(), x.clone()
    write = lambda x, *args: getattr(x, name)(*args)  # noqa: E731
    torch.testing.assert_close(jit(write)(ours, *args), write(theirs, *args), equal_nan=True)
    torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_of_a_row_and_of_a_number() -> None:
    def masked(scores: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = scores * 2
        scores[0].sigmoid_()
        scores[1, 1:].fill_(value.sum())
        return scores

    torch.testing.assert_close(jit(masked, strict=True)(ONE, TWO), masked(ONE, TWO))


def test_a_fusion_writes() -> None:
    def step(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return state.sigmoid_().multiply_(x).clamp_min_(0.1)

    ours, theirs = ONE.clone(), ONE.clone()
    jitted = jit(step, strict=True)
    for _ in range(2):
        torch.testing.assert_close(jitted(ours, TWO), step(theirs, TWO))
    torch.testing.assert_close(ours, theirs)
    assert len(fusions_of(jitted)) == 1


@pytest.mark.parametrize("name", ["sigmoid_", "sinc_"])
def test_a_result_that_the_type_does_not_hold(name: str) -> None:
    for run in (jit(lambda x: getattr(x * 1, name)()), lambda x: getattr(x, name)()):
        with pytest.raises(RuntimeError, match="can't be cast"):
            run(COUNTS.clone())


@pytest.mark.parametrize("function", [torch.sigmoid_, torch.Tensor.sigmoid_, torch.nan_to_num_])
def test_as_a_function(function: Any) -> None:
    write = lambda x: function(x * 2) + 1  # noqa: E731
    torch.testing.assert_close(jit(write, strict=True)(ONE), write(ONE))


def test_fill_with_a_row() -> None:
    for run in (jit(lambda x, y: (x * 1).fill_(y)), lambda x, y: x.fill_(y)):
        with pytest.raises(RuntimeError, match="0-dimension"):
            run(ONE.clone(), TWO[0])


BOOLS = ONE > 0, TWO > 1
OPERATORS = {
    "&=": ops.iand, "|=": ops.ior, "^=": ops.ixor, "<<=": ops.ilshift, ">>=": ops.irshift,
    "//=": ops.ifloordiv, "%=": ops.imod,
}  # fmt: skip


@pytest.mark.parametrize("write", ["x {} y", "x = operator(x, y)"], ids=["statement", "call"])
@pytest.mark.parametrize(
    ("sign", "x", "y"),
    [
        ("&=", *BOOLS), ("|=", *BOOLS), ("^=", *BOOLS), ("&=", COUNTS, 6), ("<<=", COUNTS, 2),
        (">>=", COUNTS, OTHERS), ("//=", ONE, TWO), ("//=", COUNTS, 4), ("%=", ONE, 0.7),
        ("%=", COUNTS, OTHERS + 1),
    ],
    ids=str,
)  # fmt: skip
def test_operators(sign: str, x: torch.Tensor, y: Any, write: str) -> None:
    """`x &= y` writes into x: an argument, and a view of a value."""
    scope: dict[str, Any] = {"operator": OPERATORS[sign]}
    exec("def write(x, y):\n    " + write.format(sign), scope)
    write_into = scope["write"]

    def written(x: torch.Tensor, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
        value = x.clone()
        write_into(value[1:], y[1:] if isinstance(y, torch.Tensor) else y)
        write_into(x, y)
        return value, x.clone()

    ours, theirs = x.clone(), x.clone()
    assert_equal = torch.testing.assert_close
    assert_equal(jit(written, strict=True)(ours, y), written(theirs, y))
    assert_equal(ours, theirs)
