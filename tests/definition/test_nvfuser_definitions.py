# SPDX-License-Identifier: Apache-2.0
"""Definitions as programs for nvFuser write them, held against torch: complex arguments and the
text that takes them, embeddings, computed sizes, types of reductions, the arguments of execute."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.cases import Runner, assert_near, ints, rand
from hypothesis import given, settings
from hypothesis import strategies as st

import thunder_fuser
from thunder_fuser import DataType, FusionDefinition, torch_dtype_to_nvfuser_dtype
from thunder_fuser.errors import DefinitionError, DtypeError, InputError
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.op_schema import DtypeRule, OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.record import definition_text
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.runtime.torch_types import to_torch_dtype

X = rand(3, 4)
D = DataType


def again(text: str) -> FusionDefinition:
    """The definition that its text makes."""
    names: dict[str, Any] = {"DataType": DataType}
    exec(text, names)
    with FusionDefinition() as fd:
        names["fusion"](fd)
    return fd


# ---- arguments, and the text that takes them

ARGUMENTS = {
    "a tensor": X,
    "a complex number": 1 - 2j,
    "a complex tensor of the CPU": torch.tensor(0.5 + 1j),
    "one of 128 bits": torch.tensor(0.5 + 1j, dtype=torch.complex128),
    "a number": 2.0,
    "a tensor of the CPU": torch.tensor(3.0),
    "a list": [3, 4],
}


def defined(names: list[str]) -> tuple[FusionDefinition, torch.Tensor]:
    """A definition that multiplies all arguments, and what torch makes of them."""
    fd = FusionDefinition()
    product, expected = fd.from_pytorch(X), X.to(torch.complex128)
    for one in (ARGUMENTS[name] for name in names):
        if isinstance(one, list):
            product = fd.ops.reshape(product, fd.define_vector(len(one)))
            continue
        is_tensor = isinstance(one, torch.Tensor)
        dtype = D.ComplexDouble if isinstance(one, complex) else D.Double
        product = product * (fd.from_pytorch(one) if is_tensor else fd.define_scalar(dtype))
        expected = expected * one
    fd.add_output(fd.ops.cast(product, D.ComplexDouble))
    return fd, expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(list(ARGUMENTS)), max_size=4))
def test_the_text_takes_what_the_definition_took(names: list[str]) -> None:
    fd, _ = defined(names)
    assert rebuild(definition_text(fd.records)) == fd.fusion
    planned = fd.plan([X, *(ARGUMENTS[name] for name in names)]).fusion
    for fusion in (fd.fusion, planned):
        assert rebuild(str(fusion)) == fusion
    for text in (definition_text(fd.records), repr(fd)):
        other = again(text)
        assert other.fusion == fd.fusion
        assert other.complex_at == fd.complex_at


def test_the_text_runs_on_the_arguments(run: Runner) -> None:
    inputs = [X, *ARGUMENTS.values()]
    fd, expected = defined(list(ARGUMENTS))
    _ = fd.fusion
    for one in (fd, again(repr(fd)), again(repr(again(repr(fd))))):
        (result,) = run.execute(one, inputs)
        assert_near(result, expected)


def test_the_script_takes_what_the_definition_took(capsys: pytest.CaptureFixture[str]) -> None:
    fd, _ = defined(list(ARGUMENTS))
    exec(fd.repro_script_for([X, *ARGUMENTS.values()]), {})
    assert "tensor(" in capsys.readouterr().out


def test_an_imaginary_part_follows_a_real_one() -> None:
    with pytest.raises(DefinitionError, match="imag: expected an argument before, the real part"):
        FusionDefinition().define_scalar(D.Float, imag=True)


# ---- embeddings

PADDING = (None, -2)
NORMS = (None, 0.0, 1.0, 2.5, math.inf, -math.inf)
FLAGS = (None, True)
OPTIONS = [*itertools.product(PADDING, (None, 0.3), (None, 1.0), FLAGS, FLAGS)]
OPTIONS += [(None, 0.3, norm, None, None) for norm in NORMS]
OF_OPTIONS = (D.Int, D.Float, D.Float, D.Bool, D.Bool)
INDEX, WEIGHT = ints(5, low=0, high=10), rand(10, 6, dtype=torch.bfloat16)


def embedded(options: tuple[Any, ...]) -> torch.Tensor:
    padding, most, norm, by_freq, sparse = options
    norm = 2.0 if norm is None else norm
    return F.embedding(INDEX, WEIGHT.clone(), padding, most, norm, bool(by_freq), bool(sparse))


@pytest.mark.parametrize("given_as", ["arguments", "constants", "numbers"])
def test_an_embedding_takes_none_and_scalars(run: Runner, given_as: str) -> None:
    """Each option as None or as given, in one definition."""
    inputs: list[Any] = [INDEX, WEIGHT]
    fd = FusionDefinition()
    index, weight = fd.from_pytorch(INDEX), fd.from_pytorch(WEIGHT)
    for options in OPTIONS:
        values: list[Any] = list(options)
        for at, (value, dtype) in enumerate(zip(options, OF_OPTIONS, strict=True)):
            if value is not None and given_as != "numbers":
                constant = (value,) if given_as == "constants" else ()
                values[at] = fd.define_scalar(*constant, dtype=dtype)
        fd.add_output(fd.ops.embedding_fwd(index, weight, *values))
        if given_as == "arguments":
            inputs += [value for value in options if value is not None]
    for result, options in zip(run.execute(fd, inputs), OPTIONS, strict=True):
        assert_near(result, embedded(options))


@pytest.mark.parametrize("name", ["padding_idx", "norm_type", "scale_grad_by_freq", "sparse"])
def test_a_tensor_is_no_option_of_an_embedding(name: str) -> None:
    fd = FusionDefinition()
    index, weight = fd.from_pytorch(INDEX), fd.from_pytorch(WEIGHT)
    with pytest.raises(DefinitionError, match=f"embedding_fwd: {name}: expected a number or a sc"):
        fd.ops.embedding_fwd(index, weight, **{name: weight})


# ---- sizes that the host computes

SIZES: dict[str, tuple[Callable[..., Any], Callable[[int, float], int]]] = {
    "signbit": (lambda o, n, x: o.add(o.cast(o.signbit(x), D.Int), 1), lambda n, x: 1 + (x < 0)),
    "bitwise_and": (lambda o, n, x: o.bitwise_and(n, 6), lambda n, x: n & 6),
    "bitwise_or": (lambda o, n, x: o.bitwise_or(n, 1), lambda n, x: n | 1),
    "bitwise_xor": (lambda o, n, x: o.bitwise_xor(n, 2), lambda n, x: n ^ 2),
    "bitwise_not": (lambda o, n, x: o.neg(o.bitwise_not(n)), lambda n, x: n + 1),
    "shifts": (lambda o, n, x: o.bitwise_left_shift(o.bitwise_right_shift(n, 1), 2),
               lambda n, x: n >> 1 << 2),
    "reciprocal": (lambda o, n, x: o.cast(o.abs(o.reciprocal(x)), D.Int), lambda n, x: 4),
    "gcd": (lambda o, n, x: o.gcd(n, 4), lambda n, x: math.gcd(n, 4)),
    "pow": (lambda o, n, x: o.pow(n, 2), lambda n, x: n * n),
    "sqrt": (lambda o, n, x: o.cast(o.ceil(o.sqrt(n)), D.Int), lambda n, x: math.ceil(n**0.5)),
    "sign": (lambda o, n, x: o.sub(2, o.cast(o.sign(x), D.Int)), lambda n, x: 3),
    "relu": (lambda o, n, x: o.relu(n), lambda n, x: n),
    "round": (lambda o, n, x: o.cast(o.round(o.mul(n, 0.5)), D.Int), lambda n, x: round(n * 0.5)),
}  # fmt: skip


def test_sizes_are_computed_by(run: Runner) -> None:
    def build(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(X)
        n, x = fd.define_scalar(dtype=D.Int), fd.define_scalar(dtype=D.Double)
        two = SIZES["signbit"][0](fd.ops, n, x)
        fd.add_output(fd.ops.reshape(fd.ops.neg(t), [two, fd.ops.bitwise_and(n, 6)]))
        for size, _ in SIZES.values():
            fd.add_output(fd.ops.full([size(fd.ops, n, x)], 1.0, D.Float))

    sizes = [size(7, -0.25) for _, size in SIZES.values()]
    run(build, [X, 7, -0.25], [-X.reshape(2, 6), *(torch.ones(size) for size in sizes)])


# Those that only a kernel computes: a size may not need them.
NOT_ON_THE_HOST = {
    "one_plus_tanh", "erfinv", "erfcinv", "digamma", "ndtri", "sigmoid", "silu", "nextafter",
    "zeta", "logical_right_shift", "lerp", "threshold", "isneginf", "isposinf", "isreal", "real",
    "imag", "complex",
}  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([
        r for r in OPS.values() if r.kind is OpKind.POINTWISE and r.name not in NOT_ON_THE_HOST
    ]),
    st.lists(st.sampled_from([-3, -1, 0, 1, 2, 5, 70]), min_size=3, max_size=3),
    st.booleans(),
)  # fmt: skip
def test_the_host_computes_what_a_kernel_does(op: Any, numbers: list[int], floats: bool) -> None:
    """The same call on constants, which fold, and on arguments, by torch."""
    if floats and op.rule is DtypeRule.INTEGER:
        return
    dtype = D.Double if floats else D.Int
    given_numbers = [n / 2 if floats else n for n in numbers[: op.arity]]
    if op.name in ("div", "mod", "fmod", "remainder") and not given_numbers[1]:
        return  # no number
    if op.name == "where":
        given_numbers[0] = bool(given_numbers[0])
    attrs = [dtype] if op.name == "cast" else []
    definitions = []
    for is_constant in (True, False):
        fd = FusionDefinition()
        t, call = fd.from_pytorch(X), getattr(fd.ops, op.name)
        operands = [
            n if is_constant else fd.define_scalar(dtype=D.Bool if isinstance(n, bool) else dtype)
            for n in given_numbers
        ]
        result = fd.ops.cast(call(*operands, *attrs), D.Double)
        fd.add_output(fd.ops.add(fd.ops.mul(t, 0.0), result))
        definitions.append(fd)
    constant, argument = definitions
    (expected,) = evaluate(argument.fusion, [X, *given_numbers])
    (found,) = evaluate(constant.plan([X]).fusion, [X])
    torch.testing.assert_close(found, expected, equal_nan=True)


# ---- reductions and ranges


@pytest.mark.parametrize("dtype", [D.Float, D.Double, D.Int, D.Half])
@pytest.mark.parametrize("of", [torch.float32, torch.float16, torch.int32])
def test_a_type_alone_follows_the_operand(
    run: Runner, dtype: DataType, of: torch.dtype
) -> None:
    x = ints(3, 4, low=1, high=4).to(of)

    def build(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x)
        for op in ("sum", "prod", "max", "min"):
            fd.add_output(getattr(fd.ops, op)(t, dtype))

    wide = x.double()
    values = [wide.sum(), wide.prod(), wide.max(), wide.min()]
    run(build, [x], [value.to(to_torch_dtype(dtype)) for value in values])


def test_a_type_is_no_axis() -> None:
    fd = FusionDefinition()
    t = fd.from_pytorch(X)
    for args in ((t, D.Float, True), (t, [0], False, D.Float, 3, 4)):
        with pytest.raises(DefinitionError):
            fd.ops.sum(*args)


INFINITE = [(math.inf, math.inf), (0, math.nan), (-math.inf, 1), (0, math.inf)]


@pytest.mark.parametrize(("start", "step"), INFINITE)
@pytest.mark.parametrize("dtype", [D.Float, D.Int])
@pytest.mark.parametrize("given_as", ["numbers", "constants", "computed"])
def test_a_range_has_finite_numbers(
    start: float, step: float, dtype: DataType, given_as: str
) -> None:
    fd = FusionDefinition()
    values: list[Any] = [start, step]
    if given_as != "numbers":
        values = [fd.define_scalar(float(value), D.Double) for value in values]
    if given_as == "computed":
        values = [fd.ops.add(value, 0.0) for value in values]
        if any(map(math.isnan, (start, step))):
            return  # the host does not compute with NaN
    fd.add_output(fd.ops.iota(4, *values, dtype))
    with pytest.raises((DefinitionError, DtypeError), match=r"finite number|a number of type"):
        _ = fd.fusion


# ---- the arguments of execute

ACCEPTED: list[dict[str, Any]] = [
    {"device": "cpu"}, {"device": torch.device("cpu")}, {"device": None},
    {"_enable_options": ["host_ir_lowering"], "_disable_options": ["kernel_reuse", "nvtx"]},
    {"_enable_options": (), "_disable_options": []},
]  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"device": "cuda:1"}, "device: expected cpu, the device of the arguments, got cuda:1"),
    ({"device": "nowhere"}, "device: expected a torch.device, got str 'nowhere'"),
    ({"device": 1.5}, "device: expected a torch.device, got float 1.5"),
    ({"_enable_options": ["fast_math"]}, "no result here, got 'fast_math'. To fix it: leave it"),
    ({"_disable_options": ["fma"]}, "no result here, got 'fma'. To fix it: write the product"),
    ({"_enable_options": ["no_such"]}, r"_enable_options: .* thunder_fuser.OPTIONS has those here"),
    ({"_disable_options": "fma"}, "_disable_options: expected a list of nvFuser's options"),
    ({"_disable_options": [1]}, "_disable_options: expected a list of nvFuser's options"),
]


def negated() -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.from_pytorch(X)))
    return fd


@pytest.mark.parametrize("keywords", ACCEPTED, ids=str)
def test_what_changes_nothing_is_accepted(keywords: dict[str, Any]) -> None:
    (result,) = negated().execute([X], **keywords)
    assert torch.equal(result, -X)


@pytest.mark.parametrize(("keywords", "message"), REFUSED, ids=str)
def test_what_would_change_something_is_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        negated().execute([X], **keywords)


def test_a_device_without_tensors() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.full([2], 1.0, D.Float))
    assert torch.equal(fd.execute([], device="cpu")[0], torch.ones(2))
    with pytest.raises(InputError, match="without tensors, results are on the CPU"):
        fd.execute([], device="cuda")


def test_types_have_a_public_name() -> None:
    assert "torch_dtype_to_nvfuser_dtype" in thunder_fuser.__all__
    for dtype in DataType:
        assert torch_dtype_to_nvfuser_dtype(to_torch_dtype(dtype)) is dtype
    numbers = {bool: D.Bool, int: D.Int, float: D.Double, complex: D.ComplexDouble}
    assert {kind: torch_dtype_to_nvfuser_dtype(kind) for kind in numbers} == numbers
    with pytest.raises(DtypeError, match=r"got torch\.uint16"):
        torch_dtype_to_nvfuser_dtype(torch.uint16)
