# SPDX-License-Identifier: Apache-2.0
"""What nvFuser's language has beside the rows of the op table: methods of values, other names of
arguments, defaults, lists of sizes, printed definitions, scripts, the profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import Runner, ints, rand

import thunder_fuser
from thunder_fuser import DataType, FusionDefinition, PythonProfiler
from thunder_fuser.errors import DefinitionError, InputError

X = rand(3, 4)


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


def test_a_script_of_a_definition_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with FusionDefinition() as fd:
        t, sizes = fd.from_pytorch(X.t()), fd.define_vector(2)
        fd.add_output(fd.ops.mul(fd.ops.reshape(t, sizes), 0.0))
    script = fd.repro_script_for([X.t(), [2, 6]])
    exec(script, {})
    assert capsys.readouterr().out == f"{torch.zeros(2, 6)}\n"
    with pytest.raises(InputError):
        fd.repro_script_for([X])


# ---- times


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_the_profiler_names_the_kernels(target: str) -> None:
    x = rand(64, 32)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.matmul(fd.ops.mul(t, 2.0), fd.ops.permute(t, [1, 0])))
        fd.add_output(fd.ops.sum(t, 1))
    before = fd.execute([x], target=target)
    with PythonProfiler() as profiler:
        first, second = fd.execute([x], target=target), fd.execute([x], target=target)
    fd.execute([x], target=target)
    for results in (first, second):
        assert all(map(torch.equal, results, before))
    assert len(profiler.profiles) == 2
    found = profiler.profile
    program = fd.program([x], target=target)
    segments = program.segmented.segments
    assert [one.segment_id for one in found.kernel_profiles] == list(range(found.segments))
    assert [one.scheduler for one in found.kernel_profiles] == [s.scheduler.name for s in segments]
    names = [one.name for one in found.kernel_profiles]
    assert "torch.matmul" in names
    assert {source.name for source in program.sources} <= set(names)
    assert all(one.time_ms > 0 and one.effective_bandwidth_gbs > 0 for one in found.kernel_profiles)
    assert (found.input_bytes, found.output_bytes) == (64 * 32 * 4, 64 * 64 * 4 + 64 * 4)
    (product,) = (one for one in found.kernel_profiles if one.name == "torch.matmul")
    assert (product.input_bytes, product.output_bytes) == (2 * 64 * 32 * 4, 64 * 64 * 4)
    assert 0 < found.kernel_time_ms <= found.host_time_ms


def test_a_profiler_without_a_call() -> None:
    with PythonProfiler() as profiler:
        pass
    with pytest.raises(InputError, match=r"expected a call of fd\.execute in the block"):
        profiler.profile
    assert "PythonProfiler" in dir(thunder_fuser)
