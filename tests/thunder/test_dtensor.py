# SPDX-License-Identifier: Apache-2.0
"""thunder.jit on DTensors: what becomes a region on local tensors, and what stays with torch.

Regions are formed of Thunder's own primitives. For functions that Thunder lacks (tanh, layer_norm,
..) torch is called between them, forward and backward; values are eager's in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from helpers.meshes import as_rank
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from thunder_fuser import fuser, options
from thunder_fuser.errors import CompileError
from thunder_fuser.executors.run.region_callable import callable_of

WHOLE = Replicate()


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with as_rank(1, 4):
        yield init_device_mesh("cpu", (4,))


def dtensor(mesh: DeviceMesh, *shape: int, placement: Any, seed: int = 0, **more: Any) -> DTensor:
    """One device's part, of this shape."""
    local = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(**more)
    made = DTensor.from_local(local, mesh, [placement], run_check=False)
    return made.requires_grad_() if local.dtype.is_floating_point else made


def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    return thunder.jit(function, executors=[fuser], fuser_strict=True)


def check(
    function: Callable[..., Any], given: list[Any], *, regions: int, tolerance: float | None = None
) -> None:
    """Result and gradients are DTensor's own, and so many regions were formed."""
    result, expected = jitted(function)(*given), function(*given)
    refused = [str(u.reason) for u in fuser.last_claims.unfused]
    assert len(fuser.last_claims.regions) == regions, refused
    assert_same(result, expected, tolerance)
    gradient = torch.ones_like(expected)
    tensors = [t for t in given if isinstance(t, torch.Tensor)]
    ours = torch.autograd.grad(result, tensors, gradient)
    theirs = torch.autograd.grad(expected, tensors, gradient)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        torch.testing.assert_close(mine._local_tensor, other._local_tensor, rtol=tolerance,
                                   atol=tolerance)


def assert_same(result: DTensor, expected: DTensor, tolerance: float | None = None) -> None:
    assert isinstance(result, DTensor)
    assert result.placements == expected.placements and result.shape == expected.shape
    assert result.dtype is expected.dtype
    torch.testing.assert_close(result._local_tensor, expected._local_tensor, rtol=tolerance,
                               atol=tolerance)


def _broadcast(x: Any, y: Any) -> Any:
    return (x - y) * x + y / 3.0


# A function, the regions of its forward and backward.
FUNCTIONS: tuple[tuple[Callable[[Any], Any], int], ...] = (
    (lambda x: 2.0 - x, 0),
    (lambda x: x / 3.0, 0),
    (lambda x: 3.0 / (x * x + 1.0), 2),
    (lambda x: torch.div(x, 0.3, rounding_mode="floor") + x, 2),
    (lambda x: x.sub(x * x, alpha=2), 2),
    (torch.tanh, 0),
    (lambda x: x.tanh() + torch.relu(x), 2),
    (F.relu, 0),
    (torch.sigmoid, 0),
    (F.gelu, 0),
    (lambda x: F.gelu(x, approximate="tanh"), 0),
    (F.silu, 2),
    (lambda x: torch.softmax(x, -1), 0),
    (lambda x: F.softmax(x, dim=1), 0),
    (lambda x: F.softmax(x, 1, 3, torch.float64) * x, 3),
    (lambda x: F.layer_norm(x, (8,)), 0),
    (lambda x: x.sum(1) * 2.0, 2),
    (lambda x: torch.sum(x, dim=1, keepdim=True) * x, 3),
    (lambda x: torch.exp(-x) + torch.reciprocal(x * x + 1.0), 2),
)


@pytest.mark.parametrize(("function", "regions"), FUNCTIONS)
def test_functions(mesh: DeviceMesh, function: Callable[[Any], Any], regions: int) -> None:
    check(function, [dtensor(mesh, 3, 8, placement=Shard(0))], regions=regions)


def test_a_sum_of_all_elements(mesh: DeviceMesh) -> None:
    check(lambda x: x.sum() * 2.0, [dtensor(mesh, 3, 8, placement=WHOLE)], regions=2)


def test_torch_runs_what_thunder_lacks(mesh: DeviceMesh) -> None:
    """Between two regions, and it says so."""
    x = dtensor(mesh, 3, 8, placement=Shard(0))
    check(lambda x: F.gelu(x * x + x) * x + 1.0, [x], regions=4)
    forward, backward = fuser.last_claims.unfused
    assert (forward.name, backward.name) == ("dtensor_gelu", "dtensor_gelu_gradients")
    assert "torch runs it on DTensors" in str(forward.reason)


def test_functions_that_only_torch_has(mesh: DeviceMesh) -> None:
    x = dtensor(mesh, 3, 8, placement=Shard(0))
    with pytest.raises(AssertionError, match="Expected all inputs to be TensorProxy"):
        jitted(torch.cos)(x)
    with pytest.raises((AssertionError, TypeError)):
        jitted(lambda x: F.relu(x, inplace=True))(x)


def test_a_gradient_that_is_passed_on(mesh: DeviceMesh) -> None:
    check(lambda x: x + 2.0, [dtensor(mesh, 3, 8, placement=Shard(0))], regions=1)


def test_bfloat16(mesh: DeviceMesh) -> None:
    x = dtensor(mesh, 3, 64, placement=Shard(0), dtype=torch.bfloat16)
    check(lambda x: F.gelu(x) * 2.0 - x, [x], regions=3, tolerance=3e-2)


