# SPDX-License-Identifier: Apache-2.0
"""One kernel serves many sizes: texts are counted, and each result is held against torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.cases import Runner, rand
from helpers.graphs import meta
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.codegen.indices import division_by
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.compiler import emit, schedule
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.scalar import Scalar, const, symbol
from thunder_fuser.ir.size_symbols import Sized, sized
from thunder_fuser.lower import lower as lowering
from thunder_fuser.lower.context import Context
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.target import Target, named

BF16 = DataType.BFloat16
Define = Callable[[Any, Sequence[Tensor]], Tensor]

BATCHES = [(1, 512), (2, 512), (4, 384), (8, 128), (3, 77), (5, 100), (16, 1024), (32, 2048),
           (7, 1000), (64, 333)]  # fmt: skip


def _softmax(ops: Any, x: Sequence[Tensor]) -> Tensor:
    powers = ops.exp(ops.sub(x[0], ops.max(x[0], [-1], keepdim=True)))
    return ops.truediv(powers, ops.sum(powers, [-1], keepdim=True))


def _layer_norm(ops: Any, x: Sequence[Tensor]) -> Tensor:
    variance, mean = ops.var_mean(x[0], [-1], 0, keepdim=True)
    return ops.mul(ops.sub(x[0], mean), ops.rsqrt(ops.add(variance, 1e-5)))


def _swiglu(ops: Any, x: Sequence[Tensor]) -> Tensor:
    return ops.mul(ops.silu(x[0]), x[1])


def _dropout(ops: Any, x: Sequence[Tensor]) -> Tensor:
    kept = ops.lt(ops.uniform(x[0].shape, 0.0, 1.0, 7, 0), 0.5)
    return ops.where(kept, ops.mul(x[0], 2.0), 0.0)


# name: definition, its meaning, shapes of arguments for b x s rows of 768.
OPERATIONS: dict[str, tuple[Define, Callable[..., torch.Tensor], Callable[[int, int], Any]]] = {
    "gelu": (
        lambda ops, x: ops.mul(x[0], ops.sigmoid(ops.mul(x[0], 1.702))),
        lambda x: x * torch.sigmoid(1.702 * x),
        lambda b, s: [(b, s, 768)],
    ),
    "bias": (
        lambda ops, x: ops.relu(ops.add(x[0], x[1])),
        lambda x, y: (x + y).relu(),
        lambda b, s: [(b, s, 768), (768,)],
    ),
    "swiglu": (_swiglu, lambda x, y: F.silu(x) * y, lambda b, s: [(b * s, 768)] * 2),
    "softmax": (_softmax, lambda x: x.softmax(-1), lambda b, s: [(b, s, 768)]),
    "layer_norm": (
        _layer_norm, lambda x: F.layer_norm(x, x.shape[-1:]), lambda b, s: [(b * s, 768)],
    ),
    "column_mean": (
        lambda ops, x: ops.truediv(ops.sum(x[0], [0]), ops.size(x[0], 0)),
        lambda x: x.mean(0),
        lambda b, s: [(b * s, 768)],
    ),
    "transposed_add": (
        lambda ops, x: ops.add(ops.permute(x[0], [1, 0]), x[1]),
        lambda x, y: x.T + y,
        lambda b, s: [(b * s, 768), (768, b * s)],
    ),
    "masked": (
        lambda ops, x: ops.add(x[0], x[1]), lambda x, y: x + y,
        lambda b, s: [(b, 4, s, 64), (b, 1, s, 64)],
    ),
}  # fmt: skip
# Texts for (an H200, a CPU) over BATCHES. Where there are several, the number of elements is a
# multiple of what a block takes or not, or is large enough for more work a thread. A kernel of few
# bytes is early, which its text says.
TEXTS = {
    "gelu": (4, 2),
    "bias": (4, 1),
    "swiglu": (3, 2),
    "softmax": (3, 1),
    "layer_norm": (3, 1),
    "column_mean": (11, 3),
    "transposed_add": (6, 2),
    "masked": (6, 4),
}


def _definition(name: str, dtype: DataType) -> FusionDefinition:
    define, _, shapes = OPERATIONS[name]
    fd = FusionDefinition()
    views = [fd.define_tensor([-1] * len(one), True, dtype) for one in shapes(1, 1)]
    fd.add_output(fd.ops.cast(define(fd.ops, views), dtype))
    return fd


def _schedules(
    fd: FusionDefinition, inputs: Sequence[Any], target: Target
) -> list[ScheduledFusion]:
    segments = fd.plan(inputs, target=target).segments
    found = [schedule(one, dict.fromkeys(fd.fusion.inputs, 16)) for one in segments]
    return [one for one in found if one is not None]


def _sources(
    fd: FusionDefinition, inputs: Sequence[Any], target: Target
) -> list[KernelSource]:
    found = [emit(one) for one in _schedules(fd, inputs, target)]
    return [one for one in found if one is not None]


@pytest.mark.parametrize("target", ["h200", "cpu"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_ten_sizes_have_few_texts(name: str, target: str) -> None:
    fd, texts = _definition(name, BF16), set()
    for b, s in BATCHES:
        inputs = [meta(*shape, dtype=BF16) for shape in OPERATIONS[name][2](b, s)]
        texts |= {source.text for source in _sources(fd, inputs, named(target))}
    assert len(texts) <= TEXTS[name][target == "cpu"]


SMALL = [(1, 8), (2, 3), (3, 5), (1, 1), (4, 16), (7, 2)]


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_results_of_every_size(name: str, target: str) -> None:
    run, fd = Runner(target), _definition(name, DataType.Float)
    for b, s in SMALL:
        inputs = [rand(*shape, seed=b) for shape in OPERATIONS[name][2](b, s)]
        (result,) = run.execute(fd, inputs)
        exact = OPERATIONS[name][1](*(x.double() for x in inputs))
        torch.testing.assert_close(result, exact.float(), rtol=1e-5, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 6), st.integers(0, 40), st.sampled_from([0, 1, 2, 24, 33]))
def test_results_of_any_size(b: int, s: int, columns: int) -> None:
    fd = FusionDefinition()
    x = fd.define_tensor([-1, -1, -1], True, DataType.Float)
    y = fd.define_tensor([-1, 1, -1], True, DataType.Float)
    fd.add_output(fd.ops.add(x, y))
    fd.add_output(fd.ops.sum(fd.ops.mul(x, y), [1]))
    a, c = rand(b, s, columns), rand(b, 1, columns, seed=1)
    added, total = fd.execute([a, c], target="cpu")
    torch.testing.assert_close(added, a + c)
    torch.testing.assert_close(total, (a * c).sum(1), rtol=1e-5, atol=1e-5)


@given(st.integers(2, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_division_by_a_multiplication(divisor: int, x: int) -> None:
    packed = division_by(divisor) % 2**64
    assert (x * (packed >> 32) >> 32) >> packed % 2**32 == x // divisor
    assert packed >> 63 == 1 or packed >> 32 < 2**31


@given(st.integers(2, 200), st.integers(2, 200), st.integers(1, 64), st.integers(0, 300))
def test_sized_numbers_compute_as_numbers(a: int, b: int, c: int, x: int) -> None:
    """Index arithmetic on sizes has the values, and the bounds plain numbers, that it has."""
    at = symbol("i", 0, 10**6) * c + symbol("v", 0, 7)
    rows, columns = sized("a", a), sized("b", b)
    found = at // columns % rows * (columns * c) + at % columns * rows + (rows - 1)
    place = x * c + x % 8
    expected = place // b % a * (b * c) + place % b * a + a - 1
    value = found.substitute({"i": x, "v": x % 8})
    assert value.is_const and int(value.value) == expected
    assert found.lo <= expected <= found.hi
    assert type(found.lo) is not Sized and type(found.hi) is not Sized


def test_sizes_of_one_value_stay_apart() -> None:
    i, n, m = symbol("i", 0, 9), sized("n", 96), sized("m", 96)
    assert i * n is not i * m and i * n is not i * 96 and i * n is i * sized("n", 96)
    assert i * n - i * m is const(0)
    assert sized("n", 1) == 1 and type(sized("n", 1)) is int


@given(st.integers(2, 9), st.integers(2, 9), st.integers(1, 4), st.integers(1, 4))
def test_programs_do_not_share_sizes(one: int, other: int, a: int, b: int) -> None:
    """Interned expressions of a program with an n of its own do not show in another program."""
    i, n, m = symbol("i", 0, 9), sized("n", one), sized("n", other)
    kept = const(n * a), i * (n * a)
    for number in (const(m * b).value, (i * (m * b)).terms[0][0][1], const(m * b).value * m // m):
        assert type(number) is Sized and number.base == other and int(number) == other * b
    for number in (kept[0].value, kept[1].terms[0][0][1]):
        assert type(number) is Sized and number.base == one and int(number) == one * a


def test_equal_sizes_and_other_sizes_share_a_text() -> None:
    """A square is not taken for a kernel of squares: sizes are told apart by their origin."""
    fd, texts = _definition("bias", BF16), []
    for rows in (256, 768, 1024):
        inputs = [meta(4, rows, 768, dtype=BF16), meta(768, dtype=BF16)]
        texts += [source.text for source in _sources(fd, inputs, named("cpu"))]
    assert len(set(texts)) == 1


def test_sizes_are_arguments_of_the_launch() -> None:
    fd = _definition("softmax", BF16)
    first, second = (
        _sources(fd, [meta(2, rows, 4096, dtype=BF16)], named("h200"))[0] for rows in (100, 300)
    )
    assert first.text == second.text and "4096" not in first.text
    assert (first.grid, second.grid) == ((200, 1, 1), (600, 1, 1))


def test_indices_of_64_bits_where_a_position_needs_them() -> None:
    fd = _definition("gelu", BF16)
    small, large = (
        _sources(fd, [meta(rows, 2**16, 768, dtype=BF16)], named("h200"))[0] for rows in (2, 43)
    )
    assert "const i64" not in small.text and "const i64 i_o_o_o" in large.text


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_eight_axes(target: str) -> None:
    fd = FusionDefinition()
    x = fd.define_tensor([-1] * 8, True, DataType.Float)
    y = fd.define_tensor([-1] * 8, True, DataType.Float)
    moved = fd.ops.permute(x, [0, 2, 1, 3, 5, 4, 7, 6])
    fd.add_output(fd.ops.add(moved, y))
    for shape in ((2, 3, 2, 1, 2, 3, 2, 3), (1, 2, 3, 2, 3, 1, 4, 2)):
        order = (0, 2, 1, 3, 5, 4, 7, 6)
        a, b = rand(*shape), rand(*(shape[at] for at in order), seed=1)
        (result,) = fd.execute([a, b], target=target)
        torch.testing.assert_close(result, a.permute(order) + b)


@pytest.mark.parametrize(
    ("name", "shape"), [("softmax", (0, 5, 768)), ("softmax", (3, 0, 768)), ("gelu", (3, 5, 0))]
)
def test_no_elements(name: str, shape: tuple[int, int, int]) -> None:
    fd = _definition(name, DataType.Float)
    (result,) = fd.execute([torch.empty(shape)], target="cpu")
    assert result.shape == shape


def _scalars(node: object) -> Iterator[Scalar]:
    """Every index, condition and extent of a kernel, in order."""
    if isinstance(node, Scalar):
        yield node
    elif isinstance(node, tuple):
        for item in node:
            yield from _scalars(item)
    elif is_dataclass(node):
        for one in fields(node):
            yield from _scalars(getattr(node, one.name))


def _divisions(scalar: Scalar) -> int:
    return (scalar.op in ("div", "mod")) + sum(map(_divisions, scalar.parts))


SHAPES = [(4, 512), (3, 77), (1, 1000), (7, 33)]


@pytest.mark.parametrize("target", ["h200", "cpu"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_is_simplified_less(name: str, target: str) -> None:
    """With its sizes as numbers, a kernel walks the same places, by no fewer divisions."""
    fd, values = _definition(name, BF16), random.Random(1)
    for b, s in SHAPES:
        inputs = [meta(*shape, dtype=BF16) for shape in OPERATIONS[name][2](b, s)]
        for scheduled in _schedules(fd, inputs, named(target)):
            free = lowering.lower(scheduled, "free")
            plain = lowering.kernel_of(Context(scheduled), "plain")
            for ours, theirs in zip(_scalars(free.body), _scalars(plain.body), strict=True):
                assert ours.symbols == theirs.symbols and _divisions(ours) <= _divisions(theirs)
                at = {symbol: values.randrange(7) for symbol in theirs.symbols}
                found, expected = ours.substitute(at), theirs.substitute(at)
                assert int(found.value) == expected.value, (ours, theirs)
