# SPDX-License-Identifier: Apache-2.0
"""No step of ours over a trace or a definition is superlinear in its length; see
tests/helpers/steps.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import thunder
import torch
from helpers.rows import after_row
from helpers.steps import LINEAR, growth
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx, tracectx
from thunder.core.utils import consumers, producers
from thunder.executors.utils import Region as ThunderRegion

from benchmarks.compile_time.layers import arguments
from benchmarks.compile_time.layers import residual as stream
from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.executors.fuser import ThunderFuser
from thunder_fuser.executors.pipeline import TRACE_PASSES, read_trace
from thunder_fuser.executors.record.record import layout_of, record_region
from thunder_fuser.executors.regions.claim import Formed, claim
from thunder_fuser.executors.regions.plan import NO_MEMORY
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.executors.support.check import leaves_of
from thunder_fuser.explain.jitted import claims_of, fusions_of, jit
from thunder_fuser.explain.programs import compiled
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.record import Definition
from thunder_fuser.ir.rules.build import define
from thunder_fuser.options import compile_options
from thunder_fuser.presegment import run_passes
from thunder_fuser.presegment.specialise import InputKey, specialise
from thunder_fuser.target import CPU
from thunder_fuser.trace.dataflow import DataFlow
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import run_passes as run_trace_passes
from thunder_fuser.trace.rewrites.split_regions import MIN_OPS, partition

Layer = Callable[[TensorProxy, TensorProxy], TensorProxy]


def proxy(*shape: int, dtype: Any = dtypes.bfloat16) -> TensorProxy:
    return TensorProxy(shape=shape, device=devices.cpu, dtype=dtype, requires_grad=False)


def given(*shape: int) -> TensorProxy:
    """An argument of the traced function."""
    made = proxy(*shape)
    prims.unpack_trivial(made, name=made.name)
    return made


def as_float(a: TensorProxy) -> TensorProxy:
    return prims.convert_element_type(a, dtypes.float32)


def residual(x: TensorProxy, w: TensorProxy) -> TensorProxy:
    """x + tanh(x) * w in bf16, as Thunder writes it."""
    wide = as_float(x)
    scale = as_float(prims.broadcast_in_dim(w, (4, 6), (1,)))
    return prims.convert_element_type(
        prims.add(wide, prims.mul(prims.tanh(wide), scale)), dtypes.bfloat16
    )


def reduced(x: TensorProxy, w: TensorProxy) -> TensorProxy:
    """The same by the mean of each row, which is a view's source again and again."""
    wide = as_float(x)
    mean = prims.broadcast_in_dim(prims.sum(wide, (1,)), (4, 6), (0,))
    return prims.convert_element_type(prims.mul(wide, mean), dtypes.bfloat16)


def through_torch(x: TensorProxy, w: TensorProxy) -> TensorProxy:
    """A matmul in each layer, so that regions are short and many."""
    y = residual(x, w)
    return prims.matmul(y, prims.matmul(prims.transpose(y, (1, 0)), y))


LAYERS: tuple[Layer, ...] = (residual, reduced, through_torch)


def traced(layer: Layer, depth: int) -> TraceCtx:
    trace = TraceCtx(None)
    with tracectx(trace):
        x, *weights = (given(4, 6), *(given(6) for _ in range(depth)))
        for weight in weights:
            x = layer(x, weight)
        prims.python_return(x)
    return trace


def partitioned(trace: TraceCtx) -> DataFlow:
    return partition(read_trace(trace, CPU, compile_options())).flow


def computing(layer: Layer, depth: int) -> Sequence[Op]:
    """Without the arguments and the return."""
    return partitioned(traced(layer, depth)).ops[1 + depth : -1]


def whole(layer: Layer, depth: int) -> Region:
    """All of it as one region, longer than any that is claimed."""
    ops = computing(layer, depth)
    return Formed.of(ops, [ops[-1].makes[0].name]).region


def definition(region: Region) -> Definition:
    tensors = [torch.empty(one.shape, dtype=torch.bfloat16) for one in region.inputs]
    layouts = [layout_of(tensor) for tensor in tensors]
    return record_region(region, NO_MEMORY, layouts)


# ------------------------------------------------------------------------------------- the trace


@pytest.mark.parametrize("layer", LAYERS)
def test_claiming(layer: Layer) -> None:
    def make(depth: int) -> Callable[[], Any]:
        ops = partitioned(traced(layer, depth)).ops
        return lambda: claim(DataFlow(ops))

    assert growth(make, 80) < LINEAR


