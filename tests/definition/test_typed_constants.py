# SPDX-License-Identifier: Apache-2.0
"""Constants that are defined with a type are as scalar arguments of that type: in every op, in the
definition, after the passes, in kernels, and in the text."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import Runner, assert_near, rand
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.errors import DtypeError
from thunder_fuser.ir.dtypes import COMPUTED, held
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.runtime.torch_types import to_torch_dtype

# At most three operands, none of which has an attribute beside it.
ROWS = [r.name for r in OPS.values() if r.kind is OpKind.POINTWISE and r.name != "cast"]
TYPES = [*COMPUTED, DataType.ComplexFloat, DataType.ComplexDouble]
NUMBERS = st.sampled_from([0.0, 1.0, 3.0, 0.1, 2.5, 7.0])
TENSORS = {None: None} | {
    dtype: torch.tensor([1, 0, 3]).to(to_torch_dtype(dtype))
    for dtype in (DataType.Bool, DataType.Int8, DataType.Int, DataType.Half, DataType.Float,
                  DataType.Double, DataType.ComplexFloat)
}  # fmt: skip
MASK = torch.tensor([True, False, True])


def number_of(value: float, dtype: DataType) -> Any:
    """The number as Python has it, of the type's kind."""
    kind = bool if dtype is DataType.Bool else int if dtype.is_int else float
    return complex(value, 1.0) if dtype.is_complex else kind(value)


def definition(
    op: str, tensor: DataType | None, scalars: list[tuple[DataType, Any]], *, constant: bool
) -> tuple[FusionDefinition, list[Any]]:
    """The op on a tensor, if any, then scalars, as constants or as arguments; and the inputs. The
    result is added to a tensor of bools, so that the call has axes."""
    fd = FusionDefinition()
    inputs: list[Any] = [MASK] if tensor is None else [MASK, TENSORS[tensor]]
    mask, *operands = [fd.from_pytorch(one) for one in inputs]
    for dtype, number in scalars:
        operands.append(fd.define_scalar(number, dtype) if constant else fd.define_scalar(dtype))
    if op == "where":
        operands = [mask, *operands[-2:]]
    result = getattr(fd.ops, op)(*operands[: OPS[op].arity])
    fd.add_output(result)
    fd.add_output(fd.ops.where(mask, result, result))
    return fd, [*inputs, *([] if constant else [number for _, number in scalars])]


SCALARS = st.lists(st.tuples(st.sampled_from(TYPES), NUMBERS), min_size=3, max_size=3)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(ROWS), st.sampled_from(list(TENSORS)), SCALARS)
def test_a_constant_is_as_an_argument_of_its_type(
    op: str, tensor: DataType | None, drawn: list[tuple[DataType, float]]
) -> None:
    """In the definition and after the passes; values by torch, op by op."""
    scalars = [(dtype, number_of(value, dtype)) for dtype, value in drawn]
    fd, _ = definition(op, tensor, scalars, constant=False)
    try:
        expected = fd.fusion
    except DtypeError:
        with pytest.raises(DtypeError):
            _ = definition(op, tensor, scalars, constant=True)[0].fusion
        return
    fd, inputs = definition(op, tensor, scalars, constant=True)
    assert rebuild(str(fd.fusion)) == fd.fusion
    types = [expected.tensors[output.name].dtype for output in expected.outputs]
    for fusion in (fd.fusion, fd.plan(inputs).fusion):
        assert [fusion.tensors[output.name].dtype for output in fusion.outputs] == types


RUN = ("where", "add", "maximum", "truediv", "pow", "eq", "lerp", "clamp", "neg", "exp", "complex")


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(RUN), st.sampled_from(list(TENSORS)), SCALARS)
def test_values_are_those_of_arguments(
    op: str, tensor: DataType | None, drawn: list[tuple[DataType, float]]
) -> None:
    scalars = [(dtype, number_of(value, dtype)) for dtype, value in drawn]
    try:
        wanted, with_scalars = definition(op, tensor, scalars, constant=False)
        expected = wanted.execute(with_scalars, target="cpu")
    except DtypeError:
        return
    fd, inputs = definition(op, tensor, scalars, constant=True)
    for result, value in zip(fd.execute(inputs, target="cpu"), expected, strict=True):
        assert_near(result, value)


