# SPDX-License-Identifier: Apache-2.0
"""Regions as definitions: types as the trace has them, layouts as the call has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import FloatProxy, TensorProxy
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser.executors.pipeline import read_trace
from thunder_fuser.executors.record.record import Layout, TypedRecorder, layout_of, record_region
from thunder_fuser.executors.regions.claim import Formed
from thunder_fuser.executors.regions.plan import NO_MEMORY
from thunder_fuser.explain.jitted import jit
from thunder_fuser.ir.dtypes import COMPUTED, DataType
from thunder_fuser.ir.record import definition_text
from thunder_fuser.ir.rules.build import define
from thunder_fuser.options import compile_options
from thunder_fuser.target import CPU

GPU = devices.Device("cuda:0")


def text_of(build: Any, *layouts: Layout | None) -> list[str]:
    """The lines of the definition of the region that `build` makes."""
    trace = TraceCtx(None)
    with tracectx(trace):
        result = build()
    ops = read_trace(trace, CPU, compile_options()).ops
    region, _ = Formed.of(ops, [result.name])
    definition = record_region(region, NO_MEMORY, layouts)
    define(definition)
    return [line.strip() for line in definition_text(definition).splitlines()[1:]]


def proxy(*shape: int, device: Any = devices.cpu, dtype: Any = dtypes.float32) -> TensorProxy:
    return TensorProxy(shape=shape, device=device, dtype=dtype, requires_grad=False)


def test_layout_of_arguments() -> None:
    f32 = DataType.Float
    t = torch.empty(2, 3, 5)
    assert layout_of(t) == Layout((-1, -1, -1), (True, True, True), (2, 1, 0), f32)
    assert layout_of(t.transpose(0, 1)) == Layout((-1, -1, -1), (True, True, True), (1, 2, 0), f32)
    assert layout_of(t[:, :1]) == Layout((-1, 1, -1), (False, None, True), (2, 1, 0), f32)
    assert layout_of(t[:1, :1, :1].expand(1, 4, 5)).contiguity == (None, None, None)
    assert layout_of(t[0, 0, 0].int()) == Layout((), (), (), DataType.Int32)


def test_casts_stand_where_the_trace_has_another_type() -> None:
    def build() -> Any:
        return prims.abs(proxy(4, dtype=dtypes.bfloat16))

    assert text_of(build, layout_of(torch.empty(4).bfloat16()))[1:] == [
        "T1 = fd.ops.abs(T0)",
        "T2 = fd.ops.cast(T1, dtype=DataType.BFloat16)",
        "fd.add_output(T2)",
    ]


def test_sums_of_small_integers_wrap_as_the_trace_says() -> None:
    given = layout_of(torch.empty(4, dtype=torch.int8))
    lines = text_of(lambda: prims.sum(proxy(4, dtype=dtypes.int8), (0,)), given)
    assert lines[1:3] == [
        "T1 = fd.ops.sum(T0, dims=[0], keepdim=False)",
        "T2 = fd.ops.cast(T1, dtype=DataType.Int8)",
    ]


def test_an_input_has_the_type_that_comes() -> None:
    """Thunder's idea of what torch returns is wrong at times."""
    given = layout_of(torch.empty(4, dtype=torch.int64))
    first, *_ = text_of(lambda: prims.abs(proxy(4, dtype=dtypes.float32)), given)
    assert "dtype=DataType.Int" in first


@pytest.mark.parametrize("emulate", [False, True])
@pytest.mark.parametrize("dims", [0, 1, (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("name", ["amax", "amin"])
def test_an_extremum_that_several_elements_are(
    name: str, dims: int | tuple[int, ...], emulate: bool
) -> None:
    """Its gradient is shared among them: by their count, which Thunder takes for a bool."""
    x = torch.randint(0, 3, (4, 5, 6)).float()
    found = []
    for function in (jit(lambda x: getattr(torch, name)(x, dims), strict=True, emulate=emulate),
                     lambda x: getattr(torch, name)(x, dims)):  # fmt: skip
        given = x.clone().requires_grad_()
        result = function(given)
        result.backward(torch.arange(result.numel()).view_as(result).float() + 1)
        found.append(given.grad)
    torch.testing.assert_close(*found)


def test_a_number_given_at_the_call_is_an_input() -> None:
    def build() -> Any:
        return prims.mul(proxy(4), FloatProxy("f0", value=None))

    lines = text_of(build, layout_of(torch.empty(4)), None)
    assert lines[1:3] == [
        "S1 = fd.define_scalar(dtype=DataType.Double)", "T2 = fd.ops.mul(T0, S1)",
    ]  # fmt: skip


def test_a_cpu_tensor_beside_gpu_tensors_goes_by_value() -> None:
    def build() -> Any:
        return prims.mul(proxy(4, device=GPU), proxy())

    lines = text_of(build, layout_of(torch.empty(4)), layout_of(torch.tensor(1.0)))
    assert ["is_cpu=True" in line for line in lines[:2]] == [False, True]


def test_an_input_is_never_an_output() -> None:
    lines = text_of(lambda: prims.shallow_copy(prims.clone(proxy(4))), layout_of(torch.empty(4)))
    assert lines[1:] == ["T1 = fd.ops.set(T0)", "fd.add_output(T1)"]


def test_the_recorder_knows_the_types_that_define_will_find() -> None:
    fd = TypedRecorder()
    made = [fd.define_tensor(shape=[-1, -1], dtype=dtype) for dtype in COMPUTED]
    number = fd.define_scalar(dtype=DataType.Double)
    for t in list(made):
        made += [fd.ops.add(t, 1), fd.ops.add(t, 1.5), fd.ops.mul(t, number), fd.ops.exp(t)]
        made += [fd.ops.lt(t, 0.5), fd.ops.isfinite(t), fd.ops.where(True, t, 2.5)]
        made += [fd.ops.sum(t, [0]), fd.ops.max(t, [1]), fd.ops.squeeze(fd.ops.slice(
            t, [0, 0], [1, 1]), [0, 1]), fd.ops.logical_not(t)]  # fmt: skip
        made += [*fd.ops.var_mean(t, [0]), fd.ops.cast(t, DataType.Half)]
    places = fd.define_tensor(shape=[-1], dtype=DataType.Int32)
    for t in made[: len(DataType)]:
        made += [fd.ops.index_select(t, places, 0), fd.ops.embedding_fwd(places, t)]
        made += [fd.ops.flip(t, [1]), fd.ops.argsort(t), *fd.ops.sort(t)]
    made += [fd.ops.add(a, b) for a in made[:10] for b in made[:10]]
    floats = [value for value in made if fd.dtype_of(value) in (DataType.Float, DataType.Double)]
    made += [fd.ops.complex(floats[0], floats[1]), fd.ops.cat([*made[:2], made[0]], 1)]
    made += [fd.ops.iota(4), fd.ops.iota(4, 0.5, dtype=DataType.Float), fd.ops.cumsum(made[0], 0)]
    made += [fd.ops.mul(made[0], fd.ops.set(number)), fd.ops.mul(made[0], fd.ops.size(made[0], 0))]
    for value in made:
        fd.add_output(value)
    fusion = define(fd.definition)
    found = [fusion.tensors[output.name].dtype for output in fusion.outputs]
    assert found == [fd.dtype_of(value) for value in made]
