# SPDX-License-Identifier: Apache-2.0
"""What nvFuser's language has beside the rows of the op table: methods of values, other names of
arguments, defaults, lists of sizes, printed definitions, scripts, the profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import Runner, ints, rand

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.errors import DefinitionError, InputError

X = rand(3, 4)
_F = DataType.Float


# ---- values


def test_what_a_value_says_of_itself() -> None:
    fd = FusionDefinition()
    t, s = fd.from_pytorch(X.half()), fd.define_scalar(dtype=DataType.Int32)
    assert (t.ndim, t.dtype(), t.is_tensor()) == (2, DataType.Half, True)
    assert (s.dtype(), s.is_tensor()) == (DataType.Int32, False)
    assert fd.ops.sum(t, 1).ndim == 1
    assert fd.ops.sum(t, 1).dtype() is DataType.Float


def test_sizes_of_a_value(run: Runner) -> None:
    def build(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(X)
        fd.add_output(fd.ops.reshape(fd.ops.neg(t), t.shape()[::-1]))
        fd.add_output(fd.ops.full([t.size(1), t.size(-2)], 2.0, DataType.Float))

    run(build, [X], [(-X).reshape(4, 3), torch.full((4, 3), 2.0)])


def test_operators(run: Runner) -> None:
    n = ints(3, 4)

    def build(fd: FusionDefinition) -> None:
        a, b, half = fd.from_pytorch(X), fd.from_pytorch(n), fd.define_scalar(0.5)
        for value in (2 - a * 3.0 / 2 + abs(-a), 1 / (a * a + half), a**2, 2**b, a > half, a <= 0):
            fd.add_output(value)
        for value in (~b | 1, 6 & b ^ 3, 1 << (b & 7), b >> 1, a.size(0) * 2 + a):
            fd.add_output(value)

    floats = [2 - X * 3 / 2 + abs(-X), 1 / (X * X + 0.5), X**2, 2**n, X > 0.5, X <= 0]
    run(build, [X, n], [*floats, ~n | 1, 6 & n ^ 3, 1 << (n & 7), n >> 1, 6 + X])


def test_operators_of_constants(run: Runner) -> None:
    def build(fd: FusionDefinition) -> None:
        t, two, half = fd.from_pytorch(X), fd.define_scalar(2), fd.define_scalar(0.5)
        fd.add_output(t * (two * half - 3 / two) + two)
        fd.add_output(-half * t + (two << 1) ** 2)
        fd.add_output(fd.ops.reshape(fd.ops.neg(t), [two + 1, two * two]))

    run(build, [X], [X * -0.5 + 2, -0.5 * X + 16, -X])
    fd = FusionDefinition()
    half = fd.define_scalar(0.5)
    assert (half.dtype(), half.is_tensor()) == (DataType.Double, False)
    for wrong in (lambda: 1 / (half - 0.5), lambda: half | 1):
        with pytest.raises(DefinitionError, match="a constant: expected a number"):
            wrong()


# ---- arguments

# Calls that nvFuser takes, and torch's.
SPELLINGS: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "dim": (lambda ops, t: ops.sum(t, dim=1), lambda x: x.sum(1)),
    "an axis": (lambda ops, t: ops.sum(t, 1), lambda x: x.sum(1)),
    "axes": (lambda ops, t: ops.max(t, axes=[0]), lambda x: x.amax(0)),
    "keep_dim": (lambda ops, t: ops.sum(t, [0], keep_dim=True), lambda x: x.sum(0, keepdim=True)),
    "no type": (lambda ops, t: ops.sum(t, [0], True, DataType.Null), lambda x: x.sum(0, True)),
    "a type": (lambda ops, t: ops.sum(t, [0], False, DataType.Double), lambda x: x.double().sum(0)),
    "iota": (lambda ops, t: ops.iota(5, None, None), lambda x: torch.arange(5)),
    "iota's type": (
        lambda ops, t: ops.iota(length=5, start=1, step=None, dtype=DataType.Int32),
        lambda x: torch.arange(1, 6, dtype=torch.int32),
    ),
    "pad": (lambda ops, t: ops.pad(t, [1, 2], None), lambda x: torch.nn.functional.pad(x, (1, 2))),
    "slice": (
        lambda ops, t: ops.slice(t, [0, 1], [2, 4], strides=[1, 2], manual_normalization=True),
        lambda x: x[0:2, 1:4:2],
    ),
    "variance": (
        lambda ops, t: ops.add(ops.var(t, dim=1), ops.var_mean(t, axes=[1], keep_dim=False)[1]),
        lambda x: x.var(1) + x.mean(1),
    ),
    "at": (
        lambda ops, t: ops.full([ops.at(ops.shape(t), index=-1), ops.tensor_sizes(t)[0]], 1, _F),
        lambda x: torch.ones(4, 3),
    ),
    "squeeze": (
        lambda ops, t: ops.squeeze(ops.sum(t, [0], True), dims=[0], squeeze_expanded=True),
        lambda x: x.sum(0),
    ),
    "cat": (
        lambda ops, t: ops.cat([t, t], dim=1, manual_padding=False), lambda x: torch.cat([x, x], 1),
    ),
    "padded cat": (
        lambda ops, t: ops.cat(
            [ops.pad(t, [0, t.size(1)]), ops.pad(t, [4, 0])], dim=1, manual_padding=True
        ),
        lambda x: torch.cat([x, x], 1),
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(run: Runner, name: str) -> None:
    call, torchs = SPELLINGS[name]

    def build(fd: FusionDefinition) -> None:
        fd.add_output(call(fd.ops, fd.from_pytorch(X)))

    run(build, [X], [torchs(X).contiguous()])


def test_two_names_of_one_argument_are_refused() -> None:
    fd = FusionDefinition()
    with pytest.raises(DefinitionError, match="unexpected keyword argument 'dim'"):
        fd.ops.sum(fd.from_pytorch(X), dims=[0], dim=1)


def test_a_cat_of_what_was_not_padded_is_refused() -> None:
    fd = FusionDefinition()
    with pytest.raises(DefinitionError, match=r"manual_padding: expected tensors that ops\.pad"):
        fd.ops.cat([fd.from_pytorch(X)], 0, manual_padding=True)


def test_random_ops_have_default_types_and_other_names(run: Runner) -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda ops: ops.uniform(minval=1.0, maxval=2.0, shape=[50], rng_seed=7, rng_offset=0),
        lambda ops: ops.uniform(arg1=1.0, arg2=2.0, shape=[50], rng_seed=7, rng_offset=0),
        lambda ops: ops.normal(arg1=9.0, arg2=1.0, shape=[50], rng_seed=7, rng_offset=0),
    ]
    with FusionDefinition() as fd:
        for call in calls:
            fd.add_output(call(fd.ops))
        fd.add_output(fd.ops.uniform(1.0, 2.0, [50], DataType.Float, 7, 0))
        fd.add_output(fd.ops.normal(9.0, 1.0, [50], DataType.Float, 7, 0))
    first, second, third, uniform, normal = run.execute(fd, [])
    for got, expected in ((first, uniform), (second, uniform), (third, normal)):
        assert torch.equal(got, expected)
    assert (uniform >= 1).all() and (uniform < 2).all() and uniform.dtype is torch.float32


def test_empty_lists_stand_for_defaults(run: Runner) -> None:
    def build(fd: FusionDefinition) -> None:
        t = fd.define_tensor([3, 4], contiguity=[], stride_order=[])
        fd.add_output(fd.ops.neg(t), stride_order=[])

    run(build, [X], [-X])


def test_lists_of_sizes_among_the_inputs(run: Runner) -> None:
    def build(fd: FusionDefinition) -> None:
        t, shape = fd.from_pytorch(X), fd.define_vector(2)
        more = fd.define_vector(size=1, dtype=DataType.Int32)
        fd.add_output(fd.ops.reshape(fd.ops.neg(t), shape))
        fd.add_output(fd.ops.full(more, 1.0, DataType.Float))

    for sizes in ([6, 2], [2, 6]):
        run(build, [X, sizes, (5,)], [(-X).reshape(sizes), torch.ones(5)])


def test_a_list_of_the_wrong_length_is_an_error() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.full(fd.define_vector(2), 1.0, DataType.Float))
    with pytest.raises(InputError, match="expected 2 arguments"):
        fd.execute([[1, 2, 3]])


# ---- texts

# As nvFuser prints a definition: its names of values, and every argument that it writes out.
PRINTED = """\
def nvfuser_fusion(fd : FusionDefinition) -> None :
    tv0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.BFloat16, \