def test_operands_that_are_broadcast(mesh: DeviceMesh) -> None:
    x, y = dtensor(mesh, 3, 8, placement=Shard(0)), dtensor(mesh, 3, 1, placement=Shard(0), seed=1)
    check(lambda x, y: x - y, [x, y], regions=0)
    check(lambda x, y: x + y, [x, y], regions=1)
    jitted(_broadcast)(x, y)
    assert fuser.last_claims.regions


def test_a_sharded_block(mesh: DeviceMesh) -> None:
    """Layer norm on whole rows, a column-parallel linear, its activation."""
    def block(x: Any, lw: Any, lb: Any, w: Any, b: Any) -> Any:
        h = F.linear(F.layer_norm(x, (16,), lw, lb), w, b)
        return F.gelu(h) / 2.0 - torch.tanh(h)

    given = [
        dtensor(mesh, 5, 16, placement=WHOLE), dtensor(mesh, 16, placement=WHOLE, seed=1),
        dtensor(mesh, 16, placement=WHOLE, seed=2),
        dtensor(mesh, 8, 16, placement=Shard(0), seed=3),
        dtensor(mesh, 8, placement=Shard(0), seed=4),
    ]
    check(block, given, regions=1)
    names = {torch_call.name for torch_call in fuser.last_claims.unfused}
    assert {"dtensor_layer_norm", "dtensor_gelu", "dtensor_gelu_gradients"} <= names


def test_layer_norm_whole_on_every_device(mesh: DeviceMesh) -> None:
    """The gradients of weight and bias sum over rows, which each device has all of."""
    given = [dtensor(mesh, *shape, placement=WHOLE, seed=at)
             for at, shape in enumerate([(5, 16), (16,), (16,)])]
    check(lambda x, w, b: F.layer_norm(x, (16,), w, b), given, regions=0)


ONE_ROW = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (16,), w, b), (16,)),
    "linear": (F.linear, (8, 16)),
}


@pytest.mark.parametrize("name", ONE_ROW)
def test_a_single_row(mesh: DeviceMesh, name: str) -> None:
    """There is no axis to sum a gradient over."""
    function, weight = ONE_ROW[name]
    shapes = ((16,), weight, weight[:1])
    given = [dtensor(mesh, *shape, placement=WHOLE, seed=at) for at, shape in enumerate(shapes)]
    check(function, given, regions=0)


def test_sums_over_devices_stay_with_torch(mesh: DeviceMesh) -> None:
    x = dtensor(mesh, 3, 8, placement=Shard(0))
    result = jitted(lambda x: torch.sum(torch.exp(x), 0))(x)
    assert result.placements[0].is_partial()
    assert fuser.last_claims.unfused[0].name == "dtensor_sum"
    assert [leaf.sym.name for leaf in fuser.last_claims.regions[0].leaves] == ["dtensor_exp_prim"]


def test_other_placements_are_another_trace(mesh: DeviceMesh) -> None:
    function = jitted(lambda x: torch.tanh(x) - x / 2.0)
    for placement in (Shard(0), Shard(1), WHOLE):
        x = dtensor(mesh, 4, 8, placement=placement)
        assert_same(function(x), torch.tanh(x) - x / 2.0)


def test_strides_of_the_part(mesh: DeviceMesh) -> None:
    function = jitted(lambda x: torch.tanh(x) - x / 2.0)
    for turned in (False, True):
        local = torch.randn(8, 4).t() if turned else torch.randn(4, 8)
        x = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
        result = function(x)
        torch.testing.assert_close(result._local_tensor, torch.tanh(local) - local / 2.0)


def test_plain_tensors_beside_dtensors_are_refused(mesh: DeviceMesh) -> None:
    x = dtensor(mesh, 3, 8, placement=Shard(0))
    with pytest.raises(AssertionError, match="Expected all inputs to be TensorProxy"):
        jitted(lambda x, y: x - y)(x, torch.ones(12, 8))


def test_a_region_that_does_not_compile_runs_torch(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise CompileError("the kernel", got="a test")

    monkeypatch.setattr(fuser, "compile_region", fail)
    x = dtensor(mesh, 3, 8, placement=Shard(0))
    function = thunder.jit(lambda x: torch.exp(x) + x * 2.0, executors=[fuser])
    with pytest.warns(UserWarning, match="falls back to torch for 3 ops"):
        result = function(x)
    assert_same(result, torch.exp(x) + x * 2.0)


def test_repro_script_of_a_region(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    from thunder_fuser.host.script import repro_text

    jitted(lambda x: torch.exp(x) + x * 2.0)(dtensor(mesh, 3, 8, placement=Shard(0)))
    definitions = list(_definitions())
    text = repro_text("region", "why", definitions[-1], [torch.zeros(3, 8)])
    for line in ("T0.set_device_mesh([0, 1, 2, 3])", "T0.split(0, 4, False)",
                 "T0.parallelize(0, 'mesh_x')", "init_process_group"):
        assert line in text


def _definitions() -> Iterator[Any]:
    for bsym in fuser.last_fused_trace.bound_symbols:
        call = callable_of(bsym)
        if call is not None:
            yield from call.definitions


def test_plain_tensors_are_as_before() -> None:
    x = torch.randn(4, 8)
    with options(strict=True):
        result = thunder.jit(lambda x: F.gelu(x) - x / 2.0, executors=[fuser])(x)
    torch.testing.assert_close(result, F.gelu(x) - x / 2.0)
