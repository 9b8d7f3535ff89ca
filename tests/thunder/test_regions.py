# SPDX-License-Identifier: Apache-2.0
"""Which bound symbols become regions, which stay with torch, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from thunder.core import devices, dtypes, prims
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser import target
from thunder_fuser.errors import AliasError
from thunder_fuser.executors.fuser import ThunderFuser
from thunder_fuser.executors.pipeline import read_trace
from thunder_fuser.executors.regions.claim import Claims, claim
from thunder_fuser.executors.regions.plan import Plan, PlanOptions
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.executors.regions.writes import refuse_stale_reads
from thunder_fuser.multi_device import LowerParams
from thunder_fuser.options import compile_options
from thunder_fuser.trace.dataflow import DataFlow
from thunder_fuser.trace.prepared import Pass, run_passes
from thunder_fuser.trace.rewrites.functionalize import leave_written_views
from thunder_fuser.trace.rewrites.reorder_matmuls import reorder_matmuls
from thunder_fuser.trace.rewrites.split_regions import partition

CHECKED = PlanOptions(
    donation=True, joins_writes=True, in_graphs=False, checks_reads=True, prefix="thunderFusion",
    lower=LowerParams(), executor=None,
)  # fmt: skip
CPU, GPU0, GPU1 = devices.cpu, devices.Device("cuda:0"), devices.Device("cuda:1")


def proxy(*shape: int, device: Any = CPU, dtype: Any = dtypes.float32) -> TensorProxy:
    return TensorProxy(shape=shape, device=device, dtype=dtype, requires_grad=False)


def traced(build: Callable[[], Any]) -> TraceCtx:
    """The bound symbols that `build` makes, and a return of its result."""
    trace = TraceCtx(None)
    with tracectx(trace):
        prims.python_return(build())
    return trace


def claims_of_trace(trace: TraceCtx) -> Claims:
    """The claims of a trace, its regions found without rewriting it."""
    passes = (leave_written_views, reorder_matmuls, partition)
    prepared = run_passes([*map(Pass, passes)], read_trace(trace, target.CPU, compile_options()))
    return claim(prepared.flow)


def claimed(build: Callable[[], Any]) -> Claims:
    return claims_of_trace(traced(build))


def kinds(claims: Claims) -> list[Any]:
    """The items: a list of ops for a region, the op's name for what torch runs."""
    return [
        [leaf.sym.name for leaf in item.leaves] if isinstance(item, Region) else item.sym.name
        for item in claims.items
    ]


def test_a_run_becomes_one_region() -> None:
    claims = claimed(lambda: prims.exp(prims.mul(proxy(3), 2.0)))
    assert kinds(claims) == [["mul", "exp"], "python_return"]
    (region,) = claims.regions
    assert len(region.inputs) == len(region.outputs) == 1


def test_views_at_the_edges_stay_with_torch() -> None:
    def build() -> Any:
        a = prims.transpose(prims.reshape(proxy(3, 4), (4, 3)), (1, 0))
        b = prims.exp(a)
        return prims.reshape(b, (12,))

    assert kinds(claimed(build)) == ["reshape", "transpose", ["exp"], "reshape", "python_return"]


def test_slices_enter_only_for_what_computes() -> None:
    def build() -> Any:
        a = proxy(8)
        used, unused = prims.slice_prim(a, (0,), (4,)), prims.slice_prim(a, (4,), (8,))
        return prims.exp(used), unused

    claims = claimed(build)
    assert kinds(claims) == ["slice_prim", ["slice_prim", "exp"], "python_return"]


def test_a_view_in_the_middle_is_inside() -> None:
    claims = claimed(lambda: prims.exp(prims.transpose(prims.exp(proxy(3, 4)), (1, 0))))
    assert kinds(claims) == [["exp", "transpose", "exp"], "python_return"]


