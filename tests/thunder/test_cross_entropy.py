# SPDX-License-Identifier: Apache-2.0
"""cross_entropy of [N, C]: values, gradients, what is saved, and how many kernels it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager, with_gradients
from helpers.pairs import pairs

from thunder_fuser.errors import EmulatorError
from thunder_fuser.explain import report, why
from thunder_fuser.explain.jitted import final_traces, fusions_of, jit

ROWS, CLASSES = 7, 37
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
TARGETS = {"cpu": False, "emulator": True}

ARGUMENTS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "ignored class": {"ignore_index": 3},
    "smoothing": {"label_smoothing": 0.1},
    "smoothing of all": {"label_smoothing": 1.0, "reduction": "none"},
    "weight": {"weight": True},
    "weight sum": {"weight": True, "reduction": "sum"},
    "weight and smoothing": {"weight": True, "label_smoothing": 0.25, "ignore_index": 3},
}


def logits(dtype: torch.dtype = torch.float32, scale: float = 3.0) -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randn(ROWS, CLASSES) * scale).to(dtype)


def targets(ignored: int = -100) -> torch.Tensor:
    """Two rows are ignored, and the first and the last class are there."""
    return torch.tensor([3, 0, ignored, CLASSES - 1, 3, ignored, 11])


def called(keywords: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    torch.manual_seed(1)
    weight = {"weight": torch.rand(CLASSES).to(dtype)} if keywords.get("weight") else {}
    return {**keywords, **weight}


CASES = [
    (name, dtype) for name in ARGUMENTS for dtype in FLOATS
    if dtype is not torch.float16 or name in ("mean", "weight and smoothing")
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    keywords = called(ARGUMENTS[name], dtype)
    x, t = logits(dtype), targets(keywords.get("ignore_index", -100))

    def function(x: Any, t: Any) -> Any:
        return F.cross_entropy(x, t, **keywords)

    def exact(x: Any, t: Any) -> Any:
        wide = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in keywords.items()}
        return F.cross_entropy(x, t, **wide)

    jitted = jit(function, strict=True)
    got = with_gradients(jitted, [x, t])
    assert_as_exact_as_eager(
        got, with_gradients(function, [x, t]), with_gradients(exact, [x.double(), t])
    )
    assert torch.equal(got[1][t == keywords.get("ignore_index", -100)].abs().sum(), x.new_zeros(()))
    # Without gradients, sums are in another order: that of the schedule, not of their own sizes.
    # Sums of float64 alone show it, for no type is wider.
    exactly = 2 * torch.finfo(dtype).eps if dtype is torch.float64 else 0
    torch.testing.assert_close(jitted(x, t), got[0], rtol=exactly, atol=0)


@pytest.mark.parametrize(
    ("shape", "reduction", "weighted"),
    pairs([(), (5,), (2, 4), (2, 4, 3)], ["mean", "sum", "none"], [False, True]), ids=str,
)
def test_smoothing_of_images_and_of_one_row(
    shape: tuple[int, ...], reduction: str, weighted: bool
) -> None:
    """Logits [C], [N, C], [N, C, L] and [N, C, H, W], and a class that is ignored."""
    torch.manual_seed(2)
    x = torch.randn(*shape[:1], 7, *shape[1:], dtype=torch.float64)
    t = torch.randint(0, 6, shape)
    t.view(-1)[1:2] = 6
    weight = torch.rand(7, dtype=torch.float64) if weighted else None

    def function(x: Any, t: Any) -> Any:
        return F.cross_entropy(
            x, t, weight, ignore_index=6, reduction=reduction, label_smoothing=0.2
        )

    got, eager = with_gradients(jit(function), [x, t]), with_gradients(function, [x, t])
    torch.testing.assert_close(got, eager)


def test_an_argument_that_it_lacks_is_named() -> None:
    with pytest.raises(TypeError, match=r"cross_entropy\(\) got an unexpected .* 'smoothing'"):
        jit(lambda x, t: F.cross_entropy(x, t, smoothing=0.1))(logits(), targets())


def mean(x: Any, t: Any) -> Any:
    return F.cross_entropy(x, t)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_in_the_emulator(dtype: torch.dtype) -> None:
    x, t = logits(dtype), targets()
    got = with_gradients(jit(mean, strict=True, emulate=True), [x, t])
    exact = with_gradients(mean, [x.double(), t])
    assert_as_exact_as_eager(got, with_gradients(mean, [x, t]), exact)


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_far_from_zero(shift: float) -> None:
    """The maximum of a row is taken off before anything is rounded."""
    x, t = logits(scale=20.0) + shift, targets()
    got = with_gradients(jit(mean, strict=True), [x, t])
    exact = with_gradients(mean, [x.double(), t])
    assert_as_exact_as_eager(got, with_gradients(mean, [x, t]), exact)


def test_a_class_that_is_certain() -> None:
    x, t = torch.full((ROWS, CLASSES), -torch.inf), targets()
    x[torch.arange(ROWS), t.clamp(0)] = 2.0
    x[1] = -torch.inf
    x[3, 5] = torch.inf
    x[4, 6] = torch.nan
    jitted = jit(lambda x, t: F.cross_entropy(x, t, reduction="none"), strict=True)
    expected = F.cross_entropy(x, t, reduction="none")
    torch.testing.assert_close(jitted(x, t), expected, rtol=0, atol=0, equal_nan=True)


def test_all_rows_ignored() -> None:
    x, t = logits(), torch.full((ROWS,), -100)
    loss, gradient = with_gradients(jit(mean, strict=True), [x, t])
    assert loss.isnan()
    assert torch.equal(gradient, torch.zeros_like(x))


@pytest.mark.parametrize("emulate", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("wrong", [-1, CLASSES])
def test_a_target_that_is_no_class(wrong: int, emulate: bool) -> None:
    """torch raises an IndexError on a CPU, and a GPU's kernel stops."""
    t = targets()
    t[0] = wrong
    with pytest.raises(EmulatorError if emulate else IndexError):
        jit(mean, strict=True, emulate=emulate)(logits(), t)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "rows apart": lambda x: torch.cat((x, x), 1)[:, :CLASSES],
    "misaligned": lambda x: torch.cat((x.new_zeros(1), x.flatten()))[1:].view_as(x),
    "expanded": lambda x: x[:1].expand(ROWS, CLASSES),
}