NUMBERS_ALONE = [(7, 2, 3), (1.0, 0.0, 0.0), (True, True, False), (0.5, 1, True)]


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("numbers", NUMBERS_ALONE)
def test_ops_of_constants_alone(target: str, numbers: tuple[Any, ...]) -> None:
    """The class: kernels computed in the constants' types. 1 / 3 was 0; 1 / 0 ended the process."""
    fd, mask = FusionDefinition(), torch.tensor([True])
    read = fd.from_pytorch(mask)
    computed = []
    for name in ROWS:
        probe = FusionDefinition()  # a refused op would end the definition
        try:
            probe.add_output(getattr(probe.ops, name)(*numbers[: OPS[name].arity]))
            _ = probe.fusion
        except DtypeError:
            continue
        computed.append(name)
        result = getattr(fd.ops, name)(*numbers[: OPS[name].arity])
        fd.add_output(fd.ops.where(read, result, result))
    assert len(computed) > 50
    results, expected = fd.execute([mask], target=target), evaluate(fd.fusion, [mask])
    for name, result, value in zip(computed, results, expected, strict=True):
        assert result.dtype is value.dtype, name
        assert_near(result, value)


def test_division_of_constants_by_zero(run: Runner) -> None:
    """Of floats, inf; of integers any number, as long as the process lives."""

    def build(fd: FusionDefinition) -> None:
        mask = fd.from_pytorch(MASK)
        fd.add_output(fd.ops.where(mask, fd.ops.truediv(1, 0), 2.0))
        fd.add_output(fd.ops.where(mask, 3, fd.ops.eq(fd.ops.div(1, 0), fd.ops.div(1, 0))))

    expected = [torch.where(MASK, math.inf, 2.0).double(), torch.where(MASK, 3, 1)]
    run(build, [MASK], expected)


TYPED = [
    (3.0, None, torch.float64), (3.0, DataType.Float, torch.float32),
    (3.0, DataType.Half, torch.float16), (0.1, DataType.BFloat16, torch.bfloat16),
    (3, DataType.Int32, torch.int32), (3, None, torch.int64), (3, DataType.Int8, torch.int8),
    (True, DataType.Bool, torch.bool), (3j, None, torch.complex128),
    (3 + 1j, DataType.ComplexFloat, torch.complex64), (-1, DataType.UInt8, torch.uint8),
    (0.5, DataType.Float8_e4m3fn, torch.float8_e4m3fn),
]  # fmt: skip


def test_a_choice_between_constants_has_their_type(run: Runner) -> None:
    def build(fd: FusionDefinition) -> None:
        mask = fd.from_pytorch(MASK)
        for value, dtype, _ in TYPED:
            a, b = (fd.define_scalar(one, dtype) for one in (value, type(value)(1)))
            fd.add_output(fd.ops.where(mask, a, b))

    expected = [
        torch.where(MASK, torch.tensor(value % 256 if dtype is torch.uint8 else value), 1).to(dtype)
        for value, _, dtype in TYPED
    ]
    run(build, [MASK], expected)