def test_only_views_are_a_region_without_a_kernel() -> None:
    def build() -> Any:
        return prims.broadcast_in_dim(prims.slice_prim(proxy(8), (0,), (4,)), (2, 4), (1,))

    claims = claimed(build)
    (region,) = claims.regions
    assert region.makes_views and kinds(claims)[0] == ["slice_prim", "broadcast_in_dim"]
    assert claims.unfused == ()


def test_views_around_what_torch_computes_say_so() -> None:
    """A region that computes keeps its edges free of views."""
    claims = claimed(lambda: prims.exp(prims.transpose(proxy(2, 4), (1, 0))))
    assert [str(u.reason) for u in claims.unfused] == ["a view, which torch makes without a kernel"]


def test_a_view_that_both_sides_use_is_made_by_both() -> None:
    def build() -> Any:
        row = prims.sum(proxy(4, 8), (1,))
        wide = prims.broadcast_in_dim(row, (4, 8), (0,))
        return prims.exp(wide), wide

    claims = claimed(build)
    (region,) = claims.regions
    assert [leaf.sym.name for leaf in region.leaves] == ["sum", "broadcast_in_dim", "exp"]
    assert [tuple(out.shape) for out in region.outputs] == [(4,), (4, 8)]
    assert [leaf.sym.name for leaf in claims.outside[region.number].exits] == ["broadcast_in_dim"]


def test_views_outside_that_a_region_reads_are_repeated_in_it() -> None:
    def build() -> Any:
        row = proxy(4)
        wide = prims.broadcast_in_dim(row, (4, 8), (0,))
        product = prims.matmul(wide, proxy(8, 8))
        return prims.mul(product, wide)

    views, region = claimed(build).regions
    assert [leaf.sym.name for leaf in views.leaves] == ["broadcast_in_dim"]
    assert [leaf.sym.name for leaf in region.leaves] == ["broadcast_in_dim", "mul"]
    assert [tuple(p.shape) for p in region.inputs] == [(4,), (4, 8)]


def test_dead_code_and_its_inputs_are_left_out() -> None:
    def build() -> Any:
        a, b = proxy(3), proxy(3)
        prims.add(a, b)
        return prims.exp(a)

    (region,) = claimed(build).regions
    assert [leaf.sym.name for leaf in region.leaves] == ["exp"]
    assert len(region.inputs) == 1


def test_devices_are_not_mixed() -> None:
    def build() -> Any:
        return tuple(prims.exp(proxy(3, device=where)) for where in (CPU, GPU0, GPU1))

    assert kinds(claimed(build)) == [["exp"], ["exp"], ["exp"], "python_return"]


def test_a_cpu_number_may_stand_beside_gpu_tensors() -> None:
    (region,) = claimed(lambda: prims.mul(proxy(3, device=GPU0), proxy())).regions
    assert len(region.inputs) == 2


def test_directions_are_not_mixed(fuser: ThunderFuser) -> None:
    claims = _jit(fuser, lambda x: torch.exp(x).sum(), torch.randn(3, requires_grad=True))
    assert [region.is_backward for region in claims.regions] == [False, True]


def test_an_in_place_copy_keeps_its_place_in_a_region(fuser: ThunderFuser) -> None:
    def function(x: Any) -> Any:
        y = x * 2
        x.add_(1)
        return y + x

    _jit(fuser, function, torch.randn(3))
    assert fuser.last_fused_trace is not None
    heard = [
        [part.sym.name for part in bsym.subsymbols] if bsym.sym.is_fusion else bsym.sym.name
        for bsym in fuser.last_fused_trace.bound_symbols
        if bsym.sym.name not in ("unpack_trivial", "update_aliases")
    ]
    inside, after = heard
    assert [name for name in inside if name != "update_aliases"] == ["mul", "add", "copy_", "add"]
    assert after == "python_return"


def test_views_that_are_written_stay_views(fuser: ThunderFuser) -> None:
    def function(x: Any) -> Any:
        z = torch.exp(x)
        view = z.view(2, -1)
        view.mul_(2)
        return z

    x = torch.randn(4, 3)
    claims = _jit(fuser, function, x)
    torch.testing.assert_close(thunder.jit(function, executors=[fuser])(x), torch.exp(x) * 2)
    assert "a view of a tensor that is written in place" in {
        str(u.reason) for u in claims.unfused
    }