@pytest.mark.parametrize("emulate", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, emulate: bool) -> None:
    x, t = LAYOUTS[layout](logits()), targets()
    jitted = jit(mean, strict=True, emulate=emulate)
    torch.testing.assert_close(jitted(x, t), mean(x, t))


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("classes", [1, 2])
def test_small_sizes(rows: int, classes: int) -> None:
    x, t = torch.randn(rows, classes), torch.zeros(rows, dtype=torch.int64)
    for got, wanted in zip(
        with_gradients(jit(mean, strict=True), [x, t]), with_gradients(mean, [x, t]), strict=True
    ):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_of_the_logits_size_is_saved(dtype: torch.dtype) -> None:
    """But the logits themselves: two float32 a row, and the number of rows counted."""
    x, t = logits(dtype).requires_grad_(), targets()
    jitted = jit(mean, strict=True)
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        jitted(x, t)
    others = [one for one in saved if one.data_ptr() not in (x.data_ptr(), t.data_ptr())]
    assert any(one.data_ptr() == x.data_ptr() for one in saved)
    assert sum(one.numel() * one.element_size() for one in others) == 2 * 4 * ROWS + 4


def test_kernels() -> None:
    """Each row once, then the mean; backward one pointwise kernel."""
    x, t = logits(torch.bfloat16).requires_grad_(), targets()
    jitted = jit(mean, strict=True)
    jitted(x, t).backward()
    forward, backward = str(report(jitted)).splitlines()[1:3]
    assert forward.split()[4:8] == ["2", "2", "persistent", "reduction"]
    assert backward.split()[4:7] == ["1", "1", "pointwise"]
    names = {b.sym.name for trace in final_traces(jitted) for b in trace.bound_symbols}
    assert not names & {"cross_entropy", "nll_loss", "log_softmax", "take_along_axis"}


# ---- what Thunder takes apart


def refused(x: torch.Tensor, t: torch.Tensor, **keywords: Any) -> list[str]:
    """Why, as a report says; the values are torch's all the same."""
    jitted = jit(lambda x, t: F.cross_entropy(x, t, **keywords), strict=True)
    result = jitted(x, t)
    torch.testing.assert_close(result, F.cross_entropy(x, t, **keywords), equal_nan=True)
    return [one.reason for one in why(jitted) if one.name == "cross_entropy"]


def test_refusals() -> None:
    x, t = logits(), targets().clamp(0)
    shape = "cross_entropy without logits [N, C] and a class for each row"
    assert refused(x, x.softmax(1)) == [shape]
    assert refused(x[0], t[0]) == [shape]
    assert refused(x[:, :, None].expand(-1, -1, 3), t[:, None].expand(-1, 3)) == [shape]
    assert refused(x.clone().requires_grad_()[:, :, None], t[:, None]) == [shape]
    assert refused(x[:0], t[:0]) == ["cross_entropy of tensors without elements, or not of floats"]
    assert refused(x, t) == refused(x, t, weight=torch.rand(CLASSES)) == []


def test_the_trace_says_which_logits_are_read() -> None:
    """A region of the forward that makes the logits goes on into the loss."""
    x, t = logits(), targets()
    jitted = jit(lambda x, t: F.cross_entropy(x.float() * 2, t), strict=True)
    torch.testing.assert_close(jitted(x, t), F.cross_entropy(x * 2, t))
    assert len(fusions_of(jitted)) == 1