CALLS: dict[str, tuple[Callable[..., Any], Callable[[], torch.Tensor]]] = {
    "set": (lambda fd, c: fd.ops.set(c), lambda: torch.tensor(0.1, dtype=torch.float16)),
    "of constants": (
        lambda fd, c: fd.ops.where(fd.ops.lt(c, 1.0), c, c),
        lambda: torch.tensor(0.1, dtype=torch.float16),
    ),
    "arithmetic": (  # 16-bit floats compute, and stay, in Float
        lambda fd, c: fd.ops.add(c, c),
        lambda: torch.tensor(0.1, dtype=torch.float16).float() * 2,
    ),
    "operators": (
        lambda fd, c: fd.ops.set(c * 3 - 1),
        lambda: torch.tensor(0.1, dtype=torch.float16).float() * 3 - 1,
    ),
    "comparison": (lambda fd, c: fd.ops.set(c > 0.1), lambda: torch.tensor(False)),
    "full": (lambda fd, c: fd.ops.full([2], c, DataType.Double),
             lambda: torch.full((2,), 0.0999755859375, dtype=torch.float64)),
    "pad": (lambda fd, c: fd.ops.pad(fd.ops.full([1], 2.0, DataType.Double), [1, 0], c),
            lambda: torch.tensor([0.0999755859375, 2.0], dtype=torch.float64)),
    "addcmul": (lambda fd, c: fd.ops.addcmul(fd.ops.full([1], 2.0, DataType.Float), c, c, c),
                lambda: torch.tensor([2 + 0.0999755859375**3])),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_constant_of_16_bits_in(run: Runner, name: str) -> None:
    call, expected = CALLS[name]

    def build(fd: FusionDefinition) -> None:
        fd.add_output(call(fd, fd.define_scalar(0.1, DataType.Half)))

    run(build, [], [expected()])


def test_operators_of_typed_constants() -> None:
    fd = FusionDefinition()
    most, half = fd.define_scalar(2**31 - 1, DataType.Int32), fd.define_scalar(0.1, DataType.Half)
    assert ((most + most).value, (most + most).dtype()) == (-2, DataType.Int32)
    assert ((most + 1).value, (most + 1).dtype()) == (2**31, DataType.Int)  # 1 is an Int
    assert (1 - half).dtype() is DataType.Float
    assert (half * 2.0).dtype() is DataType.Double  # a number has a type of its own: Double
    assert (half > 0).dtype() is DataType.Bool


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_scalars_that_fold_keep_their_types(target: str) -> None:
    """The class: a pass replaced a scalar by a number, which has no type."""
    x = rand(300).to(torch.int8)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        size = fd.ops.size(t, 0)
        as_float = fd.ops.cast(size, DataType.Float)
        third = fd.ops.truediv(as_float, fd.ops.cast(7, DataType.Float))
        fd.add_output(fd.ops.where(fd.ops.gt(t, 0), as_float, third))
        fd.add_output(fd.ops.where(fd.ops.gt(t, 0), fd.ops.cast(size, DataType.Int32), 1))
        fd.add_output(fd.ops.mul(t, size))  # 300 is no number of 8 bits
        fd.add_output(fd.ops.full([2], size, DataType.Int8))
    seventh = (torch.tensor(300.0) / 7).expand(300)
    expected = [
        torch.where(x > 0, torch.tensor(300.0), seventh), torch.where(x > 0, 300, 1),
        x * 44, torch.full((2,), 44, dtype=torch.int8),
    ]  # fmt: skip
    for result, value in zip(fd.execute([x], target=target), expected, strict=True):
        assert_near(result, value)
    for result, value in zip(evaluate(fd.fusion, [x]), expected, strict=True):
        assert_near(result, value)


@settings(max_examples=300, deadline=None)
@given(
    st.floats(width=64) | st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([d for d in COMPUTED if d.bytes > 1 or not d.is_float]),
)
def test_a_type_holds_a_number_as_torch_does(value: float, dtype: DataType) -> None:
    if dtype.is_int and isinstance(value, float) and not abs(value) < 2**31:
        return  # undefined in torch
    found = held(value, dtype)
    if isinstance(value, float):
        expected = torch.tensor(value, dtype=torch.float64).to(to_torch_dtype(dtype)).item()
    else:
        expected = torch.tensor(value).double().to(to_torch_dtype(dtype)).item()
        if dtype.is_int or dtype is DataType.Bool:
            expected = torch.tensor(value).to(to_torch_dtype(dtype)).item()
    assert type(found) is type(expected)
    assert found == expected or (math.isnan(found) and math.isnan(expected))