REASONS = [
    (lambda: prims.expm1(proxy(3, dtype=dtypes.complex64)), "expm1 of complex64"),
    (lambda: prims.neg(proxy(3, dtype=dtypes.float8_e4m3fn)), "neg of float8_e4m3fn"),
    (lambda: prims.clone(proxy(*[1] * 9)), "is over 8"),
    (lambda: prims.clone(proxy(3, device=devices.Device("meta"))), "device meta"),
    (lambda: prims.pad(proxy(0), 0.0, ((0, 1, 1),)), "pad between the elements of an empty axis"),
    (lambda: prims.sub(proxy(3, dtype=dtypes.bool8), True), "sub of bool8"),
    (lambda: prims.sum(proxy(3, dtype=dtypes.bool8), (0,)), "sum of bool8"),
    (lambda: prims.frexp(proxy(8))[0], "no rule for frexp"),
    (lambda: prims.pow(proxy(3, dtype=dtypes.int64), -1), "an integer to a negative power"),
    (lambda: prims.amax(proxy(0, 3), (0,)), "amax, amin, argmax or argmin over an empty dimension"),
    (lambda: prims.convert_element_type(proxy(3), dtypes.complex32), "dtype"),
]


def test_a_region_refused_as_a_whole_names_each_op_and_the_reason() -> None:
    def build() -> Any:
        made = prims.full((3,), 1.0, device=GPU0, dtype=dtypes.float32)
        return prims.exp(made)

    claims = claimed(build)
    assert kinds(claims) == ["full", "exp", "python_return"]
    assert {(u.name, str(u.reason)) for u in claims.unfused} == {
        (name, "only creates GPU tensors, at which torch is as fast")
        for name in ("full", "exp")
    }


def test_what_nobody_reads_says_so() -> None:
    def build() -> Any:
        a = proxy(3)
        prims.exp(a)
        return a

    (only,) = claimed(build).unfused
    assert (only.name, str(only.reason)) == ("exp", "nothing reads its result")


@pytest.mark.parametrize(("build", "reason"), REASONS, ids=[reason for _, reason in REASONS])
def test_refusals_have_reasons(build: Callable[[], Any], reason: str) -> None:
    claims = claimed(build)
    assert claims.regions == ()
    assert any(reason in str(u.reason) for u in claims.unfused), claims.unfused


def test_composites_and_torch_ops_have_the_reason_of_their_parts(fuser: ThunderFuser) -> None:
    def function(x: Any) -> Any:
        return F.linear(x, x), torch.argsort(x)

    claims = _jit(fuser, function, torch.randn(3, 3))
    assert {u.name: str(u.reason) for u in claims.unfused} == {
        "linear": "torch has a kernel for it",
        "argsort": "a torch call that is not between fused ops",
    }  # fmt: skip


def test_reading_what_was_written_in_place_is_an_error() -> None:
    def build() -> Any:
        x = proxy(3)
        y = prims.exp(x)
        prims.copy_(y, x, grad_enabled=True)
        return prims.add(x, y)

    trace = traced(build)
    claims = claims_of_trace(trace)
    with pytest.raises(AliasError) as caught:
        refuse_stale_reads(Plan(trace, DataFlow(()), claims.items, CHECKED))
    copy = next(bsym for bsym in trace.bound_symbols if bsym.sym.id is PrimIDs.COPY_)
    names = [copy.flat_proxy_args[1].name, copy.flat_proxy_args[0].name, "thunderFusion1"]
    assert all(name in str(caught.value) for name in names)


def _jit(fuser: ThunderFuser, function: Callable[..., Any], *args: Any) -> Claims:
    thunder.jit(function, executors=[fuser])(*args)
    assert fuser.last_claims is not None
    return fuser.last_claims
