# SPDX-License-Identifier: Apache-2.0
"""Wrong calls: each a typed error with its whole text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import (
    AliasError,
    DefinitionError,
    DtypeError,
    FuserError,
    InputError,
    OptionError,
    StrideOrderError,
    TargetError,
    UnknownOpError,
)
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.options import OPTIONS, option, options

X = torch.ones(4, 6)
META = X.to("meta")
FREED = torch.ones(4, 6)
FREED.untyped_storage().resize_(0)


def scaled(shape: Sequence[int] = (-1, -1)) -> FusionDefinition:
    """T0 * S1, an integer."""
    fd = FusionDefinition()
    t, s = fd.define_tensor(shape=shape, contiguity=True), fd.define_scalar(dtype=DataType.Int)
    fd.add_output(fd.ops.mul(t, s))
    return fd


ARGUMENTS: dict[str, tuple[list[Any], str]] = {
    "too few": ([X], "the call: expected 2 arguments (T0, S1), got 1"),
    "too many": ([X, 1, 2], "the call: expected 2 arguments (T0, S1), got 3"),
    "rank": ([X[0], 1], "argument T0: expected rank 2, got a tensor of shape (6,), torch.float32"),
    "dtype": ([X.double(), 1], "argument T0: expected torch.float32, got torch.float64"),
    "no tensor": ([None, 1], "argument T0: expected a tensor, got NoneType None"),
    "a number": ([1.5, 1], "argument T0: expected a tensor, got float 1.5"),
    "no number": ([X, None], "argument S1: expected a number, got NoneType None"),
    "a word": ([X, "a"], "argument S1: expected a number, got str 'a'"),
    "a tensor": (
        [X, torch.tensor(1)],
        "argument S1: expected a number, got a tensor of shape (), torch.int64",
    ),
    "fraction": ([X, 2.5], "argument S1: expected a 64-bit integer, got float 2.5"),
    "too large": (
        [X, 2**63],
        "argument S1: expected a 64-bit integer, got int 9223372036854775808",
    ),
    "meta": ([META, 1], "arguments: expected cpu tensors for target cpu, got meta"),
    "sparse": (
        [X.to_sparse(), 1],
        "argument T0: expected a plain strided tensor, got a sparse_coo tensor",
    ),
    "a wrapper": (
        [TwoTensor(X, X), 1],
        "argument T0: expected a plain strided tensor, "
        "got a TwoTensor, a class that overrides torch's functions",
    ),
    "zeros without memory": (
        [torch._efficientzerotensor(4, 6), 1],
        "argument T0: expected a plain strided tensor, got a tensor without memory",
    ),
    "freed": (
        [FREED, 1],
        "argument T0: expected a tensor with memory, got one of shape (4, 6) whose storage was "
        "freed. To fix it: allocate its storage again before the call.",
    ),
}


def assert_raises(call: Callable[[], Any], error: type[FuserError], message: str) -> None:
    with pytest.raises(FuserError) as raised:
        call()
    assert (type(raised.value), str(raised.value)) == (error, message)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name: str) -> None:
    """The same before and after the definition has run."""
    arguments, message = ARGUMENTS[name]
    fd = scaled()
    assert_raises(lambda: fd.execute(arguments), InputError, message)
    assert torch.equal(fd.execute([X, 3])[0], X * 3)
    assert_raises(lambda: fd.execute(arguments), InputError, message)


@pytest.mark.parametrize("arguments", [None, 5, torch.tensor(2.5)])
def test_arguments_are_a_list(arguments: Any) -> None:
    with pytest.raises(InputError, match=r"^the call: expected a list of arguments, got .*\[x\]"):
        scaled().execute(arguments)


def test_a_value_is_no_bool() -> None:
    """`if x > 0` would take one way for all elements, and `x and y` would be y."""
    fd = FusionDefinition()
    x = fd.from_pytorch(X)
    message = (
        "{} as True or False: expected a bool of Python, got a value that each call has. To fix it:"
        " choose elements with fd.ops.where; bitwise operators combine conditions."
    )
    for value in (x, x > 0, x.size(0)):
        assert_raises(lambda: bool(value), DefinitionError, message.format(value.name))  # noqa: B023


@pytest.mark.parametrize("name", ["too few", "rank", "dtype"])
def test_plan_and_program_check_too(name: str) -> None:
    arguments, message = ARGUMENTS[name]
    assert_raises(lambda: scaled().plan(arguments), InputError, message)
    assert_raises(lambda: scaled().program(arguments), InputError, message)


def test_static_sizes() -> None:
    message = "argument T0: expected size 7 on axis 1, got size 6"
    assert_raises(lambda: scaled((4, 7)).execute([X, 1]), InputError, message)
    message = "argument T0: expected size 1 on axis 0, got size 4"
    assert_raises(lambda: scaled((1, -1)).execute([X, 1]), InputError, message)


def test_devices() -> None:
    fd = FusionDefinition()
    fd.add_output(fd.ops.add(fd.from_pytorch(X), fd.from_pytorch(X)))
    message = "arguments: expected one device, got T0 on cpu, T1 on meta"
    assert_raises(lambda: fd.execute([X, META]), InputError, message)


def test_targets() -> None:
    message = "arguments: expected cuda tensors for target h200, got cpu"
    assert_raises(lambda: scaled().execute([X, 1], target="h200"), InputError, message)
    message = "target: expected one of h200, h100, a100, emulator, cpu, got 'gpu'"
    assert_raises(lambda: scaled().execute([X, 1], target="gpu"), TargetError, message)


@pytest.mark.parametrize("times", [1, 2])
def test_sizes_that_do_not_fit_each_other(times: int) -> None:
    fd = FusionDefinition()
    fd.add_output(fd.ops.add(fd.from_pytorch(X), fd.from_pytorch(X)))
    for _ in range(times):
        assert_raises(
            lambda: fd.execute([X, X[:, :5].contiguous()]),
            DefinitionError,
            "add: axis 1: expected equal sizes, got 6, 5 "
            "(at T2 = fd.ops.add(T0, T1) with T0: f32[i0{4}, i1{6}], T1: f32[i2{4}, i3{5}])",
        )


def test_what_does_not_fit_names_the_arguments_behind_it() -> None:
    """Though the op reads a cast of one, and a sum of the other."""
    fd = FusionDefinition()
    half = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.BFloat16)
    deep = fd.define_tensor(shape=[-1, -1, -1], contiguity=True)
    fd.add_output(fd.ops.mul(half, fd.ops.sum(deep, [0])))
    assert_raises(
        lambda: fd.execute([X.bfloat16(), torch.ones(2, 4, 5)]),
        DefinitionError,
        "mul: axis 1: expected equal sizes, got 6, 5 (at T4 = fd.ops.mul(T3, T2) "
        "with T3: f32[i0{4}, i1{6}], T2: f32[r2{2}, i3{4}, i4{5}], "
        "of T0: bf16[i0{4}, i1{6}], T1: f32[i2{2}, i3{4}, i4{5}])",
    )


def test_nothing_is_written_before_an_error() -> None:
    """Not even by the part of a fusion that would fit."""
    fd = FusionDefinition()
    x, y, z = (fd.from_pytorch(X) for _ in range(3))
    fd.add_output(fd.ops.exp(x), alias_input=x)
    fd.add_output(fd.ops.add(y, z))
    mine = X.clone()
    with pytest.raises(DefinitionError, match="add: axis 0: expected equal sizes, got 4, 3"):
        fd.execute([mine, X, X[:3]])
    assert torch.equal(mine, X)


def test_negative_size() -> None:
    fd = FusionDefinition()
    fd.add_output(fd.ops.full([fd.define_scalar(dtype=DataType.Int)], 1.0, DataType.Float))
    message = (
        "full: axis 0 of the result: expected a size >= 0, got -1 "
        "(at T1 = fd.ops.full(fill_value=1.0, shape=[-1], dtype=DataType.Float))"
    )
    assert_raises(lambda: fd.execute([-1]), DefinitionError, message)


# ---- aliases


def into(source: FusionDefinition) -> FusionDefinition:
    t0, t1 = (source.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
    source.add_output(source.ops.neg(t0), t1)
    return source


def test_writing_into_an_expanded_input() -> None:
    message = (
        "argument T1: expected separate memory for each element, because it is overwritten, "
        "got strides (0, 1). To fix it: clone the tensor."
    )
    wide = torch.ones(6).expand(4, 6)
    assert_raises(lambda: into(FusionDefinition()).execute([X, wide]), InputError, message)


def test_writing_another_size() -> None:
    message = (
        "output T2: expected the dtype and sizes of T1: f32[i2{4}, i3{6}], "
        "got T2: f32[b0{1}, i1{6}] (at fd.add_output(T2, alias_input=T1) "
        "with T2: f32[b0{1}, i1{6}], of T0: f32[b0{1}, i1{6}]). "
        "To fix it: cast or reshape the result before add_output."
    )
    call = into(FusionDefinition()).execute
    assert_raises(lambda: call([X[:1], X.clone()]), AliasError, message)


def test_two_outputs_into_one_input() -> None:
    fd = into(FusionDefinition())
    fd.add_output(fd.ops.exp(fd.define_tensor(shape=[-1, -1], contiguity=True)))
    t1 = fd.define_tensor(shape=[-1, -1], contiguity=True)
    fd.add_output(fd.ops.exp(t1), t1)
    fd.add_output(fd.ops.sin(t1), t1)
    with pytest.raises(AliasError, match="expected one output for each aliased input"):
        fd.entry


# ---- definitions


def made(build: Callable[[FusionDefinition, Any], Any]) -> Callable[[], Any]:
    """A definition over T0, whose result, if there is one, is an output."""

    def call() -> None:
        with FusionDefinition() as fd:
            result = build(fd, fd.from_pytorch(X))
            if result is not None:
                fd.add_output(result)

    return call


def _foreign(fd: FusionDefinition, t: Any) -> Any:
    other = FusionDefinition()
    other.from_pytorch(X)
    return fd.ops.neg(other.from_pytorch(X))


_PERMUTATION = "To fix it: give each logical axis its own position, 0 for the fastest."
DEFINITIONS: dict[str, tuple[Callable[..., Any], type[FuserError], str]] = {
    "no output": (
        lambda fd, t: None,
        DefinitionError,
        "the fusion: expected at least one output, got none. To fix it: call add_output.",
    ),
    "axis": (
        lambda fd, t: fd.ops.sum(t, [2]),
        DefinitionError,
        "sum: axis 2: expected an axis from -2 to 1, got 2 "
        "(at T1 = fd.ops.sum(T0, dims=[2], keepdim=False) with T0: f32[i0{i0}, i1{i1}])",
    ),
    "the same axis twice": (
        lambda fd, t: fd.ops.sum(t, [1, -1]),
        DefinitionError,
        "sum: axes: expected each axis once, got (1, -1) "
        "(at T1 = fd.ops.sum(T0, dims=[1, -1], keepdim=False) with T0: f32[i0{i0}, i1{i1}])",
    ),
    "ranks of cat": (
        lambda fd, t: fd.ops.cat([t, fd.define_tensor([3], True)], 0),
        DefinitionError,
        "cat: expected operands of equal rank, got [2, 1] "
        "(at T2 = fd.ops.cat([T0, T1], dim=0) with T0: f32[i0{i0}, i1{i1}], T1: f32[i2{3}])",
    ),
    "more cut off than there is": (
        lambda fd, t: fd.ops.pad(fd.define_tensor([4, 6], True), [-7, 3]),
        DefinitionError,
        "pad: axis 1: expected at most its 6 elements removed, got 7 "
        "(at T2 = fd.ops.pad(T1, pad_widths=[-7, 3], value=0) with T1: f32[i2{4}, i3{6}])",
    ),
    "stride order": (
        lambda fd, t: fd.add_output(t, stride_order=[0, 0]),
        StrideOrderError,
        f"stride_order [0, 0]: expected a permutation of 0..1, got [0, 0]. {_PERMUTATION}",
    ),
    "short stride order": (
        lambda fd, t: fd.add_output(t, stride_order=[0]),
        StrideOrderError,
        "stride_order [0]: expected a permutation of 0..1, got [0] "
        "(at fd.add_output(T0, stride_order=[0]) with T0: f32[i0{i0}, i1{i1}]). " + _PERMUTATION,
    ),
    "input stride order": (
        lambda fd, t: fd.define_tensor([-1, -1], stride_order=[0, 2]),
        StrideOrderError,
        f"stride_order [0, 2]: expected a permutation of 0..1, got [0, 2]. {_PERMUTATION}",
    ),
    "unknown op": (
        lambda fd, t: fd.ops.foo(t),
        UnknownOpError,
        "ops.foo: expected the name of an op. "
        "To fix it: call ops.floor if you mean it; dir(fd.ops) lists all.",
    ),
    "undefined tensor": (
        _foreign,
        DefinitionError,
        "neg: T1: expected a value of this definition, got one of another definition",
    ),
    "dtype": (
        lambda fd, t: fd.define_tensor([-1], dtype="float"),
        DtypeError,
        "define_tensor: dtype: expected a DataType (Bool, UInt8, Int8, Int16, Int32, Int, "
        "Float8_e4m3fn, Float8_e5m2, Float8_e8m0fnu, Half, BFloat16, Float, Double, "
        "ComplexFloat, ComplexDouble), got str 'float'",
    ),
    "complex": (
        lambda fd, t: fd.from_pytorch(X.to(torch.complex32)),
        DtypeError,
        "torch dtype: expected one of bool, uint8, int8, int16, int32, int64, float8_e4m3fn, "
        "float8_e5m2, float8_e8m0fnu, float16, bfloat16, float32, float64, "
        "complex64, complex128, got torch.complex32",
    ),
    "no tensor": (
        lambda fd, t: fd.from_pytorch([1.0]),
        InputError,
        "from_pytorch: expected a tensor, got list",
    ),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_definitions(name: str) -> None:
    build, error, message = DEFINITIONS[name]
    assert_raises(made(build), error, message)


def test_no_call_after_execute() -> None:
    fd = scaled()
    fd.execute([X, 1])
    message = "fd.define_scalar: expected calls before the first execute, got a call after it"
    assert_raises(lambda: fd.define_scalar(dtype=DataType.Int), DefinitionError, message)


# ---- options


def test_unknown_option() -> None:
    names = ", ".join(OPTIONS)
    assert_raises(
        lambda: options(colour="red").__enter__(),
        OptionError,
        f"option: expected one of {names}, got 'colour'",
    )
    assert_raises(
        lambda: options(strickt=True).__enter__(),
        OptionError,
        f"option: expected one of {names}, got 'strickt'. To fix it: write strict.",
    )
    message = "option strict: expected the type bool (0, 1, false or true), got 'maybe'"
    assert_raises(lambda: options(strict="maybe").__enter__(), OptionError, message)


def test_option_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_FUSER_FUEL", "many")
    where = "the environment variable THUNDER_FUSER_FUEL"
    message = f"option fuel: expected the type int, got 'many' (at {where})"
    assert_raises(lambda: option("fuel"), OptionError, message)
