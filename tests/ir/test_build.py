# SPDX-License-Identifier: Apache-2.0
"""Definitions that have no meaning, and what defining adds: casts, broadcasts, types.

Each bad definition is pinned by the class of its error and the whole of its message.
"""

from __future__ import annotations

import copy
import pickle

import pytest
from helpers.definitions import Build, assert_refused, defined, tensor, told

from thunder_fuser.errors import AliasError, DefinitionError, DtypeError, StrideOrderError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.kinds import Value
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.record import Literal, OpRecord, names_of
from thunder_fuser.ir.rules.build import define

D = DataType


# ---- outputs and aliases


def aliased(fd: Recorder, first: str, second: str | None, dtype: DataType = D.Float) -> None:
    values = {"x": tensor(fd, 4, dtype=dtype), "other": tensor(fd, 6)}
    values["n"] = fd.define_scalar(dtype=D.Float)
    values["y"] = fd.ops.exp(values["x"])
    fd.add_output(fd.ops.sin(values["x"]), values[first])
    if second is not None:
        fd.add_output(fd.ops.cos(values["x"]), values[second])


def both_alias_and_order(fd: Recorder) -> None:
    x = tensor(fd, 4, 5)
    fd.add_output(fd.ops.exp(x), x, stride_order=[0, 1])


OUTPUTS: list[tuple[Build, type[Exception], str]] = [
    (
        lambda fd: [tensor(fd, -1)].clear(),
        DefinitionError,
        "the fusion: expected at least one output, got none. To fix it: call add_output.",
    ),
    (
        lambda fd: fd.add_output(1.0),
        DefinitionError,
        "add_output: output: expected a tensor, got float 1.0",
    ),
    (
        lambda fd: fd.add_output(None),
        DefinitionError,
        "add_output: output: expected a tensor, got NoneType None",
    ),
    (
        lambda fd: aliased(fd, "x", "x"),
        AliasError,
        "output T5: expected one output for each aliased input, got a second one into T0",
    ),
    (
        lambda fd: aliased(fd, "y", None),
        AliasError,
        "output T4: expected an input to alias, got T3",
    ),
    (
        lambda fd: aliased(fd, "n", None),
        AliasError,
        "output T4: expected an input to alias, got S2",
    ),
    (
        lambda fd: aliased(fd, "other", None),
        AliasError,
        "output T4: expected the dtype and sizes of T1: f32[i1{6}], got T4: f32[i0{4}]. "
        "To fix it: cast or reshape the result before add_output.",
    ),
    (
        lambda fd: aliased(fd, "x", None, D.Half),
        AliasError,
        "output T5: expected the dtype and sizes of T0: f16[i0{4}], got T5: f32[i0{4}]. "
        "To fix it: cast or reshape the result before add_output.",
    ),
    (
        both_alias_and_order,
        AliasError,
        "output T1: expected an alias or a stride order, got both. "
        "To fix it: leave stride_order out: the input's memory has an order of its own.",
    ),
]


@pytest.mark.parametrize(("build", "error", "message"), OUTPUTS)
def test_outputs(build: Build, error: type[Exception], message: str) -> None:
    assert_refused(build, error, message)


ADVICE = ". To fix it: give each logical axis its own position, 0 for the fastest."


@pytest.mark.parametrize("order", [[0, 2], [0, 0], [0], [0, 1, 2], [-3, 0]])
def test_an_output_order_that_is_no_permutation(order: list[int]) -> None:
    def build(fd: Recorder) -> None:
        fd.add_output(fd.ops.exp(tensor(fd, -1, -1)), stride_order=order)

    rank = 2 if len(order) == 2 or order in ([0], [0, 1, 2]) else len(order)
    message = f"stride_order {order}: expected a permutation of 0..{rank - 1}, got {order}" + ADVICE
    assert_refused(build, StrideOrderError, message)


# ---- operands