@pytest.mark.parametrize("layer", LAYERS)
def test_the_passes_over_a_trace(layer: Layer) -> None:
    def make(depth: int) -> Callable[[], Any]:
        prepared = read_trace(traced(layer, depth), CPU, compile_options())
        return lambda: run_trace_passes(TRACE_PASSES, prepared)

    assert growth(make, 80) < LINEAR


@pytest.mark.parametrize("layer", LAYERS)
def test_the_fusion_pass(layer: Layer) -> None:
    fuser = ThunderFuser("linear_test", lambda *given: lambda *args: [])

    def make(depth: int) -> Callable[[], Any]:
        trace = traced(layer, depth)
        return lambda: fuser.fusion_pass(trace)

    assert growth(make, 80) < LINEAR


class Keeping(ThunderFuser):
    """Keeps the joint trace that Thunder gives it."""

    given: TraceCtx | None = None

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        self.given = trace
        return super().fusion_pass(trace)


def test_the_fusion_pass_of_a_training_step() -> None:
    """Of the model that the benchmark of compile time measures, forward and backward."""

    def make(depth: int) -> Callable[[], Any]:
        keeping = Keeping("linear_test_joint", lambda *given: lambda *args: [])
        x, weights = arguments(depth)
        with pytest.raises(ValueError, match="unpack"):  # its regions return nothing
            thunder.jit(stream, executors=[keeping])(x, weights)
        given = keeping.given
        assert given is not None
        return lambda: ThunderFuser.fusion_pass(keeping, given)

    assert growth(make, 8) < LINEAR


def test_forming_a_region() -> None:
    def make(depth: int) -> Callable[[], Any]:
        ops = computing(residual, depth)
        wanted = [ops[-1].makes[0].name]
        return lambda: Formed.of(ops, wanted)

    assert growth(make, 80) < LINEAR


def test_thunders_own_region_would_not_pass() -> None:
    """It looks every name up in a list of bound symbols."""

    def make(depth: int) -> Callable[[], Any]:
        trace = traced(residual, depth)
        made, read = producers(trace), consumers(trace)
        bsyms = trace.bound_symbols[1 + depth : -1]
        return lambda: ThunderRegion(made, read, bsyms)

    assert growth(make, 20) > 3


# ----------------------------------------------------------------------------- one long definition


@pytest.mark.parametrize("layer", [residual, reduced])
def test_recording(layer: Layer) -> None:
    def make(depth: int) -> Callable[[], Any]:
        region = whole(layer, depth)
        return lambda: definition(region)

    assert growth(make, 30) < LINEAR


@pytest.mark.parametrize("layer", [residual, reduced])
def test_looking_up(layer: Layer) -> None:
    def make(depth: int) -> Callable[[], Any]:
        records = definition(whole(layer, depth))
        cache = FusionCache()
        cache.look_up(records)
        return lambda: cache.look_up(records)

    assert growth(make, 30) < LINEAR


@pytest.mark.parametrize("layer", [residual, reduced])
def test_defining(layer: Layer) -> None:
    def make(depth: int) -> Callable[[], Any]:
        records = definition(whole(layer, depth))
        return lambda: define(records)

    assert growth(make, 30) < LINEAR


@pytest.mark.parametrize("layer", [residual, reduced])
def test_specialising(layer: Layer) -> None:
    def make(depth: int) -> Callable[[], Any]:
        fusion = define(definition(whole(layer, depth)))
        keys = tuple(
            InputKey((4, 6), (6, 1)) if len(view.shape) == 2 else InputKey((6,), (1,))
            for view in map(fusion.tensors.__getitem__, fusion.inputs)
        )
        return lambda: run_passes(specialise(fusion, keys), compile_options())

    assert growth(make, 30) < LINEAR


def test_what_passes_replace_is_looked_up_once() -> None:
    """Copies and casts to the same type go away; each was once compared with all before it."""

    def make(depth: int) -> Callable[[], Any]:
        with FusionDefinition() as fd:
            t = fd.define_tensor(shape=[4], contiguity=[True], dtype=DataType.Float)
            for _ in range(depth):
                t = fd.ops.exp(fd.ops.cast(fd.ops.set(t), DataType.Float))
            fd.add_output(t)
        fusion = define(fd.definition)
        return lambda: after_row("remove_round_trips", fusion)

    assert growth(make, 60) < LINEAR


def test_asking_for_shapes_while_recording() -> None:
    def make(depth: int) -> Callable[[], Any]:
        def record() -> None:
            with FusionDefinition() as fd:
                t = fd.define_tensor(shape=[4], contiguity=[True], dtype=DataType.Float)
                for _ in range(depth):
                    t = fd.ops.sub(t, fd.ops.var_mean(t)[1])
                fd.add_output(t)

        return record

    assert growth(make, 10) < LINEAR