is_cpu=False, stride_order=[1, 0])
    tv1 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, \
is_cpu=False)
    c2 = fd.define_scalar(None, dtype=DataType.Double)
    tv3 = fd.ops.cast(tv0, dtype=DataType.Float)
    c4 = fd.define_scalar(0, dtype=DataType.Int)
    c5 = fd.define_scalar(1, dtype=DataType.Int)
    c6 = fd.define_scalar(2, dtype=DataType.Int)
    c7 = fd.ops.size(tv0, dim=0)
    tv8 = fd.ops.slice(tv3, start_indices=[c4, c4], end_indices=[c7, c6], strides=[c5, c5], \
manual_normalization=True)
    c9 = fd.ops.size(tv1, dim=1)
    tv10 = fd.ops.pad(tv8, pad_widths=[c4, c9, c4, c4])
    tv11 = fd.ops.pad(tv1, pad_widths=[c6, c4, c4, c4])
    tv12 = fd.ops.cat([tv10, tv11], dim=1, manual_padding=True)
    tv13 = fd.ops.mul(tv12, c2)
    tv14 = fd.ops.sum(tv13, dims=[1], dtype=DataType.Float)
    tv15 = fd.ops.max(tv13, dims=[0], keep_dim=False, dtype=DataType.Null)
    tv16 = fd.ops.broadcast(tv14, is_broadcast_dim=[False, True])
    tv17 = fd.ops.squeeze(tv16, dims=[1])
    c18 = fd.define_scalar(float("inf"), dtype=DataType.Double)
    tv19 = fd.ops.full(shape=[c7, c6], fill_value=c18, dtype=DataType.Float)
    tv20 = fd.ops.iota(length=c7, start=c4, step=c5)
    tv21, tv22 = fd.ops.topk(tv13, c6, sorted=True)
    tv23 = fd.ops.linear(tv1, tv1)
    tv24, tv25, c26 = fd.ops.welford(tv13, dims=[1])
    fd.add_output(tv17)
    fd.add_output(tv15)
    fd.add_output(tv19)
    fd.add_output(tv20)
    fd.add_output(tv21)
    fd.add_output(tv23)
    fd.add_output(tv25)