OPERAND = "a tensor, a scalar or a real number, an integer one of 64 bits"
OPERANDS: list[tuple[Build, type[Exception], str]] = [
    (
        lambda fd: fd.ops.exp(tensor(Recorder(), -1)),
        DefinitionError,
        "exp: T0: expected a value of this definition, got one of another definition",
    ),
    (
        lambda fd: fd.ops.add(tensor(fd, 4), "x"),
        DefinitionError,
        f"add: rhs: expected {OPERAND}, got str 'x'",
    ),
    (
        lambda fd: fd.ops.add(tensor(fd, 4), None),
        DefinitionError,
        f"add: rhs: expected {OPERAND}, got NoneType None",
    ),
    (lambda fd: fd.ops.sum(1.0), DefinitionError, "sum: arg: expected a tensor, got 1.0"),
    (
        lambda fd: fd.ops.broadcast(1, [True]),
        DefinitionError,
        "broadcast: arg: expected a tensor, got 1",
    ),
    (lambda fd: fd.ops.cat([]), DefinitionError, "cat: expected at least one tensor, got none"),
    (
        lambda fd: fd.ops.add(tensor(fd, 4), tensor(fd, 5)),
        DefinitionError,
        "add: axis 0: expected equal sizes, got 4, 5",
    ),
    (
        lambda fd: fd.ops.mul(tensor(fd, 2, 4), tensor(fd, 3, 1, 5)),
        DefinitionError,
        "mul: axis 2: expected equal sizes, got 4, 5",
    ),
]


@pytest.mark.parametrize(("build", "error", "message"), OPERANDS)
def test_operands(build: Build, error: type[Exception], message: str) -> None:
    assert_refused(build, error, message)


def test_records_of_values_that_were_never_made() -> None:
    with pytest.raises(DefinitionError) as error:
        define((OpRecord("exp", ("T7",), ("T8",)),))
    assert str(error.value) == "exp: T7: expected a defined value (nothing), got T7"


def test_a_record_of_no_op() -> None:
    with pytest.raises(DefinitionError) as error:
        define((OpRecord("softmax", (), ("T0",)),))
    assert told(error.value) == "record softmax: expected an op of the table"


# ---- dtypes

KNOWN = (
    "Bool, UInt8, Int8, Int16, Int32, Int, Float8_e4m3fn, Float8_e5m2, Float8_e8m0fnu, Half, "
    "BFloat16, Float, Double, ComplexFloat, ComplexDouble"
)

DTYPES: list[tuple[Build, str]] = [
    (
        lambda fd: fd.define_tensor([-1], True, "float32"),
        f"define_tensor: dtype: expected a DataType ({KNOWN}), got str 'float32'",
    ),
    (
        lambda fd: fd.define_scalar(dtype="int"),
        f"define_scalar: dtype: expected a DataType ({KNOWN}), got str 'int'",
    ),
    (
        lambda fd: fd.ops.cast(tensor(fd, 4), "float"),
        f"cast: dtype: expected a DataType ({KNOWN}), got str 'float'",
    ),
    (
        lambda fd: fd.ops.sum(tensor(fd, 4), [0], False, "float"),
        f"sum: dtype: expected a DataType ({KNOWN}), got str 'float'",
    ),
    (
        lambda fd: fd.ops.full([2], 0, None),
        f"full: dtype: expected a DataType ({KNOWN}), got NoneType None",
    ),
    (
        lambda fd: fd.ops.iota(3, 0, 1, D.Bool),
        "iota: dtype: expected a type of numbers, got Bool",
    ),
    (
        lambda fd: fd.ops.matmul(tensor(fd, 4, 3), tensor(fd, 3, 4, dtype=D.Half)),
        "matmul: expected one type, got Float, Half",
    ),
]


@pytest.mark.parametrize(("build", "message"), DTYPES)
def test_dtypes(build: Build, message: str) -> None:
    assert_refused(build, DtypeError, message)


# ---- what defining adds


def ops_of(fusion: Fusion) -> list[str]:
    return [record.op for record in fusion.exprs]


