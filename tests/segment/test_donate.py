# SPDX-License-Identifier: Apache-2.0
"""A result is written over a donated argument where nothing else could read what it overwrites."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import TARGETS, rand

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.compiler import plan_segments
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.options import compile_options
from thunder_fuser.segment.donate import with_donations
from thunder_fuser.target import CPU

Case = Callable[[FusionDefinition, Any], Any]


def definition(build: Case, *tensors: torch.Tensor, donated: bool = True) -> FusionDefinition:
    """`build` of the tensors, of which the first is donated."""
    with FusionDefinition() as fd:
        values = [
            fd.define_tensor(
                sizes=one.shape, strides=one.stride(), static_sizes=True,
                donated=donated and at == 0,
                dtype=DataType.BFloat16 if one.dtype is torch.bfloat16 else DataType.Float,
            )
            for at, one in enumerate(tensors)
        ]  # fmt: skip
        build(fd, *values)
    return fd


def overwrites(build: Case, *tensors: torch.Tensor) -> list[tuple[str, str]]:
    fd = definition(build, *tensors)
    keys = input_keys(fd.fusion, tensors)
    plan = plan_segments(fd.fusion, keys, CPU, compile_options())
    assert with_donations(plan) == plan
    return [pair for one in plan.segments for pair in one.part.overwrites]


def pointwise(fd: FusionDefinition, x: Any, bias: Any) -> None:
    fd.add_output(fd.ops.tanh(fd.ops.add(x, bias)))


@pytest.mark.parametrize("shape", [(33, 70), (1, 1), (5, 1), (4096,), (3, 0), (2, 3, 64)], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_written_in_place(target: str, shape: tuple[int, ...]) -> None:
    x, bias = rand(*shape), rand(*shape, seed=1)
    expected, place = torch.tanh(x + bias), x.data_ptr()
    (found,) = definition(pointwise, x, bias).execute([x, bias], target=target)
    torch.testing.assert_close(found, expected)
    assert found.data_ptr() == place and (found is x or 0 in shape)


@pytest.mark.parametrize("target", TARGETS)
def test_misaligned_rows_and_other_orders(target: str) -> None:
    """The result lies where the argument does, so it is as little aligned."""
    for x in (rand(8, 65)[1:].flatten()[3:451].view(7, 64), rand(64, 7).t()):
        expected = torch.tanh(x * 2)
        fd = definition(lambda fd, x: fd.add_output(fd.ops.tanh(fd.ops.mul(x, 2.0))), x)
        (found,) = fd.execute([x], target=target)
        torch.testing.assert_close(found, expected)


def test_its_kernel_does_not_promise_two_addresses() -> None:
    x, bias = rand(6, 8), rand(6, 8, seed=1)
    for target in TARGETS:
        text = definition(pointwise, x, bias).sources([x, bias], target=target)[0].text
        declared = text[text.rindex('extern "C"') :].partition("{")[0]
        pointers = [line.strip() for line in declared.splitlines() if "*" in line]
        alone = "const float* __restrict__ T1," if target == "cpu" else "const float* T1,"
        assert pointers == ["const float* T0,", alone, "float* T3,"]


def test_without_the_word_nothing_is_overwritten() -> None:
    x, bias = rand(6, 8), rand(6, 8, seed=1)
    before = x.clone()
    (found,) = definition(pointwise, x, bias, donated=False).execute([x, bias], target="cpu")
    assert torch.equal(x, before) and found.data_ptr() != x.data_ptr()


def test_one_result_an_argument() -> None:
    def two(fd: FusionDefinition, x: Any) -> None:
        fd.add_output(fd.ops.mul(x, 2.0))
        fd.add_output(fd.ops.add(x, 1.0))

    assert overwrites(two, rand(4, 6)) == [("T1", "T0")]

    def of_other_places(fd: FusionDefinition, x: Any) -> None:
        fd.add_output(fd.ops.mul(x, 2.0))
        fd.add_output(fd.ops.add(fd.ops.broadcast(x, [True, False, False]), rows(fd)))

    def rows(fd: FusionDefinition) -> Any:
        return fd.ops.full([3, 4, 6], 1.0, DataType.Float)

    # Each of three rows reads x, whichever of them is first.
    assert overwrites(of_other_places, rand(4, 6)) == []


def test_two_arguments_two_results() -> None:
    def each(fd: FusionDefinition, x: Any, y: Any) -> None:
        fd.add_output(fd.ops.mul(x, 2.0))
        fd.add_output(fd.ops.mul(y, 3.0))

    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1], donated=True) for _ in range(2))
        each(fd, x, y)
    values = [rand(9), rand(9, seed=1)]
    expected, places = [values[0] * 2, values[1] * 3], [one.data_ptr() for one in values]
    found = fd.execute(values, target="cpu")
    assert list(map(torch.equal, found, expected)) == [True, True]
    assert [one.data_ptr() for one in found] == places


def transposed(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.add(x, fd.ops.permute(x, [1, 0])))


def flipped(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.add(x, fd.ops.flip(x, [0])))


def reduced(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.sub(x, fd.ops.sum(x, [1], keepdim=True)))


def returned(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.mul(x, 2.0))
    fd.add_output(x)


def narrower(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.cast(x, DataType.BFloat16))


def other_order(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.mul(x, 2.0), stride_order=[0, 1])


def other_shape(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.mul(x, 2.0), shape=[36])


def read_later(fd: FusionDefinition, x: Any) -> None:
    first = fd.ops.segment_set(fd.ops.mul(x, 2.0))
    fd.add_output(first)
    fd.add_output(fd.ops.add(fd.ops.sum(first, [0]), fd.ops.sum(x, [0])))


REFUSED = (
    transposed, flipped, reduced, returned, narrower, other_order, other_shape, read_later,
)  # fmt: skip


def of_another_argument(fd: FusionDefinition, x: Any, y: Any) -> None:
    fd.add_output(fd.ops.exp(y))
    fd.add_output(fd.ops.mul(x, y))
    fd.add_output(fd.ops.sub(x, y))


@pytest.mark.parametrize("target", TARGETS)
def test_a_result_is_not_stored_before_another_one_loads(target: str) -> None:
    x, y = rand(70, 33), rand(70, 33, seed=1)
    expected = [y.exp(), x * y, x - y]
    assert overwrites(of_another_argument, x, y) == [("T3", "T0")]
    found = definition(of_another_argument, x, y).execute([x, y], target=target)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__)
def test_what_is_read_elsewhere_stays(build: Case) -> None:
    x = rand(6, 6)
    assert overwrites(build, x) == []
    before = x.clone()
    for target in TARGETS:
        definition(build, x).execute([x], target=target)
        assert torch.equal(x, before)


def test_an_expanded_argument_stays() -> None:
    x = rand(1, 6).expand(6, 6)
    assert overwrites(lambda fd, x: fd.add_output(fd.ops.mul(x, 2.0)), x) == []


def test_of_two_the_one_that_fits() -> None:
    """An argument that a broadcast repeats is smaller than the result; the other one is not."""
    x, y = rand(6), rand(4, 6)
    with FusionDefinition() as fd:
        a = fd.define_tensor(shape=[-1], donated=True)
        b = fd.define_tensor(shape=[-1, -1], donated=True)
        fd.add_output(fd.ops.mul(fd.ops.broadcast(a, [True, False]), b))
    expected = x * y
    (found,) = fd.execute([x, y], target="cpu")
    assert torch.equal(found, expected) and found.data_ptr() == y.data_ptr()


# ---- results that a definition writes into an argument


def adam(fd: FusionDefinition, p: Any, m: Any, v: Any, g: Any) -> None:
    m1 = fd.ops.add(m, fd.ops.mul(0.1, fd.ops.sub(g, m)))
    v1 = fd.ops.add(fd.ops.mul(v, 0.9), fd.ops.mul(0.1, fd.ops.mul(g, g)))
    step = fd.ops.div(m1, fd.ops.add(fd.ops.sqrt(v1), 1e-4))
    for new, old in ((fd.ops.sub(p, fd.ops.mul(0.1, step)), p), (m1, m), (v1, v)):
        fd.add_output(new, alias_input=old)


def moved(axis: int) -> Case:
    """A batch norm of a matrix over an axis, and its running statistics."""

    def build(fd: FusionDefinition, x: Any, mean: Any, var: Any) -> None:
        found, now = fd.ops.var_mean(x, [axis], correction=0)
        scale = fd.ops.rsqrt(fd.ops.add(found, 1e-5))
        repeated = [axis == 0, axis == 1]
        centred = fd.ops.sub(x, fd.ops.broadcast(now, repeated))
        fd.add_output(fd.ops.mul(centred, fd.ops.broadcast(scale, repeated)))
        for old, new in ((mean, now), (var, found)):
            value = fd.ops.add(fd.ops.mul(old, 0.9), fd.ops.mul(new, 0.1))
            fd.add_output(value, alias_input=old)

    return build


def all_donated(build: Case, tensors: list[torch.Tensor]) -> FusionDefinition:
    with FusionDefinition() as fd:
        build(fd, *(fd.define_tensor(shape=[-1] * one.ndim, donated=True) for one in tensors))
    return fd


def in_program(fd: FusionDefinition, tensors: list[torch.Tensor], target: str) -> tuple[int, int]:
    """(arguments that kernels write, arguments that are copied to)"""
    text = str(fd.program(tensors, target=target))
    noted = re.findall(r"note_writes\(\((.*)\)\)", text)
    return "".join(noted).count(", "), text.count(".copy_(")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [1, 7, 1000, 70_001])
def test_a_kernel_writes_the_arguments(target: str, size: int) -> None:
    tensors = [rand(size, seed=at).abs() for at in range(4)]
    p, m, v, g = (one.double() for one in tensors)
    fd = all_donated(adam, tensors)
    assert in_program(fd, tensors, target) == (3, 0)
    versions = [one._version for one in tensors]
    assert fd.execute(tensors, target=target) == []
    m, v = m + 0.1 * (g - m), 0.9 * v + 0.1 * g * g
    p = p - 0.1 * m / (v.sqrt() + 1e-4)
    for one, expected in zip(tensors, (p, m, v, g), strict=True):
        torch.testing.assert_close(one.double(), expected, rtol=1e-5, atol=1e-5)
    assert [one._version > was for one, was in zip(tensors, versions, strict=True)] == [
        True, True, True, False,
    ]  # fmt: skip


STATISTICS = [
    (1, (5, 30)), (1, (3, 4096)), (1, (2, 200_000)), (1, (700, 3)), (1, (1, 8)),
    (0, (300, 70)), (0, (4000, 33)), (0, (7, 1000)), (0, (128, 64)),
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("axis", "shape"), STATISTICS, ids=str)
def test_a_kernel_of_rows_or_columns_writes_statistics(
    target: str, axis: int, shape: tuple[int, int]
) -> None:
    """Long rows are shared by the blocks of a cluster, of which one stores the statistics."""
    kept = shape[1 - axis]
    tensors = [rand(*shape), rand(kept, seed=1), rand(kept, seed=2)]
    x, mean, var = (one.double() for one in tensors)
    fd = all_donated(moved(axis), tensors)
    assert in_program(fd, tensors, target) == (2, 0)
    (y,) = fd.execute(tensors, target=target)
    now, found = x.mean(axis, keepdim=True), x.var(axis, correction=0, keepdim=True)
    torch.testing.assert_close(y.double(), (x - now) * (found + 1e-5).rsqrt(), rtol=1e-4, atol=1e-4)
    for one, old, new in ((tensors[1], mean, now), (tensors[2], var, found)):
        expected = 0.9 * old + 0.1 * new.squeeze(axis)
        torch.testing.assert_close(one.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_columns_write_statistics(target: str) -> None:
    def columns(fd: FusionDefinition, x: Any, mean: Any) -> None:
        value = fd.ops.add(fd.ops.mul(mean, 0.5), fd.ops.sum(x, [0]))
        fd.add_output(value, alias_input=mean)

    for shape in ((300, 70), (3, 1), (4000, 33)):
        tensors = [rand(*shape), rand(shape[1], seed=1)]
        expected = tensors[1].double() * 0.5 + tensors[0].double().sum(0)
        all_donated(columns, tensors).execute(tensors, target=target)
        torch.testing.assert_close(tensors[1].double(), expected, rtol=1e-4, atol=1e-4)


def swapped(fd: FusionDefinition, x: Any, y: Any) -> None:
    fd.add_output(fd.ops.mul(y, 2.0), alias_input=x)
    fd.add_output(fd.ops.mul(x, 3.0), alias_input=y)


def crossed(fd: FusionDefinition, x: Any, y: Any) -> None:
    fd.add_output(fd.ops.add(y, fd.ops.permute(x, [1, 0])), alias_input=x)
    fd.add_output(fd.ops.sub(x, fd.ops.permute(y, [1, 0])), alias_input=y)


def rotated(fd: FusionDefinition, x: Any, y: Any) -> None:
    fd.add_output(x, alias_input=y)
    fd.add_output(fd.ops.mul(x, 2.0), alias_input=x)


def twice(fd: FusionDefinition, x: Any, y: Any) -> None:
    z = fd.ops.add(x, y)
    fd.add_output(z, alias_input=x)
    fd.add_output(z, alias_input=y)
    fd.add_output(z)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("build", [swapped, crossed, rotated, twice], ids=lambda one: one.__name__)
def test_all_is_computed_from_what_the_arguments_were(target: str, build: Case) -> None:
    x, y = rand(33, 33), rand(33, 33, seed=1)
    expected = {
        "swapped": (y * 2, x * 3), "crossed": (y + x.t(), x - y.t()), "twice": (x + y, x + y),
        "rotated": (x * 2, x.clone()),
    }[build.__name__]  # fmt: skip
    all_donated(build, [x, y]).execute([x, y], target=target)
    torch.testing.assert_close((x, y), expected)


def sums_and_more(fd: FusionDefinition, x: Any, mean: Any, turned: Any, soft: Any) -> None:
    fd.add_output(fd.ops.sum(x, [1]), alias_input=mean)
    fd.add_output(fd.ops.permute(fd.ops.mul(x, 2.0), [1, 0]), alias_input=turned)
    e = fd.ops.exp(x)
    fd.add_output(fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True)), alias_input=soft)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(5, 33), (64, 64), (3, 5000)], ids=str)
def test_what_nothing_reads_is_written_by_any_kernel(target: str, shape: tuple[int, int]) -> None:
    """At addresses as odd as the arguments' own."""
    for odd in (0, 1, 2):
        rows, columns = shape
        x, mean, turned, soft = (
            rand(size + odd)[odd:].view(sizes)
            for size, sizes in (
                (rows * columns, shape), (rows, (rows,)), (rows * columns, (columns, rows)),
                (rows * columns, shape),
            )
        )  # fmt: skip
        fd = all_donated(sums_and_more, [x, mean, turned, soft])
        assert in_program(fd, [x, mean, turned, soft], target) == (3, 0)
        expected = x.sum(1), (x * 2).t(), x.softmax(1)
        assert fd.execute([x, mean, turned, soft], target=target) == []
        torch.testing.assert_close((mean, turned, soft), expected, rtol=1e-4, atol=1e-5)
