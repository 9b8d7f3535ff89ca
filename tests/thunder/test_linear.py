# SPDX-License-Identifier: Apache-2.0
"""No step of ours over a trace or a definition is superlinear in its length; see tests/steps.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from steps import LINEAR, growth
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.core.utils import consumers, producers
from thunder.executors.utils import Region as ThunderRegion

from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.executors.fuser import ThunderFuser
from thunder_fuser.executors.regions import Region, claim
from thunder_fuser.executors.support import support
from thunder_fuser.executors.translate import layout_of, record_region
from thunder_fuser.ir.build import define
from thunder_fuser.ir.record import Definition
from thunder_fuser.presegment import run_passes
from thunder_fuser.presegment.specialise import InputKey, specialise

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


def symbols(layer: Layer, depth: int) -> list[BoundSymbol]:
    return list(traced(layer, depth).bound_symbols)


def computing(layer: Layer, depth: int) -> list[BoundSymbol]:
    """Without the arguments and the return."""
    return symbols(layer, depth)[1 + depth : -1]


def whole(layer: Layer, depth: int) -> Region:
    """All of it as one region, longer than any that is claimed."""
    bsyms = computing(layer, depth)
    return Region.of(bsyms, [bsyms[-1].flat_proxy_outs[0].name])


def definition(region: Region) -> Definition:
    tensors = [torch.empty(one.shape, dtype=torch.bfloat16) for one in region.inputs]
    layouts = [layout_of(tensor) for tensor in tensors]
    return record_region(region.leaves, region.inputs, region.outputs, layouts)


# ------------------------------------------------------------------------------------- the trace


@pytest.mark.parametrize("layer", LAYERS)
def test_claiming(layer: Layer) -> None:
    def make(depth: int) -> Callable[[], Any]:
        bsyms = symbols(layer, depth)
        return lambda: claim(bsyms, support)

    assert growth(make, 100) < LINEAR


@pytest.mark.parametrize("layer", LAYERS)
def test_the_fusion_pass(layer: Layer) -> None:
    fuser = ThunderFuser("linear_test", lambda *given: lambda *args: [])

    def make(depth: int) -> Callable[[], Any]:
        trace = traced(layer, depth)
        return lambda: fuser.fusion_pass(trace)

    assert growth(make, 100) < LINEAR


def test_forming_a_region() -> None:
    def make(depth: int) -> Callable[[], Any]:
        bsyms = computing(residual, depth)
        wanted = [bsyms[-1].flat_proxy_outs[0].name]
        return lambda: Region.of(bsyms, wanted)

    assert growth(make, 100) < LINEAR


def test_thunders_own_region_would_not_pass() -> None:
    """It looks every name up in a list of bound symbols."""

    def make(depth: int) -> Callable[[], Any]:
        trace = traced(residual, depth)
        made, read = producers(trace), consumers(trace)
        bsyms = trace.bound_symbols[1 + depth : -1]
        return lambda: ThunderRegion(made, read, bsyms)

    assert growth(make, 100) > 3


# ----------------------------------------------------------------------------- one long definition


@pytest.mark.parametrize("layer", [residual, reduced])
def test_recording(layer: Layer) -> None:
    def make(depth: int) -> Callable[[], Any]:
        region = whole(layer, depth)
        return lambda: definition(region)

    assert growth(make, 60) < LINEAR


@pytest.mark.parametrize("layer", [residual, reduced])
def test_looking_up(layer: Layer) -> None:
    def make(depth: int) -> Callable[[], Any]:
        records = definition(whole(layer, depth))
        cache = FusionCache()
        cache.look_up(records)
        return lambda: cache.look_up(records)

    assert growth(make, 60) < LINEAR


@pytest.mark.parametrize("layer", [residual, reduced])
def test_defining(layer: Layer) -> None:
    def make(depth: int) -> Callable[[], Any]:
        records = definition(whole(layer, depth))
        return lambda: define(records)

    assert growth(make, 60) < LINEAR


@pytest.mark.parametrize("layer", [residual, reduced])
def test_specialising(layer: Layer) -> None:
    def make(depth: int) -> Callable[[], Any]:
        fusion = define(definition(whole(layer, depth)))
        keys = tuple(
            InputKey((4, 6), (6, 1)) if len(fusion.tensors[name].shape) == 2 else InputKey((6,), (1,))
            for name in fusion.inputs
        )
        return lambda: run_passes(specialise(fusion, keys))

    assert growth(make, 60) < LINEAR