def test_one_cast_of_a_value_serves_all_its_uses() -> None:
    def build(fd: Recorder) -> Value:
        x = tensor(fd, -1, dtype=D.BFloat16)
        return fd.ops.mul(fd.ops.exp(x), fd.ops.sin(x))

    assert ops_of(defined(build)) == ["cast", "exp", "sin", "mul"]


def test_operands_of_lower_rank_are_broadcast() -> None:
    fusion = defined(lambda fd: fd.ops.add(tensor(fd, 2, 3), tensor(fd, 3)))
    assert ops_of(fusion) == ["broadcast", "add"]
    assert str(fusion.tensors["T3"]) == "T3: f32[i0{2}, i1{3}]"


def test_a_tensor_of_rank_0_needs_no_broadcast() -> None:
    assert ops_of(defined(lambda fd: fd.ops.add(tensor(fd, 2, 3), tensor(fd)))) == ["add"]


def test_a_max_of_a_half_is_a_half() -> None:
    fusion = defined(lambda fd: fd.ops.max(tensor(fd, 4, dtype=D.Half), [0]))
    assert ops_of(fusion) == ["cast", "max", "cast"]
    assert fusion.tensors[fusion.outputs[0].name].dtype is D.Half


def test_sizes_become_symbols_of_shapes() -> None:
    def build(fd: Recorder) -> Value:
        x, n = tensor(fd, -1), fd.define_scalar(dtype=D.Int)
        twice = fd.ops.add(fd.ops.mul(n, 2), fd.ops.size(x, -1))
        return fd.ops.full([twice, fd.ops.div(fd.ops.size(x, 0), 4)], 0, D.Float)

    fusion = defined(build)
    view = fusion.tensors[fusion.outputs[0].name]
    assert [str(extent) for extent in view.shape] == ["2*S1 + i0", "i0 // 4"]
    assert fusion.shape_scalars == {"S1", "i0"}


def test_values_by_name() -> None:
    def build(fd: Recorder) -> Value:
        x = tensor(fd, -1)
        return fd.ops.mul(fd.ops.exp(x), x)

    fusion = defined(build)
    assert fusion.inputs == ("T0",)
    assert fusion.producer["T2"].op == "mul"
    assert [record.op for record in fusion.uses["T0"]] == ["exp", "mul"]
    assert names_of(fusion.producer["T2"]) == ("T1", "T0")


def test_types_of_an_unfinished_definition() -> None:
    fd = Recorder()
    x = tensor(fd, -1, -1, dtype=D.Half)
    y = fd.ops.sum(fd.ops.exp(x), [0])
    ranks = {name: len(fd.view_of(name).shape) for name in (x.name, "T1", y.name)}
    assert ranks == {x.name: 2, "T1": 2, y.name: 1}


def test_types_of_a_definition_that_grows() -> None:
    fd = Recorder()
    x = tensor(fd, -1, 1)
    assert len(fd.view_of(x.name).shape) == 2
    y = fd.ops.squeeze(x, [1])
    assert len(fd.view_of(y.name).shape) == 1 and len(fd.view_of(x.name).shape) == 2
    wrong = fd.ops.squeeze(x, [5])
    for _ in range(2):  # and the question after an error starts anew
        with pytest.raises(DefinitionError, match="squeeze"):
            fd.view_of(wrong.name)


def test_definitions_hash_by_content() -> None:
    def definition(number: float) -> tuple[OpRecord, ...]:
        return defined(lambda fd: fd.ops.add(tensor(fd, 4), number)).definition

    assert hash(definition(1.0)) == hash(definition(1.0))
    assert len({definition(1), definition(1.0), definition(True)}) == 3
    nan = float("nan")
    assert definition(nan) == definition(nan)
    assert Literal.of(0.0) != Literal.of(-0.0)


def test_definitions_can_be_pickled() -> None:
    fusion = defined(lambda fd: fd.ops.sum(tensor(fd, -1, dtype=D.Half), [0]))
    assert define(pickle.loads(pickle.dumps(fusion.definition))) == fusion
    assert copy.deepcopy(fusion.definition) == fusion.definition
