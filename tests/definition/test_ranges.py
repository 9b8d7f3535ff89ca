# SPDX-License-Identifier: Apache-2.0
"""Numbers, indices and memory that do not fit: errors of ours, on each target, never other values.

And sums of a type that is given: they wrap around in it, and their text rebuilds as that type.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from helpers.cases import Runner, ints, rand
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import (
    DefinitionError,
    DtypeError,
    InputError,
    OutOfRangeError,
    TorchCallError,
)
from thunder_fuser.ir.dtypes import DataType, fits, integer_range, wrapped
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.strides import is_distinct
from thunder_fuser.runtime.torch_types import to_torch_dtype

INTEGERS = [dtype for dtype in DataType if dtype.is_int]
RANGES = {dtype: integer_range(dtype) for dtype in INTEGERS}
Build = Callable[..., Any]


def executed(target: str, build: Build, *inputs: torch.Tensor) -> list[torch.Tensor]:
    with FusionDefinition() as fd:
        fd.add_output(build(fd, *map(fd.from_pytorch, inputs)))
    return fd.execute(list(inputs), target=target)


# ---- numbers of a definition

USES: dict[str, Build] = {
    "add": lambda fd, t, number: fd.ops.add(t, number),
    "bitwise_and": lambda fd, t, number: fd.ops.bitwise_and(number, t),
    "eq": lambda fd, t, number: fd.ops.eq(t, number),
    "where": lambda fd, t, number: fd.ops.where(fd.ops.gt(t, 0), t, number),
    "clamp": lambda fd, t, number: fd.ops.clamp(t, 0, number),
    "pad": lambda fd, t, number: fd.ops.pad(t, [1, 1], number),
    "scatter": lambda fd, t, number: fd.ops.scatter(
        t, fd.ops.full([1], 0, DataType.Int), number, 0
    ),
}


def used(use: str, dtype: DataType, number: int) -> None:
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1], True, dtype)
        fd.add_output(USES[use](fd, t, number))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("use", USES)
def test_a_number_is_one_of_the_type_it_is_used_in(use: str, dtype: DataType) -> None:
    least, most = RANGES[dtype]
    for number in (least, most):
        used(use, dtype, number)
    # torch lets UInt8 take -1 for 255, and so on.
    below = -most - 1 if dtype is DataType.UInt8 else least - 1
    for number in (below, most + 1, 10**30):
        with pytest.raises(DefinitionError, match="expected a"):
            used(use, dtype, number)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_made_numbers_are_of_their_type(dtype: DataType) -> None:
    most = RANGES[dtype][1]
    makes: tuple[Build, ...] = (
        lambda fd, n: fd.ops.full([2], n, dtype),
        lambda fd, n: fd.ops.iota(1, n, 1, dtype),
        lambda fd, n: fd.ops.mul(fd.define_tensor([-1], True, dtype), fd.define_scalar(n, dtype)),
    )
    for make in makes:
        with FusionDefinition() as fd:
            fd.add_output(make(fd, most))
        for wrong in (most + 1, float("nan"), float("inf"), 1e30):
            with pytest.raises(DefinitionError, match=r"expected a .*number"):
                fd = FusionDefinition()
                fd.add_output(make(fd, wrong))
                _ = fd.entry


def test_the_text_of_a_wrong_number() -> None:
    with pytest.raises(DtypeError) as error:
        used("add", DataType.Int8, 300)
    assert str(error.value) == (
        "ops.add: expected a number of type Int8, got 300 "
        "(at T1 = fd.ops.add(T0, 300) with T0: i8[i0{i0}]). "
        "To fix it: cast the tensor to a wider type first."
    )


@given(st.sampled_from(INTEGERS), st.integers(-(2**70), 2**70))
def test_wrapping(dtype: DataType, number: int) -> None:
    least, most = RANGES[dtype]
    found = wrapped(number, dtype)
    assert least <= found <= most and (number - found) % 2 ** (8 * dtype.bytes) == 0
    assert least <= number <= most or found != number
    assert fits(found, dtype)


# ---- numbers of a call


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_scalar_argument_is_one_of_its_type(dtype: DataType, run: Runner) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.define_tensor([1], True, dtype), fd.define_scalar(dtype=dtype)))
    zero = torch.zeros(1, dtype=to_torch_dtype(dtype))
    for number in RANGES[dtype]:
        assert fd.execute([zero, number], target=run.target)[0].item() == number
    least, most = RANGES[dtype]
    for wrong in (least - 1, most + 1, 10**30, 10**5000, 0.5, float("nan")):
        with pytest.raises(InputError, match=f"argument S1: expected a {8 * dtype.bytes}-bit int"):
            fd.execute([zero, wrong], target=run.target)


def test_a_float_argument_is_one_of_its_type(run: Runner) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.define_tensor([1], True), fd.define_scalar()))
    assert fd.execute([torch.zeros(1), 10**30], target=run.target)[0].item() == pytest.approx(1e30)
    with pytest.raises(InputError, match="argument S1: expected a number that a double holds"):
        fd.execute([torch.zeros(1), 10**400], target=run.target)


# ---- memory that is written


def offsets_are_distinct(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    places = [
        sum(at * stride for at, stride in zip(index, strides, strict=True))
        for index in product(*map(range, sizes))
    ]
    return len(set(places)) == len(places)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 13)), max_size=4))
def test_no_two_elements_share_memory(axes: list[tuple[int, int]]) -> None:
    sizes, strides = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    if is_distinct(sizes, strides):
        assert offsets_are_distinct(sizes, strides)


@given(st.permutations(range(3)), st.tuples(*[st.integers(1, 4)] * 3), st.integers(0, 3))
def test_gaps_and_orders_of_axes_are_taken(
    order: list[int], sizes: tuple[int, ...], gap: int
) -> None:
    strides, step = [0, 0, 0], 1
    for at in order:
        strides[at], step = step, step * sizes[at] + gap
    assert is_distinct(sizes, strides)


SHARED = {
    "one step for two axes": ((3, 4), (1, 1)),
    "a step below the span": ((3, 4), (3, 1)),
    "expanded": ((4, 6), (0, 1)),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_written_input_has_memory_for_each_element(name: str, run: Runner) -> None:
    sizes, strides = SHARED[name]
    shared = torch.zeros(64).as_strided(sizes, strides)
    fd = FusionDefinition()
    x = fd.define_tensor(shape=[-1, -1])
    fd.add_output(fd.ops.add(x, 1.0), alias_input=x)
    for _ in range(2):
        with pytest.raises(InputError, match="argument T0: expected separate memory for each"):
            fd.execute([shared], target=run.target)
    assert not shared.any()


# ---- what only a run, or its sizes, can tell

NOTHING, X, FAR = torch.empty(3, 0), rand(4, 6), torch.tensor([7])
ONE = torch.ones(1, 6)


@pytest.mark.parametrize("op", ["min", "max", "argmin", "argmax"])
def test_no_element_is_the_largest_of_none(op: str, run: Runner) -> None:
    for axis in (None, 1):
        with pytest.raises(DefinitionError, match="expected at least one element, got size 0"):
            executed(run.target, lambda fd, t, axis=axis: getattr(fd.ops, op)(t, axis), NOTHING)
    (found,) = executed(run.target, lambda fd, t: fd.ops.flip(fd.ops.sum(t, 1), 0), NOTHING)
    assert torch.equal(found, torch.zeros(3))


@pytest.mark.parametrize(
    ("op", "least"),
    [("scatter", 0), ("scatter_add", 0), ("index_add", 0), ("index_copy", 0), ("index_put", -4),
     ("index_put_accumulate", -4)],
)  # fmt: skip
def test_an_index_out_of_range(op: str, least: int, run: Runner) -> None:
    index = FAR.expand(1, 6).contiguous() if op.startswith("scatter") else FAR
    dim = () if op.startswith("index_put") else (0,)
    for at in (index, -index):
        message = f"index: expected numbers from {least} to 3, got {at.flatten()[0]}"
        with pytest.raises(OutOfRangeError, match=message):
            executed(run.target, lambda fd, *t: getattr(fd.ops, op)(*t, *dim), X, at, ONE)


@pytest.mark.parametrize("op", ["sort", "argsort", "topk"])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e5m2])
def test_what_has_no_order_is_not_sorted(op: str, dtype: torch.dtype, run: Runner) -> None:
    more = (2,) if op == "topk" else ()
    with pytest.raises(DtypeError, match=f"ops.{op}: arg: expected real numbers"):
        executed(
            run.target,
            lambda fd, t: fd.ops.cast(_first(getattr(fd.ops, op)(t, *more)), DataType.Int),
            X.to(dtype),
        )


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def test_what_torch_refuses_names_the_call(run: Runner) -> None:
    flags = torch.ones(2, 2, dtype=torch.bool)
    with pytest.raises(TorchCallError, match=r"T2 = fd.ops.matmul\(T0, T1\): expected operands"):
        executed(run.target, lambda fd, a, b: fd.ops.matmul(a, b), flags, flags)


# ---- sums of a type

TYPED = [DataType.Bool, *INTEGERS, DataType.Half, DataType.Float, DataType.Double]


@pytest.mark.parametrize("op", ["sum", "prod"])
@pytest.mark.parametrize("source", [torch.int64, torch.uint8, torch.bool, torch.float32])
def test_a_reduction_has_the_type_asked_for(op: str, source: torch.dtype, run: Runner) -> None:
    """Its values wrap around as torch's, and its text is the same fusion."""
    x = ints(5, 7, low=-40 if source is torch.int64 else 0, high=90).to(source)
    dtypes = [d for d in TYPED if not (op == "prod" and d is DataType.Half)]

    def build(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        for dtype in dtypes:
            fd.add_output(getattr(fd.ops, op)(t, [1], dtype=dtype))

    expected = [getattr(torch, op)(x, 1, dtype=to_torch_dtype(d)) for d in dtypes]
    results = run(build, [x], expected)
    assert [one.dtype for one in results] == [to_torch_dtype(d) for d in dtypes]
    with FusionDefinition() as fd:
        build(fd)
    again = rebuild(str(fd.fusion))
    outputs = [again.tensors[output.name].dtype for output in again.outputs]
    assert (outputs, again) == (dtypes, fd.fusion)