"""


def test_a_definition_that_nvfuser_prints_runs(run: Runner) -> None:
    names = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(PRINTED, names)
    x, y = rand(5, 6, dtype=torch.bfloat16), rand(5, 3, seed=1)
    wide = torch.cat([x.float()[:, :2], y], 1) * 1.5
    run(
        names["nvfuser_fusion"],  # type: ignore[arg-type]
        [x, y, 1.5],
        [wide.sum(1), wide.amax(0), torch.full((5, 2), torch.inf), torch.arange(5),
         wide.topk(2).values, y @ y.T, wide.var(1, correction=0) * 5],
        tolerance=1e-5,
    )  # fmt: skip


# As nvFuser's frontend before this one prints.
PRINTED_BEFORE = """\
def nvfuser_fusion_id0(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, \
is_cpu=False, stride_order=[1, 0])
    T1 = fd.define_tensor(shape=[4], contiguity=[True], dtype=DataType.BFloat16, is_cpu=False, \
stride_order=[0])
    T2 = fd.define_tensor(shape=[-1, 1, -1], contiguity=[True, None, True], dtype=DataType.Int, \
is_cpu=False, stride_order=[2, 1, 0])
    S3 = fd.define_scalar(None, dtype=DataType.Double)
    T4 = fd.ops.cast(T1, dtype=DataType.Float)
    V5 = fd.ops.shape(T0)
    S6 = fd.ops.at(V5, index=0)
    S7 = fd.define_scalar(4, dtype=DataType.Int)
    V8 = fd.define_vector([S6, S7], dtype=DataType.Int)
    T9 = fd.ops.broadcast_in_dim(T4, shape=V8, broadcast_dims=[1])
    T10 = fd.ops.add(T0, T9)
    T11 = fd.ops.slice(T10, start_indices=[0, 0], end_indices=[3, 2], strides=[1, 1], \
manual_normalization=0)
    T12 = fd.ops.slice(T10, start_indices=[0, 2], end_indices=[3, 4], strides=[1, 1], \
manual_normalization=0)
    T13 = fd.ops.cat([T12, T11], dim=-1, manual_padding=0)
    S14 = fd.define_scalar(-1.50000, dtype=DataType.Double)
    T15 = fd.ops.pad(T13, [1, 1], S14)
    S16 = fd.define_scalar(float("-inf"), dtype=DataType.Double)
    T17 = fd.ops.gt(T10, S3)
    T18 = fd.ops.where(T17, T10, S16)
    T19 = fd.ops.max(T18, dims=[1], keepdim=False, dtype=DataType.Null)
    T20, T21 = fd.ops.var_mean(T0, dims=[1], correction=0, keepdim=False)
    T22 = fd.ops.permute(T0, dims=[1, 0])
    T23 = fd.ops.stride_order(T22, stride_order=[0, 1])
    T24 = fd.ops.squeeze(T2, dims=[1], squeeze_expanded=False)
    T25 = fd.ops.take_along_axis(T0, T24, dim=1)
    S26 = fd.define_scalar(0, dtype=DataType.Int)
    S27 = fd.define_scalar(1, dtype=DataType.Int)
    T28 = fd.ops.iota(S7, S26, S27, dtype=DataType.Int)
    T29 = fd.ops.full(shape=[2, 0], fill_value=S26, dtype=DataType.BFloat16)
    S30 = fd.define_scalar(2.00000, dtype=DataType.Double)
    S31 = fd.define_scalar(False, dtype=DataType.Bool)
    S32 = fd.define_scalar(False, dtype=DataType.Bool)
    T33 = fd.ops.embedding_fwd(T24, T0, None, None, S30, S31, S32)
    S34 = fd.define_scalar(1.00000+2.00000j, dtype=DataType.ComplexDouble)
    T35 = fd.ops.mul(T0, S34)
    T36 = fd.ops.imag(T35)
    T37 = fd.ops.uniform(S26, S27, shape=[5], rng_seed=S7, rng_offset=S26, dtype=DataType.Float)
    fd.add_output(T13)
    fd.add_output(T15)
    fd.add_output(T19)
    fd.add_output(T20)
    fd.add_output(T21)
    fd.add_output(T23)
    fd.add_output(T25)
    fd.add_output(T28)
    fd.add_output(T29)
    fd.add_output(T33)
    fd.add_output(T36)
    fd.add_output(T10, T0)