def test_outputs_written_into_inputs_and_drawn_numbers() -> None:
    """Each alias, and each random op without a seed, once looked through all records."""

    def make(depth: int) -> Callable[[], Any]:
        with FusionDefinition() as fd:
            for _ in range(depth):
                t = fd.define_tensor(shape=[4], contiguity=[True], dtype=DataType.Float)
                noise = fd.ops.uniform(0.0, 1.0, [4], DataType.Float)
                fd.add_output(fd.ops.add(t, noise), alias_input=t)
        records = fd.definition
        return lambda: define(records)

    assert growth(make, 20) < LINEAR


# ------------------------------------------------------------------------------- bounded regions


def regions_of(layer: Layer, depth: int) -> list[Region]:
    return list(claim(partitioned(traced(layer, depth))).regions)


@pytest.mark.parametrize("layer", [residual, reduced])
@pytest.mark.parametrize("depth", [5, 64, 131])
def test_regions_are_bounded_and_keep_every_primitive(layer: Layer, depth: int) -> None:
    outside = claim(partitioned(traced(layer, depth))).outside.values()
    sizes = [sum(1 for bsym in each.unfused for _ in leaves_of(bsym)) for each in outside]
    assert sum(sizes) == len(list(computing(layer, depth)))
    assert all(MIN_OPS <= size <= 2 * MIN_OPS for size in sizes[:-1]) and sizes[-1] <= 2 * MIN_OPS


@pytest.mark.parametrize("layer", [residual, reduced])
def test_only_the_stream_crosses_a_cut(layer: Layer) -> None:
    """Each region reads the stream and its own weights, and returns the stream."""
    for region in regions_of(layer, 100):
        streams = [one for one in region.inputs if one.shape == (4, 6)]
        assert len(streams) == len(region.outputs) == 1
        assert streams[0].dtype == region.outputs[0].dtype == dtypes.bfloat16


@pytest.mark.parametrize("layer", [residual, reduced])
def test_equal_layers_share_their_definitions_at_any_depth(layer: Layer) -> None:
    """All parts are equal but the first, which may be led by a view, and the rest."""
    for depth in (250, 400):
        _, *middle, _ = map(definition, regions_of(layer, depth))
        assert len(middle) > 1 and len(set(middle)) == 1


def test_independent_chains_are_cut_between_them() -> None:
    """As an optimizer's, one chain a parameter: a cut between two moves nothing."""

    def chains(count: int) -> TraceCtx:
        trace = TraceCtx(None)
        with tracectx(trace):
            ends = []
            for a in map(as_float, [given(4, 6) for _ in range(count)]):
                for _ in range(9):
                    a = prims.tanh(a)
                ends.append(a)
            prims.python_return(tuple(ends))
        return trace

    regions = claim(partitioned(chains(100))).regions
    assert [len(region.leaves) for region in regions] == [250, 250, 250, 250]
    assert all(len(region.inputs) == len(region.outputs) == 25 for region in regions)


def test_a_composite_is_never_divided() -> None:
    def function(x: Any) -> Any:
        for _ in range(120):
            x = torch.nn.functional.softmax(x, -1)
        return x

    jitted = jit(function, strict=True)
    x = torch.randn(3, 5)
    torch.testing.assert_close(jitted(x), function(x))
    regions = claims_of(jitted).regions
    made = [Counter(leaf.sym.name for leaf in region.leaves) for region in regions]
    assert len(regions) > 1
    assert all(one["amax"] == one["exp"] == one["sum"] == one["div"] for one in made)


def test_a_deep_pointwise_model_is_right_and_its_kernels_do_not_grow() -> None:
    def function(x: Any, weights: Any) -> Any:
        for weight in weights:
            x = x + torch.tanh(x) * weight
        return x

    torch.manual_seed(0)  # eager's own float32 gradients are off by more, for some numbers
    depth = 125
    x = torch.randn(4, 8, requires_grad=True)
    weights = [torch.randn(8, requires_grad=True) for _ in range(depth)]
    jitted = jit(function, strict=True)
    found = torch.autograd.grad(jitted(x, weights).sum(), [x, *weights])
    expected = torch.autograd.grad(function(x, weights).sum(), [x, *weights])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    sources = [s for one in fusions_of(jitted) for c in compiled(one) for _, s in c.kernels]
    assert len(sources) > depth / 25
    assert len({source.text for source in sources}) <= 8