with FusionDefinition() as fd:
    nvfuser_fusion_id0(fd)
"""


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_a_definition_that_nvfuser_printed_before_runs(target: str) -> None:
    """The last result is written into the first argument, and not returned."""
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(PRINTED_BEFORE, names)
    x, y = rand(3, 4), rand(4, dtype=torch.bfloat16, seed=1)
    index = ints(3, 1, 2, low=0, high=3)
    wide, at = x + y, index.squeeze(1)
    turned = torch.cat([wide[:, 2:], wide[:, :2]], 1)
    chosen = torch.where(wide > 0.1, wide, -torch.inf).amax(1)
    variance, mean = torch.var_mean(x, 1, correction=0)
    expected = [
        turned, torch.nn.functional.pad(turned, (1, 1), value=-1.5), chosen, variance, mean, x.t(),
        x.gather(1, at), torch.arange(4), torch.zeros(2, 0, dtype=torch.bfloat16), x[at], 2 * x,
    ]  # fmt: skip
    written = x.clone()
    results = names["fd"].execute([written, y, index, 0.1], target=target)
    assert len(results) == len(expected)
    for result, value in zip(results, expected, strict=True):
        torch.testing.assert_close(result, value)
    assert torch.equal(written, wide)


@pytest.mark.parametrize("index", [2, -3])
def test_an_entry_that_a_shape_has_not(index: int) -> None:
    fd = FusionDefinition()
    with pytest.raises(DefinitionError, match="at: index: expected an index of 2 entries"):
        fd.ops.at(fd.from_pytorch(X).shape(), index)


def test_a_script_of_a_definition_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with FusionDefinition() as fd:
        t, sizes = fd.from_pytorch(X.t()), fd.define_vector(2)
        fd.add_output(fd.ops.mul(fd.ops.reshape(t, sizes), 0.0))
    script = fd.repro_script_for([X.t(), [2, 6]])
    exec(script, {})
    assert capsys.readouterr().out == f"{torch.zeros(2, 6)}\n"
    with pytest.raises(InputError):
        fd.repro_script_for([X])


TYPES = (torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.complex64,
         torch.bool, torch.int32)  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_script_makes_tensors_of_every_type(
    dtype: torch.dtype, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.zeros(4, 6 * dtype.itemsize, dtype=torch.uint8).view(dtype).t()
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.pad(fd.from_pytorch(x), [2, 0]))
    exec(fd.repro_script_for([x]), {})
    assert "tensor(" in capsys.readouterr().out
